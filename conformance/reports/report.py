"""What a run found, as data: every check's findings, from which each form of report is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from bloomery.conformance.finding import Finding

Verdict = Literal["passed", "failed", "skipped"]
VERDICTS: tuple[Verdict, ...] = ("passed", "failed", "skipped")

PASSED, FAILED, NOTHING_RAN = 0, 1, 2


@dataclass(frozen=True, kw_only=True)
class Result:
    """One check's findings, at least one, and the seconds it took."""

    subject: str
    name: str
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def verdict(self) -> Verdict:
        """failed when any finding is, else passed when any is."""
        verdicts = {finding.verdict for finding in self.findings}
        return "failed" if "failed" in verdicts else "passed" if "passed" in verdicts else "skipped"


@dataclass(frozen=True, kw_only=True)
class Report:
    """A whole run.

    command: as it was typed.  version: of this suite.  seed: of everything drawn.  started: ISO, UTC.  seconds: from
    start to end.  results: in the order the checks are listed, whatever the order they ran in.
    """

    command: str
    version: str
    seed: int
    started: str
    seconds: float
    results: tuple[Result, ...]

    def findings(self) -> Iterator[Finding]:
        """Every finding, in order."""
        for result in self.results:
            yield from result.findings

    @property
    def counts(self) -> Counter[Verdict]:
        """How many findings came out how."""
        return Counter(finding.verdict for finding in self.findings())

    @property
    def exit_code(self) -> int:
        """0: something passed and nothing failed.  1: something failed.  2: nothing could run."""
        counts = self.counts
        return FAILED if counts["failed"] else PASSED if counts["passed"] else NOTHING_RAN

    def by_subject(self) -> dict[str, list[Finding]]:
        """The findings of each subject; subjects and findings in order."""
        subjects: dict[str, list[Finding]] = {}
        for finding in self.findings():
            subjects.setdefault(finding.subject, []).append(finding)
        return subjects

    def skipped(self) -> dict[str, list[Finding]]:
        """The skipped findings, by reason."""
        reasons: dict[str, list[Finding]] = {}
        for finding in self.findings():
            if finding.verdict == "skipped":
                reasons.setdefault(str(finding.skipped), []).append(finding)
        return reasons


def first_few(sentences: Iterable[str], most: int, about: str = "") -> tuple[str, ...]:
    """At most `most` sentences, and one, which begins with `about`, that says how many others there were."""
    listed = tuple(sentences)
    return listed if len(listed) <= most else (*listed[:most], f"{about}and {len(listed) - most} more")


def measured_text(finding: Finding) -> str:
    """The numbers of a finding in a line: `rows 120, p50 3.1e-06`."""
    return ", ".join(f"{name} {number_text(value)}" for name, value in finding.measured.items())


def number_text(value: float) -> str:
    """A number as a person reads it: whole ones whole, others to three digits."""
    return f"{value:.0f}" if abs(value) < 1e9 and value == round(value) else f"{value:.3g}"
