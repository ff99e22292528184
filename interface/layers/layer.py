"""One layer: which program runs which kind, and how mixer and feed-forward join the residual stream."""

from __future__ import annotations

from collections.abc import Mapping

from bloomery.interface.batch import Batch, State
from bloomery.interface.layers import delta_rule, dense, gqa, mamba2, moe
from bloomery.interface.layers.program import Program
from bloomery.interface.ops import Array, OpSet, Weight
from bloomery.interface.spec import DeltaRule, Dense, FeedForward, Gqa, LayerSpec, Mamba2, Mixer, Moe, Sandwich

PROGRAMS: Mapping[type, Program] = {
    Gqa: gqa.PROGRAM,
    DeltaRule: delta_rule.PROGRAM,
    Mamba2: mamba2.PROGRAM,
    Dense: dense.PROGRAM,
    Moe: moe.PROGRAM,
}


def program_of(kind: Mixer | FeedForward) -> Program:
    """The program of a layer kind.  Raises KeyError for a kind without one; `coverage` refuses such a model first."""
    return PROGRAMS[type(kind)]


def parts_of(layer: LayerSpec) -> list[tuple[str, Mixer | FeedForward, str]]:
    """The layer's mixer and feed-forward, those it has, each between the names of its norms: before, kind, behind.

    The norm behind is used in a `Sandwich` residual only.
    """
    parts: list[tuple[str, Mixer | FeedForward, str]] = []
    if layer.mixer is not None:
        parts.append(("attn_norm", layer.mixer, "post_attention_norm"))
    if layer.ffn is not None:
        parts.append(("ffn_norm", layer.ffn, "post_ffw_norm"))
    return parts


def run_layer(
    ops: OpSet, layer: LayerSpec, weights: Mapping[str, Weight], state: Mapping[str, Array], x: Array, batch: Batch
) -> Array:
    """One layer in its residual.  x: [tokens, n_embd] in and out."""
    eps = layer.residual.norm_eps
    for norm, kind, behind in parts_of(layer):
        y = program_of(kind).run(ops, kind, weights, state, ops.rms_norm(x, weights[norm], eps=eps), batch)
        if isinstance(layer.residual, Sandwich):
            y = ops.rms_norm(y, weights[behind], eps=eps)
        x = ops.add(x, y)
    return x


def layer_ops(layer: LayerSpec) -> frozenset[str]:
    """The ops that a pass through the layer calls."""
    return frozenset({"rms_norm", "add"}).union(*(program_of(kind).ops(kind) for _, kind, _ in parts_of(layer)))


def layer_state(layer: LayerSpec) -> dict[str, State]:
    """All the state arrays of one layer, by name."""
    return {name: state for _, kind, _ in parts_of(layer) for name, state in program_of(kind).state(kind).items()}


def layer_weights(layer: LayerSpec, n_embd: int) -> dict[str, tuple[int, ...]]:
    """All the weights of one layer by name, with their shapes, the norms of the residual included."""
    shapes: dict[str, tuple[int, ...]] = {}
    for norm, kind, behind in parts_of(layer):
        norms = (norm, behind) if isinstance(layer.residual, Sandwich) else (norm,)
        shapes |= {**dict.fromkeys(norms, (n_embd,)), **program_of(kind).weights(kind, n_embd)}
    return shapes
