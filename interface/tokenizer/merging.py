"""Joining the letters of a word into tokens, pair by pair, in an order of precedence; and remembering words.

Byte-pair vocabularies and SentencePiece vocabularies differ in what gives a pair its rank, not in how pairs are joined:
the best rank first, the leftmost of equals, until no pair has one (llama-vocab.cpp, `llm_tokenizer_bpe_session`,
`llm_tokenizer_spm_session`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Set
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Protocol

from bloomery.interface.tokenizer.vocabulary import Vocabulary

# Words repeat, so their ids are kept: at most this many words of at most this length, a few tens of megabytes.
_CACHED_WORDS = 1 << 16
_CACHED_WORD_LENGTH = 64


class Ranks(Protocol):
    """`ranks.get("left" + joint + "right", -1)` is the precedence of a pair: the lowest is joined first, -1 never."""

    def get(self, key: str, default: int, /) -> int:
        """The rank under `key`, or `default`."""


class _RanksWithout:
    """Ranks of the pairs that do not make one of some texts."""

    def __init__(self, ranks: Ranks, joint: str, texts: Set[str]) -> None:
        self._ranks = ranks
        self._joint = joint
        self._texts = texts

    def get(self, key: str, default: int, /) -> int:
        """The rank under `key` if it has one and joins to another text."""
        made = key.replace(self._joint, "", 1) if self._joint else key
        return default if made in self._texts else self._ranks.get(key, default)


class MergingModel(ABC):
    """Encodes plain text word by word and gives the bytes of a token."""

    def __init__(self, vocabulary: Vocabulary, ranks: Ranks, joint: str) -> None:
        self._vocabulary = vocabulary
        self._ranks = ranks
        self._joint = joint
        self._cache: dict[str, tuple[int, ...]] = {}

    def encode(self, text: str, avoided: Set[int] = frozenset()) -> list[int]:
        """The ids of text without special tokens; none of `avoided`, which have more than one letter, is among them.

        TokenizerError if the text cannot be encoded: a lone surrogate, or a character that no token can spell.
        """
        ids: list[int] = []
        cache = self._cache
        for word in self._words(text):
            found = cache.get(word)
            ids.extend(self._encode_new_word(word) if found is None else found)
        return ids if not avoided or avoided.isdisjoint(ids) else self._encode_avoiding(text, avoided)

    @abstractmethod
    def piece(self, token_id: int) -> bytes:
        """The bytes a token stands for, special or not; none for an unused or undefined token."""

    @abstractmethod
    def _words(self, text: str) -> Iterable[str]:
        """The words of a text, over whose ends nothing is joined."""

    @abstractmethod
    def _letters(self, word: str) -> str:
        """The letters that are joined, one character each."""

    @abstractmethod
    def _whole(self, word: str) -> int | None:
        """The token that a word is before anything is joined, None if it is to be made of its letters."""

    @abstractmethod
    def _fallback(self, symbol: str) -> Iterable[int]:
        """What a symbol becomes that is no token."""

    def _encode_new_word(self, word: str) -> tuple[int, ...]:
        encoded = tuple(self._encode_word(word, self._ranks, frozenset()))
        if len(word) <= _CACHED_WORD_LENGTH:
            if len(self._cache) >= _CACHED_WORDS:
                self._cache.clear()
            self._cache[word] = encoded
        return encoded

    def _encode_avoiding(self, text: str, avoided: Set[int]) -> list[int]:
        texts = {self._vocabulary.texts[token_id] for token_id in avoided}
        ranks = _RanksWithout(self._ranks, self._joint, texts)
        ids: list[int] = []
        for word in self._words(text):
            found: Iterable[int] = self._cache.get(word) or self._encode_new_word(word)
            ids += self._encode_word(word, ranks, avoided) if not avoided.isdisjoint(found) else found
        return ids

    def _encode_word(self, word: str, ranks: Ranks, avoided: Set[int]) -> list[int]:
        whole = self._whole(word)
        if whole is not None and whole not in avoided:
            return [whole]
        ids: list[int] = []
        for symbol in merge(self._letters(word), ranks, self._joint):
            token_id = self._vocabulary.ids.get(symbol)
            if token_id is None:
                ids.extend(self._fallback(symbol))
            else:
                ids.append(token_id)
        return ids


def merge(letters: str, ranks: Ranks, joint: str) -> list[str]:
    """Joins single letters into symbols by precedence.

    A heap holds the joinable pairs and a linked list the symbols, so a word of n letters takes n log n steps.
    """
    n = len(letters)
    symbols = list(letters)
    after = list(range(1, n + 1))
    before = list(range(-1, n - 1))
    # The rank of the pair that starts at each symbol, -1 for none: tells entries of the heap that are out of date.
    pair_ranks = [ranks.get(f"{left}{joint}{right}", -1) for left, right in pairwise(letters)]
    pair_ranks.append(-1)
    # One integer an entry orders them by rank, then from left to right.
    heap = [rank * n + left for left, rank in enumerate(pair_ranks) if rank >= 0]
    heapify(heap)
    while heap:
        rank, left = divmod(heappop(heap), n)
        if pair_ranks[left] != rank:
            continue
        right = after[left]
        following = after[left] = after[right]
        symbols[left] += symbols[right]
        symbols[right] = ""
        pair_ranks[right] = pair_ranks[left] = -1
        if following < n:
            before[following] = left
            rank = pair_ranks[left] = ranks.get(f"{symbols[left]}{joint}{symbols[following]}", -1)
            if rank >= 0:
                heappush(heap, rank * n + left)
        previous = before[left]
        if previous >= 0:
            rank = pair_ranks[previous] = ranks.get(f"{symbols[previous]}{joint}{symbols[left]}", -1)
            if rank >= 0:
                heappush(heap, rank * n + previous)
    return [symbol for symbol in symbols if symbol]
