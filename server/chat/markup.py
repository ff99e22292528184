"""What a way of writing tool calls is: the seam between the template that shows it and the reader that reads it.

Each markup is a module of its own with a function that recognises it in what a template rendered; facts.py asks them in
turn, and a reply's parser takes the reader of the one that answered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from bloomery.server.chat.deltas import ChatDelta, ContentDelta
from bloomery.server.chat.tags import Tag

Tools: TypeAlias = Sequence[Mapping[str, Any]]
NewId: TypeAlias = Callable[[int], str]


class ContentReader(Protocol):
    """What reads a reply after its think span: one implementation a markup."""

    def wanted(self) -> tuple[str, ...]:
        """The tags that count now."""

    def read(self, part: str | Tag) -> tuple[list[ChatDelta], str]:
        """Read on; returns what is new, and text at the end of `part` that is to be read again with other tags."""

    def finish(self, *, cut: bool) -> list[ChatDelta]:
        """The reply has ended: `cut` by the token limit, or by itself."""


class PlainContent:
    """A reply without tools: all of it is content."""

    def wanted(self) -> tuple[str, ...]:
        """No tag counts."""
        return ()

    def read(self, part: str | Tag) -> tuple[list[ChatDelta], str]:
        """All of it is content."""
        return [ContentDelta(part if isinstance(part, str) else part.text)], ""

    def finish(self, *, cut: bool) -> list[ChatDelta]:
        """Nothing is held back."""
        return []


# Makes a reader from the markup's tags that are special tokens, the request's tools, and what gives calls their ids.
MakeReader: TypeAlias = Callable[[Collection[str], Tools, NewId], ContentReader]


@dataclass(frozen=True, kw_only=True)
class CallMarkup:
    """One way of writing calls. Two are the same if they have the same name and tags.

    tags: the spellings that are markup and may be special tokens.  make_reader: its reader.  make_whole_reader: one for
    replies that are not streamed, where a call can still be taken back; by default the same.  ends_thought: the tags
    that also end an open think span, and mean what they always do.  space_is_layout: whether all white space after a
    think span's tags, and before a reply's first text, is layout, and not only what the template writes there.
    frames_content: whether the reader is needed without tools as well.
    """

    name: str
    tags: tuple[str, ...]
    make_reader: MakeReader = field(compare=False, repr=False)
    make_whole_reader: MakeReader | None = field(default=None, compare=False, repr=False)
    ends_thought: tuple[str, ...] = ()
    space_is_layout: bool = False
    frames_content: bool = False

    def reader(self, special: Collection[str], tools: Tools, new_id: NewId, *, whole: bool) -> ContentReader:
        """A reader for one reply; `special` may hold other tags too.  whole: the reply is not streamed."""
        make = (self.make_whole_reader if whole else None) or self.make_reader
        return make([tag for tag in self.tags if tag in special], tools, new_id)


@dataclass(frozen=True, kw_only=True)
class WrittenCalls:
    """How a template writes calls of `function` with the one argument `argument`, the text `value`.

    one: a message with one call, and what follows it.  two: a message with two.
    """

    function: str
    argument: str
    value: str
    one: str
    two: str

    def one_is(self, *parts: str) -> bool:
        """Whether the one call is written as these parts, with nothing but white space between them."""
        return re.search(r"\s*".join(map(re.escape, parts)), self.one) is not None


Recognise: TypeAlias = Callable[[WrittenCalls], CallMarkup | None]
