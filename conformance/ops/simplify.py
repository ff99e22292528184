"""A wrong case made easy to read: numbers that do not matter become zero, the others whole; and the case in words."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from bloomery.conformance.ops.case import Array, OpCase
from bloomery.conformance.ops.values import f32_weight

# So many numbers of an array, or of what is not zero in it, are shown one by one.
_SHOWN = 12


def simplified(case: OpCase, is_wrong: Callable[[OpCase], bool], until: float) -> OpCase:
    """The wrong case with as many zeros and whole numbers as it can have and still be wrong.

    Activations and F32 weights are tried in runs, from all of an array down to single numbers. until: a time of
    `time.monotonic` after which nothing more is tried.
    """
    activations = [name for name, array in case.arrays.items() if array.dtype == np.float32]
    weights = [name for name, stored in case.weights.items() if stored.format_name == "F32"]
    for simpler in (np.zeros_like, np.rint):
        for name in (*activations, *weights):
            case = _fewer(case, name, simpler, is_wrong, until)
    return case


def _fewer(
    case: OpCase, name: str, simpler: Callable[[Array], Array], is_wrong: Callable[[OpCase], bool], until: float
) -> OpCase:
    """The case with every run of an array's numbers made simpler whose being simpler leaves it wrong."""
    values = case.arrays[name] if name in case.arrays else case.weights[name].values()
    flat = values.reshape(-1).copy()
    run = flat.size
    while run:
        for start in range(0, flat.size, run):
            tried = flat.copy()
            with np.errstate(invalid="ignore"):
                tried[start : start + run] = simpler(flat[start : start + run])
            if time.monotonic() > until:
                return case
            if not np.array_equal(tried, flat):
                simpler_case = _with(case, name, tried.reshape(values.shape))
                if is_wrong(simpler_case):
                    case, flat = simpler_case, tried
        run //= 2
    return case


def _with(case: OpCase, name: str, values: Array) -> OpCase:
    """The case with other numbers in an array or an F32 weight."""
    if name in case.arrays:
        return replace(case, arrays={**case.arrays, name: values})
    return replace(case, weights={**case.weights, name: f32_weight(values)})


def described(case: OpCase) -> Iterator[str]:
    """The case in words: small arrays as numbers, others by what is not zero or by their range; every parameter."""
    for name, array in case.arrays.items():
        layout = case.layouts.get(name)
        yield f"{name} = {_numbers(array)}" + (f", laid out by {layout}" if layout else "")
    for name, stored in case.weights.items():
        yield f"{name} = {stored.format_name} {_numbers(stored.values())}"
    for name, value in case.params.items():
        yield f"{name} = {value!r}"


def _numbers(array: Array) -> str:
    if not array.size:
        return f"nothing, of shape {list(array.shape)}"
    if array.size <= _SHOWN:
        return f"{array.tolist()!r}"
    text, others = f"{array.dtype} {list(array.shape)}", np.argwhere(array != 0)
    if not len(others):
        return f"{text} of zeros"
    if len(others) <= _SHOWN:
        shown = ", ".join(f"[{', '.join(map(str, at))}] = {array[tuple(at)]!s}" for at in others.tolist())
        return f"{text}, zero but for {shown}"
    with np.errstate(invalid="ignore"):
        return f"{text} from {array.min():.6g} to {array.max():.6g}"
