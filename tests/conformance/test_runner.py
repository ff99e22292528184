"""What runs checks survives all of them: crashes, hangs, exceptions, budgets and interrupts."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomery.conformance.finding import Check, Effort, Finding
from bloomery.conformance.reports.report import Result
from bloomery.conformance.runner import Limits, in_turn, run_checks
from tests.conformance.fake_checks import (
    FOREVER,
    aborts,
    check,
    exits,
    fails,
    finding,
    hangs,
    is_running,
    passes,
    raises,
    skips,
)


def run_one(one: Check, limits: Limits | None = None, effort: Effort | None = None) -> Result:
    [result] = run_checks([one], effort or Effort(), limits or Limits())
    assert (result.subject, result.name) == (one.subject, one.name)
    return result


@pytest.mark.parametrize(("make", "verdict"), [(passes, "passed"), (fails, "failed"), (skips, "skipped")])
def test_a_check_says_what_it_found(make: object, verdict: str) -> None:
    result = run_one(make("c"))  # type: ignore[operator]
    assert (result.verdict, len(result.findings)) == (verdict, 1)
    assert result.findings[0].check == "c"


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (aborts("c"), ["died of SIGABRT before the check was done", "a kernel's last words", "Fatal Python error"]),
        (exits("c"), ["ended with exit code 3 before the check was done"]),
        (raises("c"), ["the check raised ZeroDivisionError: no kernel divides by that", "fake_checks.py"]),
    ],
    ids=["abort", "exit", "exception"],
)
def test_a_crash_is_a_failure_that_keeps_what_was_found_before(one: Check, words: list[str]) -> None:
    result = run_one(one)
    before, death = result.findings
    assert before.verdict == "passed"
    assert (death.verdict, death.check) == ("failed", "c")
    for word in words:
        assert word in death.wrong[0]


def test_a_crash_loses_no_other_check() -> None:
    checks = [passes("a"), aborts("b"), exits("c"), raises("d"), passes("e")]
    results = run_checks(checks, Effort(), Limits(jobs=2))
    assert [(each.name, each.verdict) for each in results] == [
        ("a", "passed"),
        ("b", "failed"),
        ("c", "failed"),
        ("d", "failed"),
        ("e", "passed"),
    ]


def test_a_hang_is_a_failure_and_its_process_is_gone(tmp_path: Path) -> None:
    result = run_one(hangs("c", tmp_path / "id"), Limits(timeout=1.0))
    [only] = result.findings
    assert only.wrong == ("it did not end within 1 s (--timeout)",)
    assert not is_running(int((tmp_path / "id").read_text()))


def test_what_a_check_started_ends_with_it(tmp_path: Path) -> None:
    def run(_effort: Effort) -> Iterator[Finding]:
        child = subprocess.Popen(["sleep", str(FOREVER)])
        (tmp_path / "id").write_text(str(child.pid))
        yield finding("c")

    assert run_one(check("c", run)).verdict == "passed"
    deadline = time.monotonic() + 10
    while is_running(child := int((tmp_path / "id").read_text())) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_running(child)


def test_a_check_that_says_nothing_has_not_passed() -> None:
    [only] = run_one(check("c", lambda _effort: [])).findings
    assert only.skipped == "it found nothing to check"


def test_a_finding_that_cannot_be_sent_is_a_failure() -> None:
    unsendable = finding("c", measured={"n": lambda: 0})
    [only] = run_one(check("c", lambda _effort: [unsendable])).findings
    assert only.verdict == "failed"


def test_what_a_check_prints_is_no_part_of_the_report(capfd: pytest.CaptureFixture[str]) -> None:
    def run(_effort: Effort) -> Iterator[Finding]:
        print("noise", flush=True)
        subprocess.run(["sh", "-c", "echo noise; echo noise >&2"], check=True)
        yield finding("c")

    assert run_one(check("c", run)).verdict == "passed"
    assert "noise" not in "".join(capfd.readouterr())


def test_effort_reaches_the_check() -> None:
    def run(effort: Effort) -> Iterator[Finding]:
        yield finding("c", measured={"seed": effort.seed}, wrong=(f"{effort.replays} {effort.seconds}",))

    [only] = run_one(check("c", run), effort=Effort(seed=5, replays=Path("there"))).findings
    assert (only.measured, only.wrong) == ({"seed": 5}, ("there None",))


def test_checks_run_beside_each_other(tmp_path: Path) -> None:
    def meeting(mine: str, other: str) -> Check:
        def run(_effort: Effort) -> Iterator[Finding]:
            (tmp_path / mine).touch()
            while not (tmp_path / other).exists():
                time.sleep(0.01)
            yield finding(mine)

        return check(mine, run)

    results = run_checks([meeting("a", "b"), meeting("b", "a")], Effort(), Limits(jobs=2, timeout=60))
    assert [each.verdict for each in results] == ["passed", "passed"]


def test_results_come_as_they_end_and_are_ordered_as_the_checks(tmp_path: Path) -> None:
    def after(_effort: Effort) -> Iterator[Finding]:
        while not (tmp_path / "heard").exists():
            time.sleep(0.01)
        yield finding("slow")

    heard: list[str] = []

    def on_result(result: Result) -> None:
        heard.append(result.name)
        (tmp_path / "heard").touch()

    results = run_checks([check("slow", after), passes("quick")], Effort(), Limits(jobs=2), on_result)
    assert heard == ["quick", "slow"]
    assert [each.name for each in results] == ["slow", "quick"]


def test_an_interrupt_leaves_no_process(tmp_path: Path) -> None:
    def after(_effort: Effort) -> Iterator[Finding]:
        while not (tmp_path / "id").exists():
            time.sleep(0.01)
        yield finding("trigger")

    def on_result(_result: Result) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_checks([hangs("h", tmp_path / "id"), check("trigger", after)], Effort(), Limits(jobs=2), on_result)
    assert not is_running(int((tmp_path / "id").read_text()))


# Budgets.


def test_a_budget_is_shared_out() -> None:
    def run(effort: Effort) -> Iterator[Finding]:
        assert effort.seconds is not None
        yield finding("c", measured={"seconds": effort.seconds})

    results = run_checks([check(str(n), run) for n in range(4)], Effort(), Limits(budget=1000.0))
    shares = [result.findings[0].measured["seconds"] for result in results]
    # 900 of the 1000 s are shared; a check that takes no time leaves its share to those after it.
    assert shares[0] == pytest.approx(225, rel=0.01)
    assert shares[3] == pytest.approx(900, rel=0.05)
    assert shares == sorted(shares)


def test_a_check_that_outlasts_the_budget_has_not_failed_and_late_ones_are_skipped(tmp_path: Path) -> None:
    checks = [hangs("long", tmp_path / "id"), passes("late"), passes("later")]
    results = run_checks(checks, Effort(), Limits(budget=1.0))
    reasons = [result.findings[0].skipped for result in results]
    assert reasons[0] == "it did not end within its share of the 1 s (--budget)"
    assert reasons[1:] == ["the 1 s were spent before its turn (--budget)"] * 2
    assert not is_running(int((tmp_path / "id").read_text()))


def test_a_timeout_holds_within_a_budget() -> None:
    [only] = run_one(hangs("c"), Limits(budget=1000.0, timeout=0.5)).findings
    assert only.verdict == "failed"


@given(st.lists(st.sampled_from("abc")))
def test_every_subject_is_heard_before_any_is_heard_again(subjects: list[str]) -> None:
    checks = [passes(str(n), subject) for n, subject in enumerate(subjects)]
    order = in_turn(checks)
    assert sorted(order) == list(range(len(checks)))
    heard = [subjects[place] for place in order]
    ranks = [heard[:n].count(subject) for n, subject in enumerate(heard)]
    assert ranks == sorted(ranks)
    for subject in set(subjects):
        places = [place for place in order if subjects[place] == subject]
        assert places == sorted(places), "a subject's own checks stay in their order"
