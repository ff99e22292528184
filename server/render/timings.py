"""llama-server's `timings`, and those of a generation that still runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from bloomery.server.events import PromptProgress, Timings


def timings_json(timings: Timings) -> dict[str, Any]:
    """The object: times in milliseconds, rates a second, 0 where nothing was measured.

    The first id comes out of the prompt's last row, so the generation's rates count one id less, as llama-server's do.
    """
    steps = max(0, timings.predicted_n - 1)
    return {
        "cache_n": timings.cache_n,
        "prompt_n": timings.prompt_n,
        "prompt_ms": timings.prompt_ms,
        "prompt_per_token_ms": _ratio(timings.prompt_ms, timings.prompt_n),
        "prompt_per_second": _ratio(1e3 * timings.prompt_n, timings.prompt_ms),
        "predicted_n": timings.predicted_n,
        "predicted_ms": timings.predicted_ms,
        "predicted_per_token_ms": _ratio(timings.predicted_ms, steps),
        "predicted_per_second": _ratio(1e3 * steps, timings.predicted_ms),
        "cache_ms": timings.cache_ms,
    }


def _ratio(value: float, by: float) -> float:
    return value / by if by else 0.0


def progress_json(progress: PromptProgress) -> dict[str, Any]:
    """The `prompt_progress` object."""
    return {
        "total": progress.total,
        "cache": progress.cache,
        "processed": progress.processed,
        "time_ms": round(progress.time_ms),
    }


class RunningTimings:
    """Timings as a stream goes on, from what its events tell and when they came."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._prompt = PromptProgress(total=0, cache=0, processed=0, time_ms=0.0)
        self._first: float | None = None
        self._n = 0

    def prompt(self, progress: PromptProgress) -> None:
        """The prompt went on."""
        self._prompt = progress

    def token(self) -> None:
        """An id came."""
        self._first = self._clock() if self._first is None else self._first
        self._n += 1

    def now(self) -> Timings:
        """The timings so far."""
        return Timings(
            cache_n=self._prompt.cache,
            prompt_n=self._prompt.processed - self._prompt.cache,
            prompt_ms=self._prompt.time_ms,
            predicted_n=self._n,
            predicted_ms=0.0 if self._first is None else 1e3 * (self._clock() - self._first),
        )
