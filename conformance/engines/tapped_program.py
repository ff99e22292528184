"""The calls behind an engine's taps: its program is run once more, and every op answers with what the engine reported.

Taps carry outputs. A layer program passes handles on and never looks inside one, so running it over an op set that
hands out the reported outputs in order shows which outputs went into which op, with which weights and parameters: each
call whole, as the engine made it. The one thing that is not reported is state. Caches are filled from the reported keys
and values, so a wrong `append` shows in the op that reads the cache; what a recurrence leaves is taken from the
definition, and it is read again only where an engine cuts the prompt into passes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from bloomery.conformance.ops.case import Array, OpCase, Stored, parameters_of
from bloomery.conformance.ops.entries import ENTRIES
from bloomery.interface.batch import Batch, PerCell
from bloomery.interface.engine import Tap
from bloomery.interface.files.gguf import GgufFile
from bloomery.interface.layers.model import run_model, state_by_layer, weights_by_layer
from bloomery.interface.spec import ModelDescription, ModelSpec, WeightRef


class NotTheProgramError(ValueError):
    """The taps are not those of the model's program; the message says where the two part."""


@dataclass(frozen=True, eq=False)
class Call:
    """One op as an engine ran it: where, on what, and what came out."""

    layer: int | None
    label: str
    case: OpCase
    outputs: tuple[Array, ...]


# Called with each call; returns the state that the op leaves in the arguments it changes, in the order of its `Entry`.
Judge = Callable[[Call], tuple[Array, ...]]


class _Weight:
    """A handle that knows its name and where its bytes are."""

    def __init__(self, name: str, ref: WeightRef, file: GgufFile) -> None:
        self.name = name
        self._ref = ref
        self._file = file

    def stored(self) -> Stored:
        tensor, shape = self._file.tensors[self._ref.tensor], self._ref.shape
        first = self._ref.rows[0] if self._ref.rows else 0
        if len(shape) > 2:
            raw = tensor.blocks((slice(None), slice(first, first + shape[-2])))
            raw = raw.reshape(-1, raw.shape[-1])
        else:
            raw = tensor.rows(first, first + int(np.prod(shape[:-1], dtype=np.int64)))
        return Stored(tensor.format.name, shape, raw)


class _Reported:
    """The taps of one engine, handed out in program order."""

    def __init__(self, taps: Sequence[Tap]) -> None:
        self._taps = taps
        self._at = 0

    @property
    def left(self) -> bool:
        return self._at < len(self._taps)

    def rows(self) -> int:
        """How many inputs the pass that comes next has: the rows of its embedding."""
        return len(self._taps[self._at].output)

    def take(self, layer: int | None, op: str) -> tuple[str, tuple[Array, ...]]:
        """The label and the outputs of the op that the program calls now."""
        if not self.left:
            raise NotTheProgramError(f"the taps end where the program calls {op}{_place(layer)}")
        first = self._taps[self._at]
        if (first.layer, first.op) != (layer, op):
            raise NotTheProgramError(
                f"the program calls {op}{_place(layer)} and the engine reports {first.op}{_place(first.layer)}"
            )
        label, bracket, _ = first.label.partition("[")
        stop = self._at + 1
        # The outputs of one call follow one another as `label[0]`, `label[1]` ...
        while bracket and stop < len(self._taps) and self._taps[stop].label == f"{label}[{stop - self._at}]":
            stop += 1
        outputs = tuple(_fixed(np.asarray(tap.output)) for tap in self._taps[self._at : stop])
        self._at = stop
        return label, outputs


def _place(layer: int | None) -> str:
    return "" if layer is None else f" in layer {layer}"


