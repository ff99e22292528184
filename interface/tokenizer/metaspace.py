"""Vocabularies that write a space as U+2581: SentencePiece ones, and byte-pair ones with the looks of SentencePiece.

No byte alphabet is between text and tokens here; a character that is no token is spelled by tokens `<0xNN>`. The two
kinds are the models `llama` and `gemma4` of llama.cpp (llama-vocab.cpp, `llm_tokenizer_spm_session`, and
`llm_tokenizer_bpe_session` without `byte_encode`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from bloomery.interface.tokenizer.bpe import merge_ranks
from bloomery.interface.tokenizer.errors import TokenizerError
from bloomery.interface.tokenizer.merging import MergingModel, Ranks
from bloomery.interface.tokenizer.seams import Seams, split
from bloomery.interface.tokenizer.unicode_classes import code_points
from bloomery.interface.tokenizer.vocabulary import Attribute, Vocabulary

SPACE = "\u2581"

_UNSPACED_LINE = re.compile(rf"^(?=[^\n{SPACE}])", re.MULTILINE)


class MetaspaceModel(MergingModel):
    """What both kinds have in common."""

    def __init__(self, vocabulary: Vocabulary, ranks: Ranks, joint: str, seams: Seams) -> None:
        super().__init__(vocabulary, ranks, joint)
        self._seams = seams
        spellings = [f"<0x{byte:02X}>" for byte in range(256)]
        self._byte_ids = [vocabulary.ids.get(spelling) for spelling in spellings]

    def piece(self, token_id: int) -> bytes:
        """The bytes a token stands for, special or not; none for an unused or undefined token."""
        vocabulary = self._vocabulary
        if vocabulary.is_a(token_id, Attribute.SPECIAL):
            return vocabulary.stored_bytes(token_id)
        if vocabulary.is_a(token_id, Attribute.NORMAL):
            return vocabulary.stored_bytes(token_id).replace(SPACE.encode(), b" ")
        if vocabulary.is_a(token_id, Attribute.BYTE):
            return bytes([vocabulary.fallback_byte(token_id)])
        return b""

    def _letters(self, word: str) -> str:
        return word

    def _whole(self, word: str) -> int | None:
        return None


class SentencePieceModel(MetaspaceModel):
    """Joins whatever makes a token, that of the best score first."""

    def __init__(self, vocabulary: Vocabulary, scores: npt.NDArray[np.float32], *, space_prefix: bool) -> None:
        """`scores[id]` has no NaN; with `space_prefix` a text begins as if there were a space before it."""
        # Equal scores have the same rank, so that the leftmost of them is joined first.
        _, ranks = np.unique(-scores, return_inverse=True)
        texts = vocabulary.texts
        super().__init__(vocabulary, dict(zip(texts, ranks.tolist(), strict=True)), "", Seams.inside(texts))
        self._space_prefix = space_prefix

    def _words(self, text: str) -> Iterable[str]:
        if not text:
            return ()
        text = (f" {text}" if self._space_prefix else text).replace(" ", SPACE)
        return split(text, self._seams.cuts(code_points(text)))

    def _fallback(self, symbol: str) -> Iterator[int]:
        for byte in symbol.encode():
            token_id = self._byte_ids[byte]
            if token_id is None:
                token_id = self._vocabulary.ids.get(bytes([byte]).decode("utf-8", "surrogateescape"))
            if token_id is None:
                raise TokenizerError(
                    f"the character U+{ord(symbol):04X} is no token, and the vocabulary has no <0x{byte:02X}> for it"
                )
            yield token_id


class SpacedPairModel(MetaspaceModel):
    """Joins by a merge list, but never over the ends of a run of line ends."""

    def __init__(
        self, vocabulary: Vocabulary, merges: Sequence[str], *, whole_line_ends: bool, by_words: bool = False
    ) -> None:
        """With `whole_line_ends` a run of line ends that is a token is that token, however it would merge.

        With `by_words` each space begins a word, and so does a line, which is given a space where it has none.
        """
        super().__init__(vocabulary, merge_ranks(merges), " ", Seams.of_merges(merges))
        self._whole_line_ends = whole_line_ends
        self._by_words = by_words

    def _words(self, text: str) -> Iterator[str]:
        text = text.replace(" ", SPACE)
        if self._by_words:
            text = _UNSPACED_LINE.sub(SPACE, text)
        codes = code_points(text)
        is_line_end = codes == ord("\n")
        cuts = self._seams.cuts(codes) | (is_line_end[:-1] != is_line_end[1:])
        if self._by_words:
            cuts |= codes[1:] == ord(SPACE)
        if self._whole_line_ends:
            cuts &= ~(is_line_end[:-1] & is_line_end[1:])
        return split(text, cuts)

    def _whole(self, word: str) -> int | None:
        return self._vocabulary.ids.get(word) if self._whole_line_ends and word.startswith("\n") else None

    def _fallback(self, symbol: str) -> list[int]:
        """llama.cpp leaves out a byte that the vocabulary cannot spell."""
        ids = (self._byte_ids[byte] for byte in symbol.encode())
        return [token_id for token_id in ids if token_id is not None]
