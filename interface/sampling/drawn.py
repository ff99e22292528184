"""What a draw was made from: the ``post_sampling_probs`` report of llama-server."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bloomery.interface.sampling.candidates import Candidates, FloatRow
from bloomery.interface.sampling.order import sort_best_first


class TokenProbability(NamedTuple):
    """An id and the probability it was drawn by."""

    id: int
    probability: float


class Drawn:
    """A drawn id, and the candidates that the whole chain left it to be drawn from, temperature and biases included.

    Their probabilities sum to 1; an id that the chain cut is not among them.
    """

    def __init__(self, candidates: Candidates, probabilities: FloatRow, chosen: int) -> None:
        """``probabilities`` is float32 ``[n]``, one a candidate; ``chosen`` the drawn one's position."""
        self._candidates = candidates
        self._probabilities = probabilities
        self.token = int(candidates.ids[chosen])
        self.probability = float(probabilities[chosen])

    def best(self, k: int) -> list[TokenProbability]:
        """The k most probable candidates, best first, without those of probability 0; k >= 0.

        Equal ones are in the order in which llama-server has them: as the chain left them where it sorted, else as
        ``std::sort`` by probability puts them (``common_sampler_get_candidates`` in ``common/sampling.cpp``).
        """
        possible = min(k, int(np.count_nonzero(self._probabilities)))
        order = np.arange(possible) if self._candidates.best_first else sort_best_first(self._probabilities, possible)
        pairs = zip(self._candidates.ids[order].tolist(), self._probabilities[order].tolist(), strict=True)
        return [TokenProbability(*pair) for pair in pairs]
