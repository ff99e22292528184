"""Engines for the laws' own tests: the reference behind a wrapper that shows what a right engine shows, with one fault.

A fault is a few lines of an engine or of its sequences. What a sequence says of itself (ids, n_past) stays right unless
the fault is in that, so that only the rows can give it away.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from bloomery.conformance.engines.opening import EngineName, Model
from bloomery.conformance.fixtures import fixture
from bloomery.interface.engine import Engine, EngineError, EngineOptions, Rows, SavedSequence, Span, TapSink
from bloomery.interface.engine import Sequence as EngineSequence
from bloomery.interface.spec import ModelSpec

Floats = npt.NDArray[np.float32]


class Wrapped:
    """A sequence that does what the inner one does, and counts for itself."""

    def __init__(self, engine: WrappedEngine, inner: EngineSequence) -> None:
        self.engine = engine
        self.inner = inner
        self.shown: list[int] = list(inner.ids)
        self.trial = 0

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(self.shown)

    @property
    def n_past(self) -> int:
        return len(self.shown)

    def extend(self, span: Span) -> None:
        self.shown += list(span.ids)
        self.trial = span.trial

    def commit(self, kept: int) -> None:
        self.inner.commit(kept)
        del self.shown[len(self.shown) - self.trial + kept :]
        self.trial = 0

    def keep(self, n: int) -> int:
        kept = self.inner.keep(n)
        del self.shown[kept:]
        return kept

    def save(self) -> SavedSequence:
        return self.inner.save()

    def load(self, saved: SavedSequence) -> None:
        self.inner.load(saved)
        self.shown = list(saved.ids)

    def release(self) -> None:
        self.inner.release()


@dataclass
class HeldRows:
    """Rows that a fault has had its way with."""

    rows: list[Floats]

    def __len__(self) -> int:
        return len(self.rows)

    def logits(self, row: int) -> Floats:
        return self.rows[row]

    def best(self, row: int, k: int) -> tuple[npt.NDArray[np.int32], Floats]:
        ids = np.argsort(-self.rows[row], kind="stable")[:k].astype(np.int32)
        return ids, self.rows[row][ids]


class WrappedEngine:
    """The reference, wrapped."""

    sequences: type[Wrapped] = Wrapped

    def __init__(self, inner: Engine) -> None:
        self.inner = inner

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def spec(self) -> ModelSpec:
        return self.inner.spec

    @property
    def options(self) -> EngineOptions:
        return self.inner.options

    def sequence(self) -> EngineSequence:
        return self.sequences(self, self.inner.sequence())

    def run(self, spans: Items[Span], *, taps: TapSink | None = None) -> list[Rows]:
        # A foreign sequence goes through as it is, for the inner engine to refuse.
        inner = [replace(span, sequence=self._inner(span)) for span in spans]
        answers = self.inner.run(inner, taps=taps)
        for span in spans:
            self._wrapped(span).extend(span)
        return [self.changed(span, rows, spans) for span, rows in zip(spans, answers, strict=True)]

    def changed(self, _span: Span, rows: Rows, _spans: Items[Span]) -> Rows:
        """What becomes of a span's rows."""
        return rows

    def close(self) -> None:
        self.inner.close()

    def _inner(self, span: Span) -> EngineSequence:
        sequence: Any = span.sequence
        return sequence.inner if sequence.engine is self else sequence

    @staticmethod
    def _wrapped(span: Span) -> Wrapped:
        assert isinstance(span.sequence, Wrapped)
        return span.sequence


def rows_of(rows: Rows) -> list[Floats]:
    return [rows.logits(index).copy() for index in range(len(rows))]


def with_sequences(kind: type[Wrapped]) -> type[WrappedEngine]:
    return type(kind.__name__, (WrappedEngine,), {"sequences": kind})


# Sequences.


class KeepLeavesTheState(Wrapped):
    """`keep` counts the ids and leaves the cells where they were."""

    def keep(self, n: int) -> int:
        del self.shown[n:]
        return len(self.shown)


class KeepCutsOneMore(Wrapped):
    def keep(self, n: int) -> int:
        kept = min(n, len(self.shown))
        self.inner.keep(max(kept - 1, 0))
        del self.shown[kept:]
        return kept


class KeepSaysMore(Wrapped):
    """`keep` answers with what it was asked for, whatever is there."""

    def keep(self, n: int) -> int:
        super().keep(n)
        return n


