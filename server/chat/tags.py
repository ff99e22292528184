"""Finding markup in a reply that arrives in pieces.

A tag that the vocabulary holds as one special token is markup only where the model generated that token; the same
characters in ordinary tokens are text. A tag that is no special token is found by its characters, and text that could
still become one is held back. Which tags count changes as the reply goes on, so the reader asks for its next part with
the tags that would mean something there.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

# What looks like a tag at the end or the beginning of a text, with the white space around it.
LAST_TAG = re.compile(r"(<[^<>\s]+>|\[[^\[\]\s]+\])(\s*)$")
FIRST_TAG = re.compile(r"^(\s*)(<[^<>\s]+>|\[[^\[\]\s]+\])(\s*)")


@dataclass(frozen=True)
class Tag:
    """A tag that was asked for."""

    text: str


class TagReader:
    """The parts of a reply, in order: text, and the tags that were asked for."""

    def __init__(self, special: Iterable[str]) -> None:
        """`special`: the markup tags that are special tokens of the vocabulary."""
        self._special = frozenset(special)
        self._parts: deque[str | Tag] = deque()

    def feed(self, text: str, special: bool) -> None:
        """Add text; `special` says that it ends with the spelling of one special token."""
        tag = next((tag for tag in self._special if text.endswith(tag)), None) if special else None
        if tag is not None:
            self._add(text[: len(text) - len(tag)])
            self._parts.append(Tag(tag))
        else:
            self._add(text)

    def _add(self, text: str) -> None:
        if not text:
            return
        if self._parts and isinstance(self._parts[-1], str):
            self._parts[-1] += text
        else:
            self._parts.append(text)

    def unread(self, text: str) -> None:
        """Put text back that `next` gave: the reader has found that other tags count from there on."""
        if not text:
            return
        if self._parts and isinstance(self._parts[0], str):
            self._parts[0] = text + self._parts[0]
        else:
            self._parts.appendleft(text)

    def next(self, wanted: tuple[str, ...], *, ended: bool) -> str | Tag | None:
        """The next text or wanted tag; None when there is none yet. Once the reply `ended`, nothing is held back."""
        if not self._parts:
            return None
        part = self._parts.popleft()
        if isinstance(part, Tag):
            return part if part.text in wanted else part.text
        spelled = [tag for tag in wanted if tag not in self._special]
        at, tag = min(((at, tag) for tag in spelled if (at := part.find(tag)) >= 0), default=(-1, ""))
        if tag and not at:
            self.unread(part[len(tag) :])
            return Tag(tag)
        if tag:
            # The tag stays text until it is next: what comes before it may change which tags count.
            self.unread(part[at:])
            return part[:at]
        held = 0 if ended or self._parts else _longest_beginning(part, spelled)
        if held:
            self._parts.appendleft(part[len(part) - held :])
        return part[: len(part) - held] or None


def _longest_beginning(text: str, tags: Iterable[str]) -> int:
    """The length of the longest proper prefix of a tag that the text ends with."""
    longest = 0
    for tag in tags:
        for length in range(min(len(tag) - 1, len(text)), longest, -1):
            if text.endswith(tag[:length]):
                longest = length
                break
    return longest
