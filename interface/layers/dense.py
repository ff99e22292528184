"""The dense feed-forward."""

from __future__ import annotations

from collections.abc import Mapping

from bloomery.interface.batch import Batch
from bloomery.interface.layers.activation import activated, activation_op, projections
from bloomery.interface.layers.program import Program, no_state
from bloomery.interface.ops import Array, OpSet, Weight
from bloomery.interface.spec import Dense


def run(
    ops: OpSet, kind: Dense, weights: Mapping[str, Weight], _state: Mapping[str, Array], x: Array, _batch: Batch
) -> Array:
    """down(activation(gate x, up x))."""

    def project(name: str) -> Array:
        return ops.linear(x, weights[f"ffn_{name}"], weights.get(f"ffn_{name}.bias"))

    inner = activated(ops, kind.activation, project)
    return ops.linear(inner, weights["ffn_down"], weights.get("ffn_down.bias"))


def ops_of(kind: Dense) -> frozenset[str]:
    """Products and the activation."""
    return frozenset({"linear", activation_op(kind.activation)})


def weights_of(kind: Dense, n_embd: int) -> dict[str, tuple[int, ...]]:
    """The projections, and the biases where the kind has them."""
    shapes: dict[str, tuple[int, ...]] = {f"ffn_{name}": (kind.n_ff, n_embd) for name in projections(kind.activation)}
    shapes["ffn_down"] = (n_embd, kind.n_ff)
    return shapes | {f"{name}.bias": shapes[name][:1] for name in sorted(kind.biases)}


PROGRAM = Program(run=run, ops=ops_of, weights=weights_of, state=no_state)
