"""The ops that carry state from row to row, in float64, with bands that grow along the rows as errors do.

State is float32 between rows: each row rounds what it leaves, u of it. A bound on the state's own error is carried
beside the state, element by element, by the same recurrence.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from bloomery.conformance.ops.case import Array, OpCase
from bloomery.conformance.ops.claims import FLOAT32, Claims
from bloomery.conformance.ops.definitions import Expected, moved, sigmoid, sigmoid_room

Doubles = npt.NDArray[np.float64]
Place = tuple[int, int]


def _places(case: OpCase) -> Iterator[tuple[int, Place, Place]]:
    """Each row, the place its sequence's state is found at, and the place it is left at."""
    names = ("slots", "read_lanes", "write_lanes")
    for t, (slot, read, write) in enumerate(zip(*(case.arrays[name].tolist() for name in names), strict=True)):
        yield t, (slot, read), (slot, write)


def _untouched(case: OpCase, error: Doubles, claims: Claims) -> Doubles:
    """The band of a state: the error of what was replaced, and none of what was not."""
    touched = np.zeros(error.shape, bool)
    for _, _, left in _places(case):
        touched[left] = True
    return np.where(touched, error + claims.tiny, 0.0)


def read_state(case: OpCase, _claims: Claims, _got: tuple[Array, ...]) -> tuple[Expected, ...]:
    state = case.arrays["state"]
    pairs = zip(case.arrays["slots"].tolist(), case.arrays["lanes"].tolist(), strict=True)
    rows = [state[slot, lane] for slot, lane in pairs]
    return moved(np.stack(rows) if rows else np.empty((0, *state.shape[2:]), state.dtype))


def previous(case: OpCase, _claims: Claims, _got: tuple[Array, ...]) -> tuple[Expected, ...]:
    x, state = case.arrays["x"], case.arrays["state"].copy()
    y = np.empty_like(x)
    for t, found, left in _places(case):
        y[t] = state[found]
        state[left] = x[t]
    return Expected(y, None), Expected(state, None)


def causal_conv(case: OpCase, claims: Claims, _got: tuple[Array, ...]) -> tuple[Expected, ...]:
    """The sum of n products and a bias is off by (n + 2) w of its magnitudes. silu's slope is at most 1.1; the sigmoid
    and two products with it are off by the room of a sigmoid and 2 w, and the result is rounded."""
    x, taps, w = case.arrays["x"], case.doubles("weight"), claims.inner
    bias = case.doubles("bias") if "bias" in case.weights else np.zeros(x.shape[1])
    state = case.arrays["state"].copy()
    want, band = np.zeros(x.shape), np.zeros(x.shape)
    for t, found, left in _places(case):
        inputs = np.concatenate([state[found], x[t : t + 1]])
        z = (inputs.T.astype(np.float64) * taps).sum(axis=1) + bias
        size = np.abs(inputs.T.astype(np.float64) * taps).sum(axis=1) + np.abs(bias)
        want[t] = z * sigmoid(z)
        band[t] = 1.1 * (taps.shape[1] + 2) * w * size + np.abs(want[t]) * (sigmoid_room(z, claims) + 2 * w + FLOAT32)
        band[t] += np.abs(z) * claims.lost_power + claims.tiny * (2 + taps.shape[1] + np.abs(taps).sum(axis=1))
        state[left] = inputs[1:]
    return Expected(want, band), Expected(state, None)


def softplus(z: Doubles) -> Doubles:
    """ln(1 + exp(z)), from the side whose power does not overflow."""
    return np.maximum(z, 0.0) + np.log1p(np.exp(-np.abs(z)))


def softplus_room(z: Doubles, claims: Claims) -> Doubles:
    """How far softplus(z) may be off, absolutely, for z of one rounding.

    Its slope is sigmoid(z); the power is off by (4 + 3 |z|) w of itself, z's rounding included. Adding 1 rounds by w of
    a sum that is 1 or more, which the logarithm turns into w; the logarithm itself is off by 4 w of its value. Above
    20, where the definition takes z, ln(1 + exp(z)) is exp(-20) more at most.
    """
    w = claims.inner
    room: Doubles = sigmoid(z) * (4 + 3 * np.abs(z)) * w + w + 4 * w * softplus(z)
    return room + np.where(z > 19.9, np.exp(-z), 0.0)


def log_decay(case: OpCase, claims: Claims, _got: tuple[Array, ...]) -> tuple[Expected, ...]:
    z, a = case.doubles("x") + case.doubles("bias"), case.doubles("a")
    want = softplus(z) * a
    band = (
        np.abs(a) * softplus_room(z, claims) + np.abs(want) * (claims.inner + FLOAT32) + claims.tiny * (2 + np.abs(a))
    )
    return (Expected(want, band),)


