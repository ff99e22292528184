"""Two recordings: equal to themselves, and every change is found where it is."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bloomery.conformance.answers import LOGPROB_BAND
from bloomery.conformance.cases import Case, Distribution, Drafted, Exchange, Greedy, Seeded
from bloomery.conformance.commands import UsageError, diff
from bloomery.conformance.finding import Effort, Finding
from bloomery.conformance.recording import RECORDINGS, Manifest, RecordedRow, RecordingSet, load_set, write_set
from bloomery.conformance.recording_diff import diff_sets, row_difference

MANIFEST = Manifest(
    oracle="somebody 1",
    command="take it",
    settings={},
    model="m",
    model_sha256="a" * 64,
    weights="F32",
    numerics="plain",
    taken="2026-01-01",
)
ROWS = np.log(np.array([[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1], [0.1, 0.7, 0.15, 0.05]], np.float32))
ARRAYS = {"logprobs": ROWS, "margins": np.array([0.5, 0.25], np.float32)}
DISTRIBUTION = Distribution(name="d", ids=(1, 2, 3), lengths=(1, 2, 3), request={}, first_row=0, digest="")
GREEDY = Greedy(name="g", prompt=(1, 2), request={}, ids=(3, 4), stop_type="limit", first_step=0)
SEEDED = Seeded(name="s", prompt=(5,), request={"seed": 1}, ids=(6,), stop_type="eos")
EXCHANGE = Exchange(
    name="e",
    method="POST",
    path="/completion",
    headers=(),
    body=b"{}",
    status=200,
    response_headers=(("Content-Type", "application/json"),),
    response=b'{"content":"a","timings":{"prompt_ms":1.5}}',
    chunks=None,
)
DRAFTED = Drafted(name="f", prompt=(5,), request={}, ids=(6, 7), stop_type="limit", proposed=3, accepted=1)
CASES: tuple[Case, ...] = (DISTRIBUTION, GREEDY, SEEDED, DRAFTED, EXCHANGE)
A = RecordingSet("a", MANIFEST, CASES, ARRAYS)


def compared(
    *cases: Case, arrays: dict[str, Any] = ARRAYS, manifest: Manifest = MANIFEST, band: float = LOGPROB_BAND
) -> dict[str, Finding]:
    other = RecordingSet("b", manifest, cases or CASES, arrays)
    return {finding.check: finding for finding in diff_sets(A, other, band=band)}


def test_a_recording_is_equal_to_itself_but_for_times() -> None:
    later = replace(EXCHANGE, response=EXCHANGE.response.replace(b"1.5", b"7.25"))
    found = compared(DISTRIBUTION, GREEDY, SEEDED, DRAFTED, later)
    assert list(found) == ["cases", "distributions", "greedy ids", "seeded ids", "drafted ids", "exchanges"]
    assert [finding.verdict for finding in found.values()] == ["passed"] * 6
    assert found["distributions"].measured["most"] == 0


@pytest.mark.parametrize("name", ["qwen3-b-f32.strict", "gemma3-a-q8_0.default", "http-text", "http-status"])
def test_a_committed_set_is_equal_to_itself(name: str) -> None:
    for finding in diff_sets(load_set(name), load_set(name), band=0.0):
        assert finding.verdict == "passed", finding.wrong


CHANGES: dict[str, tuple[Callable[[], dict[str, Finding]], str, str]] = {
    "a missing case": (lambda: compared(DISTRIBUTION, GREEDY, SEEDED), "cases", "only A has the exchange 'e'"),
    "a case too many": (
        lambda: compared(*CASES, replace(SEEDED, name="t")), "cases", "only B has the seeded 't'"
    ),
    "another model": (
        lambda: compared(manifest=replace(MANIFEST, model_sha256="b" * 64)), "cases", "different models"
    ),
    "another greedy id": (
        lambda: compared(DISTRIBUTION, replace(GREEDY, ids=(3, 5))),
        "greedy ids",
        "g: id 1 is 4 in A and 5 in B, where A led by 0.25",
    ),
    "a shorter answer": (
        lambda: compared(replace(GREEDY, ids=(3,))), "greedy ids", "g: id 1 is 4 in A and None in B, where A led by"
    ),
    "a longer answer": (lambda: compared(replace(GREEDY, ids=(3, 4, 5))), "greedy ids", "id 2 is None in A and 5 in B"),
    "another drafted id": (lambda: compared(replace(DRAFTED, ids=(6, 8))), "drafted ids", "id 1 is 7 in A and 8 in B"),
    "another end": (
        lambda: compared(replace(SEEDED, stop_type="limit")), "seeded ids", "s: ends by eos in A and by limit in B"
    ),
    "another prompt": (lambda: compared(replace(SEEDED, prompt=(9,))), "seeded ids", "after different ids"),
    "other lengths": (lambda: compared(replace(DISTRIBUTION, lengths=(1, 2))), "distributions", "after different ids"),
    "another text": (
        lambda: compared(replace(EXCHANGE, response=EXCHANGE.response.replace(b'"a"', b'"b"'))),
        "exchanges",
        "e: body.content: A 'a', B 'b'",
    ),
    "another request": (lambda: compared(replace(EXCHANGE, body=b"[]")), "exchanges", "asked for different things"),
    "a far row": (
        lambda: compared(arrays={**ARRAYS, "logprobs": ROWS + np.array([[0], [3e-4], [0]], np.float32)}),
        "distributions",
        "d: 1 of 3 rows are further apart than 0.0002, the one after 2 ids by 0.0003",
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_found_where_it_is(change: str) -> None:
    make, check, words = CHANGES[change]
    found = make()
    assert any(words in sentence for sentence in found[check].wrong), found[check].wrong


def test_a_wider_band_bears_a_far_row() -> None:
    far = {**ARRAYS, "logprobs": ROWS + np.float32(3e-4)}
    assert compared(arrays=far, band=1e-3)["distributions"].verdict == "passed"


def test_rows_are_compared_over_the_ids_that_both_name() -> None:
    whole = RecordedRow(ids=np.array([2, 0, 1]), logprobs=np.log(np.array([0.5, 0.3, 0.2], np.float32)))
    other = RecordedRow(ids=np.array([0, 2, 1]), logprobs=np.log(np.array([0.5, 0.25, 0.25], np.float32)))
    distance, divergence = row_difference(whole, other)
    assert (distance.wanted, distance.chosen) == (2, 0)
    assert distance.top == pytest.approx(math.log(2), rel=1e-6)
    expected = 0.5 * math.log(2) + 0.3 * math.log(0.3 / 0.5) + 0.2 * math.log(0.2 / 0.25)
    assert divergence == pytest.approx(expected, rel=1e-6)
    fewer = RecordedRow(ids=other.ids[:2], logprobs=other.logprobs[:2])
    assert row_difference(whole, fewer)[0].top == math.inf, "one of the best is not there"
    none = RecordedRow(ids=np.array([7, 8]), logprobs=other.logprobs[:2])
    assert row_difference(whole, none)[1] == math.inf


# The command.


def run(*words: str) -> list[Finding]:
    parser = argparse.ArgumentParser()
    diff.add_arguments(parser)
    return [finding for check in diff.checks(parser.parse_args(words)) for finding in check.run(Effort())]


def test_folders_are_compared_set_by_set_and_two_sets_whatever_their_names(tmp_path: Path) -> None:
    for folder, name in (("x", "one"), ("x", "two"), ("y", "one"), ("y", "three")):
        write_set(tmp_path / folder / name, MANIFEST, CASES, ARRAYS)
    found = run(str(tmp_path / "x"), str(tmp_path / "y"))
    assert {(each.subject, each.wrong) for each in found if each.wrong} == {
        ("two", ("B has no such set",)),
        ("three", ("A has no such set",)),
    }
    assert {each.subject for each in found if not each.wrong} == {"one"}
    assert not [each for each in run(str(tmp_path / "x" / "two"), str(tmp_path / "y" / "three")) if each.wrong]
    assert not [each for each in run(str(tmp_path / "x" / "one"), str(tmp_path / "x" / "one")) if each.wrong]


def test_a_broken_set_is_a_failure(tmp_path: Path) -> None:
    write_set(tmp_path / "one", MANIFEST, CASES, ARRAYS)
    (tmp_path / "one" / "cases.jsonl").write_text("")
    [found] = run(str(tmp_path / "one"), str(RECORDINGS / "http-text"))
    assert "cases.jsonl" in found.wrong[0]


def test_known_differences_are_none_when_asked_for(tmp_path: Path) -> None:
    recording = load_set("http-refusals")
    [theirs] = [each for each in recording.cases(Exchange) if each.name == "an unknown route"]
    assert b'"File Not Found","type":"not_found_error","code":404' in theirs.response
    message = "File Not Found: GET /nothing/here; this server serves: /health"
    error = f'{{"error":{{"code":404,"message":"{message}","type":"not_found_error"}}}}'
    for folder, one in (("x", theirs), ("y", replace(theirs, response=error.encode()))):
        write_set(tmp_path / folder / "http-refusals", recording.manifest, [one], {})
    plain = {each.check: each.verdict for each in run(str(tmp_path / "x"), str(tmp_path / "y"))}
    known = {each.check: each.verdict for each in run(str(tmp_path / "x"), str(tmp_path / "y"), "--known")}
    assert (plain["exchanges"], known["exchanges"]) == ("failed", "passed")


def test_a_folder_without_a_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"B: .* is no set and holds none"):
        run(str(RECORDINGS), str(tmp_path))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_infinitely_far_on_either_side(value: float) -> None:
    broken = ROWS.copy()
    broken[1, 2] = value
    other = RecordingSet("b", MANIFEST, CASES, {**ARRAYS, "logprobs": broken})
    for pair in ((A, other), (other, A)):
        [found] = [each for each in diff_sets(*pair, band=LOGPROB_BAND) if each.check == "distributions"]
        assert "1 of 3 rows" in found.wrong[0] and "inf" in found.wrong[0]


def test_the_whole_row_is_compared_and_not_its_ten_best_alone() -> None:
    row = np.log(np.full((1, 40), 1 / 40, np.float32)) - np.arange(40, dtype=np.float32) / 8
    case = replace(DISTRIBUTION, ids=(1,), lengths=(1,))
    tail = row.copy()
    tail[0, 30] -= 5
    [a, b] = (RecordingSet(name, MANIFEST, (case,), {"logprobs": rows}) for name, rows in (("a", row), ("b", tail)))
    [found] = [each for each in diff_sets(a, b, band=LOGPROB_BAND) if each.check == "distributions"]
    assert found.wrong and "by 5" in found.wrong[0]


def test_two_sets_without_a_case_are_not_equal() -> None:
    empty = RecordingSet("a", MANIFEST, (), {})
    [found] = diff_sets(empty, empty, band=LOGPROB_BAND)
    assert "neither has a case" in found.wrong[0]
