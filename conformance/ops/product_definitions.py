"""Products of activations and stored weights in float64, with the band of float32 sums, in both numerics.

The band of a product of n_in terms. Each term takes one rounding as a product and at most n_in - 1 as part of a sum,
whatever the order of the additions; a bias is one addition more, and so is a scale that is applied to a block of terms
at once. So a float32 sum is within (n_in + 2) u of the sum of magnitudes, sum_i |x_i w_i| + |bias|. Where a term is too
small for float32 it may be lost: `tiny` a term, and of each side's numbers where subnormals are flushed.

In `ggml` numerics the activations are first rounded, to the codes and scales of
`bloomery.interface.files.quants.activations`, which an implementation must meet: the product that is wanted is that of
the rounded activations, and the band is theirs. Three things leave room for a different rounding all the same:

* A code comes from two float32 roundings (127 / largest, and its product with the value), of at most 127: where the
  quotient is within 2^-16 of the middle between two codes, either is right, and the term may be off by one scale times
  the weight.
* A scale in half precision comes from one float32 rounding: where the quotient is within 2^-22 of the middle between
  two halves, relative to it, the block may be off by one step of the scale times its codes and weights. The sum that
  Q8_1 keeps takes two more roundings, and its step multiplies the weights' offset.
* A scale of Q8_K is a float32 number after two roundings: 2 u of every term.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bloomery.conformance.ops.case import Array, OpCase, Stored
from bloomery.conformance.ops.claims import FLOAT32, Claims
from bloomery.conformance.ops.definitions import Expected
from bloomery.interface.files.quants import by_name
from bloomery.interface.files.quants.activations import ACTIVATION_FORMATS, codes_and_scales, round_to

Doubles = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]

_NEAR_CODES = 2.0**-16
_NEAR_HALVES = 2.0**-22


def linear(case: OpCase, claims: Claims, _got: tuple[Array, ...]) -> tuple[Expected, ...]:
    want, band = _product(case.arrays["x"], case.weights["weight"], claims)
    if "bias" in case.weights:
        bias = case.doubles("bias")
        n_in = case.arrays["x"].shape[1]
        want, band = want + bias, band + (n_in + 2) * FLOAT32 * np.abs(bias)
    return (Expected(want, band),)


def expert_linear(case: OpCase, claims: Claims, _got: tuple[Array, ...]) -> tuple[Expected, ...]:
    x, experts, weight = case.arrays["x"], case.arrays["experts"], case.weights["weight"]
    n_out = weight.shape[1]
    want, band = np.zeros((*experts.shape, n_out)), np.zeros((*experts.shape, n_out))
    for t, i in np.ndindex(experts.shape):
        first = int(experts[t, i]) * n_out
        of_one = Stored(weight.format_name, weight.shape[1:], weight.raw[first : first + n_out])
        row = x[t] if x.ndim == 2 else x[t, i]
        want[t, i], band[t, i] = (part[0] for part in _product(row[None], of_one, claims))
    return (Expected(want, band),)


def _product(x: Floats, weight: Stored, claims: Claims) -> tuple[Doubles, Doubles]:
    """x [n, n_in] times a matrix [n_out, n_in]: what is wanted and its band, [n, n_out] each."""
    w = weight.values().astype(np.float64)
    rounded, room = x.astype(np.float64), np.zeros((len(x), len(w)))
    rounds_to = ACTIVATION_FORMATS[weight.format_name] if claims.numerics == "ggml" else "F32"
    extra = np.zeros((len(x), len(w)))
    if rounds_to in {"F16", "BF16"}:
        rounded = round_to(x, rounds_to).astype(np.float64)
    elif rounds_to != "F32" and x.size:
        rounded, room = _coded(x, rounds_to, w)
        if rounds_to == "Q8_1":
            offsets = weight.fields("m").astype(np.float64)
            lost, step = _kept_sums(x)
            extra = lost @ offsets.T
            room = room + step @ np.abs(offsets).T + 4 * FLOAT32 * np.abs(lost) @ np.abs(offsets).T
    n_in = x.shape[1]
    magnitude = np.abs(rounded) @ np.abs(w).T + np.abs(extra)
    flushed = claims.tiny * (n_in + np.abs(rounded).sum(axis=1)[:, None] + np.abs(w).sum(axis=1)[None])
    return rounded @ w.T + extra, (n_in + 2) * FLOAT32 * magnitude + room + flushed


def _coded(x: Floats, format_name: str, w: Doubles) -> tuple[Doubles, Doubles]:
    """Activations as codes times scales, [n, n_in], and the room that edges between codes leave, [n, n_out]."""
    stored_codes, scales = codes_and_scales(x, format_name)
    blocks = x.astype(np.float64).reshape(len(x), -1, by_name(format_name).block_size)
    codes = stored_codes.astype(np.float64).reshape(blocks.shape)
    steps = scales.astype(np.float64)[..., None]
    values = codes * steps
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    quotients = 127.0 * np.abs(blocks) / np.where(largest == 0, 1.0, largest)
    on_edge = np.abs(quotients % 1.0 - 0.5) <= _NEAR_CODES
    slack = np.where(on_edge, np.abs(steps), 0.0)
    if format_name == "Q8_K":
        slack = slack + 2 * FLOAT32 * np.abs(values)
    else:
        slack = slack + np.abs(codes) * _half_slack(largest / 127.0, _NEAR_HALVES)
    return values.reshape(x.shape), slack.reshape(x.shape) @ np.abs(w).T


def _kept_sums(x: Floats) -> tuple[Doubles, Doubles]:
    """How far the sum that Q8_1 keeps of each block is from its codes' times its scale, and the room: [n, blocks].

    What is kept is the half-precision number nearest to the unrounded scale times the sum of the codes (llama.cpp,
    ggml-cpu/arch/x86/quants.c, `quantize_row_q8_1`).
    """
    codes, scales = codes_and_scales(x, "Q8_1")
    sums = codes.reshape(*scales.shape, -1).sum(axis=-1, dtype=np.int64)
    blocks = np.abs(x).reshape(*scales.shape, -1)
    unrounded = blocks.max(axis=-1) / np.float32(127)
    with np.errstate(over="ignore"):
        kept = (unrounded * sums.astype(np.float32)).astype(np.float16).astype(np.float64)
    exact = unrounded.astype(np.float64) * sums
    # A code on an edge changes the sum by one scale as well.
    quotients = 127.0 * blocks.astype(np.float64) / np.maximum(blocks.max(axis=-1, keepdims=True), 2.0**-149)
    on_edge = (np.abs(quotients % 1.0 - 0.5) <= _NEAR_CODES).sum(axis=-1)
    moved = on_edge * unrounded.astype(np.float64)
    step = _half_slack(exact, 2 * _NEAR_HALVES) + np.where(on_edge, moved + _half_step(exact) + _half_step(moved), 0.0)
    return kept - scales.astype(np.float64) * sums, step


def _half_step(values: Doubles) -> Doubles:
    """The distance of half-precision numbers around each value."""
    _, exponent = np.frexp(np.abs(values))
    steps: Doubles = np.ldexp(1.0, np.maximum(exponent - 11, -24))
    return steps


def _half_slack(values: Doubles, near: float) -> Doubles:
    """One step of half precision where a value is so near the middle of two that `near` of it decides, else 0."""
    step = _half_step(values)
    from_middle = np.abs(np.abs(values) / step % 1.0 - 0.5) * step
    slack: npt.NDArray[Any] = np.where(from_middle <= near * np.abs(values), step, 0.0)
    return slack
