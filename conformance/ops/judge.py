"""Runs one case on an op set and says, element by element, how far its outputs are from what they must be."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bloomery.conformance.ops.case import Array, HostWeight, OpCase, laid_out, parameters_of
from bloomery.conformance.ops.claims import Claims
from bloomery.conformance.ops.definitions import Expected
from bloomery.conformance.ops.entries import Entry

Doubles = npt.NDArray[np.float64]

_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class Judgement:
    """What one case showed.

    wrong: a sentence for each thing that is not as it must be.  ratios: |error| / band of every element that has a band
    above 0.  n_elements: how many were compared.
    """

    wrong: tuple[str, ...]
    ratios: Doubles
    n_elements: int


_NO_RATIOS: Doubles = np.empty(0)


def run(ops: Any, case: OpCase, changes: tuple[str, ...]) -> tuple[Array, ...]:
    """What the op returns and then what it made of the arguments that it changes, all on the host.

    Raises whatever the op set raises, and ArgumentChangedError where the op changed another argument.
    """
    arrays = {name: laid_out(array, case.layouts.get(name, "rows")) for name, array in case.arrays.items()}
    if case.op == "from_host":
        return (np.array(ops.to_host(ops.from_host(arrays["values"]))),)
    handles = {name: ops.from_host(array) for name, array in arrays.items()}
    if case.op == "to_host":
        copy = ops.to_host(handles["x"])
        if copy.flags.writeable:
            # What is done to a copy is not done to the handle.
            copy.fill(0)
        return (np.array(ops.to_host(handles["x"])),)
    given = {**handles, **{name: weight_handle(ops, name, case) for name in case.weights}, **case.params}
    positional, named = [], {}
    has_gap = False
    for parameter in parameters_of(case.op):
        if parameter.name not in given:
            has_gap = True
        elif has_gap or parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            named[parameter.name] = given[parameter.name]
        else:
            # As layer programs pass them, so that an op set may call its parameters what it likes.
            positional.append(given[parameter.name])
    with np.errstate(all="ignore"):
        # Infinities and what becomes of them are part of some cases.
        result = getattr(ops, case.op)(*positional, **named)
    results = () if result is None else result if isinstance(result, tuple) else (result,)
    outputs = [np.array(ops.to_host(output)) for output in results]
    for name, handle in handles.items():
        after = ops.to_host(handle)
        if name in changes:
            outputs.append(np.array(after))
        elif not _same_bits(after, case.arrays[name]).all():
            raise ArgumentChangedError(f"it changed its argument {name}")
    return tuple(outputs)


class ArgumentChangedError(RuntimeError):
    """An op wrote into an argument that it only reads."""


def weight_handle(ops: Any, name: str, case: OpCase) -> Any:
    """The op set's own handle of a weight where it makes one, else one that is like the reference engine's."""
    stored = case.weights[name]
    if hasattr(ops, "weight"):
        return ops.weight(name, stored.raw, stored.format_name, stored.shape)
    return HostWeight(name, stored)


def judge(ops: Any, case: OpCase, entry: Entry, claims: Claims) -> Judgement:
    """Run the case and compare. An op that raises is wrong, as a case is always legal."""
    try:
        got = run(ops, case, entry.changes)
    except Exception as error:
        return Judgement((f"{case.op} raised {type(error).__name__}: {error}",), _NO_RATIOS, 0)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = entry.define(case, claims, got)
    if len(got) != len(expected):
        return Judgement((f"{case.op} has {len(got)} outputs, not {len(expected)}",), _NO_RATIOS, 0)
    n_returned = len(expected) - len(entry.changes)
    names = ["y"] if n_returned == 1 else [f"y[{i}]" for i in range(n_returned)]
    wrong: list[str] = []
    ratios = [_NO_RATIOS]
    for name, want, output in zip([*names, *entry.changes], expected, got, strict=True):
        sentences, share = compare(name, want, output)
        wrong += sentences
        ratios.append(share)
    return Judgement(tuple(wrong), np.concatenate(ratios), sum(output.size for output in got))


def judge_alone(ops: Any, case: OpCase, entry: Entry, claims: Claims) -> Judgement:
    """Every row alone beside the same row in company: the same bits where the op set claims it, else two bands."""
    n_rows = len(case.arrays[entry.rows[0]])
    try:
        everyone = case.rows(entry.rows, np.arange(n_rows))
        together = run(ops, everyone, ())
        alone = [run(ops, case.rows(entry.rows, np.array([row])), ()) for row in range(n_rows)]
    except Exception as error:
        return Judgement((f"{case.op} raised {type(error).__name__}: {error}",), _NO_RATIOS, 0)
    with np.errstate(invalid="ignore", over="ignore"):
        bands = [expected.band for expected in entry.define(everyone, claims, together)]
    wrong: list[str] = []
    ratios = [_NO_RATIOS]
    for i, (output, band) in enumerate(zip(together, bands, strict=True)):
        name = "y" if len(together) == 1 else f"y[{i}]"
        if not n_rows:
            continue
        singles = np.concatenate([of_row[i] for of_row in alone])
        room = None if claims.rows_stand_alone or band is None else 2 * band
        want = output if room is None else output.astype(np.float64)
        sentences, share = compare(f"alone, {name}", Expected(want, room), singles)
        wrong += sentences
        ratios.append(share)
    return Judgement(tuple(wrong), np.concatenate(ratios), sum(output.size for output in together))


def compare(name: str, expected: Expected, got: Array) -> tuple[list[str], Doubles]:
    """Sentences on what is wrong with an output, and |error| / band of its elements that have a band above 0."""
    want, band = expected.want, expected.band
    dtype = np.int32 if want.dtype == np.int32 else np.float32
    if got.shape != want.shape:
        return [f"{name} has the shape {list(got.shape)}, not {list(want.shape)}"], _NO_RATIOS
    if got.dtype != dtype:
        return [f"{name} is {got.dtype}, not {np.dtype(dtype)}"], _NO_RATIOS
    if not got.size:
        return [], _NO_RATIOS
    if band is None:
        wrong = ~_same_bits(got, want)
        if not wrong.any():
            return [], _NO_RATIOS
        where = tuple(int(i) for i in np.argwhere(wrong)[0])
        text = f"{name}{_index(where)} is {got[where]!s} and must be {want[where]!s}, bit for bit"
        return _told(text, wrong), _NO_RATIOS
    wide = got.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        error = np.abs(wide - want)
        same = (wide == want) | (np.isnan(wide) & np.isnan(want))
        # Beyond float32's largest number a result is an infinity.
        beyond = np.isinf(wide) & (np.sign(wide) == np.sign(want)) & (np.abs(want) + band >= _LARGEST_FLOAT32)
        wrong = ~(same | beyond | (error <= band))
        ratio = np.where(same | beyond, 0.0, error / band)
    ratio = np.where(np.isnan(ratio), np.inf, ratio)
    if not wrong.any():
        return [], ratio[band > 0]
    where = tuple(int(i) for i in np.unravel_index(int(np.where(wrong, ratio, -1.0).argmax()), ratio.shape))
    text = (
        f"{name}{_index(where)} is {got[where]!s} and must be {want[where]:.9g} within {band[where]:.2g}: "
        f"the error is {error[where]:.3g}, {ratio[where]:.3g} bands"
    )
    return _told(text, wrong), ratio[band > 0]


def _told(text: str, wrong: npt.NDArray[np.bool_]) -> list[str]:
    return [f"{text} ({int(wrong.sum())} of {wrong.size} elements are wrong)" if wrong.size > 1 else text]


def _index(where: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, where))}]" if where else ""


def _same_bits(a: Array, b: Array) -> npt.NDArray[np.bool_]:
    """Which elements are the same number with the same sign, any NaN for any other; of one shape and kind."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return np.zeros(max(a.size, 1), bool)
    same: npt.NDArray[np.bool_] = a == b
    if a.dtype.kind != "f":
        return same
    same &= np.signbit(a) == np.signbit(b)
    return same | (np.isnan(a) & np.isnan(b))
