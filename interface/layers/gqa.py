"""Grouped-query attention over a growing cache of keys and values."""

from __future__ import annotations

from collections.abc import Mapping

from bloomery.interface.batch import Batch, PerCell
from bloomery.interface.layers import block_selector
from bloomery.interface.layers.program import Program
from bloomery.interface.ops import Array, OpSet, Weight
from bloomery.interface.spec import Gqa


def run(
    ops: OpSet, kind: Gqa, weights: Mapping[str, Weight], state: Mapping[str, Array], x: Array, batch: Batch
) -> Array:
    """Project, norm each query and key head where the model does, rotate, append, attend, gate, project back."""

    def heads(name: str, n_head: int) -> Array:
        return ops.split_heads(ops.linear(x, weights[name], weights.get(f"{name}.bias")), n_head)

    q, k, v = heads("attn_q", kind.n_head), heads("attn_k", kind.n_head_kv), heads("attn_v", kind.n_head_kv)
    gate = None
    if kind.gated:
        q, gate = ops.split(q, (kind.head_dim, kind.head_dim))
    if kind.qk_norm_eps is not None:
        q = ops.rms_norm(q, weights["attn_q_norm"], eps=kind.qk_norm_eps)
        k = ops.rms_norm(k, weights["attn_k_norm"], eps=kind.qk_norm_eps)
    if kind.rope is not None:
        q = ops.rope(q, batch.positions, kind.rope)
        k = ops.rope(k, batch.positions, kind.rope)
    ops.append(state["k"], k, batch.slots, batch.cells)
    ops.append(state["v"], v, batch.slots, batch.cells)
    chosen, block = None, 1
    if kind.selector is not None:
        chosen = block_selector.run(ops, kind, kind.selector, weights, state, x, batch)
        block = kind.selector.block
    mixed = ops.attention(
        q,
        state["k"],
        state["v"],
        batch.slots,
        batch.cells,
        scale=kind.scale,
        window=kind.window,
        sinks=weights.get("attn_sinks"),
        chosen=chosen,
        block=block,
    )
    if gate is not None:
        mixed = ops.sigmoid_gate(mixed, gate)
    y = ops.linear(ops.merge_heads(mixed), weights["attn_output"], weights.get("attn_output.bias"))
    return y if kind.output_scale == 1.0 else ops.scale(y, kind.output_scale)


def ops_of(kind: Gqa) -> frozenset[str]:
    """The ops of attention, and those of the parts the kind has."""
    ops = {"linear", "split_heads", "merge_heads", "append", "attention"}
    parts = {
        "rms_norm": kind.qk_norm_eps is not None,
        "rope": kind.rope is not None,
        "split": kind.gated,
        "sigmoid_gate": kind.gated,
        "scale": kind.output_scale != 1.0,
    }
    ops |= {op for op, needed in parts.items() if needed}
    return frozenset(ops if kind.selector is None else ops | block_selector.OPS)


def weights_of(kind: Gqa, n_embd: int) -> dict[str, tuple[int, ...]]:
    """The projections, and the head norms, sinks, biases and index heads where the kind has them."""
    shapes: dict[str, tuple[int, ...]] = {
        "attn_q": (kind.n_head * kind.head_dim * (2 if kind.gated else 1), n_embd),
        "attn_k": (kind.n_head_kv * kind.head_dim, n_embd),
        "attn_v": (kind.n_head_kv * kind.value_dim, n_embd),
        "attn_output": (n_embd, kind.n_head * kind.value_dim),
    }
    shapes |= {f"{name}.bias": shapes[name][:1] for name in sorted(kind.biases)}
    if kind.qk_norm_eps is not None:
        shapes |= {"attn_q_norm": (kind.head_dim,), "attn_k_norm": (kind.head_dim,)}
    if kind.sinks:
        shapes["attn_sinks"] = (kind.n_head,)
    if kind.selector is not None:
        shapes |= block_selector.weights_of(kind, kind.selector, n_embd)
    return shapes


def state_of(kind: Gqa) -> dict[str, PerCell]:
    """A rotated key and a value a cell and KV head, and the index key where blocks are chosen."""
    state = {"k": PerCell((kind.n_head_kv, kind.head_dim)), "v": PerCell((kind.n_head_kv, kind.value_dim))}
    return state if kind.selector is None else state | block_selector.state_of(kind.selector)


PROGRAM = Program(run=run, ops=ops_of, weights=weights_of, state=state_of)
