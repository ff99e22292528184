"""The NumPy op set in `exact` numerics: the definition of every op of `bloomery.interface.ops.OpSet`.

Weights are decoded to float32 and activations stored as float32. A sum that decides (a norm's mean, a softmax, a
router) is taken in float64 and rounded once; products of matrices add in float32 in an order that does not depend on
the batch (`bloomery.reference.matmul`). So a row's bits never depend on which rows share its call.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from bloomery.interface.spec import Rope
from bloomery.reference.matmul import rows_times_matrix
from bloomery.reference.weights import StoredWeight

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

# The smallest sum of picked router probabilities that is divided by: half precision's smallest normal number.
_SMALLEST_SHARE = 2.0**-14


class NumpyOps:
    """See `OpSet` for what each op means; only what is particular to this implementation is said here."""

    def from_host(self, values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        return values

    def to_host(self, x: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        return x.copy()

    def embed(self, table: StoredWeight, ids: Ints) -> Floats:
        return table.rows(ids)

    def take_rows(self, x: Floats, rows: Ints) -> Floats:
        return x[rows]

    def scale(self, x: Floats, factor: float) -> Floats:
        return x * np.float32(factor)

    def add(self, a: Floats, b: Floats) -> Floats:
        return a + b

    def rms_norm(self, x: Floats, weight: StoredWeight, *, eps: float) -> Floats:
        wide = x.astype(np.float64)
        mean = np.mean(wide * wide, axis=-1, keepdims=True)
        normed: Floats = (wide / np.sqrt(mean + eps) * weight.vector()).astype(np.float32)
        return normed

    def linear(self, x: Floats, weight: StoredWeight, bias: StoredWeight | None = None) -> Floats:
        y = self._product(x, weight)
        return y if bias is None else y + bias.vector()

    def split_heads(self, x: Floats, n_head: int) -> Floats:
        return x.reshape(len(x), n_head, -1)

    def merge_heads(self, x: Floats) -> Floats:
        return x.reshape(len(x), -1)

    def rope(self, x: Floats, positions: Ints, rope: Rope) -> Floats:
        angle = positions.astype(np.float64)[:, None] * rope_frequencies(rope)
        cos = (np.cos(angle) * rope.magnitude)[:, None, :]
        sin = (np.sin(angle) * rope.magnitude)[:, None, :]
        half = rope.n_dims // 2
        u_at, v_at = (
            (slice(0, half), slice(half, rope.n_dims))
            if rope.style == "neox"
            else (slice(0, rope.n_dims, 2), slice(1, rope.n_dims, 2))
        )
        y = x.copy()
        y[..., u_at] = x[..., u_at] * cos - x[..., v_at] * sin
        y[..., v_at] = x[..., u_at] * sin + x[..., v_at] * cos
        return y

    def kv_append(self, k_cache: Floats, v_cache: Floats, k: Floats, v: Floats, slots: Ints, cells: Ints) -> None:
        k_cache[slots, cells] = k
        v_cache[slots, cells] = v

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
    ) -> Floats:
        # One row at a time: the shapes of its products then depend on its own position alone.
        n_tokens, n_head, head_dim = q.shape
        n_head_kv = k_cache.shape[2]
        y = np.empty_like(q)
        for t in range(n_tokens):
            stop = cells[t] + 1
            start = 0 if window is None else max(0, stop - window)
            k = k_cache[slots[t], start:stop]
            v = v_cache[slots[t], start:stop]
            grouped = q[t].reshape(n_head_kv, n_head // n_head_kv, head_dim)
            scores = (grouped @ k.transpose(1, 2, 0)).astype(np.float64) * scale
            shares = softmax(scores).astype(np.float32)
            y[t] = (shares @ v.transpose(1, 0, 2)).reshape(n_head, head_dim)
        return y

    def swiglu(self, gate: Floats, up: Floats) -> Floats:
        wide = gate.astype(np.float64)
        gated: Floats = (wide * expit(wide) * up).astype(np.float32)
        return gated

    def geglu(self, gate: Floats, up: Floats) -> Floats:
        gated: Floats = (gelu(gate.astype(np.float64)) * up).astype(np.float32)
        return gated

    def route(self, logits: Floats, *, n_used: int) -> tuple[Ints, Floats]:
        shares = softmax(logits.astype(np.float64))
        # A stable sort of the negated shares puts the lower expert id first among equals.
        experts = np.argsort(-shares, axis=-1, kind="stable")[:, :n_used]
        picked = np.take_along_axis(shares, experts, axis=-1)
        total = np.maximum(picked.sum(axis=-1, keepdims=True), _SMALLEST_SHARE)
        return experts.astype(np.int32), (picked / total).astype(np.float32)

    def expert_linear(self, x: Floats, weight: StoredWeight, experts: Ints) -> Floats:
        y = np.empty((*experts.shape, weight.shape[1]), np.float32)
        for expert in np.unique(experts):
            tokens, places = np.nonzero(experts == expert)
            rows = x[tokens] if x.ndim == 2 else x[tokens, places]
            y[tokens, places] = self._product(rows, weight, int(expert))
        return y

    def combine_experts(self, y: Floats, weights: Floats) -> Floats:
        total = weights[:, 0, None] * y[:, 0]
        for i in range(1, y.shape[1]):
            total = total + weights[:, i, None] * y[:, i]
        return total

    def _product(self, x: Floats, weight: StoredWeight, expert: int = 0) -> Floats:
        """Rows `[n, n_in]` times a weight's matrix, or one expert's: what another numerics does in its own way."""
        return rows_times_matrix(x, weight.row_blocks(expert), weight.shape[-2])


def softmax(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """exp(x - max) / sum over the last axis.  x: float64, its rows' maximum finite."""
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    shares: npt.NDArray[np.float64] = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def gelu(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The tanh form of GELU (`OpSet.geglu` has the formula)."""
    bent: npt.NDArray[np.float64] = 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    return bent


def rope_frequencies(rope: Rope) -> npt.NDArray[np.float64]:
    """The angle of each pair a position, [n_dims / 2] float64, scaling included (`OpSet.rope` has the formula)."""
    pairs = np.arange(rope.n_dims // 2)
    theta = rope.base ** (-2.0 * pairs / rope.n_dims)
    if rope.ext_factor == 0.0:
        return rope.freq_scale * theta

    def dimension_turning(turns: float) -> float:
        return rope.n_dims * math.log(rope.n_ctx_orig / (turns * 2 * math.pi)) / (2 * math.log(rope.base))

    low = max(0, math.floor(dimension_turning(rope.beta_fast)))
    high = min(rope.n_dims - 1, math.ceil(dimension_turning(rope.beta_slow)))
    ramp = np.clip((pairs - low) / max(0.001, high - low), 0.0, 1.0)
    mix = rope.ext_factor * (1.0 - ramp)
    return theta * (rope.freq_scale * (1.0 - mix) + mix)
