"""Plays a story on an engine and holds every row against a fresh sequence's.

One sentence stands behind all of it: a row depends on the ids before it and on nothing else. So whatever was cut,
tried, taken back, saved or computed beside it, each row that a story asked for must be the one of a new sequence that
reads the same ids in one call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from bloomery.conformance.compare import log_softmax
from bloomery.conformance.engines.bands_between import Alone
from bloomery.conformance.engines.story import Commit, Draft, Keep, Load, Part, Release, Restart, Run, Save, Step, Story
from bloomery.interface.engine import Engine, EngineError, Rows, SavedSequence, Span
from bloomery.interface.engine import Sequence as EngineSequence

Floats = npt.NDArray[np.float32]
Ids = tuple[int, ...]


class BrokenError(AssertionError):
    """A story that an engine does not play as it must; the message is what is wrong."""


@dataclass
class Tally:
    """What was compared so far: rows, the farthest of them, and how much of what was cut could be kept."""

    stories: int = 0
    rows: int = 0
    farthest: float = 0.0
    cut_to: int = 0
    kept: int = 0


class Subject:
    """An engine under judgement, opened when it is first needed and opened again where a story asks for it."""

    def __init__(self, opener: Callable[[], Engine]) -> None:
        self._opener = opener
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            self._engine = self._opener()
        return self._engine

    def another(self) -> Engine:
        """A second engine of the same making; the caller closes it."""
        return self._opener()

    def close(self) -> None:
        """Close the engine; the next use opens a new one."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None


@dataclass
class _Row:
    """A row as the engine gave it: after which ids, and in which step."""

    ids: Ids
    logits: Floats
    step: int


@dataclass
class _Lane:
    """A sequence and what must be in it."""

    sequence: EngineSequence
    ids: Ids = ()
    trial: int = 0


