"""Penalties on ids that were seen lately: llama.cpp's ``penalties`` sampler (``src/llama-sampler.cpp``)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable

import numpy as np

from bloomery.interface.sampling.candidates import FloatRow
from bloomery.interface.sampling.params import SamplingParams


class PenaltyWindow:
    """The last ``repeat_last_n`` accepted ids and how often each is among them.

    llama-server accepts the prompt's ids before the first draw, then each drawn one, so the window starts in the
    prompt. A window whose penalties are all neutral keeps nothing.
    """

    def __init__(self, params: SamplingParams) -> None:
        self._params = params
        self._last: deque[int] = deque()
        self._counts: Counter[int] = Counter()

    def accept(self, token: int) -> None:
        """Let ``token`` in, and the oldest one out if the window is full."""
        if not self._params.has_penalties:
            return
        if len(self._last) == self._params.repeat_last_n:
            oldest = self._last.popleft()
            self._counts[oldest] -= 1
            if self._counts[oldest] == 0:
                del self._counts[oldest]
        self._last.append(token)
        self._counts[token] += 1

    def accept_all(self, tokens: Iterable[int]) -> None:
        """Let ``tokens`` in, in order."""
        if self._params.has_penalties:
            for token in tokens:
                self.accept(token)

    def copy(self) -> PenaltyWindow:
        """A window that goes on from here independently of this one."""
        twin = PenaltyWindow(self._params)
        twin._last = self._last.copy()
        twin._counts = self._counts.copy()
        return twin

    @property
    def seen(self) -> Collection[int]:
        """The ids whose logits the penalties change, each once."""
        return self._counts.keys()

    def apply(self, logits: FloatRow) -> FloatRow:
        """The row with the logits of the ids in the window lowered; float32 ``[n_vocab]`` throughout.

        A logit above 0 is divided by ``repeat_penalty``, any other multiplied by it; then ``frequency_penalty`` times
        the count and ``presence_penalty`` are subtracted, in one subtraction.
        """
        if not self._counts:
            return logits
        seen = np.fromiter(self._counts.keys(), np.intp, len(self._counts))
        counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
        repeat = np.float32(self._params.repeat_penalty)
        frequency, presence = np.float32(self._params.frequency_penalty), np.float32(self._params.presence_penalty)
        touched = logits[seen]
        penalised = logits.copy()
        with np.errstate(over="ignore"):
            touched = np.where(touched <= 0, touched * repeat, touched / repeat)
            penalised[seen] = touched - (counts * frequency + presence)
        return penalised
