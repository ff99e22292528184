"""Server-sent events: one JSON object an event, framed as llama-server frames them."""

from __future__ import annotations

from typing import Any

from bloomery.server.render.json_text import json_bytes

DONE = b"data: [DONE]\n\n"


def event(payload: Any) -> bytes:
    """The bytes of one event. JSON escapes every line break, so an event is always a single data line."""
    return b"data: " + json_bytes(payload) + b"\n\n"
