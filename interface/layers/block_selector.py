"""Index heads beside an attention, which choose the blocks of cells it may read."""

from __future__ import annotations

from collections.abc import Mapping

from bloomery.interface.batch import Batch, PerCell
from bloomery.interface.ops import Array, OpSet, Weight
from bloomery.interface.spec import BlockSelector, Gqa

OPS = frozenset({"linear", "split_heads", "merge_heads", "rms_norm", "rope", "append", "select_blocks"})


def run(
    ops: OpSet,
    attention: Gqa,
    kind: BlockSelector,
    weights: Mapping[str, Weight],
    state: Mapping[str, Array],
    x: Array,
    batch: Batch,
) -> Array:
    """Index queries, one a KV head, and one index key: norm, rotate, append, select.  [tokens, n_head_kv, n_chosen]."""
    q = ops.split_heads(ops.linear(x, weights["indexer.q_proj"]), attention.n_head_kv)
    k = ops.split_heads(ops.linear(x, weights["indexer.k_proj"]), 1)
    q = ops.rope(ops.rms_norm(q, weights["indexer.q_norm"], eps=kind.norm_eps), batch.positions, kind.rope)
    k = ops.rope(ops.rms_norm(k, weights["indexer.k_norm"], eps=kind.norm_eps), batch.positions, kind.rope)
    ops.append(state["index_k"], ops.merge_heads(k), batch.slots, batch.cells)
    return ops.select_blocks(
        q,
        state["index_k"],
        batch.slots,
        batch.cells,
        block=kind.block,
        n_chosen=kind.n_chosen,
        n_local=kind.n_local,
    )


def weights_of(attention: Gqa, kind: BlockSelector, n_embd: int) -> dict[str, tuple[int, ...]]:
    """Two projections and two norms."""
    return {
        "indexer.q_proj": (attention.n_head_kv * kind.head_dim, n_embd),
        "indexer.k_proj": (kind.head_dim, n_embd),
        "indexer.q_norm": (kind.head_dim,),
        "indexer.k_norm": (kind.head_dim,),
    }


def state_of(kind: BlockSelector) -> dict[str, PerCell]:
    """A rotated index key a cell."""
    return {"index_k": PerCell((kind.head_dim,))}
