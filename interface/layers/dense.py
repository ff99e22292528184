"""The dense gated feed-forward."""

from __future__ import annotations

from collections.abc import Mapping

from bloomery.interface.batch import Batch
from bloomery.interface.layers.program import Program, no_state
from bloomery.interface.ops import Array, OpSet, Weight
from bloomery.interface.spec import Dense


def run(
    ops: OpSet, kind: Dense, weights: Mapping[str, Weight], _state: Mapping[str, Array], x: Array, _batch: Batch
) -> Array:
    """down(activation(gate x) * up x)."""
    gate = ops.linear(x, weights["ffn_gate"])
    up = ops.linear(x, weights["ffn_up"])
    gated = ops.geglu(gate, up) if kind.activation == "gelu" else ops.swiglu(gate, up)
    return ops.linear(gated, weights["ffn_down"])


def weights_of(kind: Dense, n_embd: int) -> dict[str, tuple[int, ...]]:
    """The three projections."""
    return {"ffn_gate": (kind.n_ff, n_embd), "ffn_up": (kind.n_ff, n_embd), "ffn_down": (n_embd, kind.n_ff)}


PROGRAM = Program(run=run, ops=frozenset({"linear", "swiglu", "geglu"}), weights=weights_of, state=no_state)
