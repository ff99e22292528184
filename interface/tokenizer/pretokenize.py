"""Cutting text into the words that no merge crosses, in one or several stages.

A stage cuts each piece that the stages before it have left, and sees nothing of the text around that piece
(llama.cpp, unicode.cpp, `unicode_regex_split`). What a stage's expression does not match is a piece, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from bloomery.interface.tokenizer.unicode_classes import classify

# The arguments are a text, its classes, and the start and end of one piece in both; the ends of the pieces it is cut
# into are given in order, the last of which is the end of the piece.
Stage = Callable[[str, bytes, int, int], Iterable[int]]


@dataclass(frozen=True)
class PreTokenizer:
    """Cuts text into words by stages; `han` says that they tell Han characters from other letters."""

    stages: tuple[Stage, ...]
    han: bool = False

    def words(self, text: str) -> Iterator[str]:
        """The words of `text`; joined, they are the text. TokenizerError on a lone surrogate."""
        if not text:
            return
        classes = classify(text, han=self.han)
        ends: Iterable[int] = (len(text),)
        for stage in self.stages:
            ends = _cut_each(stage, text, classes, ends)
        start = 0
        for end in ends:
            yield text[start:end]
            start = end


def _cut_each(stage: Stage, text: str, classes: bytes, ends: Iterable[int]) -> list[int]:
    found: list[int] = []
    start = 0
    for end in ends:
        if end - start == 1:
            found.append(end)
        else:
            found += stage(text, classes, start, end)
        start = end
    return found


def by_class(*alternatives: str) -> Stage:
    """A stage of the leftmost matches of the first alternative that matches, in ASCII and class bytes."""
    matches = re.compile("|".join(alternatives).encode("ascii")).finditer

    def stage(_text: str, classes: bytes, start: int, end: int) -> list[int]:
        return _ends(matches(classes, start, end), start, end)

    return stage


def by_character(*alternatives: str) -> Stage:
    """A stage of the leftmost matches in the text itself.

    llama.cpp puts an ASCII character in the place of all other white space before, so the expressions must have none of
    it in a range.
    """
    matches = re.compile("|".join(alternatives)).finditer

    def stage(text: str, _classes: bytes, start: int, end: int) -> list[int]:
        return _ends(matches(text, start, end), start, end)

    return stage


def _ends(matches: Iterable[re.Match[str] | re.Match[bytes]], start: int, end: int) -> list[int]:
    ends: list[int] = []
    for match in matches:
        first, last = match.span()
        if first > start:
            ends.append(first)
        ends.append(last)
        start = last
    if start < end:
        ends.append(end)
    return ends
