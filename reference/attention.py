"""Attention of query rows over their own cells of the cache, a row at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]

# One row's attention over the cells it reads, with the arguments of `mix`.
Mix = Callable[[Floats, Floats, Floats, float, Doubles | None], Floats]


def mix(q: Floats, k: Floats, v: Floats, scale: float, sink: Doubles | None) -> Floats:
    """One row: q [KV heads, group, head_dim], k [cells, KV heads, head_dim], v the same with v_dim, sink [KV heads,
    group, 1]; returns [KV heads, group, v_dim]."""
    if not len(k):
        return np.zeros((*q.shape[:2], v.shape[2]), np.float32)
    # Keys times queries: a BLAS is faster at many rows times few columns than the other way round.
    products = (k.transpose(1, 0, 2) @ q.transpose(0, 2, 1)).transpose(0, 2, 1)
    scores = np.multiply(products, scale, dtype=np.float64, order="C")
    top = scores.max(axis=-1, keepdims=True)
    if sink is not None:
        top = np.maximum(top, sink)
    powers = np.exp(scores - top)
    total = powers.sum(axis=-1, keepdims=True)
    if sink is not None:
        total += np.exp(sink - top)
    mixed: Floats = (powers / total).astype(np.float32) @ v.transpose(1, 0, 2)
    return mixed


def attend(
    q: Floats,
    k_cache: Floats,
    v_cache: Floats,
    slots: Ints,
    cells: Ints,
    *,
    scale: float,
    window: int | None = None,
    sinks: Floats | None = None,
    chosen: Ints | None = None,
    block: int = 1,
    mix_row: Mix = mix,
) -> Floats:
    """softmax(scale * q k) v over the cells up to a row's own: [tokens, heads, v_dim] float32.

    q: [tokens, heads, head_dim].  k_cache: [n_slots, n_cells, n_head_kv, head_dim], v_cache the same with v_dim; query
    heads share KV heads in equal runs.  slots, cells: [tokens], where a row is and what it sees last.  `window`: it
    sees no more than so many cells.  `sinks`: [heads], one more score a head, not scaled, that takes its share and has
    no value.  `chosen`: [tokens, n_head_kv, k], what a KV head may read besides those limits, as blocks of `block`
    cells in any order; -1 is none, and a block named twice is read once.  A row that may read nothing is zeros.

    `mix_row` is the arithmetic of a row. In `mix` products add in float32, and the softmax is float64, rounded to
    float32 before it weights the values. A row's products have shapes that depend on its own position and choice
    alone, and so have its bits.
    """
    n_tokens, n_head, head_dim = q.shape
    n_head_kv, v_dim = v_cache.shape[2:]
    grouped = q.reshape(n_tokens, n_head_kv, n_head // n_head_kv, head_dim)
    sink = None if sinks is None else sinks.astype(np.float64).reshape(n_head_kv, -1, 1)
    y = np.empty((*grouped.shape[:3], v_dim), np.float32)
    for t, (slot, stop) in enumerate(zip(slots.tolist(), (cells + 1).tolist(), strict=True)):
        start = 0 if window is None else max(0, stop - window)
        if chosen is None:
            y[t] = mix_row(grouped[t], k_cache[slot, start:stop], v_cache[slot, start:stop], scale, sink)
            continue
        for head in range(n_head_kv):
            one = slice(head, head + 1)
            read = _cells_of(chosen[t, head], block, start, stop)
            k, v = k_cache[slot, read, one], v_cache[slot, read, one]
            y[t, one] = mix_row(grouped[t, one], k, v, scale, None if sink is None else sink[one])
    return y.reshape(n_tokens, n_head, v_dim)


def _cells_of(blocks: Ints, block: int, start: int, stop: int) -> npt.NDArray[np.intp]:
    """The cells of those blocks in start..stop, in ascending order and each once."""
    first = np.unique(blocks[blocks >= 0]).astype(np.intp) * block
    read = (first[:, None] + np.arange(min(block, stop))).reshape(-1)
    return read[(read >= start) & (read < stop)]
