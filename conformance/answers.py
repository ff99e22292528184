"""An HTTP answer as one JSON value, `{"status", "headers", "body"}`, and where two of them differ.

What two runs of one request never agree on is settled (`volatile`). A stream's body is the list of its events: where
the server cut its bytes into chunks says nothing. A page of metrics is an object from names to kind and values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from bloomery.conformance.volatile import NUMBER, settled_body

Json = dict[str, Any]

# Headers of the connection and of the server itself.
_TRANSPORT = {"date", "server", "via", "connection", "keep-alive", "content-length", "transfer-encoding"}
_SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?P<labels>\{[^}]*\})? (?P<value>\S+)")
_TIMED = ("_seconds", "_seconds_total")

# How far a log-probability may be from the recorded one: what F32 weights are held to over a whole vocabulary.
LOGPROB_BAND = 2e-4


class _Absent:
    def __repr__(self) -> str:
        return "nothing"


ABSENT: Final = _Absent()


@dataclass(frozen=True)
class Difference:
    """One place where two answers differ; ABSENT on the side that has nothing there."""

    path: str
    theirs: Any
    ours: Any

    def __str__(self) -> str:
        return f"{self.path}: recorded {_shortened(self.theirs)}, answered {_shortened(self.ours)}"


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:157]}..."


def as_json(status: int, headers: Iterable[tuple[str, str]], body: bytes) -> Json:
    """The answer as a JSON value, settled."""
    kept = {name.lower(): value for name, value in headers if name.lower() not in _TRANSPORT}
    if "process-start-time-unix" in kept:
        kept["process-start-time-unix"] = NUMBER
    metrics = _metrics(body) if kept.get("content-type", "").startswith("text/plain") else None
    return {
        "status": status,
        "headers": dict(sorted(kept.items())),
        "body": settled_body(body) if metrics is None else metrics,
    }


def _metrics(body: bytes) -> Json | None:
    """Prometheus's text as {name: {"kind", "values": {labels: value}}}, help left out; None when it is none."""
    found: Json = {}
    for line in body.decode("utf-8", "replace").splitlines():
        if line.startswith("# TYPE "):
            name, _, kind = line.removeprefix("# TYPE ").partition(" ")
            found[name] = {"kind": kind, "values": {}}
        elif not line.startswith("#"):
            sample = _SAMPLE.fullmatch(line)
            if sample is None or sample["name"] not in found:
                return None
            value: Any = NUMBER if sample["name"].endswith(_TIMED) else float(sample["value"])
            found[sample["name"]]["values"][sample["labels"] or ""] = value
    return found


def differences(theirs: Any, ours: Any, path: str = "") -> Iterator[Difference]:
    """Every place where two JSON values differ, the order of the keys they share included."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in theirs | ours:
            yield from differences(theirs.get(key, ABSENT), ours.get(key, ABSENT), f"{path}.{key}".lstrip("."))
        shared = [[key for key in one if key in other] for one, other in ((theirs, ours), (ours, theirs))]
        if shared[0] != shared[1]:
            yield Difference(f"{path} (order of keys)".lstrip(), *shared)
    elif isinstance(theirs, list) and isinstance(ours, list):
        for index, (one, other) in enumerate(zip_longest(theirs, ours, fillvalue=ABSENT)):
            yield from differences(one, other, f"{path}[{index}]")
    elif not _equal(theirs, ours, path):
        yield Difference(path, theirs, ours)


def _equal(theirs: Any, ours: Any, path: str) -> bool:
    if path.endswith((".logprob", ".prob")) and isinstance(theirs, float) and isinstance(ours, float):
        return abs(theirs - ours) <= LOGPROB_BAND
    # 1, 1.0 and true are three things to a client.
    return type(theirs) is type(ours) and bool(theirs == ours)
