"""The reference engine: the layer programs run on the NumPy op set. It defines what every other engine must answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from bloomery.interface import coverage, registry
from bloomery.interface.batch import Batch, PerCell, PerSequence
from bloomery.interface.draft import DraftSource
from bloomery.interface.engine import EngineError, EngineOptions, Span, TapSink
from bloomery.interface.files.gguf import GgufFile
from bloomery.interface.layers.model import run_model, state_by_layer, weights_by_layer
from bloomery.interface.machine import available_memory
from bloomery.interface.ops import OpSet
from bloomery.interface.spec import ModelDescription, ModelSpec
from bloomery.interface.taps import TappedOps
from bloomery.reference.ggml_ops import GgmlOps, check_formats
from bloomery.reference.nextn_draft import NextNDraft
from bloomery.reference.ops import NumpyOps
from bloomery.reference.sequence import ReferenceSequence
from bloomery.reference.state import StatePool, lanes_for
from bloomery.reference.threads import use_threads
from bloomery.reference.weights import Decoded, StoredWeight

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class HostRows:
    """Rows that are already on the host: [n, n_vocab] float32."""

    values: Floats

    def __post_init__(self) -> None:
        # Rows are handed out as views: nobody may write into what another reader sees.
        self.values.setflags(write=False)

    def __len__(self) -> int:
        return len(self.values)

    def logits(self, row: int) -> Floats:
        values: Floats = self.values[row]
        return values

    def best(self, row: int, k: int) -> tuple[Ints, Floats]:
        values = self.values[row]
        negated = -values
        near = np.arange(len(values))
        if 0 < k < len(values):
            # Sorting a large vocabulary whole takes longer than a layer.
            not_worse = np.flatnonzero(negated <= np.partition(negated, k - 1)[k - 1])
            # NaN compares with nothing, and is the last of a sort.
            near = not_worse if len(not_worse) >= k else near
        # A stable sort of the negated row puts the lower id first among equals.
        ids = near[np.argsort(negated[near], kind="stable")][:k].astype(np.int32)
        return ids, values[ids]


@dataclass(frozen=True)
class _Input:
    """One input of a pass: where it comes from and where it goes."""

    span: int
    id: int
    slot: int
    cell: int
    read_lane: int
    write_lane: int
    wanted: bool


class ReferenceEngine:
    """See `bloomery.interface.engine.Engine`."""

    name = "reference"

    def __init__(self, file: GgufFile, description: ModelDescription, options: EngineOptions) -> None:
        if min(options.n_ctx, options.n_sequences, options.n_ubatch, options.n_trial) < 1:
            raise EngineError("n_ctx, n_sequences, n_ubatch and n_trial must each be at least 1")
        if options.draft and description.spec.nextn is None:
            raise EngineError(f"{file.path}: a draft was asked for, and the model has no draft layer")
        coverage.check(file, description, dir(NumpyOps))
        self.spec: ModelSpec = description.spec
        budget = options.weight_budget if options.weight_budget is not None else available_memory() // 2
        n_weights = sum(math.prod(tensor.shape) for tensor in file.tensors.values())
        self.options = replace(options, weight_budget=budget, threads=use_threads(options.threads, n_weights))
        decoded = Decoded(budget)
        self._weights = {name: StoredWeight(name, ref, file, decoded) for name, ref in description.weights.items()}
        self._ops = _op_set(options.numerics, self._weights.values())
        self._running = self.spec if options.draft else replace(self.spec, nextn=None)
        self._pool = StatePool(
            self._running,
            numerics=options.numerics,
            n_sequences=options.n_sequences,
            n_ctx=options.n_ctx,
            n_trial=options.n_trial,
        )
        self._layers = [
            ({name: self._weights[f"{prefix}.{name}"] for name in asked}, arrays)
            for (prefix, asked), arrays in zip(weights_by_layer(self._running), self._pool.arrays, strict=True)
        ]
        self._draft: NextNDraft | None = None
        if self._running.nextn is not None:
            self._draft = NextNDraft(self._ops, self._running.nextn, *self._layers[-1], self._pool)

    @property
    def draft_source(self) -> DraftSource | None:
        return self._draft

    def sequence(self) -> ReferenceSequence:
        return ReferenceSequence(self._pool)

    def run(self, spans: Sequence[Span], *, taps: TapSink | None = None) -> list[HostRows]:
        if not self._weights:
            raise EngineError("the engine is closed")
        sequences = [self._own(span) for span in spans]
        if len(set(map(id, sequences))) != len(sequences):
            raise EngineError("one call names a sequence twice")
        inputs: list[_Input] = []
        places: list[list[int]] = []
        for i, (span, sequence) in enumerate(zip(spans, sequences, strict=True)):
            wanted = [self._index(span, row) for row in span.wanted]
            places.append(wanted)
            asked = set(wanted)
            lanes = sequence.lanes(len(span.ids), span.trial)
            inputs += [
                _Input(i, token, sequence.slot, sequence.n_past + at, lanes[at], lanes[at + 1], at in asked)
                for at, token in enumerate(span.ids)
            ]
        logits: dict[tuple[int, int], Floats] = {}
        step = self.options.n_ubatch
        for start in range(0, len(inputs), step):
            logits |= self._pass(inputs[start : start + step], taps)
        for span, sequence in zip(spans, sequences, strict=True):
            sequence.extend(list(span.ids), span.trial)
        first = [sequence.n_past - len(span.ids) for span, sequence in zip(spans, sequences, strict=True)]
        empty = np.empty((0, self.spec.n_vocab), np.float32)
        return [
            HostRows(np.stack([logits[i, first[i] + at] for at in wanted]) if wanted else empty)
            for i, wanted in enumerate(places)
        ]

    def close(self) -> None:
        self._draft = None
        self._weights.clear()
        self._layers.clear()
        self._pool.arrays.clear()

    def _pass(self, inputs: list[_Input], taps: TapSink | None) -> dict[tuple[int, int], Floats]:
        """Compute up to n_ubatch inputs together; returns the wanted rows by (span, cell)."""
        wanted = [row for row, item in enumerate(inputs) if item.wanted]
        cells = np.array([item.cell for item in inputs], np.int32)
        batch = Batch(
            ids=np.array([item.id for item in inputs], np.int32),
            positions=cells,
            slots=np.array([item.slot for item in inputs], np.int32),
            cells=cells,
            read_lanes=np.array([item.read_lane for item in inputs], np.int32),
            write_lanes=np.array([item.write_lane for item in inputs], np.int32),
            wanted=np.array(wanted, np.int32),
        )
        # A file may hold anything; what is no number shows in the answer and is refused there.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            values: Floats = run_model(_with_taps(self._ops, taps), self._running, self._weights, self._layers, batch)
        return {(inputs[row].span, inputs[row].cell): values[i] for i, row in enumerate(wanted)}

    def _own(self, span: Span) -> ReferenceSequence:
        """The span's sequence, after everything about the span was checked."""
        sequence = span.sequence
        if not isinstance(sequence, ReferenceSequence) or sequence.pool is not self._pool:
            raise EngineError("a span names a sequence of another engine")
        if sequence.released:
            raise EngineError("a span names a sequence that was released")
        if sequence.pending:
            raise EngineError(f"a span's sequence has a trial of {sequence.pending} inputs that waits for commit")
        if not len(span.ids):
            raise EngineError("a span has no inputs")
        if not 0 <= span.trial <= len(span.ids):
            raise EngineError(f"a trial of {span.trial} inputs does not fit a span of {len(span.ids)}")
        if span.trial > self.options.n_trial:
            raise EngineError(f"a trial of {span.trial} inputs is more than n_trial, {self.options.n_trial}")
        for token in span.ids:
            if not 0 <= token < self.spec.n_vocab:
                raise EngineError(f"the id {token} is outside the vocabulary of {self.spec.n_vocab}")
        if sequence.n_past + len(span.ids) > self.options.n_ctx:
            raise EngineError(
                f"{sequence.n_past} inputs and {len(span.ids)} more pass the context of {self.options.n_ctx}"
            )
        return sequence

    @staticmethod
    def _index(span: Span, row: int) -> int:
        n = len(span.ids)
        if not -n <= row < n:
            raise EngineError(f"the wanted row {row} is outside a span of {n} inputs")
        return row % n


