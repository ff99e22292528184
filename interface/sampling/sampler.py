"""The sampler of one generation: llama-server's chain with its state, the penalty window and the draw's twister."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Collection, Iterable

import numpy as np
import numpy.typing as npt

from bloomery.interface.sampling import chain
from bloomery.interface.sampling.candidates import Candidates, FloatRow, require_finite_best
from bloomery.interface.sampling.drawn import Drawn
from bloomery.interface.sampling.params import RANDOM_SEED, UINT32_MASK, SamplingParams
from bloomery.interface.sampling.penalties import PenaltyWindow
from bloomery.interface.sampling.rng import MersenneTwister


def random_seed() -> int:
    """A fresh seed for a request that asks for a random one, 0 <= seed < 4294967295."""
    return secrets.randbelow(RANDOM_SEED)


class Sampler:
    """Chooses the ids of one sequence: the same params, seed, accepted ids and rows always give the same ones.

    ``accept`` and ``sample`` are separate, as in llama-server: the prompt's ids are accepted without being sampled, a
    sampled id counts once it is accepted. Each draw takes one number from the twister, the greedy ones aside, where it
    could change nothing.

    Equal logits are in the order in which llama-server's sorts leave them (``order``), for greedy ids too, and that is
    not always the lowest id: of two best ones, 3 and 7, the default top_k of 40 takes 7 and a top_k of 1 takes 3.
    """

    def __init__(
        self, params: SamplingParams, *, n_vocab: int, eog_ids: Collection[int] = (), seed: int | None = None
    ) -> None:
        """Start a sequence.

        Args:
            params: the request's settings.
            n_vocab: ids run from 0 to n_vocab - 1.
            eog_ids: the vocabulary's end-of-generation ids, held at -inf under ``ignore_eos``.
            seed: the twister's seed, taken modulo 2**32 and used as it is; None takes the one of ``params``, or a
                random one where that asks for it.

        Raises:
            ValueError: ``logit_bias`` or ``eog_ids`` names an id that is not in the vocabulary.
        """
        for name, tokens in (("logit_bias", params.logit_bias), ("eog_ids", eog_ids)):
            for token in tokens:
                _require_token(token, n_vocab, f"{name}: ")
        if seed is None:
            seed = random_seed() if params.seed is None or params.has_random_seed else params.seed
        self.params = params
        self.n_vocab = n_vocab
        self.seed = seed & UINT32_MASK
        self._biases = dict(params.logit_bias)
        if params.ignore_eos:
            self._biases |= dict.fromkeys(eog_ids, -np.inf)
        self._window = PenaltyWindow(params)
        self._twister = MersenneTwister(self.seed)

    def copy(self) -> Sampler:
        """A sampler in the same state that goes on independently, to return to when a draft is refused."""
        twin = copy.copy(self)
        twin._window = self._window.copy()
        twin._twister = self._twister.copy()
        return twin

    def accept(self, token: int) -> None:
        """Count ``token`` as seen: an id of the prompt, or one that was sampled and kept.

        Raises:
            ValueError: it is not an id of the vocabulary.
        """
        _require_token(token, self.n_vocab)
        self._window.accept(token)

    def accept_all(self, tokens: Iterable[int]) -> None:
        """Count ``tokens`` as seen, in order."""
        for token in tokens:
            self.accept(token)

    def sample(self, logits: FloatRow) -> int:
        """Choose the next id from the model's row, float32 ``[n_vocab]``; the row is left as it is.

        Raises:
            ValueError: the row has another shape or type, or leaves no id to choose (``require_finite_best``).
        """
        return self.draw(logits).token

    def draw(self, logits: FloatRow) -> Drawn:
        """``sample``, with what the id was drawn from."""
        if logits.shape != (self.n_vocab,) or logits.dtype != np.float32:
            raise ValueError(
                f"a row of logits must be float32 [{self.n_vocab}], not {logits.dtype} {list(logits.shape)}"
            )
        return self._choose(Candidates.of_row(self._changed(logits)))

    def sample_best(self, ids: npt.NDArray[np.integer], logits: FloatRow) -> int | None:
        """Choose the next id from the ``best_k`` best of the row, or None where only the whole row can decide.

        The answer is always the one ``sample`` gives for the row. None means that two of the entries that the draw is
        made from are equal, so that their order depends on the rest of the row; the state is then as it was.

        Args:
            ids: the ``best_k`` best ids ``[k]`` or more, best first, or all of a smaller vocabulary.
            logits: their logits in the model's row, float32 ``[k]``.

        Raises:
            ValueError: these are too few for the settings, or leave no id to choose.
        """
        if self.best_k is None or len(ids) < min(self.best_k, self.n_vocab):
            raise ValueError(
                f"the {len(ids)} best entries do not decide the draw, which takes {self.best_k or 'the row'}"
            )
        row = np.full(self.n_vocab, -np.inf, np.float32)
        row[ids] = logits
        # What is not listed was no better than the last of the list, and nothing has raised it since.
        candidates = chain.top_k(Candidates(ids.astype(np.intp), self._changed(row)[ids]), self._deciding)
        if np.any(candidates.logits[1:] == candidates.logits[:-1]):
            return None
        return self._choose(candidates).token

    @property
    def best_k(self) -> int | None:
        """How many of a row's best entries are enough for ``sample_best``; None where it takes the whole row.

        Each id that a bias or a penalty lowers may leave the best, and the next one of the row then follows. So the
        number grows while the penalty window fills.
        """
        if self._deciding == 0 or not self.params.only_lowers:
            return None
        return self._deciding + len(self._biases.keys() | self._window.seen)

    @property
    def _deciding(self) -> int:
        """How many of the best entries after biases and penalties decide a draw, 0 where all do.

        The last one is not drawn from: it shows whether the one before has an equal.
        """
        if self.params.is_greedy:
            return 2
        return self.params.top_k + 1 if self.params.top_k > 0 else 0

    def _changed(self, logits: FloatRow) -> FloatRow:
        """The row after biases and penalties, float32 ``[n_vocab]``."""
        return self._window.apply(chain.logit_bias(logits, self._biases))

    def _choose(self, candidates: Candidates) -> Drawn:
        """The chain after the penalties."""
        require_finite_best(candidates.logits, "sampling")
        if self.params.is_greedy:
            best = int(np.argmax(candidates.logits))
            if np.count_nonzero(candidates.logits == candidates.logits[best]) == 1:
                # No cut removes the one best id, and no draw misses it.
                alone = candidates.take(slice(best, best + 1), best_first=True)
                return Drawn(alone, np.ones(1, np.float32), 0)
        candidates = chain.narrow(candidates, self.params)
        require_finite_best(candidates.logits, f"temperature {self.params.temperature} is too near 0 (0 is greedy)")
        chosen, probabilities = chain.draw(candidates, self._twister.uniform())
        return Drawn(candidates, probabilities, chosen)


def _require_token(token: int, n_vocab: int, where: str = "") -> None:
    if not 0 <= token < n_vocab:
        raise ValueError(f"{where}{token} is not a token id, the vocabulary ends at {n_vocab - 1}")
