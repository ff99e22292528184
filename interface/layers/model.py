"""The whole model: embedding, layers, output norm, head, and the draft layer beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bloomery.interface.batch import Batch, State
from bloomery.interface.layers import nextn
from bloomery.interface.layers.layer import layer_ops, layer_state, layer_weights, run_layer
from bloomery.interface.ops import Array, OpSet, Weight
from bloomery.interface.spec import ModelSpec

Layer = tuple[Mapping[str, Weight], Mapping[str, Array]]
"""One layer's weights and state, by the programs' names."""


def model_ops(spec: ModelSpec) -> frozenset[str]:
    """The ops that a pass calls, a draft layer's included."""
    ops = frozenset({"embed", "take_rows", "rms_norm", "linear"}).union(*map(layer_ops, spec.layers))
    if spec.embedding_scale != 1.0:
        ops |= {"scale"}
    return ops if spec.nextn is None else ops | nextn.ops_of(spec.nextn)


def weights_by_layer(spec: ModelSpec) -> list[tuple[str, dict[str, tuple[int, ...]]]]:
    """Each layer's prefix in the weight table (`blk.3`), and its weights by name with their shapes; a draft layer
    last, as `nextn`."""
    layers = [(f"blk.{i}", layer_weights(layer, spec.n_embd)) for i, layer in enumerate(spec.layers)]
    if spec.nextn is not None:
        layers.append(("nextn", nextn.weights_of(spec.nextn, spec.n_embd, spec.n_vocab)))
    return layers


def state_by_layer(spec: ModelSpec) -> list[dict[str, State]]:
    """Each layer's state arrays by name, a draft layer's last."""
    layers = [layer_state(layer) for layer in spec.layers]
    return layers if spec.nextn is None else [*layers, nextn.state_of(spec.nextn, spec.n_embd)]


def run_model(
    ops_of: Callable[[int | None], OpSet],
    spec: ModelSpec,
    weights: Mapping[str, Weight],
    layers: Sequence[Layer],
    batch: Batch,
) -> Array:
    """One pass.  Returns the logits of the batch's wanted rows, [n, n_vocab].

    `ops_of(i)` is the op set to run layer `i` with, and `ops_of(None)` the one outside the layers: usually one and the
    same, but taps want to know where they are. `layers` holds each layer's weights and state, and the draft layer's
    behind them when the spec has one.
    """
    outside = ops_of(None)
    x = outside.embed(weights["token_embd"], batch.ids)
    if spec.embedding_scale != 1.0:
        x = outside.scale(x, spec.embedding_scale)
    for i, (layer, (own_weights, state)) in enumerate(zip(spec.layers, layers, strict=False)):
        x = run_layer(ops_of(i), layer, own_weights, state, x, batch)
    x = outside.rms_norm(x, weights["output_norm"], eps=spec.norm_eps)
    if spec.nextn is not None:
        i = len(spec.layers)
        nextn.feed(ops_of(i), spec.nextn, *layers[i], x, batch)
    return outside.linear(outside.take_rows(x, batch.wanted), weights["output"])