class CommitOneMore(Wrapped):
    def commit(self, kept: int) -> None:
        trial = self.trial
        super().commit(kept)
        # The inner one keeps what it ought to; the row that was taken back is put in again.
        if kept < trial:
            self.engine.inner.run([Span(sequence=self.inner, ids=[0])])


class CommitForgetsTheLast(Wrapped):
    def commit(self, kept: int) -> None:
        wanted = max(kept - 1, 0)
        trial = self.trial
        self.inner.commit(wanted)
        del self.shown[len(self.shown) - trial + kept :]
        self.trial = 0


class CommitKeepsAll(Wrapped):
    def commit(self, kept: int) -> None:
        self.inner.commit(self.trial)
        del self.shown[len(self.shown) - self.trial + kept :]
        self.trial = 0


class SavesNoIds(Wrapped):
    def save(self) -> SavedSequence:
        return replace(super().save(), ids=())


class SavesOneCellLess(Wrapped):
    def save(self) -> SavedSequence:
        saved = super().save()
        arrays = {name: array.copy() for name, array in saved.arrays.items()}
        for array in arrays.values():
            array[-1] = 0
        return replace(saved, arrays=arrays)


class LoadsKeysAlone(Wrapped):
    """Of the saved arrays only the first is taken."""

    def load(self, saved: SavedSequence) -> None:
        first = next(iter(saved.arrays))
        arrays = {name: array if name == first else np.zeros_like(array) for name, array in saved.arrays.items()}
        super().load(replace(saved, arrays=arrays))


_openings = iter(range(1_000_000))


class SavesForThisOpeningOnly(WrappedEngine):
    """What was saved names the opening of the engine, not the engine."""

    class Sequence(Wrapped):
        def save(self) -> SavedSequence:
            saved = super().save()
            return replace(saved, engine=f"{saved.engine} {self.opening}")

        def load(self, saved: SavedSequence) -> None:
            own, _, opening = saved.engine.rpartition(" ")
            if opening != str(self.opening):
                raise EngineError("saved by another opening")
            super().load(replace(saved, engine=own))

        @property
        def opening(self) -> int:
            assert isinstance(self.engine, SavesForThisOpeningOnly)
            return self.engine.opening

    sequences = Sequence

    def __init__(self, inner: Engine) -> None:
        super().__init__(inner)
        self.opening = next(_openings)


class ReleasedPlacesAreNotCleared(WrappedEngine):
    """A new sequence takes a released one's place with what is in it."""

    class Sequence(Wrapped):
        def release(self) -> None:
            assert isinstance(self.engine, ReleasedPlacesAreNotCleared)
            if self.inner not in self.engine.left:
                self.engine.left.append(self.inner)

    sequences = Sequence

    def __init__(self, inner: Engine) -> None:
        super().__init__(inner)
        self.left: list[EngineSequence] = []

    def sequence(self) -> EngineSequence:
        if not self.left:
            return super().sequence()
        place = self.left.pop()
        place.keep(1)
        sequence = self.sequences(self, place)
        sequence.shown = []
        return sequence


class CommitsWithoutTrial(Wrapped):
    def commit(self, kept: int) -> None:
        if self.trial:
            super().commit(kept)


class KeepsNegativeLengths(Wrapped):
    def keep(self, n: int) -> int:
        return super().keep(max(n, 0))


# Rows.


class SwapsSpans(WrappedEngine):
    """Two spans' rows come in each other's place."""

    def run(self, spans: Items[Span], *, taps: TapSink | None = None) -> list[Rows]:
        return super().run(spans, taps=taps)[::-1]


class SingleRowsDiffer(WrappedEngine):
    """A span of one input goes another way, and one logit's last bit shows it."""

    def changed(self, span: Span, rows: Rows, _spans: Items[Span]) -> Rows:
        held = rows_of(rows)
        if len(span.ids) == 1:
            for row in held:
                row[3] = np.nextafter(row[3], np.float32(np.inf))
        return HeldRows(held)


class CompanyShows(WrappedEngine):
    """With company a row is off by a millionth."""

    def changed(self, _span: Span, rows: Rows, spans: Items[Span]) -> Rows:
        factor = np.float32(1 + 1e-6 * (len(spans) > 1))
        return HeldRows([row * factor for row in rows_of(rows)])


