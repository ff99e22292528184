"""What differs between two runs of the same request, replaced by a fixed stand-in, so that answers can be compared.

Times, random ids and build names go; their kind and an id's prefix stay. Everything else must be equal, key order
included.
"""

from __future__ import annotations

import json
import re
from typing import Any

_VOLATILE_KEYS = frozenset(
    {
        "created",
        "modified_at",
        "t_start_generation",
        "t_start_process_prompt",
        "system_fingerprint",
        "build_info",
        "media_marker",
        "time_ms",
        "server_pid",
    }
)
_VOLATILE_SUFFIXES = ("_ms", "_per_second", "_seconds")
_RANDOM_ID = re.compile(r"(chatcmpl-|cmpl-|call_(?:\d+_)?|resp_|msg_)?[A-Za-z0-9]{16,40}")

# What stands for a number or a text that is never the same.
NUMBER, TEXT = "<volatile number>", "<volatile text>"


def is_volatile(key: str) -> bool:
    """Whether the value of a key is a time, a rate, a random id, or names the build."""
    return key in _VOLATILE_KEYS or key.endswith(_VOLATILE_SUFFIXES)


def settled(value: Any) -> Any:
    """A JSON value with its volatile parts replaced."""
    if isinstance(value, list):
        return [settled(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: _stand_in(key, inner) for key, inner in value.items()}


def _stand_in(key: str, value: Any) -> Any:
    if key in {"id", "tool_call_id"} and isinstance(value, str) and (random := _RANDOM_ID.fullmatch(value)):
        return f"{random[1] or ''}{TEXT}"
    if is_volatile(key):
        if isinstance(value, str):
            return TEXT
        if isinstance(value, int | float) and not isinstance(value, bool):
            return NUMBER
    return settled(value)


def settled_body(body: bytes) -> Any:
    """A JSON body settled; an SSE body as the list of its events' data settled; any other body as its text."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return body
    if text.startswith("data:"):
        return [settled_event(event) for event in text.split("\n\n") if event]
    try:
        return settled(json.loads(text))
    except ValueError:
        return text


def settled_event(event: str) -> Any:
    """One SSE event: its data settled where it is JSON, else the text."""
    data = event.removeprefix("data:").strip()
    try:
        return settled(json.loads(data))
    except ValueError:
        return event
