"""The think span: where the reply's reasoning begins and ends.

A prompt may open the span itself, close it (thinking is off), or leave it to the model. White space follows
llama-server's parser (common/chat-auto-parser-generator.cpp): the line ends that the template writes around its tags
are layout, each of them optional; all other white space is the model's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from bloomery.server.chat.deltas import ChatDelta, ContentDelta, ReasoningDelta
from bloomery.server.chat.tags import Tag

# What C's isspace takes for white space.
SPACES = " \t\n\r\v\f"


@dataclass(frozen=True)
class ThinkTags:
    """A template's tags, and the white space it writes around them."""

    open: str
    close: str
    after_open: str = ""
    before_close: str = ""
    after_close: str = ""


class Start(Enum):
    """What a prompt's end says of the span."""

    MAY_OPEN = auto()
    OPEN = auto()
    CLOSED = auto()


def start_of(tags: ThinkTags, prompt_tail: str) -> Start:
    """The span's state after a prompt whose template ended it with `prompt_tail`."""
    tail = prompt_tail.rstrip(SPACES)
    if tail.endswith(tags.close):
        return Start.CLOSED
    return Start.OPEN if tail.endswith(tags.open) else Start.MAY_OPEN


class _Layout:
    """White space that may stand at a place, each character of it once and in order."""

    def __init__(self, text: str) -> None:
        self._rest = text

    def dropped_from(self, text: str) -> str:
        """`text` without the layout at its beginning; empty text leaves the layout waiting."""
        while self._rest and text:
            if text[0] == self._rest[0]:
                text = text[1:]
            self._rest = self._rest[1:]
        return text


class ThinkSpan:
    """Reads a reply up to where its content begins.

    `raw` leaves reasoning and tags in the content, as `reasoning_format` "none" asks for; the span still counts, so
    that a tool call inside it is none.
    """

    def __init__(self, tags: ThinkTags, prompt_tail: str, start: Start, *, raw: bool) -> None:
        self.over = start is Start.CLOSED
        self._tags = tags
        self._raw = raw
        self._open = start is Start.OPEN
        self._closed = False
        self._layout = _Layout(tags.after_open)
        # White space at the beginning of the reasoning: dropped if nothing else comes.
        self._spaces: list[str] = []
        self._thought = False
        self._opener = ""
        if self._open:
            opened_at = prompt_tail.rindex(tags.open)
            self._opener = prompt_tail[opened_at:]
            self._layout.dropped_from(prompt_tail[opened_at + len(tags.open) :])

    def wanted(self, after: tuple[str, ...]) -> tuple[str, ...]:
        """The tags that count now, when `after` are those of the content."""
        if self._open:
            return (self._tags.close,)
        return after if self._closed else (self._tags.open, *after)

    def read(self, part: str | Tag) -> tuple[list[ChatDelta], str | Tag | None]:
        """Read on; returns what is new, and what of `part` belongs to the content."""
        deltas: list[ChatDelta] = []
        if self._raw and self._opener:
            deltas.append(ContentDelta(self._opener))
            self._opener = ""
        rest: str | Tag | None = None
        if self._open:
            deltas += self._read_open(part)
        elif self._closed:
            rest = self._read_closed(part)
        else:
            more, rest = self._read_leading(part)
            deltas += more
        self.over = self.over or bool(rest)
        return deltas, rest

    def _read_leading(self, part: str | Tag) -> tuple[list[ChatDelta], str | Tag | None]:
        if isinstance(part, str):
            return [], part.lstrip(SPACES)
        if part.text != self._tags.open:
            return [], part
        self._open = True
        return ([ContentDelta(part.text)] if self._raw else []), None

    def _read_open(self, part: str | Tag) -> list[ChatDelta]:
        if isinstance(part, Tag):
            self._open = False
            self._closed = True
            self._layout = _Layout(self._tags.after_close)
            return [ContentDelta(part.text)] if self._raw else []
        if self._raw:
            return [ContentDelta(part)]
        text = self._layout.dropped_from(part)
        if not text:
            return []
        if not self._thought and not text.strip(SPACES):
            self._spaces.append(text)
            return []
        self._thought = True
        spaces = "".join(self._spaces)
        self._spaces.clear()
        return [ReasoningDelta(spaces + text)]

    def _read_closed(self, part: str | Tag) -> str | Tag:
        return part if self._raw or isinstance(part, Tag) else self._layout.dropped_from(part)
