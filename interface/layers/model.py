"""The whole model: embedding, layers, output norm and head; and which program runs which layer kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bloomery.interface.batch import Batch, PerCell
from bloomery.interface.layers import dense, gqa, moe
from bloomery.interface.layers.program import Program
from bloomery.interface.ops import Array, OpSet, Weight
from bloomery.interface.spec import Dense, FeedForward, Gqa, LayerSpec, Mixer, ModelSpec, Moe, Sandwich

PROGRAMS: Mapping[type, Program] = {Gqa: gqa.PROGRAM, Dense: dense.PROGRAM, Moe: moe.PROGRAM}

MODEL_OPS = frozenset({"embed", "scale", "take_rows", "rms_norm", "linear", "add"})

# The norms behind mixer and feed-forward of a Sandwich residual.
POST_NORMS = ("post_attention_norm", "post_ffw_norm")


def program_of(kind: Mixer | FeedForward) -> Program:
    """The program of a layer kind.  Raises KeyError for a kind without one; `coverage` refuses such a model first."""
    return PROGRAMS[type(kind)]


def state_of(layer: LayerSpec) -> dict[str, PerCell]:
    """All the state arrays of one layer, by name."""
    return {**program_of(layer.mixer).state(layer.mixer), **program_of(layer.ffn).state(layer.ffn)}


def layer_weights(layer: LayerSpec, n_embd: int) -> dict[str, tuple[int, ...]]:
    """All the weights of one layer by name, with their shapes, the norms of the residual included."""
    norms = ("attn_norm", "ffn_norm") + (POST_NORMS if isinstance(layer.residual, Sandwich) else ())
    return {
        **dict.fromkeys(norms, (n_embd,)),
        **program_of(layer.mixer).weights(layer.mixer, n_embd),
        **program_of(layer.ffn).weights(layer.ffn, n_embd),
    }


def run_layer(
    ops: OpSet, layer: LayerSpec, weights: Mapping[str, Weight], state: Mapping[str, Array], x: Array, batch: Batch
) -> Array:
    """One layer in its residual.  x: [tokens, n_embd] in and out."""
    eps = layer.residual.norm_eps
    mixed = program_of(layer.mixer).run(
        ops, layer.mixer, weights, state, ops.rms_norm(x, weights["attn_norm"], eps=eps), batch
    )
    if isinstance(layer.residual, Sandwich):
        mixed = ops.rms_norm(mixed, weights["post_attention_norm"], eps=eps)
    x = ops.add(x, mixed)
    fed = program_of(layer.ffn).run(
        ops, layer.ffn, weights, state, ops.rms_norm(x, weights["ffn_norm"], eps=eps), batch
    )
    if isinstance(layer.residual, Sandwich):
        fed = ops.rms_norm(fed, weights["post_ffw_norm"], eps=eps)
    return ops.add(x, fed)


def run_model(
    ops_of: Callable[[int | None], OpSet],
    spec: ModelSpec,
    weights: Mapping[str, Weight],
    layers: Sequence[tuple[Mapping[str, Weight], Mapping[str, Array]]],
    batch: Batch,
) -> Array:
    """One pass.  Returns the logits of the batch's wanted rows, [n, n_vocab].

    `ops_of(i)` is the op set to run layer `i` with, and `ops_of(None)` the one outside the layers: usually one and the
    same, but taps want to know where they are. `layers` holds each layer's weights and state.
    """
    outside = ops_of(None)
    x = outside.embed(weights["token_embd"], batch.ids)
    if spec.embedding_scale != 1.0:
        x = outside.scale(x, spec.embedding_scale)
    for i, (layer, (own_weights, state)) in enumerate(zip(spec.layers, layers, strict=True)):
        x = run_layer(ops_of(i), layer, own_weights, state, x, batch)
    x = outside.take_rows(x, batch.wanted)
    x = outside.rms_norm(x, weights["output_norm"], eps=spec.norm_eps)
    return outside.linear(x, weights["output"])
