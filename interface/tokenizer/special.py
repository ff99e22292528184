"""Finding the spellings of special tokens in text.

llama.cpp looks for one token at a time, the longest spelling (in bytes) first, in whatever text the ones before it have
left (llama-vocab.cpp, `tokenizer_st_partition`). Spellings hardly ever overlap, so one pass from left to right that
takes the longest at each place finds the same; where one that llama.cpp would look for earlier begins inside the one
taken, the pass is abandoned and the text is searched token by token.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bloomery.interface.sampling.order import introsort
from bloomery.interface.tokenizer.trimming import WHITE_SPACE, Trimming
from bloomery.interface.tokenizer.vocabulary import Vocabulary

_KEY_LENGTH = 2

# Overlaps of longer spellings are not worked out ahead (it would take the square of the length) but met in the text.
_LONGEST_COMPARED = 256


class Occurrence(NamedTuple):
    """A special token that stands for the characters `start:end` of a text: its spelling, and what it trims."""

    start: int
    end: int
    token_id: int


def search_order(vocabulary: Vocabulary, token_ids: Sequence[int]) -> list[int]:
    """The ids in the order llama.cpp searches for them: longest first (in bytes), ties as `std::sort` has them."""
    sizes = [len(vocabulary.stored_bytes(token_id)) for token_id in token_ids]
    return [token_ids[place] for place in introsort(np.array(sizes, np.float32))]


class SpecialMatcher:
    """Finds a fixed set of spellings, the earlier of which win over the later where they overlap."""

    def __init__(self, spellings: Iterable[tuple[str, int]], trimming: Trimming | None = None) -> None:
        """`spellings` are texts and their ids, the longest first. One that is no UTF-8 is in no prompt and left out."""
        self._trimming = trimming or Trimming()
        self._trims = bool(self._trimming.left or self._trimming.right)
        self._ids = {text: token_id for text, token_id in spellings if _is_utf8(text)}
        self._ranks = {text: rank for rank, text in enumerate(self._ids)}
        lengths: dict[str, set[int]] = defaultdict(set)
        for text in self._ids:
            lengths[text[:_KEY_LENGTH]].add(len(text))
        self._lengths = {key: sorted(found, reverse=True) for key, found in lengths.items()}
        self._candidate = _candidates(self._lengths)
        self._contestable = _contestable(self._ranks)

    def find(self, text: str) -> list[Occurrence]:
        """The spellings in `text` that become tokens, from left to right, without overlaps."""
        if not self._ids:
            return []
        if self._trims:
            return self._find_one_by_one(text)
        found: list[Occurrence] = []
        position = 0
        while (place := self._candidate.search(text, position)) is not None:
            start = place.start()
            length = self._longest_at(text, start)
            if not length:
                position = start + 1
                continue
            position = start + length
            spelling = text[start:position]
            if spelling in self._contestable and self._is_contested(text, start, spelling):
                return self._find_one_by_one(text)
            found.append(Occurrence(start, position, self._ids[spelling]))
        return found

    def _longest_at(self, text: str, start: int) -> int:
        for key_length in range(_KEY_LENGTH, 0, -1):
            for length in self._lengths.get(text[start : start + key_length], ()):
                candidate = text[start : start + length]
                if len(candidate) == length and candidate in self._ids:
                    return length
        return 0

    def _is_contested(self, text: str, start: int, spelling: str) -> bool:
        for inside in range(start + 1, start + len(spelling)):
            length = self._longest_at(text, inside)
            if length and self._ranks[text[inside : inside + length]] < self._ranks[spelling]:
                return True
        return False

    def _find_one_by_one(self, text: str) -> list[Occurrence]:
        taken = bytearray(len(text))
        found: list[Occurrence] = []
        for spelling, token_id in self._ids.items():
            position = text.find(spelling)
            while position >= 0:
                end = position + len(spelling)
                if taken.find(1, position, end) < 0:
                    start, end = self._trimmed(text, taken, position, end, token_id)
                    taken[start:end] = b"\x01" * (end - start)
                    found.append(Occurrence(start, end, token_id))
                    position = text.find(spelling, end)
                else:
                    position = text.find(spelling, position + 1)
        return sorted(found)

    def _trimmed(self, text: str, taken: bytearray, start: int, end: int, token_id: int) -> tuple[int, int]:
        """The place of a spelling together with the white space beside it that the token takes."""
        if token_id in self._trimming.left:
            while start and not taken[start - 1] and text[start - 1] in WHITE_SPACE:
                start -= 1
        if token_id in self._trimming.right:
            while end < len(text) and not taken[end] and text[end] in WHITE_SPACE:
                end += 1
        return start, end


def is_harmless(spelling: str) -> bool:
    """Whether a spelling gives no structure to a prompt: a single character, or white space and nothing else."""
    return len(spelling) == 1 or not spelling.strip(f"{WHITE_SPACE}\u2581")


def _candidates(keys: Iterable[str]) -> re.Pattern[str]:
    """Where a spelling may begin, by its first characters: a pattern whose cost does not grow with their number."""
    keys = list(keys)
    firsts = _character_class(key[0] for key in keys)
    if any(len(key) < _KEY_LENGTH for key in keys):
        return re.compile(firsts)
    return re.compile(firsts + _character_class(key[1] for key in keys))


def _character_class(characters: Iterable[str]) -> str:
    members = "".join(map(re.escape, sorted(set(characters))))
    # An empty set is written as a pattern that matches nothing.
    return f"[{members}]" if members else "(?!)"


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _contestable(ranks: Mapping[str, int]) -> frozenset[str]:
    """The spellings in which one of a better (lower) rank can begin: one that starts with a proper suffix of theirs."""
    best_with_prefix: dict[str, int] = {}
    for text, rank in ranks.items():
        for length in range(1, min(len(text), _LONGEST_COMPARED) + 1):
            best_with_prefix.setdefault(text[:length], rank)
    return frozenset(
        text
        for text, rank in ranks.items()
        if len(text) > _LONGEST_COMPARED
        or any(best_with_prefix.get(text[cut:], rank) < rank for cut in range(1, len(text)))
    )
