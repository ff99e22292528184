"""One resident sequence of the reference engine: its ids and its place in the state arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bloomery.interface.engine import EngineError, SavedSequence

if TYPE_CHECKING:
    from bloomery.reference.engine import ReferenceEngine


class ReferenceSequence:
    """See `bloomery.interface.engine.Sequence`. All of its state grows by the cell, so any prefix can be kept."""

    def __init__(self, engine: ReferenceEngine, slot: int) -> None:
        self.engine = engine
        self.slot = slot
        self.pending = 0
        self.released = False
        self._ids: list[int] = []

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(self._ids)

    @property
    def n_past(self) -> int:
        return len(self._ids)

    def extend(self, ids: list[int], trial: int) -> None:
        """Count inputs that a pass has put into the state, the last `trial` of them to be confirmed."""
        self._ids.extend(ids)
        self.pending = trial

    def commit(self, kept: int) -> None:
        if not self.pending:
            raise EngineError("commit without a trial: the sequence's last span had no inputs on trial")
        if not 0 <= kept <= self.pending:
            raise EngineError(f"commit({kept}) is outside the trial's 0..{self.pending}")
        del self._ids[len(self._ids) - self.pending + kept :]
        self.pending = 0

    def keep(self, n: int) -> int:
        self._settled("keep")
        if n < 0:
            raise EngineError(f"keep({n}): a prefix has no negative length")
        del self._ids[n:]
        return len(self._ids)

    def save(self) -> SavedSequence:
        self._settled("save")
        arrays = {
            f"{layer}.{name}": np.array(state[self.slot, : self.n_past])
            for layer, states in enumerate(self.engine.states)
            for name, state in states.items()
        }
        return SavedSequence(engine=self.engine.signature, ids=self.ids, arrays=arrays)

    def load(self, saved: SavedSequence) -> None:
        self._settled("load")
        if saved.engine != self.engine.signature:
            raise EngineError(f"a sequence saved by {saved.engine!r} does not fit {self.engine.signature!r}")
        n = len(saved.ids)
        if n > self.engine.options.n_ctx:
            raise EngineError(f"the saved sequence has {n} ids and n_ctx is {self.engine.options.n_ctx}")
        places = {
            f"{layer}.{name}": state[self.slot, :n]
            for layer, states in enumerate(self.engine.states)
            for name, state in states.items()
        }
        for name, place in places.items():
            array = saved.arrays.get(name)
            if array is None or array.shape != place.shape or array.dtype != place.dtype:
                raise EngineError(f"the saved sequence's array {name} is missing or has another shape or dtype")
        for name, place in places.items():
            place[...] = saved.arrays[name]
        self._ids = list(saved.ids)

    def release(self) -> None:
        if not self.released:
            self.released = True
            self.engine.reclaim(self.slot)

    def _settled(self, action: str) -> None:
        if self.released:
            raise EngineError(f"{action}: the sequence was released")
        if self.pending:
            raise EngineError(f"{action}: a trial of {self.pending} inputs waits for commit")
