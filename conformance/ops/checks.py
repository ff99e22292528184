"""Holds an op set against the definition, op by op: cases are drawn until one is wrong, and the smallest such one is
told, saved, and can be played again.

The same seed draws the same cases in the same order; a budget of seconds only decides how many.
"""

from __future__ import annotations

import contextlib
import math
import time
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import numpy as np
from hypothesis import HealthCheck, Phase, Verbosity, find, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from bloomery.conformance.finding import Check, Effort, Finding, Plot
from bloomery.conformance.ops import replay as op_replay
from bloomery.conformance.ops.case import OpCase
from bloomery.conformance.ops.claims import claims_of
from bloomery.conformance.ops.entries import ENTRIES
from bloomery.conformance.ops.judge import Judgement, judge, judge_alone
from bloomery.conformance.ops.simplify import described, simplified
from bloomery.interface import registry
from bloomery.interface.files.quants.activations import ACTIVATION_FORMATS

OpSetFactory: TypeAlias = str | Callable[[], Any]
"""An installed op set's name, `module:factory`, or the factory itself; called without arguments it gives the op set."""

ALONE = "rows alone"
VALUES = "values"

# Cases of a round.
_CASES = 20
# Of a check's seconds, the parts that drawing may take, and drawing and shrinking; making numbers simple has the rest.
_DRAWING, _SHRINKING = 0.6, 0.8
# Where a check may take any time: seconds for each of the last two.
_SECONDS = 30.0
_HOW = settings(
    max_examples=_CASES,
    database=None,
    deadline=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
    verbosity=Verbosity.quiet,
)
# What a plot shows of a check: enough for a histogram's shape.
_PLOTTED = 4000


class UnknownOpError(LookupError):
    """No op of `OpSet` has that name; the message lists those there are."""


def checks(ops_factory: OpSetFactory, only: Collection[str] | None = None) -> list[Check]:
    """A check an op and format of its matrix, and one an op of whether its rows stand alone.

    only: the ops to check, all of them where it is None; an op that is named here must be there, where others are
    skipped if the op set lacks them. The op set is made by each check's run. Raises UnknownOpError.
    """
    unknown = sorted(set(only or ()) - set(ENTRIES))
    if unknown:
        raise UnknownOpError(f"no op is named {', '.join(unknown)}; there are {', '.join(ENTRIES)}")
    found = []
    for op in ENTRIES if only is None else [op for op in ENTRIES if op in only]:
        entry = ENTRIES[op]
        names = [(format_name or VALUES, format_name) for format_name in entry.formats]
        for name, format_name in names:
            run = partial(_check, ops_factory, op, name, format_name, only is not None)
            found.append(Check(subject=f"op {op}", name=name, run=run))
        if entry.rows:
            run = partial(_check, ops_factory, op, ALONE, None, only is not None)
            found.append(Check(subject=f"op {op}", name=ALONE, run=run))
    return found


def replay(path: Path, ops: Any) -> Finding:
    """Play a saved case again.  Raises `op_replay.OpReplayError` and OSError where the file is none."""
    saved = op_replay.load(path)
    case, judging = saved.case, judge_alone if saved.check == ALONE else judge
    judgement = judging(ops, case, entry=ENTRIES[case.op], claims=claims_of(ops))
    wrong = _told(judgement, case) if judgement.wrong else ()
    measured = _measured([judgement])
    return Finding(subject=f"op {case.op}", check=f"replay of {path.name}", measured=measured, wrong=wrong, replay=path)


def factory_of(ops: OpSetFactory) -> Callable[[], Any]:
    """What makes the op set that a name stands for.  Raises `registry.UnknownNameError`."""
    return ops if callable(ops) else registry.op_set(ops)


