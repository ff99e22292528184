"""What one API key may do: the fields that follow it on its line of a key file."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bloomery.server.scopes import SCOPES, Scope

_TAKEN = "a key is followed by scope=, inflight=, rate= or burst=, each at most once"
_MOST = 1_000_000
_COUNT = re.compile(r"[1-9][0-9]{0,6}", re.ASCII)
_SECONDS = {"s": 1, "m": 60}


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A bucket of `burst` requests that refills `n` of them every `seconds` seconds."""

    n: int
    seconds: int
    burst: int


@dataclass(frozen=True, kw_only=True)
class KeyFields:
    """The limits of a key; without any it reaches every route as often as it likes.

    scopes: the routes it reaches.  inflight: the most of its requests that are answered at once.  rate: how often it
    may ask.
    """

    scopes: frozenset[Scope] = frozenset({"admin"})
    inflight: int | None = None
    rate: Rate | None = None


def read_fields(fields: Sequence[str]) -> KeyFields:
    """The limits that the fields after a key make together.

    Raises ValueError that tells a field's place, counted from the key as field 1, and never its text: a second key on a
    line would be in it.
    """
    values: dict[str, Any] = {}
    places: dict[str, int] = {}
    for place, field in enumerate(fields, 2):
        name, equals, value = field.partition("=")
        if not equals or name not in _READERS:
            raise ValueError(f"field {place}: it is none that a key takes; {_TAKEN}")
        if name in places:
            raise ValueError(f"field {place}: {name} stands in field {places[name]} already; {_TAKEN}")
        try:
            values[name] = _READERS[name](value)
        except ValueError as error:
            raise ValueError(f"field {place}: {name} {error}") from None
        places[name] = place
    burst = values.pop("burst", None)
    if "rate" in values:
        n, seconds = values.pop("rate")
        values["rate"] = Rate(n=n, seconds=seconds, burst=burst or n)
    elif burst is not None:
        raise ValueError(f"field {places['burst']}: burst is the size of a rate's bucket; name a rate beside it")
    if "scope" in values:
        values["scopes"] = values.pop("scope")
    return KeyFields(**values)


def _count(text: str) -> int:
    if not _COUNT.fullmatch(text) or int(text) > _MOST:
        raise ValueError(f"takes a whole number from 1 to {_MOST}")
    return int(text)


def _scope(text: str) -> frozenset[Scope]:
    words = text.split(",")
    if not set(words) <= set(SCOPES):
        raise ValueError(f"takes {', '.join(SCOPES)}, with commas between them")
    return frozenset(scope for scope in SCOPES if scope in words)


def _rate(text: str) -> tuple[int, int]:
    n, _, unit = text.partition("/")
    if unit not in _SECONDS:
        raise ValueError("takes N/s or N/m, requests a second or a minute")
    return _count(n), _SECONDS[unit]


_READERS: dict[str, Callable[[str], Any]] = {"scope": _scope, "inflight": _count, "rate": _rate, "burst": _count}
