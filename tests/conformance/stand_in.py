"""An engine for the checks' own tests: a float64 forward pass behind the engine's protocol, with room for a fault.

It shares nothing with the engines of this project, and whatever a fault does to its rows or its ids, a check must see.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from bloomery.interface.engine import EngineOptions, SavedSequence, Span
from bloomery.interface.spec import ModelSpec
from tests.conformance.forward64 import Forward64

Floats = npt.NDArray[np.float32]

# Logits of a row and how many ids led to it, to what the engine reports.
RowFault = Callable[[Floats, int], Floats]


def no_fault(logits: Floats, _n_past: int) -> Floats:
    return logits


class StandInSequence:
    """Ids alone: every pass computes the whole sequence anew."""

    def __init__(self) -> None:
        self.ids: tuple[int, ...] = ()

    @property
    def n_past(self) -> int:
        return len(self.ids)

    def release(self) -> None:
        self.ids = ()

    def commit(self, kept: int) -> None:
        raise AssertionError("no check commits")

    def keep(self, n: int) -> int:
        raise AssertionError("no check cuts back")

    def save(self) -> SavedSequence:
        raise AssertionError("no check saves")

    def load(self, saved: SavedSequence) -> None:
        raise AssertionError("no check loads")


class StandInRows:
    """A span's rows."""

    def __init__(self, rows: list[Floats]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def logits(self, row: int) -> Floats:
        return self._rows[row]

    def best(self, row: int, k: int) -> tuple[npt.NDArray[np.int32], Floats]:
        order = np.argsort(-self._rows[row], kind="stable")[:k]
        return order.astype(np.int32), self._rows[row][order]


class StandInEngine:
    """`fault` changes rows; with `forgets` a sequence that is continued loses its oldest id first."""

    name = "stand-in"

    def __init__(
        self, forward: Forward64, *, fault: RowFault = no_fault, forgets: bool = False, numerics: str = "exact"
    ) -> None:
        self._forward = forward
        self._fault = fault
        self._forgets = forgets
        self.options = EngineOptions(n_ctx=512, numerics=numerics)
        self.spec = ModelSpec(
            architecture="qwen3", n_vocab=forward.n_vocab, n_embd=0, n_ctx_train=512, norm_eps=0.0, layers=()
        )

    def sequence(self) -> StandInSequence:
        return StandInSequence()

    def close(self) -> None:
        pass

    def run(self, spans: Items[Span], *, taps: object = None) -> list[Any]:
        """One span a call, as the checks ask."""
        [span] = spans
        sequence = cast(StandInSequence, span.sequence)
        if self._forgets and sequence.ids:
            sequence.ids = sequence.ids[1:]
        before = len(sequence.ids)
        sequence.ids += tuple(span.ids)
        logits = self._forward.run(list(sequence.ids)).logits.astype(np.float32)
        places = [(index if index >= 0 else len(span.ids) + index) + before for index in span.wanted]
        return [StandInRows([self._fault(logits[place].copy(), place + 1) for place in places])]
