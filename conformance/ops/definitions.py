"""The sentences of `OpSet` evaluated in float64, each with the band that its roundings make: ops that move numbers,
work element by element, norm, rotate or route. Products, attention and recurrences have modules of their own.

A band is an upper bound, in every element, on the distance of a float32 result from the float64 one, for any
implementation that keeps its `Claims`. `u` is half of float32's relative step, which the result is rounded by; `w` is
that of the type that the op decides in (`Claims.inner`). A function of the machine's library (exp, tanh, a power) is
allowed 4 w, which is two units in the last place, and 2 w more for each unit of the exponent, which reducing its
argument costs. Bounds are added to first order: with errors this small the second order is below a thousandth of them,
and each bound is rounded up by more.

Nothing here shares code with an op set: the reference is judged by these lines as everybody else is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bloomery.conformance.ops.case import OpCase
from bloomery.conformance.ops.claims import FLOAT32, HALF, Claims
from bloomery.interface.spec import Rope

Array = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Expected:
    """What one output must be.

    want: float64, or int32 where the op gives int32.  band: of want's shape, how far an element may be from it; None
    asks for the same bits, the sign of zero included (any NaN stands for any other).
    """

    want: Array
    band: Doubles | None


Definition: TypeAlias = Callable[[OpCase, Claims, tuple[Array, ...]], tuple[Expected, ...]]
"""`(case, claims, got)` -> what each output must be. Only an op that selects looks at what it `got`: among scores that
nearly tie it accepts another choice, and judges what follows from the choice that was made."""


def moved(want: Array) -> tuple[Expected]:
    """An op that only moves numbers keeps every bit."""
    return (Expected(want, None),)


def rounded_once(exact: Doubles, claims: Claims) -> tuple[Expected]:
    """One IEEE operation on float32 numbers has one right answer, which is float64's, rounded: float64 has more than
    twice float32's bits and two, so that rounding twice is rounding once."""
    with np.errstate(over="ignore"):
        want = exact.astype(np.float32).astype(np.float64)
    return (Expected(want, np.full(want.shape, 4 * claims.tiny if claims.flushes_subnormals else 0.0)),)


# What moves.


def from_host(case: OpCase, _claims: Claims, _got: tuple[Array, ...]) -> tuple[Expected, ...]:
    return moved(case.arrays["values"])


def to_host(case: OpCase, _claims: Claims, _got: tuple[Array, ...]) -> tuple[Expected, ...]:
    return moved(case.arrays["x"])


def embed(case: OpCase, claims: Claims, _got: tuple[Array, ...]) -> tuple[Expected, ...]:
    table = case.weights["table"].values()[case.arrays["ids"]]
    return rounded_once(table.astype(np.float64), claims) if claims.flushes_subnormals else moved(table)


def take_rows(case: OpCase, _claims: Claims, _got: tuple[Array, ...]) -> tuple[Expected, ...]:
    return moved(case.arrays["x"][case.arrays["rows"]])


def split_heads(case: OpCase, _claims: Claims, _got: tuple[Array, ...]) -> tuple[Expected, ...]:
    x, n_head = case.arrays["x"], case.params["n_head"]
    head_dim = x.shape[1] // n_head
    return moved(np.stack([x[:, h * head_dim : (h + 1) * head_dim] for h in range(n_head)], axis=1))


def merge_heads(case: OpCase, _claims: Claims, _got: tuple[Array, ...]) -> tuple[Expected, ...]:
    x = case.arrays["x"]
    return moved(np.concatenate([x[:, h] for h in range(x.shape[1])], axis=1))


def split(case: OpCase, _claims: Claims, _got: tuple[Array, ...]) -> tuple[Expected, ...]:
    x, ends = case.arrays["x"], np.cumsum([0, *case.params["sizes"]])
    return tuple(Expected(x[..., a:b], None) for a, b in pairwise(ends))


def concat(case: OpCase, _claims: Claims, _got: tuple[Array, ...]) -> tuple[Expected, ...]:
    return moved(np.concatenate([case.arrays["a"], case.arrays["b"]], axis=-1))


def append(case: OpCase, claims: Claims, _got: tuple[Array, ...]) -> tuple[Expected, ...]:
    cache, rows = case.arrays["cache"].copy(), case.arrays["rows"]
    if claims.cache == "float16":
        with np.errstate(over="ignore"):
            rows = rows.astype(np.float16).astype(np.float32)
    for row, slot, cell in zip(rows, case.arrays["slots"], case.arrays["cells"], strict=True):
        cache[slot, cell] = row
    return moved(cache)