class _ReplayedOps:
    """An op set whose every op answers with what was reported."""

    def __init__(self, reported: _Reported, layer: int | None, judge: Judge) -> None:
        self._reported = reported
        self._layer = layer
        self._judge = judge

    def __getattr__(self, op: str) -> Callable[..., Any]:
        return lambda *args, **named: self._call(op, *args, **named)

    def _call(self, op: str, *args: Any, **named: Any) -> Any:
        case = _case(op, args, named)
        changes = ENTRIES[op].changes
        label, outputs = (op, ()) if op == "append" else self._reported.take(self._layer, op)
        after = self._judge(Call(self._layer, label, case, outputs))
        given = dict(zip((parameter.name for parameter in parameters_of(op)), args, strict=False)) | named
        for name, state in zip(changes, after, strict=True):
            given[name][...] = state
        if not outputs:
            return None
        return outputs[0] if len(outputs) == 1 else outputs


def _case(op: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> OpCase:
    """The call as data. State that the op changes, or that a later op will, is copied."""
    parameters = parameters_of(op)
    bound = inspect.Signature(parameters).bind(*args, **named).arguments
    arrays: dict[str, Array] = {}
    weights: dict[str, Stored] = {}
    params: dict[str, Any] = {}
    for name, value in bound.items():
        if isinstance(value, np.ndarray):
            arrays[name] = value.copy() if value.flags.writeable else value
        elif isinstance(value, _Weight):
            weights[name] = value.stored()
        elif value is not None:
            params[name] = list(value) if isinstance(value, tuple) else value
    formats = [stored.format_name for stored in weights.values() if len(stored.shape) > 1]
    return OpCase(op, arrays, weights, params, format_name=formats[0] if formats else "")


def replay(
    taps: Sequence[Tap], file: GgufFile, description: ModelDescription, ids: Sequence[int], judge: Judge
) -> None:
    """Run the program of one sequence that read `ids`, every row wanted, over its taps.

    `judge` sees each call in order.  Raises NotTheProgramError.
    """
    # A draft layer runs only where it was asked for, which a bisection does not.
    spec = replace(description.spec, nextn=None)
    weights = {name: _Weight(name, ref, file) for name, ref in description.weights.items()}
    states = _states(spec, len(ids))
    layers = [
        ({name: weights[f"{prefix}.{name}"] for name in asked}, state)
        for (prefix, asked), state in zip(weights_by_layer(spec), states, strict=True)
    ]
    reported = _Reported(taps)
    for start, stop in _passes(reported, len(ids)):
        n = stop - start
        run_model(
            lambda layer: _ReplayedOps(reported, layer, judge),
            spec,
            weights,
            layers,
            Batch(
                ids=_ints(ids[start:stop]),
                positions=_ints(range(start, stop)),
                slots=_ints([0] * n),
                cells=_ints(range(start, stop)),
                read_lanes=_ints([0] * n),
                write_lanes=_ints([0] * n),
                wanted=_ints(range(n)),
            ),
        )


def _passes(reported: _Reported, n_ids: int) -> Iterator[tuple[int, int]]:
    """The rows of each pass that the engine made of the prompt."""
    start = 0
    while reported.left:
        stop = start + reported.rows()
        if not start < stop <= n_ids:
            raise NotTheProgramError(f"a pass of {stop - start} rows after {start} of {n_ids} ids")
        yield start, stop
        start = stop
    if start != n_ids:
        raise NotTheProgramError(f"the taps end after {start} of {n_ids} ids")


def _ints(values: Sequence[int]) -> npt.NDArray[np.int32]:
    return _fixed(np.array(values, np.int32))


def _fixed(array: Array) -> Array:
    """A view that cannot be written to: only state is, so that nothing else need be copied for a call."""
    view = array.view()
    view.setflags(write=False)
    return view


def _states(spec: ModelSpec, n_cells: int) -> list[dict[str, Array]]:
    """Every layer's state for one sequence in one lane, empty."""
    return [
        {
            name: np.zeros((1, n_cells if isinstance(state, PerCell) else 1, *state.shape), np.float32)
            for name, state in layer.items()
        }
        for layer in state_by_layer(spec)
    ]