def _check(
    ops_factory: OpSetFactory, op: str, name: str, format_name: str | None, asked_for: bool, effort: Effort
) -> Iterator[Finding]:
    ops = factory_of(ops_factory)()
    subject, claims, entry = f"op {op}", claims_of(ops), ENTRIES[op]
    if not hasattr(ops, op):
        reason = f"the op set has no op {op}"
        lacks = Finding(subject=subject, check=name, measured={})
        yield replace(lacks, wrong=(reason,)) if asked_for else replace(lacks, skipped=reason)
        return
    formats = entry.formats if format_name is None else (format_name,)
    if claims.numerics == "ggml" and op != "embed" and formats != ("",):
        formats = tuple(each for each in formats if each in ACTIVATION_FORMATS)
    if not formats:
        reason = f"llama.cpp multiplies with no weights of {format_name}, so there is nothing to follow"
        yield Finding(subject=subject, check=name, measured={}, skipped=reason)
        return
    strategy = st.sampled_from(formats).flatmap(entry.cases)
    judging = partial(judge_alone if name == ALONE else judge, ops, entry=entry, claims=claims)
    search = _Search(
        strategy, judging, Random(zlib.crc32(f"{effort.seed} {subject} {name}".encode())), effort.seconds, entry.rounds
    )
    case = search.smallest_wrong()
    wrong: tuple[str, ...] = ()
    path = None
    if case is not None:
        wrong = _told(judging(case), case)
        notes = {"seed": effort.seed, "claims": asdict(claims), "wrong": list(wrong)}
        path = op_replay.save(effort.replays, case, name, notes)
    yield Finding(
        subject=subject,
        check=name,
        measured=_measured(search.judged),
        wrong=wrong,
        replay=path,
        plots=_plots(search.judged, f"{subject} {name}"),
    )


class _EnoughError(BaseException):
    """The time for drawing or shrinking is over. No Exception, so that hypothesis does not take it for a wrong case."""


class _Search:
    """Draws cases until one is wrong or the effort is spent; `judged` is what those that were drawn showed."""

    def __init__(
        self,
        cases: st.SearchStrategy[OpCase],
        judging: Callable[[OpCase], Judgement],
        random: Random,
        seconds: float | None,
        rounds: int,
    ) -> None:
        self.judged: list[Judgement] = []
        self._cases, self._judging, self._random = cases, judging, random
        self._seconds, self._rounds = seconds, rounds
        self._began = time.monotonic()
        self._stop_shrinking = math.inf
        # What was wrong, by everything that makes a case: found again, it must be wrong again.
        self._wrong: set[bytes] = set()
        self._smallest: OpCase | None = None

    def smallest_wrong(self) -> OpCase | None:
        """The smallest wrong case that was found, its numbers made simple."""
        rounds = 0
        while self._smallest is None and self._may_draw(rounds):
            rounds += 1
            with contextlib.suppress(NoSuchExample, _EnoughError):
                find(self._cases, self._is_wrong, settings=_HOW, random=self._random)
        if self._smallest is None:
            return None
        until = time.monotonic() + (_SECONDS if self._seconds is None else (1 - _SHRINKING) * self._seconds)
        return simplified(self._smallest, lambda case: bool(self._judging(case).wrong), until)

    def _may_draw(self, rounds: int) -> bool:
        if self._seconds is None:
            return rounds < self._rounds
        return not self.judged or time.monotonic() < self._began + _DRAWING * self._seconds

    def _is_wrong(self, case: OpCase) -> bool:
        if self._smallest is None:
            if not self._may_draw(0):
                raise _EnoughError
            judgement = self._judging(case)
            self.judged.append(judgement)
            if not judgement.wrong:
                return False
            self._stop_shrinking = time.monotonic() + _SECONDS
            if self._seconds is not None:
                self._stop_shrinking = self._began + _SHRINKING * self._seconds
        elif case.key() not in self._wrong:
            # One was wrong, and hypothesis tries smaller ones.
            if time.monotonic() > self._stop_shrinking:
                raise _EnoughError
            if not self._judging(case).wrong:
                return False
        self._wrong.add(case.key())
        self._smallest = case
        return True


def _told(judgement: Judgement, case: OpCase) -> tuple[str, ...]:
    """What is wrong, then the case."""
    return (*judgement.wrong, "the smallest case found: " + "; ".join(described(case)))


def _measured(judged: list[Judgement]) -> dict[str, float]:
    """How many cases and elements were compared, and the largest error in bands."""
    worst = max((float(each.ratios.max()) for each in judged if each.ratios.size), default=0.0)
    return {"cases": len(judged), "elements": sum(each.n_elements for each in judged), "largest error in bands": worst}


def _plots(judged: list[Judgement], title: str) -> tuple[Plot, ...]:
    """The histogram of |error| / band, where elements have a band."""
    ratios = np.concatenate([each.ratios for each in judged]) if judged else np.empty(0)
    ratios = ratios[np.isfinite(ratios)]
    if not ratios.size:
        return ()
    # Evenly spaced in order of size, the largest among them: the same shape from fewer values.
    shown = np.sort(ratios)[np.unique(np.linspace(0, ratios.size - 1, _PLOTTED).astype(np.intp))]
    return (
        Plot(
            kind="histogram",
            title=f"{title}: error in bands",
            rows=(tuple(shown.tolist()),),
            x="|error| / band",
            y="elements",
            band=1.0,
        ),
    )