# Element by element.


def add(case: OpCase, claims: Claims, _got: tuple[Array, ...]) -> tuple[Expected, ...]:
    return rounded_once(case.doubles("a") + case.doubles("b"), claims)


def scale(case: OpCase, claims: Claims, _got: tuple[Array, ...]) -> tuple[Expected, ...]:
    return rounded_once(case.doubles("x") * float(np.float32(case.params["factor"])), claims)


def squared_relu(case: OpCase, claims: Claims, _got: tuple[Array, ...]) -> tuple[Expected, ...]:
    return rounded_once(np.maximum(case.doubles("x"), 0.0) ** 2, claims)


def sigmoid(z: Doubles) -> Doubles:
    """1 / (1 + exp(-z)), from the side whose power does not overflow."""
    power = np.exp(-np.abs(z))
    return np.where(z >= 0, 1.0, power) / (1.0 + power)


def sigmoid_room(z: Doubles, claims: Claims, roundings_of_z: int = 0) -> Doubles:
    """How far 1 / (1 + exp(-z)) may be off, relative to it.

    The power is off by (4 + 2 |z|) w, and by |z| w more for each rounding of z; it is (1 - sigmoid) of the sum, so that
    the rest of the sum does not feel it. The sum and the division are one rounding each.
    """
    of_power: Doubles = (4 + (2 + roundings_of_z) * np.abs(z)) * claims.inner
    return sigmoid(-z) * of_power + 2 * claims.inner


def gated(
    z: Doubles, rest: Doubles, factors: Doubles, claims: Claims, *, of_z: int = 0, of_rest: int = 0
) -> tuple[Expected]:
    """sigmoid(z) * rest, rounded, where z took `of_z` roundings before and rest `of_rest`.

    Where the power overflows the sigmoid may be taken for zero: `lost_power` of the rest. factors: the magnitudes that
    the rest is a product of, added; what rounding loses of a factor near zero, in whatever order, the others multiply.
    """
    want = sigmoid(z) * rest
    room = sigmoid_room(z, claims, of_z) + (of_rest + 1) * claims.inner + FLOAT32
    return (Expected(want, np.abs(want) * room + np.abs(rest) * claims.lost_power + claims.tiny * (2 + factors)),)


def sigmoid_gate(case: OpCase, claims: Claims, _got: tuple[Array, ...]) -> tuple[Expected, ...]:
    x = case.doubles("x")
    return gated(np.broadcast_to(case.doubles("gate"), x.shape), x, np.abs(x), claims)


def swiglu(case: OpCase, claims: Claims, _got: tuple[Array, ...]) -> tuple[Expected, ...]:
    gate, up = case.doubles("gate"), case.doubles("up")
    return gated(gate, gate * up, np.abs(gate) + np.abs(up), claims, of_rest=1)


def swiglu_oai(case: OpCase, claims: Claims, _got: tuple[Array, ...]) -> tuple[Expected, ...]:
    gate = np.minimum(case.doubles("gate"), 7.0)
    up = np.clip(case.doubles("up"), -7.0, 7.0) + 1.0
    # The constant and its product are a rounding each; so are the sum with 1, which may leave little, and its product.
    return gated(1.702 * gate, gate * up, np.abs(gate) + np.abs(up), claims, of_z=2, of_rest=2)


def geglu(case: OpCase, claims: Claims, _got: tuple[Array, ...]) -> tuple[Expected, ...]:
    """x / 2 (1 + tanh z) is x sigmoid(2 z), which loses no digits; the form of the definition does.

    Near tanh z = -1 the sum loses all but w of 1, so the band has w |x| that does not shrink with the value. z takes 5
    roundings, and the value turns by x / 2 (1 - tanh(z)^2) as z does; tanh itself is off by 4 w of at most 1.
    In ggml numerics argument and value are rounded to half precision (h = 2^-11, or 2^-25 where halves are subnormal):
    GELU's slope is at most 1.13, and the value is at most h off; and past -10 it is 0, where it is 1e-22 or less.
    The table's own entries are float32 arithmetic: 2^-22 of the argument near tanh z = -1.
    """
    x, up = case.doubles("gate"), case.doubles("up")
    with np.errstate(over="ignore"):
        z = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)
    gelu = x * sigmoid(2.0 * z)
    want = gelu * up
    w, size = claims.inner, np.abs(x)
    with np.errstate(over="ignore", invalid="ignore"):
        turned = np.where(np.abs(z) < 400.0, 2.0 * size * sigmoid(2 * z) * sigmoid(-2 * z) * 5 * w * np.abs(z), 0.0)
    room = size * 3 * w + turned + 2 * w * np.abs(gelu)
    if claims.numerics == "ggml":
        inside = size < 10.1
        half = 1.13 * (HALF * size + 2.0**-25) + HALF * np.abs(gelu) + 2.0**-25 + 2.0**-22 * size
        room = room + np.where(inside, half * (1 + HALF), 1e-20)
    return (Expected(want, np.abs(up) * room + (FLOAT32 + w) * np.abs(want) + claims.tiny * (2 + size + np.abs(up))),)


