"""The ids a draw may still take, and what is known of each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatRow = npt.NDArray[np.float32]
Ids = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Candidates:
    """Arrays of one entry a candidate, at least one. A stage of the chain takes such a set and returns another."""

    ids: Ids
    """Token ids ``[n]``, each once."""
    logits: FloatRow
    """float32 ``[n]``, -inf for an id that is ruled out."""
    best_first: bool = False
    """Whether the logits fall from entry to entry, so that a sort may be left out."""

    @staticmethod
    def of_row(logits: FloatRow) -> Candidates:
        """Every id of the vocabulary; ``logits`` is float32 ``[n_vocab]`` indexed by id."""
        return Candidates(ids=np.arange(len(logits)), logits=logits)

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, positions: Ids | slice, *, best_first: bool) -> Candidates:
        """The entries at ``positions``, in that order."""
        return Candidates(self.ids[positions], self.logits[positions], best_first)


def require_finite_best(logits: FloatRow, what: str) -> None:
    """Refuse logits from which no id can be chosen.

    llama.cpp makes NaN probabilities of such a row and takes its last entry, ruled out or not.

    Raises:
        ValueError: an entry is NaN or +inf, or none is finite. The message starts with ``what``.
    """
    best = logits.max() if len(logits) else -np.inf
    if np.isfinite(best):
        return
    if best == -np.inf:
        raise ValueError(f"{what}: no id is left to choose from, every logit is -inf")
    raise ValueError(f"{what}: the best logit is {best}; a row of logits must be finite, or -inf for what is ruled out")
