"""What a recording holds: the kinds of case, and their JSON lines.

Ids, texts and bytes are in the line itself. Numbers that came as float32 lie in the set's arrays, exact, and a case
says which rows are its own.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """Next-token log-probabilities after the first `n` ids of a prompt, for each `n` of `lengths`.

    Each was asked for on its own, as `request` with that prompt. Rows `first_row ..` of the set's distribution
    arrays, one a length (see `RecordingSet.distribution`). `digest` is the sha256 of the full rows as little-endian
    float32, whether or not the set keeps them in full.
    """

    kind: ClassVar[str] = "distribution"
    name: str
    ids: tuple[int, ...]
    lengths: tuple[int, ...]
    request: Mapping[str, Any]
    first_row: int
    digest: str


@dataclass(frozen=True, kw_only=True)
class Greedy:
    """The ids a prompt is continued with at temperature 0.

    `first_step` is where the case's log-probability margins (best minus second best, one a step) begin in the set's
    array `margins`.
    """

    kind: ClassVar[str] = "greedy"
    name: str
    prompt: tuple[int, ...]
    request: Mapping[str, Any]
    ids: tuple[int, ...]
    stop_type: str
    first_step: int


@dataclass(frozen=True, kw_only=True)
class Seeded:
    """The ids a prompt is continued with under the sampling fields and the seed in `request`."""

    kind: ClassVar[str] = "seeded"
    name: str
    prompt: tuple[int, ...]
    request: Mapping[str, Any]
    ids: tuple[int, ...]
    stop_type: str


@dataclass(frozen=True, kw_only=True)
class Drafted:
    """The ids a prompt is continued with while the server drafts with the model's own layer.

    `proposed` and `accepted` are the server's counts of drafted ids and of those that were the request's own picks.
    """

    kind: ClassVar[str] = "drafted"
    name: str
    prompt: tuple[int, ...]
    request: Mapping[str, Any]
    ids: tuple[int, ...]
    stop_type: str
    proposed: int
    accepted: int


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One HTTP request and its answer, byte for byte.

    `body` is the request's (None without one). `response` is the whole answer's body; `chunks` is the same bytes as the
    server cut them, None when it sent them in one piece.
    """

    kind: ClassVar[str] = "exchange"
    name: str
    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes | None
    status: int
    response_headers: tuple[tuple[str, str], ...]
    response: bytes
    chunks: tuple[bytes, ...] | None


Case = Distribution | Greedy | Seeded | Drafted | Exchange
C = TypeVar("C", Distribution, Greedy, Seeded, Drafted, Exchange)
KINDS: Mapping[str, type[Case]] = {kind.kind: kind for kind in (Distribution, Greedy, Seeded, Drafted, Exchange)}


def _to_text(raw: bytes | None) -> Any:
    """Bytes as text where they are UTF-8, else as {"base64": ...}."""
    if raw is None:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}


def _to_bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return base64.b64decode(value["base64"], validate=True)


def _pairs(value: Any) -> tuple[tuple[str, str], ...]:
    return tuple((str(name), str(text)) for name, text in value)


def to_json(case: Case) -> Json:
    """The case's line, as an object."""
    line: Json = {"kind": case.kind, **vars(case)}
    if isinstance(case, Exchange):
        line["body"] = _to_text(case.body)
        # The whole body is its chunks, so only one of the two is written.
        del line["response" if case.chunks is not None else "chunks"]
        if case.chunks is not None:
            line["chunks"] = [_to_text(chunk) for chunk in case.chunks]
        else:
            line["response"] = _to_text(case.response)
    return line


def from_json(line: Json) -> Case:
    """The inverse of `to_json`.  Raises KeyError, TypeError or ValueError on a line that is no case."""
    fields = dict(line)
    kind: Literal["distribution", "greedy", "seeded", "drafted", "exchange"] = fields.pop("kind")
    if kind == "exchange":
        chunks = fields.pop("chunks", None)
        fields["chunks"] = None if chunks is None else tuple(_to_bytes(chunk) for chunk in chunks)
        whole = fields.pop("response", None)
        fields["response"] = _to_bytes(whole) if fields["chunks"] is None else b"".join(fields["chunks"])
        fields["body"] = None if fields["body"] is None else _to_bytes(fields["body"])
        fields["headers"], fields["response_headers"] = _pairs(fields["headers"]), _pairs(fields["response_headers"])
    for name in ("ids", "prompt", "lengths"):
        if name in fields:
            fields[name] = tuple(int(value) for value in fields[name])
    return KINDS[kind](**fields)
