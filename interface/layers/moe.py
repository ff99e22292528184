"""The routed feed-forward: a few experts of many, chosen a token, and perhaps one that every token uses."""

from __future__ import annotations

from collections.abc import Mapping

from bloomery.interface.batch import Batch
from bloomery.interface.layers.activation import activated, activation_op, projections
from bloomery.interface.layers.program import Program, no_state
from bloomery.interface.ops import Array, OpSet, Weight
from bloomery.interface.spec import Moe


def run(
    ops: OpSet, kind: Moe, weights: Mapping[str, Weight], _state: Mapping[str, Array], x: Array, _batch: Batch
) -> Array:
    """Route, run the chosen experts, add their outputs in the order of descending score, then the shared expert's."""
    experts, shares = ops.route(
        ops.linear(x, weights["ffn_gate_inp"]),
        n_used=kind.n_expert_used,
        score=kind.score,
        bias=weights.get("exp_probs_b.bias"),
        normalised=kind.normalised,
        scale=kind.weights_scale,
    )
    seen = x if kind.n_latent is None else ops.linear(x, weights["ffn_latent_down"])
    inner = activated(ops, kind.activation, lambda name: ops.expert_linear(seen, weights[f"ffn_{name}_exps"], experts))
    y = ops.combine_experts(ops.expert_linear(inner, weights["ffn_down_exps"], experts), shares)
    if kind.n_latent is not None:
        y = ops.linear(y, weights["ffn_latent_up"])
    return y if kind.shared is None else ops.add(y, _shared(ops, kind, weights, x))


def _shared(ops: OpSet, kind: Moe, weights: Mapping[str, Weight], x: Array) -> Array:
    """The shared expert's output, [tokens, n_embd]."""
    inner = activated(ops, kind.activation, lambda name: ops.linear(x, weights[f"ffn_{name}_shexp"]))
    y = ops.linear(inner, weights["ffn_down_shexp"])
    gate = weights.get("ffn_gate_inp_shexp")
    return y if gate is None else ops.sigmoid_gate(y, ops.linear(x, gate))


def ops_of(kind: Moe) -> frozenset[str]:
    """The router, the experts, and what the shared expert needs where there is one."""
    ops = {"linear", "route", "expert_linear", "combine_experts", activation_op(kind.activation)}
    if kind.shared is not None:
        ops |= {"add", "sigmoid_gate"} if kind.shared.gated else {"add"}
    return frozenset(ops)


def weights_of(kind: Moe, n_embd: int) -> dict[str, tuple[int, ...]]:
    """The router, the experts' projections, expert-major, and those of the latent width and the shared expert."""
    width = kind.n_latent or n_embd
    into = projections(kind.activation)
    shapes: dict[str, tuple[int, ...]] = {"ffn_gate_inp": (kind.n_expert, n_embd)}
    if kind.selection_bias:
        shapes["exp_probs_b.bias"] = (kind.n_expert,)
    shapes |= {f"ffn_{name}_exps": (kind.n_expert, kind.n_ff, width) for name in into}
    shapes["ffn_down_exps"] = (kind.n_expert, width, kind.n_ff)
    if kind.n_latent is not None:
        shapes |= {"ffn_latent_down": (kind.n_latent, n_embd), "ffn_latent_up": (n_embd, kind.n_latent)}
    if kind.shared is not None:
        shapes |= {f"ffn_{name}_shexp": (kind.shared.n_ff, n_embd) for name in into}
        shapes["ffn_down_shexp"] = (n_embd, kind.shared.n_ff)
        if kind.shared.gated:
            shapes["ffn_gate_inp_shexp"] = (1, n_embd)
    return shapes


PROGRAM = Program(run=run, ops=ops_of, weights=weights_of, state=no_state)