def delta_rule(case: OpCase, claims: Claims, _got: tuple[Array, ...]) -> tuple[Expected, ...]:
    """With E the bound on M's error, n = key_dim, and e the rooms of the power (4 + 2 |log_decay|) w and the sigmoid:

    M := d M             E := d E + (e_d + w) |M|
    r = v - M k          E_r = E |k| + (n + 1) w (|v| + |M| |k|)
    M := M + s r k^T     E := E + s E_r |k| + (e_s + 3 w) |s r k| + (w + u) |M|
    y = scale M q        E_y = scale (E |q| + (n + 1) w |M| |q|) + (w + u) |y|
    """
    q, k, v = (case.doubles(name) for name in ("q", "k", "v"))
    decays, strengths = case.doubles("log_decay"), case.doubles("strength")
    state, scale, w = case.doubles("state"), case.params["scale"], claims.inner
    error, want = np.zeros(state.shape), np.zeros(v.shape)
    band, n = np.zeros(v.shape), k.shape[2]
    for t, found, left in _places(case):
        kept, kept_error = state[found].copy(), error[found].copy()
        for h in range(v.shape[1]):
            key, query = k[t, h % k.shape[1]], q[t, h % k.shape[1]]
            decay, strength = np.exp(decays[t, h]), sigmoid(strengths[t, h])
            m = decay * kept[h]
            e = decay * kept_error[h] + ((5 + 2 * abs(decays[t, h])) * w) * np.abs(m)
            r = v[t, h] - m @ key
            e_r = e @ np.abs(key) + (n + 1) * w * (np.abs(v[t, h]) + np.abs(m) @ np.abs(key))
            step = strength * np.outer(r, key)
            m = m + step
            e = (
                e
                + strength * np.outer(e_r, np.abs(key))
                + (sigmoid_room(strengths[t, h], claims) + 3 * w) * np.abs(step)
            )
            kept_error[h] = e + (w + FLOAT32) * np.abs(m) + claims.tiny * (2 + np.abs(m) + np.abs(key).sum())
            want[t, h] = scale * (m @ query)
            summed = kept_error[h] @ np.abs(query) + (n + 1) * w * (np.abs(m) @ np.abs(query))
            band[t, h] = (
                abs(scale) * summed + (w + FLOAT32) * np.abs(want[t, h]) + claims.tiny * (2 + n + np.abs(query).sum())
            )
            kept[h] = m
        state[left], error[left] = kept, kept_error
    return Expected(want, band), Expected(state, _untouched(case, error, claims))


def ssm_scan(case: OpCase, claims: Claims, _got: tuple[Array, ...]) -> tuple[Expected, ...]:
    """With E the bound on S's error, n = d_state, and e_step the room of softplus:

    S := exp(step a) S   E := d E + (|a| e_step + (5 + 3 |step a|) w) |S|
    S := S + step x b    E := E + e_step |x b| + 2 w |step x b| + (w + u) |S|
    y = S c + d x        E_y = E |c| + (n + 1) w (|S| |c| + |d x|) + (w + u) |y|
    """
    x, b, c = (case.doubles(name) for name in ("x", "b", "c"))
    z = case.doubles("dt") + case.doubles("dt_bias")
    steps, rooms = softplus(z), softplus_room(z, claims)
    a, d = case.doubles("a")[:, 0], case.doubles("d")[:, 0]
    state, w = case.doubles("state"), claims.inner
    error, want = np.zeros(state.shape), np.zeros(x.shape)
    band, per_group, n = np.zeros(x.shape), x.shape[1] // b.shape[1], b.shape[2]
    for t, found, left in _places(case):
        kept, kept_error = state[found].copy(), error[found].copy()
        for h in range(x.shape[1]):
            into, out = b[t, h // per_group], c[t, h // per_group]
            bend = steps[t, h] * a[h]
            decay = np.exp(bend)
            s = decay * kept[h]
            e = decay * kept_error[h] + (abs(a[h]) * rooms[t, h] + (5 + 3 * abs(bend)) * w) * np.abs(s)
            fresh = np.outer(x[t, h], into)
            s = s + steps[t, h] * fresh
            e = e + (rooms[t, h] + 2 * w * steps[t, h]) * np.abs(fresh) + (w + FLOAT32) * np.abs(s)
            kept[h], kept_error[h] = s, e + claims.tiny * (2 + np.abs(s) + np.abs(fresh) + np.abs(into).sum())
            want[t, h] = s @ out + d[h] * x[t, h]
            sizes = np.abs(s) @ np.abs(out) + np.abs(d[h] * x[t, h])
            band[t, h] = kept_error[h] @ np.abs(out) + (n + 1) * w * sizes + (w + FLOAT32) * np.abs(want[t, h])
            band[t, h] += claims.tiny * (2 + n + np.abs(out).sum())
        state[left], error[left] = kept, kept_error
    return Expected(want, band), Expected(state, _untouched(case, error, claims))
