"""Text that knows, character by character, whether a client wrote it or the template did.

A chat template cuts, joins, searches and re-spells what a client sent. `Sourced` is a string that does all of this on
the real characters, so a template sees exactly the text it was sent, and carries the origin of each character along.
After the render the origins say which stretches may become special tokens and which may not.

A plain `str` is the template's own text. Whatever cannot be followed character by character counts as the client's as a
whole: that way nothing a client wrote can ever pass for the template's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, SupportsIndex

from bloomery.server.chat import budget

TEMPLATE = b"\x00"
CLIENT = b"\x01"

# What a part of a text costs besides its characters.
_PART = 8

_WHITE_SPACE = re.compile(r"\s+")
_LINE_ENDS = re.compile("[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")


class Sourced(str):
    """A string whose character `i` is the client's if `origin[i]` is 1, the template's if it is 0.

    Its methods are those of `str`, on the same characters; what they return is Sourced too, or plain where no character
    is a client's. Methods that are missing here give a plain `str`, and whoever calls them has to see to the origin.
    """

    __slots__ = ("origin",)
    origin: bytes

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> str:
        return joined((self, other))

    def __radd__(self, other: str) -> str:
        return joined((other, self))

    def __mul__(self, count: SupportsIndex) -> str:
        times = max(0, count.__index__())
        budget.make(len(self) * times)
        return sourced(str.__mul__(self, times), self.origin * times)

    __rmul__ = __mul__

    def __getitem__(self, key: Any) -> str:
        picked = self.origin[key] if isinstance(key, int) else self.origin[_paid_slice(self, key)]
        return sourced(str.__getitem__(self, key), bytes((picked,)) if isinstance(picked, int) else picked)

    def __iter__(self) -> Iterator[str]:
        for at in range(len(self)):
            budget.make(budget.ITEM)
            yield self[at]

    def join(self, items: Iterable[str]) -> str:
        """As `str.join`."""

        def parts() -> Iterator[str]:
            for at, item in enumerate(items):
                if at:
                    yield self
                yield item

        return joined(parts())

    def strip(self, characters: str | None = None) -> str:
        """As `str.strip`."""
        self._pay_for_each(characters)
        left = len(self) - len(str.lstrip(self, characters))
        return self[left : max(left, len(str.rstrip(self, characters)))]

    def lstrip(self, characters: str | None = None) -> str:
        """As `str.lstrip`."""
        self._pay_for_each(characters)
        return self[len(self) - len(str.lstrip(self, characters)) :]

    def rstrip(self, characters: str | None = None) -> str:
        """As `str.rstrip`."""
        self._pay_for_each(characters)
        return self[: len(str.rstrip(self, characters))]

    def removeprefix(self, prefix: str) -> str:
        """As `str.removeprefix`."""
        return self[len(prefix) :] if self.startswith(prefix) else self

    def removesuffix(self, suffix: str) -> str:
        """As `str.removesuffix`."""
        return self[: len(self) - len(suffix)] if self.endswith(suffix) else self

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        """As `str.split`."""
        self._pay_for_parts(sep, maxsplit)
        return self._located(str.split(self, sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        """As `str.rsplit`."""
        self._pay_for_each(sep)
        self._pay_for_parts(sep, maxsplit)
        return self._located(str.rsplit(self, sep, maxsplit), sep)

    def _pay_for_each(self, other: str | None) -> None:
        """Pay for what Python does in as many steps as the lengths of both multiplied."""
        budget.make(len(self) * len(other or " ") // budget.CHARACTERS_A_UNIT)

    def _pay_for_parts(self, separator: str | None, most: SupportsIndex) -> None:
        """Pay for the list that a split will make, less the characters."""
        limit = most.__index__()
        if separator:
            count = str.count(self, separator)
            budget.make((count if limit < 0 else min(count, limit)) * budget.ITEM)
        elif limit < 0:
            _pay_for_gaps(_WHITE_SPACE, self)

    def _located(self, parts: list[str], separator: str | None) -> list[str]:
        """`parts` as slices of this text: they stand in it in order, `separator` (or white space) between them."""
        found: list[str] = []
        at = 0
        for part in parts:
            start = str.find(self, part, at) if separator is None else at
            found.append(self[start : start + len(part)])
            at = start + len(part) + len(separator or "")
        return found

    def splitlines(self, keepends: bool = False) -> list[str]:
        """As `str.splitlines`."""
        _pay_for_gaps(_LINE_ENDS, self)
        found: list[str] = []
        at = 0
        for line, full in zip(str.splitlines(self, keepends), str.splitlines(self, keepends=True), strict=True):
            found.append(self[at : at + len(line)])
            at += len(full)
        return found

    def partition(self, sep: str) -> tuple[str, str, str]:
        """As `str.partition`."""
        return self._thirds(str.partition(self, sep))

    def rpartition(self, sep: str) -> tuple[str, str, str]:
        """As `str.rpartition`."""
        self._pay_for_each(sep)
        return self._thirds(str.rpartition(self, sep))

    def _thirds(self, thirds: tuple[str, str, str]) -> tuple[str, str, str]:
        first = len(thirds[0])
        second = first + len(thirds[1])
        return self[:first], self[first:second], self[second:]

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> str:
        """As `str.replace`."""
        if old:
            return as_sourced(new).join(self.split(old, count))
        budget.make((len(self) + 1) * (len(new) + 1))
        return opaque(str.replace(self, old, new, count), self, new)

    def upper(self) -> str:
        """As `str.upper`."""
        return self.respelled(str.upper)

    def lower(self) -> str:
        """As `str.lower`."""
        return self.respelled(str.lower)

    def title(self) -> str:
        """As `str.title`."""
        return self.respelled(str.title)

    def capitalize(self) -> str:
        """As `str.capitalize`."""
        return self.respelled(str.capitalize)

    def respelled(self, respell: Callable[[str], str]) -> str:
        """The text after `respell`, which changes characters and not their places; else it is opaque."""
        budget.make(2 * len(self))
        text = respell(plain(self))
        return sourced(text, self.origin) if len(text) == len(self) else opaque(text, self)


def _paid_slice(text: str, key: slice) -> slice:
    budget.make(len(range(*key.indices(len(text)))))
    return key


def _pay_for_gaps(gap: re.Pattern[str], text: str) -> None:
    for _ in gap.finditer(text):
        budget.make(budget.ITEM)


def sourced(text: str, origin: bytes) -> str:
    """`text` with the origin of each of its characters."""
    if CLIENT not in origin:
        return plain(text)
    marked = str.__new__(Sourced, plain(text))
    marked.origin = origin
    return marked


def plain(text: str) -> str:
    """The characters alone."""
    return str.__str__(text)


def client(text: str) -> str:
    """`text`, all of it the client's."""
    return sourced(text, CLIENT * len(text))


def origin_of(text: str) -> bytes:
    """The origin of each character."""
    return text.origin if isinstance(text, Sourced) else TEMPLATE * len(text)


def is_clients(text: object) -> bool:
    """Whether any character of a text is the client's; of another object whether any could be."""
    if isinstance(text, str):
        return isinstance(text, Sourced) and CLIENT in text.origin
    return not isinstance(text, int | float | None)


def as_sourced(text: str) -> Sourced:
    """`text` as an object that has this module's methods, whoever wrote it."""
    if isinstance(text, Sourced):
        return text
    marked = str.__new__(Sourced, text)
    marked.origin = TEMPLATE * len(text)
    return marked


def opaque(text: str, *sources: object) -> str:
    """`text`, made of `sources` in a way that cannot be followed: the client's if any of them is."""
    return client(text) if any(map(is_clients, sources)) else text


def joined(parts: Iterable[str]) -> str:
    """The parts one after the other."""
    listed: list[str] = []
    for part in parts:
        budget.make(len(part) + _PART)
        listed.append(part)
    text = "".join(listed)
    if any(isinstance(part, Sourced) for part in listed):
        return sourced(text, b"".join(map(origin_of, listed)))
    return text
