"""llama-server's error object as an HTTP answer."""

from __future__ import annotations

from bloomery.server.errors import ApiError
from bloomery.server.render.json_text import CONTENT_TYPE, json_bytes

ACCEPTED_CODINGS = "gzip, deflate"


def error_body(error: ApiError) -> bytes:
    """The JSON text of an error."""
    return json_bytes(error.body())


def error_headers(error: ApiError) -> dict[str, str]:
    """The headers that belong to an error: its type, when to come back, and which codings would have been read."""
    headers = {"Content-Type": CONTENT_TYPE}
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    if error.code == 415:
        headers["Accept-Encoding"] = ACCEPTED_CODINGS
    return headers
