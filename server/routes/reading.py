"""Reading a route's request."""

from __future__ import annotations

from typing import Any

import falcon

from bloomery.server.body import BODY_LIMIT, content_coding, decode, json_object
from bloomery.server.errors import invalid_request
from bloomery.server.field_types import kind


def read_body(req: falcon.Request) -> dict[str, Any]:
    """The JSON object of a request's body; its Content-Type is not looked at.  Raises a 400, or the 415 of a coding."""
    data = req.bounded_stream.read(BODY_LIMIT + 1)
    coding = content_coding({"CONTENT_ENCODING": req.get_header("Content-Encoding", default="")}) if data else None
    return json_object(decode(data, coding))


def flag(body: dict[str, Any], name: str, default: bool) -> bool:
    """A boolean field; null is unset."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise invalid_request(f"Field '{name}': type must be boolean, but is {kind(value)}", name)
    return value
