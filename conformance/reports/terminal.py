"""A report for a terminal: tables of subjects and checks, then what failed and what was skipped."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field

from bloomery.conformance.finding import Finding
from bloomery.conformance.reports.report import VERDICTS, Report, Verdict, measured_text

_WORD: dict[Verdict, str] = {"passed": "ok", "failed": "FAIL", "skipped": "-"}
_COLOUR: dict[Verdict, str] = {"passed": "\x1b[32m", "failed": "\x1b[1;31m", "skipped": "\x1b[33m"}
_PLAIN = "\x1b[0m"
_GAP = "  "
# Names come from files and servers; what is no printable character of theirs must not reach the terminal.
_LEAST_WIDTH = 40
_SHOWN_CASES = 8


def printable(text: str) -> str:
    """The text with control characters, but for line ends, written as escapes."""
    return "".join(
        character if character == "\n" or character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


@dataclass(kw_only=True)
class _Block:
    """Subjects that share checks, as one table."""

    checks: list[str] = field(default_factory=list)
    subjects: dict[str, dict[str, Verdict]] = field(default_factory=dict)

    def width(self, subject: str, checks: list[str]) -> int:
        first = max(map(len, (*self.subjects, subject)))
        return first + sum(len(_GAP) + max(len(check), 4) for check in checks)


def _worst(findings: list[Finding]) -> dict[str, Verdict]:
    """The verdict of each check's name; the worst where a name comes more than once."""
    rank: dict[Verdict, int] = {"passed": 1, "skipped": 0, "failed": 2}
    verdicts: dict[str, Verdict] = {}
    for finding in findings:
        name = printable(finding.check).replace("\n", " ")
        if rank[finding.verdict] >= rank.get(verdicts.get(name, "skipped"), 0):
            verdicts[name] = finding.verdict
    return verdicts


def _blocks(report: Report, width: int) -> list[_Block]:
    blocks: list[_Block] = []
    for subject, findings in report.by_subject().items():
        shown = printable(subject).replace("\n", " ")
        verdicts = _worst(findings)
        for block in blocks:
            joined = list(dict.fromkeys((*block.checks, *verdicts)))
            if set(block.checks) & set(verdicts) and block.width(shown, joined) <= width:
                break
        else:
            block, joined = _Block(), list(verdicts)
            blocks.append(block)
        block.checks = joined
        block.subjects[shown] = verdicts
    return blocks


def _table(block: _Block, paint: bool) -> Iterator[str]:
    first = max(map(len, block.subjects))
    yield " " * first + "".join(_GAP + check.ljust(4) for check in block.checks).rstrip()
    for subject, verdicts in block.subjects.items():
        line = subject.ljust(first)
        for check in block.checks:
            verdict = verdicts.get(check)
            cell = (_WORD[verdict] if verdict else "").ljust(max(len(check), 4))
            line += _GAP + (f"{_COLOUR[verdict]}{cell}{_PLAIN}" if paint and verdict else cell)
        yield line.rstrip()


def _listed(block: _Block, width: int, paint: bool) -> Iterator[str]:
    """A block whose columns do not fit: each subject with its checks behind it, wrapped."""
    for subject, verdicts in block.subjects.items():
        yield subject
        line = ""
        for check, verdict in verdicts.items():
            plain = f"{_WORD[verdict]} {check}"
            if line and len(line) + len(_GAP) + len(plain) > width:
                yield _painted(line, paint)
                line = ""
            line += _GAP + plain
        yield _painted(line, paint)


def _painted(line: str, paint: bool) -> str:
    if not paint:
        return line
    for verdict in VERDICTS:
        word = f"{_GAP}{_WORD[verdict]} "
        line = line.replace(word, f"{_GAP}{_COLOUR[verdict]}{_WORD[verdict]}{_PLAIN} ")
    return line


def _failure(finding: Finding, width: int) -> Iterator[str]:
    yield f"FAILED {printable(finding.subject)}: {printable(finding.check)}"
    for sentence in finding.wrong:
        for line in printable(sentence).splitlines():
            yield from textwrap.wrap(line, width, initial_indent="  ", subsequent_indent="    ") or [""]
    if finding.measured:
        numbers = f"measured: {printable(measured_text(finding))}"
        yield from textwrap.wrap(numbers, width, initial_indent="  ", subsequent_indent="    ")
    if finding.replay is not None:
        yield f"  replay: {printable(str(finding.replay))}"


def counts_text(report: Report) -> str:
    """`3 failed, 120 passed, 2 skipped`."""
    counts = report.counts
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in ("failed", "passed", "skipped") if counts[verdict])


def terminal_report(report: Report, *, width: int, paint: bool = False) -> str:
    """The report as text of at most `width` columns, with colours where `paint` says so.

    A name longer than the terminal is not cut: its line is longer.
    """
    width = max(width, _LEAST_WIDTH)
    lines: list[str] = []
    for block in _blocks(report, width):
        fits = block.width("", block.checks) <= width
        lines += [*(_table(block, paint) if fits else _listed(block, width, paint)), ""]
    for finding in report.findings():
        if finding.verdict == "failed":
            lines += [*_failure(finding, width), ""]
    for reason, findings in report.skipped().items():
        names = [printable(f"{finding.subject}: {finding.check}") for finding in findings]
        more = f" and {len(names) - _SHOWN_CASES} more" if len(names) > _SHOWN_CASES else ""
        # Not wrapped: a reason may hold a command that a reader is to copy.
        lines.append(f"skipped {len(names)}: {printable(reason)}")
        listed = "; ".join(names[:_SHOWN_CASES]) + more
        lines += [*textwrap.wrap(listed, width, initial_indent="  ", subsequent_indent="  "), ""]
    lines.append(f"{counts_text(report) or 'nothing ran'} in {report.seconds:.1f} s (seed {report.seed})")
    return "\n".join(lines)
