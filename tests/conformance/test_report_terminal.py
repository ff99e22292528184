"""The terminal's report: a table that fits, every failure in full, and nothing of a name reaches the terminal raw."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from bloomery.conformance.reports.terminal import printable, terminal_report
from tests.conformance.fake_checks import HOSTILE, finding, report_of


def test_subjects_that_share_checks_are_one_table() -> None:
    report = report_of(
        finding("shapes", "norm"),
        finding("ties", "norm", wrong=("2 is not 3",), measured={"error": 2.5e-3, "cases": 12.0}),
        finding("shapes", "rope", measured={}, skipped="no rope here"),
        finding("health", "server"),
    )
    assert terminal_report(report, width=80) == "\n".join(
        [
            "      shapes  ties",
            "norm  ok      FAIL",
            "rope  -",
            "",
            "        health",
            "server  ok",
            "",
            "FAILED norm: ties",
            "  2 is not 3",
            "  measured: error 0.0025, cases 12",
            "",
            "skipped 1: no rope here",
            "  rope: shapes",
            "",
            "1 failed, 2 passed, 1 skipped in 2.0 s (seed 7)",
        ]
    )


def test_a_table_that_does_not_fit_becomes_a_list() -> None:
    report = report_of(*(finding(f"a check with a long name {n}", "norm") for n in range(4)))
    lines = terminal_report(report, width=60).splitlines()
    assert lines[:3] == ["norm", "  ok a check with a long name 0", "  ok a check with a long name 1"]


def test_a_failure_tells_its_replay_and_every_sentence() -> None:
    failed = finding(wrong=("first " * 40, "second"), replay=Path("there/case.npz"))
    text = terminal_report(report_of(failed), width=80)
    assert text.count("first") == 40
    assert "  second\n" in text
    assert "  replay: there/case.npz\n" in text


def test_a_reason_to_skip_is_one_line_that_can_be_copied() -> None:
    command = "bloomery-serve " + "--model-file a/very/long/path/of/a/model.gguf " * 4
    text = terminal_report(report_of(finding(measured={}, skipped=command)), width=60)
    assert f"skipped 1: {command}\n" in text


def test_the_worst_of_several_findings_of_one_name_shows() -> None:
    report = report_of(finding("c", wrong=("no",)), finding("c"), finding("d"), finding("d", measured={}, skipped="s"))
    assert terminal_report(report, width=80).splitlines()[:2] == ["      c     d", "fake  FAIL  ok"]


def test_colours_are_painted_only_when_asked_for() -> None:
    report = report_of(finding("good"), finding("bad", wrong=("no",)))
    assert "\x1b" not in terminal_report(report, width=80)
    assert "\x1b[1;31mFAIL" in terminal_report(report, width=80, paint=True)
    many = report_of(finding("bad" * 40, wrong=("no",)))
    assert "\x1b[1;31mFAIL" in terminal_report(many, width=80, paint=True)


def test_hostile_names_are_written_as_escapes() -> None:
    report = report_of(finding(HOSTILE, HOSTILE, wrong=(HOSTILE,)), finding("b", HOSTILE, measured={}, skipped=HOSTILE))
    text = terminal_report(report, width=80)
    assert "\x1b" not in text
    assert "\x00" not in text
    assert "\\x1b[31m" in text


@given(st.text())
def test_only_line_ends_and_printable_characters_come_out(text: str) -> None:
    assert all(character == "\n" or character.isprintable() for character in printable(text))