class UbatchEdge(WrappedEngine):
    """The last row of a span that is longer than the ubatch is of the id before."""

    def changed(self, span: Span, rows: Rows, _spans: Items[Span]) -> Rows:
        held = rows_of(rows)
        if len(span.ids) > self.options.n_ubatch and len(held) > 1:
            held[-1] = held[-2]
        return HeldRows(held)


class TrialRowsAreLate(WrappedEngine):
    """The rows of a trial are each of the input before."""

    def changed(self, span: Span, rows: Rows, _spans: Items[Span]) -> Rows:
        held = rows_of(rows)
        return HeldRows([held[0], *held[:-1]] if span.trial and held else held)


class RowsInOrderOfPlace(WrappedEngine):
    """Rows come in the order of their inputs, in whatever order they were wanted."""

    def changed(self, span: Span, rows: Rows, _spans: Items[Span]) -> Rows:
        held = rows_of(rows)
        places = [wanted % len(span.ids) for wanted in span.wanted]
        return HeldRows([held[at] for at in np.argsort(places, kind="stable")])


class BestIsNotSorted(WrappedEngine):
    def changed(self, _span: Span, rows: Rows, _spans: Items[Span]) -> Rows:
        class Unsorted(HeldRows):
            def best(self, row: int, k: int) -> tuple[npt.NDArray[np.int32], Floats]:
                ids, logits = super().best(row, k)
                return ids[::-1], logits[::-1]

        return Unsorted(rows_of(rows))


class NoNumbersLater(WrappedEngine):
    """From the twelfth input on a logit is no number."""

    def changed(self, span: Span, rows: Rows, _spans: Items[Span]) -> Rows:
        held = rows_of(rows)
        if self._wrapped(span).n_past > 12:
            for row in held:
                row[0] = np.nan
        return HeldRows(held)


# Refusals.


class TakesAnyId(WrappedEngine):
    def run(self, spans: Items[Span], *, taps: TapSink | None = None) -> list[Rows]:
        return super().run([replace(span, ids=self._inside(span)) for span in spans], taps=taps)

    def _inside(self, span: Span) -> list[int]:
        return [min(max(int(i), 0), self.spec.n_vocab - 1) for i in span.ids]


class RunsBeforeItRefuses(WrappedEngine):
    """Spans are run one by one, so that the first is in the state when the second is refused."""

    def run(self, spans: Items[Span], *, taps: TapSink | None = None) -> list[Rows]:
        return [rows for span in spans for rows in super(RunsBeforeItRefuses, self).run([span], taps=taps)]


class RaisesValueErrors(WrappedEngine):
    def run(self, spans: Items[Span], *, taps: TapSink | None = None) -> list[Rows]:
        if any(not 0 <= i < self.spec.n_vocab for span in spans for i in span.ids):
            raise ValueError("id")
        return super().run(spans, taps=taps)


class RunsOnWhenClosed(WrappedEngine):
    def close(self) -> None:
        pass


# Engines that are right.


class KeepsAllOrNothing(Wrapped):
    """State that cannot be cut: `keep` keeps the whole or nothing, and says so."""

    def keep(self, n: int) -> int:
        if n >= len(self.shown):
            return len(self.shown)
        self.inner.keep(min(n, 0))
        self.shown.clear()
        return 0


class TakesNoTrials(WrappedEngine):
    @property
    def options(self) -> EngineOptions:
        return replace(self.inner.options, n_trial=0)

    def run(self, spans: Items[Span], *, taps: TapSink | None = None) -> list[Rows]:
        if any(span.trial for span in spans):
            raise EngineError("no input of this engine can be on trial")
        return super().run(spans, taps=taps)


class Noisy(WrappedEngine):
    """Another engine: its rows are near, and depend on the length of the span."""

    noise = np.float32(1e-5)

    @property
    def name(self) -> str:
        return "third party"

    def changed(self, span: Span, rows: Rows, _spans: Items[Span]) -> Rows:
        held = rows_of(rows)
        for row in held:
            row[:: 1 + len(span.ids) % 3] += self.noise
        return HeldRows(held)


class TooNoisy(Noisy):
    noise = np.float32(1e-3)


def opener(model: str, kind: type[WrappedEngine], **options: Any) -> Callable[[], Engine]:
    """What opens the fixture on the reference behind the wrapper."""
    file = Model(fixture(model))
    chosen = {"n_ctx": 64, "n_sequences": 4, "n_ubatch": 16} | options
    return lambda: kind(file.open(EngineName(engine="reference"), **chosen))
