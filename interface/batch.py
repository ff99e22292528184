"""What a pass carries beside its activations, and what a layer keeps of a sequence between passes."""

from __future__ import annotations

from dataclasses import dataclass

from bloomery.interface.ops import Array


@dataclass(frozen=True)
class Batch:
    """One pass: `tokens` rows that may belong to several sequences, as handles of the op set that runs it.

    ids, positions, slots, cells: [tokens] int32. `positions` is what rotary embeddings see, `slots` the sequence's
    place in the state arrays, `cells` the row's index within its sequence. `wanted`: [n] int32, the rows that need
    logits, in the order they are returned.
    """

    ids: Array
    positions: Array
    slots: Array
    cells: Array
    wanted: Array


@dataclass(frozen=True)
class PerCell:
    """State that grows by one entry of `shape` a position (keys, values): dropping the tail cells cuts back exactly."""

    shape: tuple[int, ...]
