"""Byte-level byte-pair encoding (Sennrich et al. 2016, with GPT-2's byte alphabet), as llama.cpp has it.

A word starts as one symbol a byte, and of all adjacent pairs that the file's merge list names the one that stands
earliest in the list is joined first (llama-vocab.cpp, `llm_tokenizer_bpe_session`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from bloomery.interface.tokenizer.byte_letters import to_bytes, to_letters
from bloomery.interface.tokenizer.merging import MergingModel
from bloomery.interface.tokenizer.pretokenize import PreTokenizer
from bloomery.interface.tokenizer.vocabulary import Attribute, Vocabulary


def merge_ranks(merges: Sequence[str]) -> dict[str, int]:
    """The place of each line "left right" in the list; of two equal lines the first counts."""
    ranks = dict(zip(merges, range(len(merges)), strict=True))
    if len(ranks) < len(merges):
        # The last of equal keys stays in a dict, so the list is gone through from its end.
        ranks = dict(zip(reversed(merges), range(len(merges) - 1, -1, -1), strict=True))
    return ranks


class BytePairModel(MergingModel):
    """Plain text by a merge list over bytes."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        merges: Sequence[str],
        pre_tokenizer: PreTokenizer,
        *,
        ignore_merges: bool = False,
    ) -> None:
        """`merges` are lines in order of precedence; with `ignore_merges` a word that is a token is not merged."""
        super().__init__(vocabulary, merge_ranks(merges), " ")
        self._pre_tokenizer = pre_tokenizer
        self._ignore_merges = ignore_merges

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

    def _words(self, text: str) -> Iterator[str]:
        return self._pre_tokenizer.words(text)

    def _letters(self, word: str) -> str:
        return to_letters(word.encode())

    def _whole(self, word: str) -> int | None:
        return self._vocabulary.ids.get(self._letters(word)) if self._ignore_merges else None

    def _fallback(self, symbol: str) -> Iterable[int]:
        """A symbol's ASCII letters one by one.

        llama.cpp looks up the single bytes of the symbol's UTF-8 there, so other letters are in no vocabulary and the
        bytes they stand for are lost.
        """
        ids = self._vocabulary.ids
        return [ids[letter] for letter in symbol if letter.isascii() and letter in ids]