def combine_experts(case: OpCase, claims: Claims, _got: tuple[Array, ...]) -> tuple[Expected, ...]:
    """n products and n - 1 additions, each of which rounds something no larger than the sum of magnitudes: (2 n - 1) u
    of it; n u suffices, as each term passes one product and at most n - 1 additions."""
    terms = case.doubles("weights")[..., None] * case.doubles("y")
    size = np.abs(terms).sum(axis=1)
    n = terms.shape[1]
    return (Expected(terms.sum(axis=1), n * FLOAT32 * size + claims.tiny * (n + size)),)


# Norms, rotation, router.


def _normed(x: Doubles, total: Doubles, weight: Doubles | float, claims: Claims, more: float = 0.0) -> tuple[Expected]:
    """x / sqrt(total) * weight, where total is a sum over x's last axis.

    Squares and additions put (n + 1) w on the sum, a division by n and epsilon 2 w more; the root halves them. Root,
    quotient and weight are one rounding each. more: what else is rounded, relative to the result.
    """
    want = x / np.sqrt(total) * weight
    room = ((x.shape[-1] + 3) / 2 + 3) * claims.inner + FLOAT32 + more
    flushed = claims.tiny * (2 + np.abs(weight) + np.abs(weight) / np.sqrt(total))
    return (Expected(want, np.abs(want) * room + flushed),)


def rms_norm(case: OpCase, claims: Claims, _got: tuple[Array, ...]) -> tuple[Expected, ...]:
    """As `_normed`. In ggml numerics squares, mean, epsilon and its sum are float32 numbers, 4 u that the root halves;
    then root, inverse and the first of two products are: 5 u beside the last rounding (llama.cpp, ggml-cpu/ops.cpp,
    `ggml_compute_forward_rms_norm_f32`)."""
    x = case.doubles("x")
    total = (x * x).mean(axis=-1, keepdims=True) + case.params["eps"]
    more = 5 * FLOAT32 if claims.numerics == "ggml" else 0.0
    return _normed(x, total, case.doubles("weight"), claims, more)


def l2_norm(case: OpCase, claims: Claims, _got: tuple[Array, ...]) -> tuple[Expected, ...]:
    x = case.doubles("x")
    return _normed(x, (x * x).sum(axis=-1, keepdims=True) + case.params["eps"], 1.0, claims)


def _component(rope: Rope, pair: int) -> int:
    """Which of the four components of a position turns a pair."""
    if rope.sections is None:
        return 0
    t, h, w, _ = rope.sections
    pair %= sum(rope.sections)
    for remainder, (component, length) in enumerate(((0, t), (1, h), (2, w))):
        if pair % 3 == remainder and pair < 3 * length:
            return component
    return 3


