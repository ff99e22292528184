"""What a pass carries beside its activations, and what a layer keeps of a sequence between passes."""

from __future__ import annotations

from dataclasses import dataclass

from bloomery.interface.ops import Array


@dataclass(frozen=True)
class Batch:
    """One pass: `tokens` rows that may belong to several sequences, as handles of the op set that runs it.

    ids, positions, slots, cells, read_lanes, write_lanes: [tokens] int32. `positions` is what rotary embeddings see,
    `slots` the sequence's place in the state arrays, `cells` the row's index within its sequence. State that does not
    grow is kept in several lanes a slot: a row finds its sequence's state in its read lane and leaves it in its write
    lane, so that the states of the last rows stay for a trial that is taken back. Rows of one sequence are in order.
    `wanted`: [n] int32, the rows that need logits, in the order they are returned.
    """

    ids: Array
    positions: Array
    slots: Array
    cells: Array
    read_lanes: Array
    write_lanes: Array
    wanted: Array


@dataclass(frozen=True)
class PerCell:
    """State that grows by one entry of `shape` a position (keys, values): dropping the tail cells cuts back exactly."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class PerSequence:
    """State of one `shape` whatever the length (a recurrence, the last inputs of a convolution): each input replaces
    it, zeros stand before the first, and no tail can be cut from it."""

    shape: tuple[int, ...]


State = PerCell | PerSequence
