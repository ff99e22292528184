"""Checks that pass, fail, crash and hang, to judge what runs and reports them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from bloomery.conformance.finding import Check, Effort, Finding, Plot
from bloomery.conformance.reports.report import Report, Result

# Long enough that a test which waits for it has failed.
FOREVER = 300.0


def check(name: str, run: Callable[[Effort], Iterable[Finding]], subject: str = "fake") -> Check:
    """A check of the subject "fake"."""
    return Check(subject=subject, name=name, run=run)


def finding(name: str = "c", subject: str = "fake", **more: object) -> Finding:
    """A passed finding, unless told otherwise."""
    return Finding(subject=subject, check=name, **{"measured": {"n": 1.0}, **more})  # type: ignore[arg-type]


def passes(name: str, subject: str = "fake") -> Check:
    return check(name, lambda _effort: [finding(name, subject)], subject)


def fails(name: str, subject: str = "fake") -> Check:
    return check(name, lambda _effort: [finding(name, subject, wrong=("it is wrong",))], subject)


def skips(name: str) -> Check:
    return check(name, lambda _effort: [finding(name, measured={}, skipped="no such thing here")])


def aborts(name: str) -> Check:
    def run(_effort: Effort) -> Iterator[Finding]:
        yield finding("before it died")
        print("a kernel's last words", flush=True)
        os.abort()

    return check(name, run)


def exits(name: str) -> Check:
    def run(_effort: Effort) -> Iterator[Finding]:
        yield finding("before it left")
        os._exit(3)

    return check(name, run)


def raises(name: str) -> Check:
    def run(_effort: Effort) -> Iterator[Finding]:
        yield finding("before it raised")
        raise ZeroDivisionError("no kernel divides by that")

    return check(name, run)


def hangs(name: str, note: Path | None = None) -> Check:
    """Never ends; writes its process id to `note`."""

    def run(_effort: Effort) -> Iterator[Finding]:
        if note is not None:
            note.write_text(str(os.getpid()))
        time.sleep(FOREVER)
        yield finding(name)

    return check(name, run)


def is_running(process_id: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        status = Path(f"/proc/{process_id}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def report_of(*findings: Finding, seconds: float = 0.5, command: str = "bloomery-conformance fake") -> Report:
    """A report of a run with these findings, each a check's only one."""
    results = tuple(
        Result(subject=each.subject, name=each.check, findings=(each,), seconds=seconds) for each in findings
    )
    return Report(command=command, version="1", seed=7, started="2026-01-01T00:00:00", seconds=2.0, results=results)


HOSTILE = 'x<script>alert("&")</script>\x00\x1b[31m\ud800]]>\ufffe'

PLOTS = (
    Plot(kind="histogram", title="errors of <b>", rows=((0.1, 0.2, 0.2, 1.5),), x="|error| / band", band=1.0),
    Plot(kind="line", title="KL", rows=((1e-6, 1e-3, float("nan")), (2e-6,)), names=("a", "b"), y="nats", log=True),
    Plot(kind="heat", title="layers", rows=((0.0, 1.0), (2.0, 3.0)), names=("layer 0", "layer 1"), band=2.5),
)