def rope(case: OpCase, claims: Claims, _got: tuple[Array, ...]) -> tuple[Expected, ...]:
    """Pairs are complex numbers, turned by exp(i a).

    The power of the base is off by (4 + 2 |ln theta|) w when taken at once, by 2 w a pair when multiplied up; the angle
    by 4 w more. An error of the angle moves the pair by as much of its length. Cosine, sine, magnitude, products and
    sum take 8 w of |u| + |v|, and the result is rounded. No error is larger than the whole pair.
    """
    x, rope = case.doubles("x"), case.params["rope"]
    positions = case.doubles("positions")
    if positions.ndim == 1:
        positions = np.repeat(positions[:, None], 4, axis=1)
    want, band, w, n = x.copy(), np.zeros(x.shape), claims.inner, rope.n_dims
    share = np.zeros(n // 2)
    if rope.ext_factor:

        def correction(beta: float) -> float:
            turns: float = n * math.log(rope.n_ctx_orig / (2 * math.pi * beta)) / (2 * math.log(rope.base))
            return turns

        low, high = max(0, math.floor(correction(rope.beta_fast))), min(n - 1, math.ceil(correction(rope.beta_slow)))
        share = rope.ext_factor * (1 - np.clip((np.arange(n // 2) - low) / max(0.001, high - low), 0, 1))
    for j in range(n // 2):
        at = (j, j + n // 2) if rope.style == "neox" else (2 * j, 2 * j + 1)
        free = positions[:, _component(rope, j)] * rope.base ** (-2 * j / n)
        angle = free * (rope.freq_scale * (1 - share[j]) + share[j])
        turned = (x[..., at[0]] + 1j * x[..., at[1]]) * (rope.magnitude * np.exp(1j * angle))[:, None]
        want[..., at[0]], want[..., at[1]] = turned.real, turned.imag
        slack = (max(4 + 4 * j / n * math.log(rope.base), 2 * j) + 8) * w
        turn = np.abs(free) * (rope.freq_scale + 2 * abs(share[j])) * slack
        length = (np.abs(x[..., at[0]]) + np.abs(x[..., at[1]])) * rope.magnitude
        room = np.minimum(turn[:, None], 2.0) + 8 * w + FLOAT32
        band[..., at[0]] = band[..., at[1]] = length * room + 4 * claims.tiny
    return (Expected(want, band),)


def route(case: OpCase, claims: Claims, got: tuple[Array, ...]) -> tuple[Expected, ...]:
    """A share's power is off by (4 + 3 |logit - maximum|) w, the sum by the same of its terms and by w a term; the
    quotient is one rounding. A choice may differ from the definition's only between experts whose logits or biases
    differ and whose scores are nearer than both errors: equals are put in order of their ids whatever the arithmetic.
    """
    logits, n_used, w = case.doubles("logits"), case.params["n_used"], claims.inner
    bias = case.doubles("bias") if "bias" in case.weights else np.zeros(logits.shape[1])
    if case.params.get("score", "softmax") == "softmax":
        below = logits - logits.max(axis=1, keepdims=True)
        powers = np.exp(below)
        p = powers / powers.sum(axis=1, keepdims=True)
        off = (4 + 3 * np.abs(below)) * w
        off = off + (p * off).sum(axis=1, keepdims=True) + (logits.shape[1] + 1) * w
    else:
        p, off = sigmoid(logits), sigmoid_room(logits, claims)
    ranked = p + bias
    near = p * off + w * np.abs(ranked) + claims.lost_power
    want = np.empty((len(logits), n_used), np.int32)
    for t in range(len(logits)):
        ideal = sorted(range(logits.shape[1]), key=lambda e: (-ranked[t, e], e))[:n_used]
        chosen = [int(e) for e in got[0][t]] if got[0].shape == want.shape else ideal
        want[t] = chosen if _may_be_chosen(chosen, ideal, ranked[t], near[t], logits[t], bias) else ideal
    picked, errors = np.take_along_axis(p, want, axis=1), np.take_along_axis(off, want, axis=1)
    factor, room = case.params.get("scale", 1.0), errors + 2 * w + FLOAT32
    floor = np.full_like(picked, claims.lost_power)
    if case.params.get("normalised", True):
        total = np.maximum(picked.sum(axis=1, keepdims=True), 2.0**-14)
        picked = picked / total
        room, floor = room + errors.max(axis=1, keepdims=True) + (n_used + 1) * w, floor / total
    shares = factor * picked
    return Expected(want, None), Expected(shares, np.abs(shares) * room + abs(factor) * floor + claims.tiny)


def _may_be_chosen(
    chosen: list[int], ideal: list[int], ranked: Doubles, near: Doubles, logits: Doubles, bias: Doubles
) -> bool:
    """Whether an order of experts is the definition's, but for those that rounding may swap."""
    if len(set(chosen)) != len(chosen) or not all(0 <= e < len(ranked) for e in chosen):
        return False
    for e in range(len(ranked)):
        equals = [f for f in range(len(ranked)) if logits[f] == logits[e] and bias[f] == bias[e]]
        taken = [f for f in chosen if f in equals]
        if taken != equals[: len(taken)]:
            return False
    return all(a == b or abs(ranked[a] - ranked[b]) <= near[a] + near[b] for a, b in zip(chosen, ideal, strict=True))