@dataclass
class _Play:
    """One story under way."""

    subject: Subject
    band: Alone
    tally: Tally
    lanes: dict[int, _Lane] = field(default_factory=dict)
    saved: list[tuple[SavedSequence, Ids]] = field(default_factory=list)
    rows: list[_Row] = field(default_factory=list)

    def lane(self, number: int) -> _Lane:
        if number not in self.lanes:
            self.lanes[number] = _Lane(self.subject.engine.sequence())
            self._expect(self.lanes[number])
        return self.lanes[number]

    def step(self, number: int, step: Step) -> None:
        match step:
            case Run(parts=parts):
                self._run(number, parts)
            case Commit(sequence=at, kept=kept):
                self._commit(self.lane(at), kept)
            case Keep(sequence=at, n=n):
                self._keep(self.lane(at), n)
            case Save(sequence=at):
                self.saved.append((self.lane(at).sequence.save(), self.lane(at).ids))
            case Load(sequence=at, saved=which):
                lane = self.lane(at)
                lane.sequence.load(self.saved[which][0])
                lane.ids = self.saved[which][1]
            case Release(sequence=at):
                self.lane(at).sequence.release()
                del self.lanes[at]
            case Restart():
                self.lanes.clear()
                self.subject.close()
            case Draft(sequence=at, right=right, wrong=wrong):
                self._draft(number, at, right, wrong)
        for lane in self.lanes.values():
            self._expect(lane)

    def _run(self, number: int, parts: Iterable[Part]) -> None:
        listed = list(parts)
        spans = [
            Span(
                sequence=self.lane(part.sequence).sequence,
                ids=part.ids,
                wanted=range(len(part.ids)) if part.wanted is None else part.wanted,
                trial=part.trial,
            )
            for part in listed
        ]
        answers = self.subject.engine.run(spans)
        if len(answers) != len(spans):
            raise BrokenError(f"run answered {len(spans)} spans with {len(answers)} sets of rows")
        for part, span, rows in zip(listed, spans, answers, strict=True):
            lane = self.lane(part.sequence)
            before = lane.ids
            lane.ids, lane.trial = before + part.ids, part.trial
            if len(rows) != len(span.wanted):
                raise BrokenError(f"{len(span.wanted)} rows were wanted and {len(rows)} came")
            for index, wanted in enumerate(span.wanted):
                logits = self._logits(rows, index, part.best)
                self.rows.append(_Row((*before, *part.ids[: wanted % len(part.ids) + 1]), logits, number))

    def _logits(self, rows: Rows, index: int, best: int) -> Floats:
        # A copy, because a backend may reuse the memory of a row.
        logits = np.array(rows.logits(index))
        n_vocab = self.subject.engine.spec.n_vocab
        if logits.shape != (n_vocab,) or logits.dtype != np.float32:
            raise BrokenError(f"a row is {logits.dtype} {list(logits.shape)}, not float32 [{n_vocab}]")
        if np.isnan(logits).any():
            raise BrokenError(f"{int(np.isnan(logits).sum())} logits of a row are not numbers")
        if best:
            ids, values = rows.best(index, best)
            order = np.argsort(-logits, kind="stable")[:best]
            if list(ids) != list(order):
                raise BrokenError(f"the best {best} ids of a row are {list(order)}, and `best` says {list(ids)}")
            if not np.array_equal(np.asarray(values), logits[order]):
                raise BrokenError(f"`best` gives other logits than the row for the ids {list(order)}")
        return logits

    @staticmethod
    def _commit(lane: _Lane, kept: int) -> None:
        lane.sequence.commit(kept)
        lane.ids = lane.ids[: len(lane.ids) - lane.trial + kept]
        lane.trial = 0

    def _keep(self, lane: _Lane, n: int) -> None:
        most = min(n, len(lane.ids))
        kept = lane.sequence.keep(n)
        if not 0 <= kept <= most:
            raise BrokenError(f"keep({n}) of {len(lane.ids)} ids says that {kept} were kept")
        if n >= len(lane.ids) and kept != len(lane.ids):
            raise BrokenError(f"keep({n}) cuts nothing from {len(lane.ids)} ids, and only {kept} were kept")
        lane.ids = lane.ids[:kept]
        self.tally.cut_to += most
        self.tally.kept += kept

    def _draft(self, number: int, at: int, right: int, wrong: int) -> None:
        lane = self.lane(at)
        coming = self._greedy(lane.ids, right + 2)
        first, proposal = coming[0], list(coming[1 : right + 1])
        n_vocab = self.subject.engine.spec.n_vocab
        proposal += [(coming[right + 1] + 1 + place) % n_vocab for place in range(wrong)]
        before = len(self.rows)
        self._run(number, [Part(sequence=at, ids=(first, *proposal), trial=len(proposal))])
        chosen = [int(row.logits.argmax()) for row in self.rows[before:]]
        taken = 0
        while taken < len(proposal) and proposal[taken] == chosen[taken]:
            taken += 1
        if proposal:
            self._commit(lane, taken)
        # With a band an unsure id may be another; the rows themselves are compared in any case.
        if self.band.bits and taken != right:
            raise BrokenError(
                f"of the proposal {proposal}, whose first {right} ids are the greedy ones, {taken} were verified"
            )

    def _greedy(self, ids: Ids, n: int) -> list[int]:
        """The next `n` greedy ids after `ids`, decoded one by one on a fresh sequence."""
        engine = self.subject.engine
        sequence = engine.sequence()
        try:
            inputs: Sequence[int] = ids
            chosen: list[int] = []
            for _ in range(n):
                [rows] = engine.run([Span(sequence=sequence, ids=inputs)])
                chosen.append(int(np.argmax(rows.logits(0))))
                inputs = chosen[-1:]
            return chosen
        finally:
            sequence.release()

    @staticmethod
    def _expect(lane: _Lane) -> None:
        sequence = lane.sequence
        if tuple(sequence.ids) != lane.ids or sequence.n_past != len(lane.ids):
            raise BrokenError(
                f"a sequence says that it holds {list(sequence.ids)} ({sequence.n_past}), not {list(lane.ids)}"
            )

    def compare(self) -> None:
        """Every row that came, against a fresh sequence's. All places are free again by now."""
        engine = self.subject.engine
        left = sorted(self.rows, key=lambda row: len(row.ids), reverse=True)
        while left:
            whole = left[0].ids
            mine = [row for row in left if row.ids == whole[: len(row.ids)]]
            left = [row for row in left if row.ids != whole[: len(row.ids)]]
            sequence = engine.sequence()
            try:
                [rows] = engine.run([Span(sequence=sequence, ids=whole, wanted=[len(row.ids) - 1 for row in mine])])
                for index, row in enumerate(mine):
                    self._hold(row, np.array(rows.logits(index)))
            finally:
                sequence.release()

    def _hold(self, row: _Row, fresh: Floats) -> None:
        self.tally.rows += 1
        if np.array_equal(row.logits, fresh):
            return
        if not (np.isfinite(row.logits.max()) and np.isfinite(fresh.max())):
            raise BrokenError(f"step {row.step}: the row after {list(row.ids)} has no finite best")
        differences = np.abs(log_softmax(row.logits) - log_softmax(fresh))
        # A logit of minus infinity is the same on both sides or it is infinitely far.
        same = row.logits == fresh
        differences[same & ~np.isfinite(differences)] = 0.0
        far = float(np.nan_to_num(differences, nan=np.inf).max())
        self.tally.farthest = max(self.tally.farthest, far)
        place = f"step {row.step}: the row after {list(row.ids)} is not the one a fresh sequence gives"
        if self.band.bits:
            raise BrokenError(f"{place}: log-probabilities differ by up to {far:.3g} where no bit may")
        if not far <= self.band.most:
            raise BrokenError(f"{place}: log-probabilities differ by {far:.3g}, the band ends at {self.band.most:.3g}")
        first, second = np.partition(fresh, -2)[-2:][::-1]
        if first - second >= self.band.sure and row.logits.argmax() != fresh.argmax():
            raise BrokenError(f"{place}: the best id is {row.logits.argmax()}, not {fresh.argmax()}")


def play(story: Story, subject: Subject, band: Alone, tally: Tally) -> str | None:
    """What is wrong with the engine by this story; None when nothing is.

    After a wrong one the engine is closed, so that the next story finds a new one.
    """
    tally.stories += 1
    game = _Play(subject, band, tally)
    number = 0
    try:
        for number, step in enumerate(story, 1):
            game.step(number, step)
        _give_back(game)
        number = 0
        game.compare()
    except BrokenError as error:
        wrong = str(error) if str(error).startswith("step ") else f"step {number}: {error}"
    except EngineError as error:
        wrong = f"{_place(number)} was refused: {error}"
    except Exception as error:
        # Whatever an engine under judgement raises is a finding about it.
        wrong = f"{_place(number)} raised {type(error).__name__}: {error}"
    else:
        return None
    with contextlib.suppress(Exception):
        _give_back(game)
    subject.close()
    return wrong


def _place(number: int) -> str:
    return f"step {number}" if number else "reading the same ids on a fresh sequence"


def _give_back(game: _Play) -> None:
    for lane in game.lanes.values():
        lane.sequence.release()
    game.lanes.clear()
