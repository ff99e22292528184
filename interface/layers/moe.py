"""The routed SwiGLU feed-forward: a few experts of many, chosen a token."""

from __future__ import annotations

from collections.abc import Mapping

from bloomery.interface.batch import Batch
from bloomery.interface.layers.program import Program, no_state
from bloomery.interface.ops import Array, OpSet, Weight
from bloomery.interface.spec import Moe


def run(
    ops: OpSet, kind: Moe, weights: Mapping[str, Weight], _state: Mapping[str, Array], x: Array, _batch: Batch
) -> Array:
    """Route, run the chosen experts, add their outputs in the order of descending probability."""
    experts, shares = ops.route(ops.linear(x, weights["ffn_gate_inp"]), n_used=kind.n_expert_used)
    gate = ops.expert_linear(x, weights["ffn_gate_exps"], experts)
    up = ops.expert_linear(x, weights["ffn_up_exps"], experts)
    down = ops.expert_linear(ops.swiglu(gate, up), weights["ffn_down_exps"], experts)
    return ops.combine_experts(down, shares)


def weights_of(kind: Moe, n_embd: int) -> dict[str, tuple[int, ...]]:
    """The router and the experts' three projections, expert-major."""
    return {
        "ffn_gate_inp": (kind.n_expert, n_embd),
        "ffn_gate_exps": (kind.n_expert, kind.n_ff, n_embd),
        "ffn_up_exps": (kind.n_expert, kind.n_ff, n_embd),
        "ffn_down_exps": (kind.n_expert, n_embd, kind.n_ff),
    }


PROGRAM = Program(
    run=run,
    ops=frozenset({"linear", "route", "expert_linear", "swiglu", "combine_experts"}),
    weights=weights_of,
    state=no_state,
)
