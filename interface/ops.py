"""OpSet: every operation a layer program may call, each with its meaning.

The docstring of an op *is* its definition: a stranger can re-implement it without opening a body. An implementation
(`bloomery.reference.ops`, a kernel developer's port) is judged against these sentences by the conformance suite.

Handles. `Array` is whatever the implementation computes with; a program passes it on and never looks inside. `Weight`
is a named model weight, stored however the implementation likes (usually the file's quantised bytes). Shapes are
written in NumPy order; `tokens` is the number of rows of the pass, which may belong to different sequences.

State. `cells` state is [n_slots, n_cells, ...]: a row's entry is state[slots[t], cells[t]]. `lanes` state is
[n_slots, n_lanes, ...] and holds what a sequence carries from row to row: an op takes the rows in order, and row t
reads state[slots[t], read_lanes[t]] and replaces state[slots[t], write_lanes[t]]. Nothing else in a state changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias

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
        """y[..., i] = x[..., i] / sqrt(mean_j x[..., j]^2 + eps) * weight[..., i].

        x: [tokens, width] or [tokens, heads, width]; the mean is over the last axis, and eps is inside the root.
        weight: [width], or [heads, width] with x of heads.  Returns x's shape.  A row of zeros gives zeros; NaN in a
        row stays in that row.  Source: Zhang & Sennrich 2019, eq. 4.
        """

    def l2_norm(self, x: Array, *, eps: float) -> Array:
        """y[..., i] = x[..., i] / sqrt(sum_j x[..., j]^2 + eps).  x and the result: [tokens, heads, width]."""

    def linear(self, x: Array, weight: Weight, bias: Weight | None = None) -> Array:
        """y[t, o] = sum_i x[t, i] * weight[o, i] + bias[o].

        x: [tokens, n_in].  weight: [n_out, n_in].  bias: [n_out] or None.  Returns [tokens, n_out].
        """

    def split_heads(self, x: Array, n_head: int) -> Array:
        """y[t, h, d] = x[t, h * head_dim + d].  x: [tokens, n_head * head_dim].  Returns [tokens, n_head, head_dim]."""

    def merge_heads(self, x: Array) -> Array:
        """The inverse of `split_heads`.  x: [tokens, n_head, head_dim].  Returns [tokens, n_head * head_dim]."""

    def split(self, x: Array, sizes: Sequence[int]) -> tuple[Array, ...]:
        """The last axis cut into parts of these sizes, in order; the sizes add up to it.  x: [..., width]."""

    def concat(self, a: Array, b: Array) -> Array:
        """b behind a on the last axis.  a: [tokens, m].  b: [tokens, n].  Returns [tokens, m + n]."""

    def rope(self, x: Array, positions: Array, rope: Rope) -> Array:
        """Rotate the first `rope.n_dims` dimensions of every head by its token's position; the rest pass through.

        With theta_j = base^(-2j / n_dims) for pair j, the angle is
            a = position * freq_scale * theta_j * (1 - m_j) + position * theta_j * m_j,
            m_j = ext_factor * (1 - clamp((j - low) / max(0.001, high - low), 0, 1)),
            low = max(0, floor(dim(beta_fast))), high = min(n_dims - 1, ceil(dim(beta_slow))),
            dim(b) = n_dims * ln(n_ctx_orig / (2 pi b)) / (2 ln base),
        where m_j = 0 when ext_factor is 0. The pair (u, v) becomes magnitude * (u cos a - v sin a, u sin a + v cos a).
        With `rope.sections` the pair's position is the component that `Rope` names for it.
        x: [tokens, heads, head_dim].  positions: [tokens] int32, or [tokens, 4] for the components (t, h, w, e);
        one number stands for four equal ones.  Returns x's shape.
        Source: Su et al. 2021; Peng et al. 2023 (YaRN).
        """

    def append(self, cache: Array, rows: Array, slots: Array, cells: Array) -> None:
        """cache[slots[t], cells[t]] = rows[t].

        cache: `cells` state of any entry shape.  rows: [tokens, ...] of that shape.
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
        sinks: Weight | None = None,
        chosen: Array | None = None,
        block: int = 1,
    ) -> Array:
        """Causal grouped-query attention of every token over its own sequence's cells, its own cell included.

        With g = heads / n_head_kv, s = slots[t], and c over the last `window` cells up to cells[t] (None: all of them):
            p[c] = softmax_c(scale * sum_d q[t, h, d] * k_cache[s, c, h // g, d])
            y[t, h, d] = sum_c p[c] * v_cache[s, c, h // g, d]
        The softmax subtracts the row's maximum. With `sinks` the score sinks[h] joins head h's maximum and sum and has
        no value. With `chosen` c is further limited to cells whose block, c // block, is in chosen[t, h // g].
        q: [tokens, heads, head_dim].  k_cache: `cells` state of [n_head_kv, head_dim], v_cache: of [n_head_kv,
        value_dim], both already holding this pass's rows.  sinks: [heads].  chosen: [tokens, n_head_kv, n] int32, where
        -1 is no block; the own block is always chosen.  Returns [tokens, heads, value_dim].
        """

    def select_blocks(
        self, q: Array, k_cache: Array, slots: Array, cells: Array, *, block: int, n_chosen: int, n_local: int
    ) -> Array:
        """The blocks of cells that each token's attention may read, for each index head.

        With s = slots[t], own = cells[t] // block and b over 0..own: score[b] is the maximum, over the cells c <=
        cells[t] of block b, of sum_d q[t, h, d] * k_cache[s, c, d]. The blocks own, own - 1, ... own - n_local + 1 are
        taken first, then those of largest score, the lower block first among equals, until n_chosen are or none is
        left.
        q: [tokens, heads, head_dim].  k_cache: `cells` state of [head_dim].  n_local <= n_chosen.
        Returns [tokens, heads, n_chosen] int32, ascending, with -1 behind the last.
        Source: llama.cpp `llm_build_minimax_m3` (block scores by maximum, forced local blocks).
        """

    def causal_conv(
        self,
        x: Array,
        weight: Weight,
        bias: Weight | None,
        state: Array,
        slots: Array,
        read_lanes: Array,
        write_lanes: Array,
    ) -> Array:
        """y[t, c] = silu(sum_i weight[c, i] * h[i, c] + bias[c]), where h is the last n inputs, x[t] the newest.

        With `lanes` state of [n - 1, channels]: h = (state's rows, x[t]), and the new state is h's last n - 1 rows.
        x: [tokens, channels].  weight: [channels, n].  bias: [channels] or None.  Returns [tokens, channels].
        """

    def log_decay(self, x: Array, bias: Weight, a: Weight) -> Array:
        """y[t, h] = softplus(x[t, h] + bias[h]) * a[h], with softplus(z) = ln(1 + exp(z)), and z itself above 20.

        x and the result: [tokens, heads].  bias, a: [heads].  Source: Dao & Gu 2024 (the discretised decay).
        """

    def delta_rule(
        self,
        q: Array,
        k: Array,
        v: Array,
        log_decay: Array,
        strength: Array,
        state: Array,
        slots: Array,
        read_lanes: Array,
        write_lanes: Array,
        *,
        scale: float,
    ) -> Array:
        """The gated delta rule, a row at a time. For value head h with key head j = h % n_head_k and state M:

            M = exp(log_decay[t, h]) * M
            M = M + sigmoid(strength[t, h]) * (v[t, h] - M k[t, j]) k[t, j]^T
            y[t, h] = scale * M q[t, j]
        q, k: [tokens, n_head_k, key_dim].  v: [tokens, n_head_v, value_dim].  log_decay, strength: [tokens, n_head_v].
        state: `lanes` state of [n_head_v, value_dim, key_dim].  Returns [tokens, n_head_v, value_dim].
        Source: Yang et al. 2024 (Gated DeltaNet), eq. 10.
        """

    def ssm_scan(
        self,
        x: Array,
        b: Array,
        c: Array,
        dt: Array,
        dt_bias: Weight,
        a: Weight,
        d: Weight,
        state: Array,
        slots: Array,
        read_lanes: Array,
        write_lanes: Array,
    ) -> Array:
        """The Mamba-2 recurrence, a row at a time. For head h of group g = h // (heads / groups) and state S:

            step = softplus(dt[t, h] + dt_bias[h]), as in `log_decay`
            S[p, n] = exp(step * a[h]) * S[p, n] + step * x[t, h, p] * b[t, g, n]
            y[t, h, p] = sum_n S[p, n] * c[t, g, n] + d[h] * x[t, h, p]
        x: [tokens, heads, head_dim].  b, c: [tokens, groups, d_state].  dt: [tokens, heads].  dt_bias: [heads].
        a, d: [heads, 1].  state: `lanes` state of [heads, head_dim, d_state].  Returns [tokens, heads, head_dim].
        Source: Dao & Gu 2024 (Mamba-2), the scalar-times-identity recurrence.
        """

    def previous(self, x: Array, state: Array, slots: Array, read_lanes: Array, write_lanes: Array) -> Array:
        """y[t] = the state's row, which x[t] then replaces: each sequence's rows, moved on by one.

        x and the result: [tokens, width].  state: `lanes` state of [width].
        """

    def read_state(self, state: Array, slots: Array, lanes: Array) -> Array:
        """y[t] = state[slots[t], lanes[t]].  state: `lanes` state.  slots, lanes: [n].  Returns [n, ...]."""

    def sigmoid_gate(self, x: Array, gate: Array) -> Array:
        """y = x / (1 + exp(-gate)), elementwise.  x, the result: [tokens, ..., width].  gate: x's shape, or width 1."""

    def swiglu(self, gate: Array, up: Array) -> Array:
        """y = gate / (1 + exp(-gate)) * up, elementwise.  All of one shape.  Source: Shazeer 2020."""

    def geglu(self, gate: Array, up: Array) -> Array:
        """y = gelu(gate) * up, elementwise, gelu(x) = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))).

        All of one shape.  Source: Hendrycks & Gimpel 2016 (the tanh form); Shazeer 2020.
        """

    def swiglu_oai(self, gate: Array, up: Array) -> Array:
        """y = g / (1 + exp(-1.702 g)) * (u + 1), with g = min(gate, 7) and u = up limited to -7..7, elementwise.

        All of one shape.  Source: gpt-oss (OpenAI 2025), whose model code has the constants.
        """

    def squared_relu(self, x: Array) -> Array:
        """y = max(x, 0)^2, elementwise.  Source: So et al. 2021 (Primer)."""

    def route(
        self,
        logits: Array,
        *,
        n_used: int,
        score: Literal["softmax", "sigmoid"] = "softmax",
        bias: Weight | None = None,
        normalised: bool = True,
        scale: float = 1.0,
    ) -> tuple[Array, Array]:
        """Pick each token's experts.

        p = softmax(logits[t]), or the sigmoid of each; S = the n_used experts of largest p[e] + bias[e], in descending
        order, the lower expert id first among equals; w[t, i] = scale * p[S_i], and when normalised p is divided by
        max(sum_{e in S} p[e], 2^-14) first.
        logits: [tokens, n_expert].  bias: [n_expert] or None.
        Returns (experts [tokens, n_used] int32, weights [tokens, n_used] float32).
        Source: llama.cpp `build_moe_ffn`.
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
