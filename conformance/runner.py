"""Runs checks, each in a process of its own, some at a time, within a budget.

A check judges code that may crash or hang, so none runs in the command's process: one that dies or does not end is a
failed finding that names it, and the run goes on. The processes are forks. A fork starts in milliseconds where a fresh
interpreter takes half a second to import the engines, and it takes any check along, closures included. What a fork
cannot take along is the state of threads and of a GPU, so a list of checks is made without opening an engine:
`Check.run` opens what it needs.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import connection, get_context
from typing import IO, Any

from threadpoolctl import threadpool_limits

from bloomery.conformance.finding import Check, Effort, Finding
from bloomery.conformance.reports.report import Result

# Of the budget, the part that is shared out; the rest is for what takes longer than its share.
_SHARED = 0.9
# Less than this is no use to a check, so late ones are skipped instead of all being starved.
_LEAST_SECONDS = 1.0
# A check that honours its share ends soon after it; one that has not after this many shares never will in time.
_PATIENCE = 4.0
_LEAST_PATIENCE_SECONDS = 20.0
# How much of what a crashed check printed goes into its sentence: its last words, and the calls it died in, which
# faulthandler prints with the innermost first.
_LAST_WORDS, _LAST_CALLS = 800, 1200
_LOG_BYTES = 1 << 16
_FATAL = "Fatal Python error"

_FORK = get_context("fork")
_ENDING = frozenset({signal.SIGINT, signal.SIGTERM})


@dataclass(frozen=True, kw_only=True)
class Limits:
    """jobs: how many checks run at once.  budget: seconds for all of them, None for as many as they need.  timeout:
    seconds after which a check has failed to end."""

    jobs: int = 1
    budget: float | None = None
    timeout: float = 600.0


def in_turn(checks: Iterable[Check]) -> list[int]:
    """The order to run in, as places in the list: the first check of every subject, then the second of each, and so on.

    Lists name the most telling check of a subject first; so a budget that does not last hears every subject.
    """
    seen: dict[str, int] = {}
    ranks = []
    for check in checks:
        seen[check.subject] = rank = seen.get(check.subject, 0) + 1
        ranks.append(rank)
    return sorted(range(len(ranks)), key=ranks.__getitem__)


@dataclass(kw_only=True)
class _Running:
    """A check in its process; `place` is its place in the list of checks."""

    place: int
    check: Check
    process: Any
    messages: connection.Connection
    log: IO[bytes]
    started: float
    # When it is killed, and what that says of it: a sentence that fails it, or a reason to skip it.
    ends: float
    late: str
    late_fails: bool
    findings: list[Finding] = field(default_factory=list)
    done: bool = False

    def read(self) -> None:
        """Take what the check has said so far."""
        try:
            while not self.done and self.messages.poll():
                kind, value = self.messages.recv()
                if kind == "finding":
                    self.findings.append(value)
                    continue
                if kind == "raised":
                    self.findings.append(self._finding(wrong=(value,)))
                self.done = True
        except (EOFError, OSError):
            # The process died; its exit code says of what.
            return

    def _finding(self, *, wrong: tuple[str, ...] = (), skipped: str | None = None) -> Finding:
        return Finding(subject=self.check.subject, check=self.check.name, measured={}, wrong=wrong, skipped=skipped)

    def end(self, *, late: bool) -> Result:
        """Kill what is left of it and say what it found."""
        self.read()
        seconds = time.monotonic() - self.started
        self.stop()
        if not self.done and late:
            wrong, reason = ((self.late,), None) if self.late_fails else ((), self.late)
            self.findings.append(self._finding(wrong=wrong, skipped=reason))
        elif not self.done:
            self.findings.append(self._finding(wrong=(self._death(),)))
        elif not self.findings:
            self.findings.append(self._finding(skipped="it found nothing to check"))
        self.close()
        return Result(subject=self.check.subject, name=self.check.name, findings=tuple(self.findings), seconds=seconds)

    def _death(self) -> str:
        code = self.process.exitcode
        how = f"died of {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        size = self.log.seek(0, os.SEEK_END)
        self.log.seek(max(0, size - _LOG_BYTES))
        words, fatal, calls = self.log.read().decode(errors="replace").rpartition(_FATAL)
        if not fatal:
            words, calls = calls, ""
        said = (words[-_LAST_WORDS:] + fatal + calls[:_LAST_CALLS]).strip()
        return f"the process of this check {how} before the check was done" + (f"; it said:\n{said}" if said else "")

    def stop(self) -> None:
        """Kill the check's process and every process it started, and reap it."""
        # Before it is reaped its id, which is its group's too, belongs to nobody else.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()

    def close(self) -> None:
        """Let go of its pipe and its log."""
        self.messages.close()
        self.log.close()


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """What ends a run is handled after what is done inside."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _in_child(check: Check, effort: Effort, messages: connection.Connection, log: int, threads: int) -> None:
    # A group of its own, so that whatever the check starts can be stopped with it.
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    # What an engine prints is no part of the report; it is kept for the case that it is the last thing said.
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = sys.stderr = open(log, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    faulthandler.enable(file=2)
    with threadpool_limits(limits=threads):
        try:
            for finding in check.run(effort):
                messages.send(("finding", finding))
        except BaseException as error:
            # Whatever it is, it ends this check and no other.
            where = traceback.format_exc(limit=-3).strip()
            messages.send(("raised", f"the check raised {type(error).__name__}: {error}\n{where}"))
        else:
            messages.send(("done", None))


class _Run:
    def __init__(self, checks: Sequence[Check], effort: Effort, limits: Limits) -> None:
        self._checks = checks
        self._waiting = deque(in_turn(checks))
        self._effort = effort
        self._limits = limits
        self._began = time.monotonic()
        self._threads = max(1, (os.cpu_count() or 1) // limits.jobs)
        self.running: list[_Running] = []

    def _start(self, place: int, seconds: float | None) -> None:
        check = self._checks[place]
        now = time.monotonic()
        limits = self._limits
        ends, late, late_fails = now + limits.timeout, f"it did not end within {limits.timeout:g} s (--timeout)", True
        if seconds is not None and limits.budget is not None:
            patience = max(_PATIENCE * seconds, _LEAST_PATIENCE_SECONDS)
            in_time = min(now + patience, self._began + limits.budget)
            if in_time < ends:
                ends, late_fails = in_time, False
                late = f"it did not end within its share of the {limits.budget:g} s (--budget)"
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`
        reader, writer = _FORK.Pipe(duplex=False)
        process = _FORK.Process(
            target=_in_child,
            args=(check, replace(self._effort, seconds=seconds), writer, log.fileno(), self._threads),
        )
        with warnings.catch_warnings():
            # Python warns of forks beside other threads. The ones here are the linear algebra's, which fork with care.
            warnings.simplefilter("ignore", DeprecationWarning)
            # An exception of a signal's handler is lost in the callbacks that run around a fork: it waits.
            with _signals_wait():
                process.start()
        # The only writer left is the child, so its end is the end of the messages.
        writer.close()
        self.running.append(
            _Running(
                place=place,
                check=check,
                process=process,
                messages=reader,
                log=log,
                started=now,
                ends=ends,
                late=late,
                late_fails=late_fails,
            )
        )

    def _share(self) -> float | None:
        """Seconds for the next check; 0 when there are none left."""
        if self._limits.budget is None:
            return None
        left = self._began + _SHARED * self._limits.budget - time.monotonic()
        if left <= 0:
            return 0.0
        return min(left, max(_LEAST_SECONDS, left * self._limits.jobs / len(self._waiting)))

    def results(self) -> Iterator[tuple[int, Result]]:
        """Each result as it comes, with its place in the list."""
        while self._waiting or self.running:
            while self._waiting and len(self.running) < self._limits.jobs:
                share = self._share()
                place = self._waiting.popleft()
                if share == 0.0:
                    yield place, self._not_reached(self._checks[place])
                else:
                    self._start(place, share)
            if self.running:
                yield from self._ended()

    def _ended(self) -> Iterator[tuple[int, Result]]:
        wait_for = max(0.0, min(one.ends for one in self.running) - time.monotonic())
        handles = [handle for one in self.running for handle in (one.messages, one.process.sentinel)]
        connection.wait(handles, wait_for)
        for one in list(self.running):
            dead = bool(connection.wait([one.process.sentinel], 0))
            one.read()
            if one.done or dead or time.monotonic() >= one.ends:
                result = one.end(late=not dead)
                # Only now, so that an interrupt before leaves no process behind.
                self.running.remove(one)
                yield one.place, result

    def _not_reached(self, check: Check) -> Result:
        reason = f"the {self._limits.budget:g} s were spent before its turn (--budget)"
        finding = Finding(subject=check.subject, check=check.name, measured={}, skipped=reason)
        return Result(subject=check.subject, name=check.name, findings=(finding,), seconds=0.0)


def run_checks(
    checks: Sequence[Check],
    effort: Effort,
    limits: Limits,
    on_result: Callable[[Result], None] = lambda result: None,
) -> tuple[Result, ...]:
    """Run them all.  Results come in the order of `checks`; `on_result` hears each as it comes.

    When this ends, however it ends, no process of a check is left.
    """
    run = _Run(checks, effort, limits)
    found: dict[int, Result] = {}
    try:
        for place, result in run.results():
            found[place] = result
            on_result(result)
    finally:
        for one in run.running:
            one.stop()
            one.close()
    return tuple(found[place] for place in range(len(checks)))
