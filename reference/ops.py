"""The NumPy op set in `exact` numerics: the definition of every op of `bloomery.interface.ops.OpSet`.

Weights are decoded to float32 and activations stored as float32. A sum that decides (a norm's mean, a softmax, a
router) is taken in float64 and rounded once; products of matrices add in float32 in an order that does not depend on
the batch (`bloomery.reference.matmul`). So a row's bits never depend on which rows share its call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from bloomery.interface.spec import Rope
from bloomery.reference import recurrent, selection
from bloomery.reference.attention import attend
from bloomery.reference.matmul import rows_times_matrix
from bloomery.reference.weights import StoredWeight

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

# `OpSet.swiglu_oai` has the formula.
_OAI_LIMIT, _OAI_SLOPE = 7.0, 1.702


class NumpyOps:
    """See `OpSet` for what each op means; only what is particular to this implementation is said here."""

    # What it claims of its arithmetic (`bloomery.conformance.ops.claims`).
    numerics = "exact"
    decides_in = "float64"
    rows_stand_alone = True

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
        normed: Floats = (wide / np.sqrt(mean + eps) * weight.values()).astype(np.float32)
        return normed

    def l2_norm(self, x: Floats, *, eps: float) -> Floats:
        wide = x.astype(np.float64)
        total = np.sum(wide * wide, axis=-1, keepdims=True)
        normed: Floats = (wide / np.sqrt(total + eps)).astype(np.float32)
        return normed

    def linear(self, x: Floats, weight: StoredWeight, bias: StoredWeight | None = None) -> Floats:
        y = self._product(x, weight)
        return y if bias is None else y + bias.values()

    def split_heads(self, x: Floats, n_head: int) -> Floats:
        return x.reshape(len(x), n_head, -1)

    def merge_heads(self, x: Floats) -> Floats:
        return x.reshape(len(x), -1)

    def split(self, x: Floats, sizes: Sequence[int]) -> tuple[Floats, ...]:
        return tuple(np.split(x, np.cumsum(sizes)[:-1], axis=-1))

    def concat(self, a: Floats, b: Floats) -> Floats:
        return np.concatenate([a, b], axis=-1)

    def rope(self, x: Floats, positions: Ints, rope: Rope) -> Floats:
        angle = pair_positions(positions, rope).astype(np.float64) * rope_frequencies(rope)
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

    def append(self, cache: Floats, rows: Floats, slots: Ints, cells: Ints) -> None:
        cache[slots, cells] = rows

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
            q, k_cache, v_cache, slots, cells, scale=scale, window=window, sinks=values, chosen=chosen, block=block
        )

    def select_blocks(
        self, q: Floats, k_cache: Floats, slots: Ints, cells: Ints, *, block: int, n_chosen: int, n_local: int
    ) -> Ints:
        return selection.select_blocks(q, k_cache, slots, cells, block=block, n_chosen=n_chosen, n_local=n_local)

    def causal_conv(
        self,
        x: Floats,
        weight: StoredWeight,
        bias: StoredWeight | None,
        state: Floats,
        slots: Ints,
        read_lanes: Ints,
        write_lanes: Ints,
    ) -> Floats:
        added = None if bias is None else bias.values()
        return recurrent.causal_conv(x, weight.values(), added, state, slots, read_lanes, write_lanes)

    def log_decay(self, x: Floats, bias: StoredWeight, a: StoredWeight) -> Floats:
        decay: Floats = (recurrent.softplus(x.astype(np.float64) + bias.values()) * a.values()).astype(np.float32)
        return decay

    def delta_rule(
        self,
        q: Floats,
        k: Floats,
        v: Floats,
        log_decay: Floats,
        strength: Floats,
        state: Floats,
        slots: Ints,
        read_lanes: Ints,
        write_lanes: Ints,
        *,
        scale: float,
    ) -> Floats:
        return recurrent.delta_rule(q, k, v, log_decay, strength, state, slots, read_lanes, write_lanes, scale=scale)

    def ssm_scan(
        self,
        x: Floats,
        b: Floats,
        c: Floats,
        dt: Floats,
        dt_bias: StoredWeight,
        a: StoredWeight,
        d: StoredWeight,
        state: Floats,
        slots: Ints,
        read_lanes: Ints,
        write_lanes: Ints,
    ) -> Floats:
        return recurrent.ssm_scan(
            x, b, c, dt, dt_bias.values(), a.values(), d.values(), state, slots, read_lanes, write_lanes
        )

    def previous(self, x: Floats, state: Floats, slots: Ints, read_lanes: Ints, write_lanes: Ints) -> Floats:
        return recurrent.previous(x, state, slots, read_lanes, write_lanes)

    def read_state(self, state: Floats, slots: Ints, lanes: Ints) -> Floats:
        return state[slots, lanes]

    def sigmoid_gate(self, x: Floats, gate: Floats) -> Floats:
        gated: Floats = (x * expit(gate.astype(np.float64))).astype(np.float32)
        return gated

    def swiglu(self, gate: Floats, up: Floats) -> Floats:
        wide = gate.astype(np.float64)
        gated: Floats = (wide * expit(wide) * up).astype(np.float32)
        return gated

    def geglu(self, gate: Floats, up: Floats) -> Floats:
        gated: Floats = (gelu(gate.astype(np.float64)) * up).astype(np.float32)
        return gated

    def swiglu_oai(self, gate: Floats, up: Floats) -> Floats:
        g = np.minimum(gate, np.float32(_OAI_LIMIT)).astype(np.float64)
        u = np.clip(up, np.float32(-_OAI_LIMIT), np.float32(_OAI_LIMIT)).astype(np.float64)
        gated: Floats = (g * expit(_OAI_SLOPE * g) * (u + 1.0)).astype(np.float32)
        return gated

    def squared_relu(self, x: Floats) -> Floats:
        positive = np.maximum(x, np.float32(0))
        return positive * positive

    def route(
        self,
        logits: Floats,
        *,
        n_used: int,
        score: Literal["softmax", "sigmoid"] = "softmax",
        bias: StoredWeight | None = None,
        normalised: bool = True,
        scale: float = 1.0,
    ) -> tuple[Ints, Floats]:
        values = None if bias is None else bias.values()
        return selection.route(logits, n_used=n_used, score=score, bias=values, normalised=normalised, scale=scale)

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


def gelu(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The tanh form of GELU (`OpSet.geglu` has the formula)."""
    # The product, because a power takes as long as the rest of a layer.
    bent: npt.NDArray[np.float64] = 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * (x * x * x))))
    return bent


def pair_positions(positions: Ints, rope: Rope) -> Ints:
    """The position that turns each pair: [tokens, 1], or [tokens, n_dims / 2] where pairs have components of their own.

    `Rope` has the rule of the components.
    """
    if positions.ndim == 1:
        return positions[:, None]
    if rope.sections is None:
        return positions[:, :1]
    t, h, w, _ = rope.sections
    pairs = np.arange(rope.n_dims // 2) % sum(rope.sections)
    component = np.full(len(pairs), 3)
    for turn, n_pairs in enumerate((t, h, w)):
        component[(pairs % 3 == turn) & (pairs < 3 * n_pairs)] = turn
    return positions[:, component]


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
