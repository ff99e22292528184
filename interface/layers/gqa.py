"""Grouped-query attention over a growing cache of keys and values."""

from __future__ import annotations

from collections.abc import Mapping

from bloomery.interface.batch import Batch, PerCell
from bloomery.interface.layers.program import Program
from bloomery.interface.ops import Array, OpSet, Weight
from bloomery.interface.spec import Gqa


def run(
    ops: OpSet, kind: Gqa, weights: Mapping[str, Weight], state: Mapping[str, Array], x: Array, batch: Batch
) -> Array:
    """Project, norm each query and key head where the model does, rotate, append, attend, project back."""
    q = ops.split_heads(ops.linear(x, weights["attn_q"], weights.get("attn_q.bias")), kind.n_head)
    k = ops.split_heads(ops.linear(x, weights["attn_k"], weights.get("attn_k.bias")), kind.n_head_kv)
    v = ops.split_heads(ops.linear(x, weights["attn_v"], weights.get("attn_v.bias")), kind.n_head_kv)
    if kind.qk_norm_eps is not None:
        q = ops.rms_norm(q, weights["attn_q_norm"], eps=kind.qk_norm_eps)
        k = ops.rms_norm(k, weights["attn_k_norm"], eps=kind.qk_norm_eps)
    q = ops.rope(q, batch.positions, kind.rope)
    k = ops.rope(k, batch.positions, kind.rope)
    ops.kv_append(state["k"], state["v"], k, v, batch.slots, batch.cells)
    mixed = ops.attention(q, state["k"], state["v"], batch.slots, batch.cells, scale=kind.scale, window=kind.window)
    return ops.linear(ops.merge_heads(mixed), weights["attn_output"])


def weights_of(kind: Gqa, n_embd: int) -> dict[str, tuple[int, ...]]:
    """The projections, and the head norms and biases where the kind has them."""
    n_q, n_kv = kind.n_head * kind.head_dim, kind.n_head_kv * kind.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "attn_q": (n_q, n_embd),
        "attn_k": (n_kv, n_embd),
        "attn_v": (n_kv, n_embd),
        "attn_output": (n_embd, n_q),
    }
    if kind.qk_norm_eps is not None:
        shapes |= {"attn_q_norm": (kind.head_dim,), "attn_k_norm": (kind.head_dim,)}
    if kind.bias:
        shapes |= {"attn_q.bias": (n_q,), "attn_k.bias": (n_kv,), "attn_v.bias": (n_kv,)}
    return shapes


def state_of(kind: Gqa) -> dict[str, PerCell]:
    """A rotated key and a value a cell and KV head."""
    row = PerCell(shape=(kind.n_head_kv, kind.head_dim))
    return {"k": row, "v": row}


PROGRAM = Program(
    run=run,
    ops=frozenset({"linear", "split_heads", "merge_heads", "rms_norm", "rope", "kv_append", "attention"}),
    weights=weights_of,
    state=state_of,
)
