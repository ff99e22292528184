"""One resident sequence of the reference engine: its ids and its place in the state arrays."""

from __future__ import annotations

import numpy as np

from bloomery.interface.engine import EngineError, SavedSequence
from bloomery.reference.state import StatePool


class ReferenceSequence:
    """See `bloomery.interface.engine.Sequence`. State that grows by the cell can be cut anywhere; of a recurrence only
    the last input's state and those of a trial are there."""

    def __init__(self, pool: StatePool) -> None:
        """Raises EngineError when the pool has no free place."""
        self.pool = pool
        self.slot = pool.take()
        self.pending = 0
        self.released = False
        self._ids: list[int] = []
        self._lane = 0
        self._trial_lanes: list[int] = []
        pool.clear(self.slot, self._lane)

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(self._ids)

    @property
    def n_past(self) -> int:
        return len(self._ids)

    @property
    def lane(self) -> int:
        """Where the state after the last input is, of what does not grow by the cell."""
        return self._lane

    def lanes(self, n: int, trial: int) -> list[int]:
        """The lane of the state now, and the lane that each of the next `n` inputs leaves its state in.

        Inputs share one lane until the last `trial`, which have one each. The lane of now is not written to. The lowest
        lanes are taken first, so that memory for trials is touched by trials alone.
        """
        lanes = [self._lane, *(lane for lane in range(self.pool.n_lanes) if lane != self._lane)]
        moves = np.cumsum([0, *(at == 0 or at >= n - trial for at in range(n))])
        return [lanes[move] for move in moves]

    def extend(self, ids: list[int], trial: int) -> None:
        """Count inputs that a pass has put into the state, the last `trial` of them to be confirmed."""
        self._trial_lanes = self.lanes(len(ids), trial)[-trial - 1 :]
        self._lane = self._trial_lanes[-1]
        self._ids.extend(ids)
        self.pending = trial

    def commit(self, kept: int) -> None:
        if self.released:
            raise EngineError("commit: the sequence was released")
        if not self.pending:
            raise EngineError("commit without a trial: the sequence's last span had no inputs on trial")
        if not 0 <= kept <= self.pending:
            raise EngineError(f"commit({kept}) is outside the trial's 0..{self.pending}")
        del self._ids[len(self._ids) - self.pending + kept :]
        self._lane = self._trial_lanes[kept]
        self.pending = 0

    def keep(self, n: int) -> int:
        self._settled("keep")
        if n < 0:
            raise EngineError(f"keep({n}): a prefix has no negative length")
        if n < self.n_past and self.pool.recurrent:
            n = 0
            self.pool.clear(self.slot, self._lane)
        del self._ids[n:]
        return len(self._ids)

    def save(self) -> SavedSequence:
        self._settled("save")
        arrays = {name: cells.copy() for name, cells in self.pool.state(self.slot, self.n_past, self._lane).items()}
        return SavedSequence(engine=self.pool.signature, ids=self.ids, arrays=arrays)

    def load(self, saved: SavedSequence) -> None:
        self._settled("load")
        if saved.engine != self.pool.signature:
            raise EngineError(
                f"a sequence saved by {saved.engine[:60]!r} does not fit {self.pool.signature[:60]!r}:"
                " engine, numerics or model shape differ"
            )
        n = len(saved.ids)
        if n > self.pool.n_ctx:
            raise EngineError(f"the saved sequence has {n} ids and n_ctx is {self.pool.n_ctx}")
        if any(not 0 <= token < self.pool.n_vocab for token in saved.ids):
            raise EngineError(f"the saved sequence has an id outside the vocabulary of {self.pool.n_vocab}")
        places = self.pool.state(self.slot, n, self._lane)
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
            self.pool.give_back(self.slot)

    def _settled(self, action: str) -> None:
        if self.released:
            raise EngineError(f"{action}: the sequence was released")
        if self.pending:
            raise EngineError(f"{action}: a trial of {self.pending} inputs waits for commit")
