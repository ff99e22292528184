"""Takes out of a recorded exchange what is nobody's business: keys, folders and times.

What stays compares as before: a time keeps its kind, a path its last part, a header its name. A stream is cut anew, an
event a chunk, because a server's cuts may lie inside what is taken out.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from bloomery.conformance.cases import Case, Exchange
from bloomery.conformance.volatile import is_volatile

REDACTED = "redacted"
_SECRET_HEADERS = frozenset(
    {"authorization", "proxy-authorization", "x-api-key", "api-key", "cookie", "set-cookie", "www-authenticate"}
)
# A sample of Prometheus's that is a time.
_TIMED_SAMPLE = re.compile(r"^(\S+_seconds(?:_total)?(?:\{[^}]*\})?) \S+$", re.MULTILINE)


def redacted(case: Case, model_path: str = "") -> Case:
    """The case without them; `model_path` is the path whose folder is taken out of every text."""
    if not isinstance(case, Exchange):
        return case
    folder = str(PurePath(model_path).parent) + "/" if "/" in model_path else ""
    chunks = None
    if case.chunks is not None:
        chunks = tuple(_event(event, folder) for event in case.response.split(b"\n\n") if event)
    response = b"".join(chunks) if chunks is not None else _body(case.response, folder)
    return replace(
        case,
        headers=_headers(case.headers, folder),
        response_headers=_headers(case.response_headers, folder),
        response=response,
        chunks=chunks,
    )


def _headers(headers: tuple[tuple[str, str], ...], folder: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, _header(name.lower(), value, folder)) for name, value in headers)


def _header(name: str, value: str, folder: str) -> str:
    if name in _SECRET_HEADERS:
        return REDACTED
    return "0" if name == "process-start-time-unix" else _without(value, folder)


def _event(event: bytes, folder: str) -> bytes:
    head = b"data: " if event.startswith(b"data: ") else b""
    return head + _body(event.removeprefix(head), folder) + b"\n\n"


def _body(body: bytes, folder: str) -> bytes:
    try:
        value = json.loads(body)
    except ValueError:
        text = _without(body.decode("utf-8", "surrogateescape"), folder)
        return _TIMED_SAMPLE.sub(r"\1 0", text).encode("utf-8", "surrogateescape")
    changed = _value(value, "", folder)
    # An answer without anything to take out stays byte for byte.
    if changed == value:
        return body
    # Half a surrogate pair has no UTF-8; as an escape it stays what it was.
    return json.dumps(changed, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def _value(value: Any, key: str, folder: str) -> Any:
    if isinstance(value, dict):
        return {name: _value(inner, name, folder) for name, inner in value.items()}
    if isinstance(value, list):
        return [_value(inner, key, folder) for inner in value]
    if isinstance(value, str):
        return PurePath(value).name if key.endswith("path") else _without(value, folder)
    if isinstance(value, int | float) and not isinstance(value, bool) and is_volatile(key):
        return type(value)(0)
    return value


def _without(text: str, folder: str) -> str:
    return text.replace(folder, "") if folder else text
