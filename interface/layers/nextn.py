"""The model's own draft layer: fed with every row the model computes, so that it can propose from any of them."""

from __future__ import annotations

from collections.abc import Mapping

from bloomery.interface.batch import Batch, PerSequence, State
from bloomery.interface.layers.layer import layer_ops, layer_state, layer_weights, run_layer
from bloomery.interface.ops import Array, OpSet, Weight
from bloomery.interface.spec import NextN

OPS = frozenset({"embed", "rms_norm", "concat", "linear", "previous", "read_state"})


def feed(
    ops: OpSet, kind: NextN, weights: Mapping[str, Weight], state: Mapping[str, Array], hidden: Array, batch: Batch
) -> None:
    """Let the layer see what the model saw.  hidden: [tokens, n_embd], the batch's rows behind the output norm."""
    before = ops.previous(hidden, state["hidden"], batch.slots, batch.read_lanes, batch.write_lanes)
    _run(ops, kind, weights, state, before, batch)


def step(
    ops: OpSet, kind: NextN, weights: Mapping[str, Weight], state: Mapping[str, Array], before: Array, batch: Batch
) -> tuple[Array, Array]:
    """One draft step a row: the logits of the id behind the batch's ids, and the hidden rows of the next step.

    before: [tokens, n_embd], the hidden rows of the positions before.  The layer's cache keeps the rows as if the ids
    were inputs, until inputs replace them.
    """
    hidden = ops.rms_norm(_run(ops, kind, weights, state, before, batch), weights["norm"], eps=kind.norm_eps)
    return ops.linear(hidden, weights["head"]), hidden


def _run(
    ops: OpSet, kind: NextN, weights: Mapping[str, Weight], state: Mapping[str, Array], before: Array, batch: Batch
) -> Array:
    embedded = ops.rms_norm(ops.embed(weights["embed"], batch.ids), weights["enorm"], eps=kind.norm_eps)
    both = ops.concat(embedded, ops.rms_norm(before, weights["hnorm"], eps=kind.norm_eps))
    return run_layer(ops, kind.layer, weights, state, ops.linear(both, weights["eh_proj"]), batch)


def ops_of(kind: NextN) -> frozenset[str]:
    """The ops of the layer and around it."""
    return OPS | layer_ops(kind.layer)


def weights_of(kind: NextN, n_embd: int, n_vocab: int) -> dict[str, tuple[int, ...]]:
    """The layer's weights, its projection, its norms, and the embedding and head, which are often the model's."""
    return {
        "eh_proj": (n_embd, 2 * n_embd),
        "enorm": (n_embd,),
        "hnorm": (n_embd,),
        "norm": (n_embd,),
        "embed": (n_vocab, n_embd),
        "head": (n_vocab, n_embd),
        **layer_weights(kind.layer, n_embd),
    }


def state_of(kind: NextN, n_embd: int) -> dict[str, State]:
    """The layer's state, and the hidden row of the last input."""
    return {"hidden": PerSequence((n_embd,)), **layer_state(kind.layer)}
