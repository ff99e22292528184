"""Byte-level byte-pair encoding (Sennrich et al. 2016, with GPT-2's byte alphabet), with llama.cpp's merge order.

A word starts as one symbol a byte. Of all adjacent pairs that the file's merge list names, the one that stands earliest
in the list is joined, the leftmost first, until none is left (llama-vocab.cpp, `llm_tokenizer_bpe_session`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

from bloomery.interface.tokenizer.byte_letters import to_bytes, to_letters
from bloomery.interface.tokenizer.pretokenize import PreTokenizer
from bloomery.interface.tokenizer.vocabulary import Attribute, Vocabulary

# Words repeat, so their ids are kept: at most this many words of at most this length, a few tens of megabytes.
_CACHED_WORDS = 1 << 16
_CACHED_WORD_LENGTH = 64


class BytePairModel:
    """Encodes plain text by a merge list and gives the bytes of a token."""

    def __init__(self, vocabulary: Vocabulary, merges: Sequence[str], pre_tokenizer: PreTokenizer) -> None:
        """`merges` are lines "left right" in order of precedence; of two equal lines the first counts."""
        self._vocabulary = vocabulary
        self._pre_tokenizer = pre_tokenizer
        self._ranks = dict(zip(reversed(merges), range(len(merges) - 1, -1, -1), strict=True))
        self._cache: dict[str, tuple[int, ...]] = {}

    def encode(self, text: str) -> list[int]:
        """The ids of text without special tokens. TokenizerError on a lone surrogate."""
        ids: list[int] = []
        cache = self._cache
        for word in self._pre_tokenizer.words(text):
            found = cache.get(word)
            ids.extend(self._encode_new_word(word) if found is None else found)
        return ids

    def piece(self, token_id: int) -> bytes:
        """The bytes a token stands for, special or not; none for an unused or undefined token."""
        vocabulary = self._vocabulary
        if vocabulary.is_a(token_id, Attribute.SPECIAL):
            return vocabulary.stored_bytes(token_id)
        if vocabulary.is_a(token_id, Attribute.NORMAL):
            return to_bytes(vocabulary.texts[token_id])
        if vocabulary.is_a(token_id, Attribute.BYTE):
            return bytes([vocabulary.fallback_byte(token_id)])
        return b""

    def _encode_new_word(self, word: str) -> tuple[int, ...]:
        ids: list[int] = []
        for symbol in merge(to_letters(word.encode()), self._ranks):
            token_id = self._vocabulary.ids.get(symbol)
            if token_id is None:
                ids.extend(self._ids_of_letters(symbol))
            else:
                ids.append(token_id)
        encoded = tuple(ids)
        if len(word) <= _CACHED_WORD_LENGTH:
            if len(self._cache) >= _CACHED_WORDS:
                self._cache.clear()
            self._cache[word] = encoded
        return encoded

    def _ids_of_letters(self, symbol: str) -> list[int]:
        """What a symbol that is no token becomes: its ASCII letters one by one.

        llama.cpp looks up the single bytes of the symbol's UTF-8 there, so other letters are in no vocabulary and the
        bytes they stand for are lost.
        """
        ids = self._vocabulary.ids
        return [ids[letter] for letter in symbol if letter.isascii() and letter in ids]


def merge(letters: str, ranks: Mapping[str, int]) -> list[str]:
    """Joins single letters into symbols by merge precedence: `ranks["left right"]`, the lowest first.

    A heap holds the joinable pairs and a linked list the symbols, so a word of n letters takes n log n steps.
    """
    n = len(letters)
    symbols = list(letters)
    after = list(range(1, n + 1))
    before = list(range(-1, n - 1))
    # The rank of the pair that starts at each symbol, -1 for none: tells entries of the heap that are out of date.
    pair_ranks = [ranks.get(f"{left} {right}", -1) for left, right in pairwise(letters)]
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
            rank = pair_ranks[left] = ranks.get(f"{symbols[left]} {symbols[following]}", -1)
            if rank >= 0:
                heappush(heap, rank * n + left)
        previous = before[left]
        if previous >= 0:
            rank = pair_ranks[previous] = ranks.get(f"{symbols[previous]} {symbols[left]}", -1)
            if rank >= 0:
                heappush(heap, rank * n + previous)
    return [symbol for symbol in symbols if symbol]
