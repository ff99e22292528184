"""How layer programs are found, and what they are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from bloomery.interface.batch import Batch, State
from bloomery.interface.ops import Array, OpSet, Weight

OpsOf: TypeAlias = Callable[[Any], frozenset[str]]
"""`(kind)` -> the ops the program calls for it."""

Run: TypeAlias = Callable[[OpSet, Any, Mapping[str, Weight], Mapping[str, Array], Array, Batch], Array]
"""`(ops, kind, weights, state, x, batch) -> x'`, [tokens, n_embd] in and out; weights and state are this layer's."""

WeightsOf: TypeAlias = Callable[[Any, int], Mapping[str, tuple[int, ...]]]
"""`(kind, n_embd)` -> the weights the program asks for, by name, with their shapes in NumPy order."""

StateOf: TypeAlias = Callable[[Any], Mapping[str, State]]
"""`(kind)` -> the state arrays the kind keeps of a sequence, by name."""


@dataclass(frozen=True)
class Program:
    """A layer kind's program, the ops it calls, the weights it asks for and the state it keeps."""

    run: Run
    ops: OpsOf
    weights: WeightsOf
    state: StateOf


def no_state(_kind: Any) -> Mapping[str, State]:
    """The state of a kind that keeps nothing between passes."""
    return {}
