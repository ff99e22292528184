"""A request's body: its content coding, its size, and the JSON object in it."""

from __future__ import annotations

import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Mapping
from typing import Any, NoReturn

from bloomery.server.errors import ApiError, invalid_request

BODY_LIMIT = 64 * 1024 * 1024
NESTING_LIMIT = 128

# A gzip member, and a zlib stream, as zlib's window argument names them.
_WINDOW_BITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
# Bytes that are decoded at once to measure a stream.
_PIECE = 1 << 18
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


class Repeated(dict[str, Any]):
    """A JSON object in which keys stand twice; the last value counts, as in llama-server."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.repeated = tuple(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)


def content_coding(headers: Mapping[str, str]) -> str | None:
    """The coding a body was sent in; None when it was sent plainly.

    `headers` has WSGI's spelling of names. Raises the 415 that names the codings this server reads.
    """
    coding = headers.get("CONTENT_ENCODING", "").strip(" \t").lower()
    if coding in {"", "identity"}:
        return None
    if coding not in _WINDOW_BITS:
        raise ApiError(
            415,
            "invalid_request_error",
            f"Content-Encoding {coding[:40]!r} is not supported; send the body plainly, or as one of gzip, deflate",
        )
    return coding


def too_large(what: str = "body") -> ApiError:
    """The 400 of a body past the limit."""
    return invalid_request(f"{what} too large: at most {BODY_LIMIT} bytes are read")


def decode(data: bytes, coding: str | None) -> bytes:
    """The bytes a body stands for.

    Raises a 400 for a body past the limit before or after decoding, one that does not decode, and one with bytes past
    its stream.
    """
    if len(data) > BODY_LIMIT:
        raise too_large()
    if coding is None or not data:
        return data
    # A stream is measured first, piece by piece, so that however many bombs come at once, none is held in memory.
    size = _decoded_size(data, coding)
    return zlib.decompress(data, _WINDOW_BITS[coding], max(size, 1))


def _decoded_size(data: bytes, coding: str) -> int:
    stream = zlib.decompressobj(_WINDOW_BITS[coding])
    size = 0
    try:
        for start in range(0, len(data), _PIECE):
            piece: bytes | memoryview = memoryview(data)[start : start + _PIECE]
            while True:
                decoded = len(stream.decompress(piece, _PIECE))
                size += decoded
                if size > BODY_LIMIT:
                    raise too_large("decoded body")
                piece = stream.unconsumed_tail
                if not piece and decoded < _PIECE:
                    break
            if stream.eof:
                if stream.unused_data or start + _PIECE < len(data):
                    raise invalid_request(f"the body carries bytes past the end of its {coding} stream")
                return size
    except zlib.error as error:
        raise invalid_request(f"the body is no valid {coding} stream: {error}") from None
    raise invalid_request(f"the body's {coding} stream is cut short")


def json_object(data: bytes) -> dict[str, Any]:
    """The JSON object a body holds.

    Raises a 400 for text that is not JSON (RFC 8259: no NaN, no lone surrogate, valid UTF-8), a number too large for a
    double, nesting past 128 levels, and JSON that is no object.
    """
    value = _parse(data)
    if not isinstance(value, dict):
        raise invalid_request("the request body must be a JSON object")
    return value


def _parse(data: bytes) -> Any:
    try:
        text = data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        raise _syntax_error(line, column, "ill-formed UTF-8 byte") from None
    # Repeated keys only ever matter in logit_bias; without it the plain dictionary of the fast path does.
    pairs = _object if b'"logit_bias"' in data else None
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=pairs)
        if _SURROGATE_ESCAPE.search(data):
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise _syntax_error(error.lineno, error.colno, error.msg) from None
    except UnicodeEncodeError:
        raise invalid_request(
            "[json.exception.parse_error.101] parse error: invalid string: a surrogate escape stands alone"
        ) from None
    except RecursionError:
        raise _nested_too_deep() from None
    except ValueError:
        # Python converts no integer of thousands of digits, and no field could hold one.
        raise invalid_request(
            "[json.exception.out_of_range.406] number overflow: an integer of too many digits"
        ) from None
    if isinstance(value, dict | list) and data.count(b"[") + data.count(b"{") > NESTING_LIMIT:
        _check_nesting(value)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    plain = dict(pairs)
    return plain if len(plain) == len(pairs) else Repeated(pairs)


def _no_constant(name: str) -> NoReturn:
    raise invalid_request(f"[json.exception.parse_error.101] parse error: invalid literal {name}")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise invalid_request(f"[json.exception.out_of_range.406] number overflow parsing '{digits[:40]}'")
    return value


def _syntax_error(line: int, column: int, what: str) -> ApiError:
    return invalid_request(
        f"[json.exception.parse_error.101] parse error at line {line}, column {column}: syntax error: {what}"
    )


def _nested_too_deep() -> ApiError:
    return invalid_request(f"the request body nests deeper than {NESTING_LIMIT} levels")


def _check_nesting(value: dict[str, Any] | list[Any]) -> None:
    level: list[Any] = [value]
    for _ in range(NESTING_LIMIT):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise _nested_too_deep()
