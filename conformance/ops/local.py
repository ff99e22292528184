"""One reported call against the op's definition, on the inputs it had: what earlier ops did wrong is not its fault."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from bloomery.conformance.engines.tapped_program import Call
from bloomery.conformance.ops.case import Array, OpCase, Stored
from bloomery.conformance.ops.claims import Claims
from bloomery.conformance.ops.definitions import Expected
from bloomery.conformance.ops.entries import ENTRIES
from bloomery.conformance.ops.judge import compare

Doubles = npt.NDArray[np.float64]

# Weights of a product that are decoded to float64 at a time.
_WEIGHTS_AT_ONCE = 1 << 22
# A saved product keeps its whole weight up to so many bytes; else only so many of the outputs that are wrong.
_KEPT_BYTES = 8 << 20
_KEPT_OUTPUTS = 64


@dataclass(frozen=True, eq=False)
class Local:
    """How a call stands beside its definition.

    wrong: a sentence for each output that is not as it must be.  ratios: |error| / band of its elements that have a
    band.  widest: the largest of them, infinite for a wrong output that has none.  state: what the op leaves in the
    arguments it changes.  case: the call, small enough to be saved, when something is wrong.
    """

    wrong: tuple[str, ...]
    ratios: Doubles
    widest: float
    state: tuple[Array, ...]
    case: OpCase | None


def judge_locally(call: Call, claims: Claims) -> Local:
    """The call's outputs against the definition's; bands are those of an op set with these claims."""
    entry = ENTRIES[call.case.op]
    with np.errstate(all="ignore"):
        expected = _expected(call, claims)
    n_returned = len(expected) - len(entry.changes)
    wrong: list[str] = []
    ratios: list[Doubles] = [np.empty(0)]
    names = ["y"] if n_returned == 1 else [f"y[{i}]" for i in range(n_returned)]
    if call.case.op != "append" and len(call.outputs) != n_returned:
        wrong.append(f"{len(call.outputs)} outputs were reported and {call.case.op} has {n_returned}")
    for name, want, output in zip(names, expected, call.outputs, strict=False):
        sentences, of_output = compare(name, want, output)
        wrong += sentences
        ratios.append(of_output)
    joined = np.concatenate(ratios)
    widest = float(joined.max()) if joined.size else 0.0
    return Local(
        wrong=tuple(wrong),
        ratios=joined,
        widest=np.inf if wrong and widest <= 1.0 else widest,
        state=tuple(np.asarray(each.want) for each in expected[n_returned:]),
        case=_smaller(call, expected[0]) if wrong else None,
    )


def _without_rows(case: OpCase) -> OpCase:
    """An embedding without the rows of its table that it does not read; any other call as it is."""
    if case.op != "embed":
        return case
    table = case.weights["table"]
    read, places = np.unique(case.arrays["ids"], return_inverse=True)
    rows = Stored(table.format_name, (len(read), table.shape[1]), np.ascontiguousarray(table.raw[read]))
    return replace(case, arrays={"ids": places.astype(np.int32)}, weights={"table": rows})


def _smaller(call: Call, expected: Expected) -> OpCase:
    """The call without what a replay does not need: of a large product, outputs that are right."""
    case = call.case
    if case.op != "linear" or case.weights["weight"].raw.nbytes <= _KEPT_BYTES:
        return _without_rows(case)
    got, band = call.outputs[0].astype(np.float64), expected.band
    if band is None or got.shape != expected.want.shape:
        return case
    out = np.flatnonzero((~(np.abs(got - expected.want) <= band)).any(axis=0))[:_KEPT_OUTPUTS]
    return replace(case, weights=_outputs(case, out))


def _expected(call: Call, claims: Claims) -> tuple[Expected, ...]:
    case = _without_rows(call.case)
    weight = case.weights.get("weight")
    if case.op != "linear" or weight is None:
        return ENTRIES[case.op].define(case, claims, call.outputs)
    # A head of a large vocabulary is too much in float64 at once, and its outputs do not depend on one another.
    n_out, n_in = weight.shape
    step = max(1, _WEIGHTS_AT_ONCE // n_in)
    parts = [_of_outputs(case, start, min(n_out, start + step), claims) for start in range(0, n_out, step)]
    want = np.concatenate([part.want for part in parts], axis=1)
    bands = [part.band for part in parts if part.band is not None]
    return (Expected(want, np.concatenate(bands, axis=1)),)


def _of_outputs(case: OpCase, start: int, stop: int, claims: Claims) -> Expected:
    """The columns start..stop of a product's result."""
    of_part = replace(case, weights=_outputs(case, np.arange(start, stop)))
    [expected] = ENTRIES["linear"].define(of_part, claims, ())
    return expected


def _outputs(case: OpCase, rows: npt.NDArray[np.intp]) -> dict[str, Stored]:
    """The weight and bias of a product for these outputs alone."""
    weight = case.weights["weight"]
    weights = {"weight": Stored(weight.format_name, (len(rows), weight.shape[1]), weight.raw[rows])}
    if "bias" in case.weights:
        bias = case.weights["bias"].values()[rows]
        weights["bias"] = Stored("F32", bias.shape, np.ascontiguousarray(bias[None]).view(np.uint8))
    return weights
