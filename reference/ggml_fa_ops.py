"""The NumPy op sets in `ggml-fa` and `ggml-fa-rows` numerics: llama.cpp's CPU code with flash attention on.

That is llama.cpp's default. Its cache is then in half precision, and its attention is one of two pieces of code
(ggml-cpu/ops.cpp, `ggml_compute_forward_flash_attn_ext_f16`), which round differently:

* A pass of 64 tokens or more multiplies float32 queries with the keys and adds in float32. But for the cache that is
  what `ggml` does; so `ggml-fa` is `ggml` with a cache in half precision.
* A smaller pass, and so every token that is generated, goes from cell to cell. It rounds queries to half precision,
  and keeps the weighted sum of values in half precision: every cell that is read rounds it. `ggml-fa-rows` does the
  same.

In llama.cpp a token's own value so depends on how many tokens share its pass. Here a row's bits depend on nothing but
its prefix, whichever of the two numerics is asked for.
"""

from __future__ import annotations

import numpy as np

from bloomery.reference.attention import Doubles, attend
from bloomery.reference.ggml_ops import GgmlOps
from bloomery.reference.ops import Floats, Ints
from bloomery.reference.weights import StoredWeight


class GgmlFaOps(GgmlOps):
    """`GgmlOps` with a cache in half precision: what llama.cpp makes of passes of 64 tokens or more."""

    cache = "float16"

    def append(self, cache: Floats, rows: Floats, slots: Ints, cells: Ints) -> None:
        super().append(cache, in_half_precision(rows), slots, cells)


class GgmlFaRowsOps(GgmlFaOps):
    """`GgmlFaOps` with queries and running sums in half precision too: passes of fewer than 64 tokens."""

    attends_in = "float16"

    def attention(
        self,
        q: Floats,
        k_cache: Floats,
        v_cache: Floats,
        slots: Ints,
        cells: Ints,
        *,
        scale: float,
        window: int | None = None,
        sinks: StoredWeight | None = None,
        chosen: Ints | None = None,
        block: int = 1,
    ) -> Floats:
        values = None if sinks is None else sinks.values()
        return attend(
            q, k_cache, v_cache, slots, cells, scale=scale, window=window, sinks=values, chosen=chosen, block=block,
            mix_row=mix_cell_by_cell,
        )  # fmt: skip


def in_half_precision(x: Floats | Doubles) -> Floats:
    """The nearest half-precision numbers, ties to even and infinities past 65,504, as float32."""
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(np.float32)


def mix_cell_by_cell(q: Floats, k: Floats, v: Floats, scale: float, sink: Doubles | None) -> Floats:
    """Attention of one row as llama.cpp's loop over cells has it; arguments and result as of `attention.mix`.

    With m the running maximum of the scores s, and half the rounding to half precision, cell c makes
        old = exp(m_before - m),  share = exp(s[c] - m),
        sum = half(half(sum * old) + share * v[c]),  total = total * old + share
    in float32; a sink joins behind the last cell, and total divides sum at the end. (ggml-cpu/ops.cpp,
    `ggml_compute_forward_flash_attn_ext_f16_one_chunk`.) Only the scores' own sums are not llama.cpp's: they are taken
    in float64 and rounded once.
    """
    rounded = in_half_precision(q).astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        scores = ((k.transpose(1, 0, 2) @ rounded.transpose(0, 2, 1)).transpose(1, 0, 2) * scale).astype(np.float32)
        tops = np.full((1 + len(k), *q.shape[:2]), -np.inf, np.float32)
        np.maximum.accumulate(scores, axis=0, out=tops[1:])
        olds, shares = _exp(tops[:-1] - tops[1:]), _exp(scores - tops[1:])
        total = np.zeros(q.shape[:2], np.float32)
        mixed = np.zeros((*q.shape[:2], v.shape[2]), np.float32)
        for old, share, values in zip(olds, shares, v.astype(np.float64), strict=True):
            # The product of two float32 numbers is exact in float64, so that the sum is rounded as a fused one.
            kept = in_half_precision(mixed * old[..., None])
            mixed = in_half_precision((share[..., None] * values[:, None] + kept).astype(np.float32))
            total = total * old + share
        if sink is not None:
            last = sink[..., 0].astype(np.float32)
            top = np.maximum(tops[-1], last)
            old = _exp(tops[-1] - top)
            mixed, total = mixed * old[..., None], total * old + _exp(last - top)
        inverse = np.divide(1, total, out=np.zeros_like(total), where=total != 0)
        return mixed * inverse[..., None]


def _exp(x: Floats) -> Floats:
    """The exponential, rounded once."""
    powers: Floats = np.exp(x.astype(np.float64)).astype(np.float32)
    return powers
