"""Proposals of the model's own draft layer: its likeliest id, fed to it again, and so on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from bloomery.interface.batch import Batch
from bloomery.interface.draft import Ask
from bloomery.interface.engine import EngineError
from bloomery.interface.layers import nextn
from bloomery.interface.ops import OpSet, Weight
from bloomery.interface.spec import NextN
from bloomery.reference.sequence import ReferenceSequence
from bloomery.reference.state import StatePool


class NextNDraft:
    """See `bloomery.interface.draft.DraftSource`.

    The layer saw every input of a sequence when the model did, and the pool holds the hidden row of the last one. What
    a proposal leaves in the layer's cache lies behind the sequence's end, where the next inputs replace it.
    """

    name = "mtp"

    def __init__(
        self,
        ops: OpSet,
        kind: NextN,
        weights: Mapping[str, Weight],
        state: Mapping[str, npt.NDArray[np.float32]],
        pool: StatePool,
    ) -> None:
        self._ops, self._kind, self._weights, self._state, self._pool = ops, kind, weights, state, pool

    def propose(self, asks: Sequence[Ask]) -> list[tuple[int, ...]]:
        if not self._pool.arrays:
            raise EngineError("the engine is closed")
        sequences = [self._own(ask) for ask in asks]
        if len(set(map(id, sequences))) != len(sequences):
            raise EngineError("one call names a sequence twice")
        # The span that verifies holds `last` before the proposals.
        lengths = [
            min(ask.n, self._pool.n_ctx - sequence.n_past - 1) for ask, sequence in zip(asks, sequences, strict=True)
        ]
        proposals: list[list[int]] = [[] for _ in asks]
        rows = [row for row, length in enumerate(lengths) if length > 0]
        last = [ask.last for ask in asks]
        if not rows:
            return [() for _ in asks]
        slots = np.array([sequence.slot for sequence in sequences], np.int32)
        lanes = np.array([sequence.lane for sequence in sequences], np.int32)
        hidden = self._ops.read_state(self._state["hidden"], slots[rows], lanes[rows])
        while rows:
            cells = np.array([sequences[row].n_past + len(proposals[row]) for row in rows], np.int32)
            batch = Batch(
                ids=np.array([last[row] for row in rows], np.int32),
                positions=cells,
                slots=slots[rows],
                cells=cells,
                read_lanes=lanes[rows],
                write_lanes=lanes[rows],
                wanted=np.arange(len(rows), dtype=np.int32),
            )
            logits, hidden = nextn.step(self._ops, self._kind, self._weights, self._state, hidden, batch)
            # The first of the largest is the lowest id.
            for row, best in zip(rows, np.argmax(logits, axis=-1), strict=True):
                proposals[row].append(int(best))
                last[row] = int(best)
            going_on = [at for at, row in enumerate(rows) if len(proposals[row]) < lengths[row]]
            hidden = self._ops.take_rows(hidden, np.array(going_on, np.int32))
            rows = [rows[at] for at in going_on]
        return [tuple(proposal) for proposal in proposals]

    def _own(self, ask: Ask) -> ReferenceSequence:
        sequence = ask.sequence
        if not isinstance(sequence, ReferenceSequence) or sequence.pool is not self._pool:
            raise EngineError("a draft names a sequence of another engine")
        if sequence.released:
            raise EngineError("a draft names a sequence that was released")
        if sequence.pending:
            raise EngineError(f"a draft's sequence has a trial of {sequence.pending} inputs that waits for commit")
        if not 0 <= ask.last < self._pool.n_vocab:
            raise EngineError(f"the id {ask.last} is outside the vocabulary of {self._pool.n_vocab}")
        if ask.n < 0:
            raise EngineError(f"a draft of {ask.n} ids: a proposal has no negative length")
        return sequence
