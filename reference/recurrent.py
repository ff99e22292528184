"""The ops that carry state from row to row, in `exact` numerics: a row at a time, in float64, rounded once a row.

State is stored in float32. Each function is `bloomery.interface.ops.OpSet`'s op of the same name, on arrays.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from scipy.special import expit

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]

# From here on softplus is its argument, as llama.cpp has it; the two differ by 2e-9.
_SOFTPLUS_ENDS = 20.0


def softplus(x: Doubles) -> Doubles:
    """ln(1 + exp(x)), and x itself above 20."""
    return np.where(x > _SOFTPLUS_ENDS, x, np.log1p(np.exp(np.minimum(x, _SOFTPLUS_ENDS))))


def _places(slots: Ints, read_lanes: Ints, write_lanes: Ints) -> Iterator[tuple[int, tuple[int, int], tuple[int, int]]]:
    """Each row, where it finds its sequence's state, and where it leaves it."""
    for t, (slot, read, write) in enumerate(zip(slots, read_lanes, write_lanes, strict=True)):
        yield t, (slot, read), (slot, write)


def causal_conv(
    x: Floats, taps: Floats, bias: Floats | None, state: Floats, slots: Ints, read_lanes: Ints, write_lanes: Ints
) -> Floats:
    """x: [tokens, channels].  taps: [channels, n].  bias: [channels].  state: [slots, lanes, n - 1, channels]."""
    wide = taps.T.astype(np.float64)
    y = np.empty(x.shape, np.float64)
    for t, found, left in _places(slots, read_lanes, write_lanes):
        inputs = np.concatenate([state[found], x[t : t + 1]])
        y[t] = (inputs * wide).sum(axis=0)
        state[left] = inputs[1:]
    if bias is not None:
        y += bias
    convolved: Floats = (y * expit(y)).astype(np.float32)
    return convolved


def delta_rule(
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
    """q, k: [tokens, n_head_k, key_dim].  v: [tokens, n_head_v, value_dim].  state: [slots, lanes, n_head_v, value_dim,
    key_dim]."""
    # Value head h uses key head h % n_head_k, so the key heads repeat as a whole.
    repeats = v.shape[1] // k.shape[1]
    keys, queries = (np.tile(each.astype(np.float64), (1, repeats, 1))[..., None] for each in (k, q))
    decays = np.exp(log_decay.astype(np.float64))[..., None, None]
    strengths = expit(strength.astype(np.float64))[..., None, None]
    y = np.empty(v.shape, np.float32)
    for t, found, left in _places(slots, read_lanes, write_lanes):
        matrix = state[found] * decays[t]
        error = v[t][..., None] - matrix @ keys[t]
        matrix += strengths[t] * error * keys[t].transpose(0, 2, 1)
        y[t] = (matrix @ queries[t])[..., 0] * scale
        state[left] = matrix
    return y


def ssm_scan(
    x: Floats,
    b: Floats,
    c: Floats,
    dt: Floats,
    dt_bias: Floats,
    a: Floats,
    d: Floats,
    state: Floats,
    slots: Ints,
    read_lanes: Ints,
    write_lanes: Ints,
) -> Floats:
    """x: [tokens, heads, head_dim].  b, c: [tokens, groups, d_state].  dt: [tokens, heads].  a, d: [heads, 1].  state:
    [slots, lanes, heads, head_dim, d_state]."""
    repeats = x.shape[1] // b.shape[1]
    into, out = (np.repeat(each.astype(np.float64), repeats, axis=1) for each in (b, c))
    steps = softplus(dt.astype(np.float64) + dt_bias)[..., None]
    decays = np.exp(steps * a)[..., None]
    y = np.empty(x.shape, np.float32)
    for t, found, left in _places(slots, read_lanes, write_lanes):
        held = state[found] * decays[t] + (steps[t] * x[t])[..., None] * into[t][:, None, :]
        y[t] = (held @ out[t][..., None])[..., 0] + d * x[t].astype(np.float64)
        state[left] = held
    return y


def previous(x: Floats, state: Floats, slots: Ints, read_lanes: Ints, write_lanes: Ints) -> Floats:
    """x: [tokens, width].  state: [slots, lanes, width]."""
    y = np.empty_like(x)
    for t, found, left in _places(slots, read_lanes, write_lanes):
        y[t] = state[found]
        state[left] = x[t]
    return y
