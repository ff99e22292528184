"""Where a text can be cut without dividing anything that merges could join.

Vocabularies without a pre-tokenizer join over the whole text. But a join makes a text that has the two characters of
its seam side by side; a pair of neighbours that no join of the vocabulary can have at its seam is a place over which
nothing is ever joined. Cut there, a text falls into short words that repeat, and the ids are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

_CodePoints = npt.NDArray[np.uint32]

# Pairs are kept in a table of 4 MiB by their hash. Two pairs of one hash cost a cut, never a join.
_TABLE_BITS = 22
_LEFT_FACTOR = np.uint32(0x9E3779B1)
_RIGHT_FACTOR = np.uint32(0x85EBCA77)


class Seams:
    """The pairs of characters that may be joined."""

    def __init__(self, left: _CodePoints, right: _CodePoints) -> None:
        """`left[i]` and `right[i]` are a pair."""
        self._joinable = np.zeros(1 << _TABLE_BITS, np.bool_)
        self._joinable[_hash(left, right)] = True

    @classmethod
    def inside(cls, texts: Sequence[str]) -> Seams:
        """Every pair of neighbours in any of the texts: joins that make these texts and no others."""
        joined = _joined(texts)
        return cls(joined[:-1], joined[1:])

    @classmethod
    def of_merges(cls, merges: Sequence[str]) -> Seams:
        """The last character of the left and the first of the right side of lines "left right"."""
        joined = _joined(merges)
        spaces = np.flatnonzero(joined[1:-1] == ord(" ")) + 1
        return cls(joined[spaces - 1], joined[spaces + 1])

    def cuts(self, codes: _CodePoints) -> npt.NDArray[np.bool_]:
        """`[n - 1]` for a text of n code points: whether nothing is ever joined over the place behind each."""
        return ~self._joinable[_hash(codes[:-1], codes[1:])]


def split(text: str, cuts: npt.NDArray[np.bool_]) -> Iterator[str]:
    """The stretches of `text` between the places that `cuts` has."""
    start = 0
    for end in (np.flatnonzero(cuts) + 1).tolist():
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def _joined(texts: Sequence[str]) -> _CodePoints:
    """All texts with a NUL, which none of them has, between any two."""
    return np.frombuffer("\0".join(texts).encode("utf-32-le", "surrogatepass"), "<u4").astype(np.uint32, copy=False)


def _hash(left: _CodePoints, right: _CodePoints) -> _CodePoints:
    mixed: _CodePoints = left * _LEFT_FACTOR + right * _RIGHT_FACTOR
    return (mixed ^ (mixed >> np.uint32(15))) >> np.uint32(32 - _TABLE_BITS)
