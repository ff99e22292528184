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
    """A template's tags, and the white space it writes around them.

    bare_close: whether it begins a turn without reasoning with the closing tag alone, as a model then does too.
    """

    open: str
    close: str
    after_open: str = ""
    before_close: str = ""
    after_close: str = ""
    bare_close: bool = False


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
    """White space that may stand at a place: all there is, or each character of a text once and in order."""

    def __init__(self, text: str, *, all_space: bool) -> None:
        self._rest = "" if all_space else text
        self._all_space = all_space

    def dropped_from(self, text: str) -> str:
        """`text` without the layout at its beginning; empty text leaves the layout waiting."""
        if self._all_space:
            text = text.lstrip(SPACES)
            self._all_space = not text
            return text
        while self._rest and text:
            if text[0] == self._rest[0]:
                text = text[1:]
            self._rest = self._rest[1:]
        return text


class ThinkSpan:
    """Reads a reply up to where its content begins.

    `raw` leaves reasoning and tags in the content, as `reasoning_format` "none" asks for; the span still counts, so
    that a tool call inside it is none.  `enders` are tags of the content's that end an open span, too.  `all_space`:
    all white space after a tag is layout.
    """

    def __init__(
        self,
        tags: ThinkTags,
        prompt_tail: str,
        start: Start,
        *,
        raw: bool,
        enders: tuple[str, ...] = (),
        all_space: bool = False,
    ) -> None:
        self.over = start is Start.CLOSED
        self._tags = tags
        self._enders = enders
        self._all_space = all_space
        self._raw = raw
        self._open = start is Start.OPEN
        self._closed = False
        self._layout = _Layout(tags.after_open, all_space=all_space)
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
            return (self._tags.close, *self._enders)
        if self._closed:
            return after
        return (self._tags.open, *((self._tags.close,) if self._tags.bare_close else ()), *after)

    def read(self, part: str | Tag) -> tuple[list[ChatDelta], str | Tag | None]:
        """Read on; returns what is new, and what of `part` belongs to the content."""
        deltas: list[ChatDelta] = []
        if self._raw and self._opener and isinstance(part, str):
            part = self._opener + part
        elif self._raw and self._opener:
            deltas.append(ContentDelta(self._opener))
        self._opener = ""
        rest: str | Tag | None = None
        if self._open and isinstance(part, Tag) and part.text in self._enders:
            rest = part
        elif self._open:
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
        if part.text == self._tags.open:
            self._open = True
        elif part.text == self._tags.close:
            self._close()
        else:
            return [], part
        return ([ContentDelta(part.text)] if self._raw else []), None

    def _read_open(self, part: str | Tag) -> list[ChatDelta]:
        if isinstance(part, Tag):
            self._close()
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

    def _close(self) -> None:
        self._open = False
        self._closed = True
        self._layout = _Layout(self._tags.after_close, all_space=self._all_space)

    def _read_closed(self, part: str | Tag) -> str | Tag:
        return part if self._raw or isinstance(part, Tag) else self._layout.dropped_from(part)
