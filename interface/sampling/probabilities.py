"""What the model itself thought of the next id: the ``n_probs`` report of llama-server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

from bloomery.interface.sampling.candidates import FloatRow, require_finite_best
from bloomery.interface.sampling.libm import expf, logf
from bloomery.interface.sampling.order import partial_sort

_LOWEST = np.finfo(np.float32).min
"""Reported for a probability of 0, whose logarithm JSON cannot carry (``completion_token_output::logarithm``)."""


def _logarithms(row: FloatRow) -> list[float]:
    possible = row > 0
    logarithms: list[float] = np.where(possible, logf(np.where(possible, row, np.float32(1))), _LOWEST).tolist()
    return logarithms


class TokenLogprob(NamedTuple):
    """An id and the natural logarithm of its probability."""

    id: int
    logprob: float


class TokenLogprobs(Sequence[TokenLogprob]):
    """The best ids of one row, best first, and the row's value for any other id."""

    def __init__(self, row: FloatRow, best: npt.NDArray[np.intp]) -> None:
        """``row`` is float32 probabilities ``[n_vocab]``; ``best`` the ids to list."""
        self._row = row
        self._best = [TokenLogprob(*pair) for pair in zip(best.tolist(), _logarithms(row[best]), strict=True)]

    def logprob(self, token: int) -> float:
        """Log-probability of ``token``, the drawn one for instance, listed or not; 0 <= token < n_vocab."""
        return _logarithms(self._row[[token]])[0]

    @overload
    def __getitem__(self, index: int) -> TokenLogprob: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[TokenLogprob]: ...
    def __getitem__(self, index: int | slice) -> TokenLogprob | Sequence[TokenLogprob]:
        return self._best[index]

    def __len__(self) -> int:
        return len(self._best)


def probabilities(logits: FloatRow, k: int) -> TokenLogprobs:
    """The k best ids of a row with their log-probabilities, as llama-server's ``get_token_probabilities`` has them.

    ``logits`` is the model's own row, float32 ``[n_vocab]``: no bias, penalty, temperature or cut has touched it. The
    softmax is float32; its sum runs in the order in which ``std::partial_sort`` leaves the row, and ties are listed in
    that order. ``k`` is brought into 0..n_vocab; a few hundred cost little, the whole row is one full sort.

    Raises:
        ValueError: the row has NaN or +inf, or no finite entry.
    """
    require_finite_best(logits, "n_probs")
    k = min(max(k, 0), len(logits))
    order = partial_sort(logits, k) if k > 0 else np.arange(len(logits))
    weights = expf(logits - logits.max())
    total = np.cumsum(weights[order], dtype=np.float32)[-1]
    return TokenLogprobs(weights / total, order[:k])