def _op_set(numerics: str, weights: Iterable[StoredWeight]) -> OpSet:
    """The op set that `--numerics` names: one of this package's, or a third party's over the same weights.

    EngineError for another name, or for weights that the numerics has no product with.
    """
    try:
        ops: OpSet = registry.op_set(numerics)()
    except registry.UnknownNameError as error:
        raise EngineError(f"--numerics {numerics}: {error}") from None
    if isinstance(ops, GgmlOps):
        check_formats(weights, numerics)
    return ops


def _with_taps(ops: OpSet, taps: TapSink | None) -> Callable[[int | None], OpSet]:
    if taps is None:
        return lambda _layer: ops
    return lambda layer: TappedOps(ops, layer, taps)


class ReferenceProvider:
    """The entry point `reference` of the group `bloomery.engines`."""

    name = "reference"
    preference = 0

    def unusable(self, description: ModelDescription, file: GgufFile) -> str | None:
        try:
            coverage.check(file, description, dir(NumpyOps))
        except coverage.CoverageError as error:
            return str(error)
        return None

    def bytes_per_cell(self, spec: ModelSpec) -> int:
        return _bytes_of(spec, PerCell)

    def bytes_per_sequence(self, spec: ModelSpec, n_trial: int) -> int:
        return lanes_for(n_trial) * _bytes_of(spec, PerSequence)

    def open(self, file: GgufFile, description: ModelDescription, options: EngineOptions) -> ReferenceEngine:
        return ReferenceEngine(file, description, options)


def _bytes_of(spec: ModelSpec, kind: type[PerCell | PerSequence]) -> int:
    """Bytes of one entry of every state of a kind."""
    states = (state for layer in state_by_layer(spec) for state in layer.values())
    return sum(4 * math.prod(state.shape) for state in states if isinstance(state, kind))


PROVIDER = ReferenceProvider()
