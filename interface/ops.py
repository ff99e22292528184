"""OpSet: every operation a layer program may call, each with its meaning.

The docstring of an op *is* its definition: a stranger can re-implement it without opening a body. An implementation
(`bloomery.reference.ops`, a kernel developer's port) is judged against these sentences by the conformance suite.

Handles. `Array` is whatever the implementation computes with; a program passes it on and never looks inside. `Weight`
is a named model weight, stored however the implementation likes (usually the file's quantised bytes). Shapes are
written in NumPy order; `tokens` is the number of rows of the pass, which may belong to different sequences.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from bloomery.interface.spec import Rope

Array: TypeAlias = Any
# Whatever it is, it has a `name: str`, the program's name of the weight (`blk.3.attn_q`).
Weight: TypeAlias = Any


class OpSet(Protocol):
    """The operations. All activations are float32; ids, slots, cells and positions are int32."""

    def from_host(self, values: npt.NDArray[np.generic]) -> Array:
        """A handle of the same values.  values: any shape, float32 or int32."""

    def to_host(self, x: Array) -> npt.NDArray[np.generic]:
        """A copy of a handle's values that later ops do not change."""

    def embed(self, table: Weight, ids: Array) -> Array:
        """y[t] = table[ids[t]]: the exact dequantised row.

        table: [n_vocab, width].  ids: [tokens], each in [0, n_vocab).  Returns [tokens, width].
        """

    def take_rows(self, x: Array, rows: Array) -> Array:
        """y[i] = x[rows[i]].  x: [tokens, width].  rows: [n] int32.  Returns [n, width]."""

    def add(self, a: Array, b: Array) -> Array:
        """y = a + b, elementwise, rounded once.  a, b and the result: [tokens, width]."""

    def scale(self, x: Array, factor: float) -> Array:
        """y = x * factor, elementwise, factor rounded to float32 first.  x and the result: [tokens, width]."""

    def rms_norm(self, x: Array, weight: Weight, *, eps: float) -> Array:
        """y[..., i] = x[..., i] / sqrt(mean_j x[..., j]^2 + eps) * weight[i].

        x: [tokens, width] or [tokens, heads, width]; the mean is over the last axis, and eps is inside the root.
        weight: [width].  Returns x's shape.  A row of zeros gives zeros; NaN in a row stays in that row.
        Source: Zhang & Sennrich 2019, eq. 4.
        """

    def linear(self, x: Array, weight: Weight, bias: Weight | None = None) -> Array:
        """y[t, o] = sum_i x[t, i] * weight[o, i] + bias[o].

        x: [tokens, n_in].  weight: [n_out, n_in].  bias: [n_out] or None.  Returns [tokens, n_out].
        """

    def split_heads(self, x: Array, n_head: int) -> Array:
        """y[t, h, d] = x[t, h * head_dim + d].  x: [tokens, n_head * head_dim].  Returns [tokens, n_head, head_dim]."""

    def merge_heads(self, x: Array) -> Array:
        """The inverse of `split_heads`.  x: [tokens, n_head, head_dim].  Returns [tokens, n_head * head_dim]."""

    def rope(self, x: Array, positions: Array, rope: Rope) -> Array:
        """Rotate the first `rope.n_dims` dimensions of every head by its token's position; the rest pass through.

        With theta_j = base^(-2j / n_dims) for pair j, the angle is
            a = position * freq_scale * theta_j * (1 - m_j) + position * theta_j * m_j,
            m_j = ext_factor * (1 - clamp((j - low) / max(0.001, high - low), 0, 1)),
            low = max(0, floor(dim(beta_fast))), high = min(n_dims - 1, ceil(dim(beta_slow))),
            dim(b) = n_dims * ln(n_ctx_orig / (2 pi b)) / (2 ln base),
        where m_j = 0 when ext_factor is 0. The pair (u, v) becomes magnitude * (u cos a - v sin a, u sin a + v cos a).
        x: [tokens, heads, head_dim].  positions: [tokens] int32.  Returns x's shape.
        Source: Su et al. 2021; Peng et al. 2023 (YaRN).
        """

    def kv_append(self, k_cache: Array, v_cache: Array, k: Array, v: Array, slots: Array, cells: Array) -> None:
        """k_cache[slots[t], cells[t]] = k[t], and the same for v; the only op that changes an argument.

        k_cache, v_cache: [n_slots, n_cells, n_head_kv, head_dim].  k, v: [tokens, n_head_kv, head_dim].
        slots, cells: [tokens]; no (slot, cell) pair occurs twice.
        """

    def attention(
        self,
        q: Array,
        k_cache: Array,
        v_cache: Array,
        slots: Array,
        cells: Array,
        *,
        scale: float,
        window: int | None = None,
    ) -> Array:
        """Causal grouped-query attention of every token over its own sequence's cells, its own cell included.

        With g = heads / n_head_kv, s = slots[t], and c over the last `window` cells up to cells[t] (None: all of them):
            p[c] = softmax_c(scale * sum_d q[t, h, d] * k_cache[s, c, h // g, d])
            y[t, h, d] = sum_c p[c] * v_cache[s, c, h // g, d]
        The softmax subtracts the row's maximum.
        q: [tokens, heads, head_dim].  Caches: as in `kv_append`, already holding this pass's rows.
        Returns [tokens, heads, head_dim].
        """

    def swiglu(self, gate: Array, up: Array) -> Array:
        """y = gate / (1 + exp(-gate)) * up, elementwise.  All of one shape.  Source: Shazeer 2020."""

    def geglu(self, gate: Array, up: Array) -> Array:
        """y = gelu(gate) * up, elementwise, gelu(x) = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))).

        All of one shape.  Source: Hendrycks & Gimpel 2016 (the tanh form); Shazeer 2020.
        """

    def route(self, logits: Array, *, n_used: int) -> tuple[Array, Array]:
        """Pick each token's experts: softmax over all experts, the n_used largest, renormalised.

        p = softmax(logits[t]); S = the n_used experts of largest p, in descending order, the lower expert id first
        among equals; w[t, i] = p[S_i] / max(sum_{e in S} p[e], 2^-14).
        logits: [tokens, n_expert].  Returns (experts [tokens, n_used] int32, weights [tokens, n_used] float32).
        Source: llama.cpp `build_moe_ffn` (softmax gating with normalised weights).
        """

    def expert_linear(self, x: Array, weight: Weight, experts: Array) -> Array:
        """y[t, i, o] = sum_j x[t, i, j] * weight[experts[t, i], o, j].

        x: [tokens, n_in], read by every one of the token's experts, or [tokens, n_used, n_in].
        weight: [n_expert, n_out, n_in].  experts: [tokens, n_used].  Returns [tokens, n_used, n_out].
        """

    def combine_experts(self, y: Array, weights: Array) -> Array:
        """z[t] = sum_i weights[t, i] * y[t, i], added in the order of i.

        y: [tokens, n_used, width].  weights: [tokens, n_used].  Returns [tokens, width].
        """
