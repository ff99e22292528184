"""The judge of servers is judged: a recorded answer is equal to itself, and whatever is changed in it is found."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bloomery.conformance import rewrites
from bloomery.conformance.answers import ABSENT, Difference, as_json, differences
from bloomery.conformance.cases import Exchange
from bloomery.conformance.differences import DIFFERENCES
from bloomery.conformance.known_difference import KnownDifference
from bloomery.conformance.plan import all_plans
from bloomery.conformance.recording import RecordingSet, load_set
from bloomery.conformance.rewrites import Rewrite
from bloomery.conformance.serve_checks import Outcome, ServeReport, check_server, compare
from bloomery.conformance.wire import Answer

SETS = [name for name, plan in all_plans().items() if plan.requests is not None]
DOCUMENT = Path(__file__).parents[2] / "docs" / "differences.md"


@cache
def recording(name: str) -> RecordingSet:
    return load_set(name)


def case_of(set_name: str, name: str) -> Exchange:
    return next(case for case in recording(set_name).cases(Exchange) if case.name == name)


def as_recorded(case: Exchange) -> Answer:
    return Answer(status=case.status, reason="", headers=case.response_headers, body=case.response, chunks=case.chunks)


@pytest.mark.parametrize("name", SETS)
def test_the_recorded_server_is_equal_to_itself(name: str) -> None:
    for case in recording(name).cases(Exchange):
        assert compare(case, as_recorded(case), name, known=()).verdict == "equal", case.name


def edited(change: Callable[[Any], None]) -> Callable[[Answer], Answer]:
    def edit(answer: Answer) -> Answer:
        value = json.loads(answer.body)
        change(value)
        return replace(answer, body=json.dumps(value).encode())

    return edit


def events_edited(change: Callable[[list[bytes]], None]) -> Callable[[Answer], Answer]:
    def edit(answer: Answer) -> Answer:
        events = answer.body.removesuffix(b"\n\n").split(b"\n\n")
        change(events)
        return replace(answer, body=b"\n\n".join(events) + b"\n\n")

    return edit


def swapped(events: list[bytes]) -> None:
    events[2], events[3] = events[3], events[2]


def moved_first(value: dict[str, Any]) -> None:
    value |= {"choices": value.pop("choices")}


WHOLE, STREAM = ("http-text", "chat cut short"), ("http-text", "chat cut short, streamed")
FAULTS: dict[str, tuple[tuple[str, str], Callable[[Answer], Answer], str]] = {
    "a wrong status": (WHOLE, lambda answer: replace(answer, status=201), "status"),
    "a header of another value": (
        WHOLE,
        lambda answer: replace(answer, headers=(("Content-Type", "text/plain"), *answer.headers[:2])),
        "headers.content-type",
    ),
    "another text": (
        WHOLE,
        edited(lambda value: value["choices"][0]["message"].update(content="The forge is cold")),
        "body.choices[0].message.content",
    ),
    "a missing key": (WHOLE, edited(lambda value: value["choices"][0].pop("index")), "body.choices[0].index"),
    "a key too many": (WHOLE, edited(lambda value: value.update(extra=None)), "body.extra"),
    "another order of keys": (WHOLE, edited(moved_first), "body (order of keys)"),
    "a number that became text": (
        WHOLE,
        edited(lambda value: value["usage"].update(prompt_tokens="30")),
        "body.usage.prompt_tokens",
    ),
    "a time that became text": (
        WHOLE, edited(lambda value: value["timings"].update(prompt_ms="1")), "body.timings.prompt_ms"
    ),
    "an id of another form": (WHOLE, edited(lambda value: value.update(id="cmpl-" + 32 * "a")), "body.id"),
    "no JSON at all": (WHOLE, lambda answer: replace(answer, body=answer.body[:-1]), "body"),
    "a missing event": (STREAM, events_edited(lambda events: events.pop(2)), "body[2].choices[0].delta.content"),
    "an event too many": (STREAM, events_edited(lambda events: events.insert(1, events[1])), "body[8]"),
    "events in another order": (STREAM, events_edited(swapped), "body[2].choices[0].delta.content"),
    "no [DONE]": (STREAM, events_edited(lambda events: events.pop()), "body[7]"),
    "an event of no JSON": (
        STREAM, events_edited(lambda events: events.__setitem__(3, b"data: {")), "body[3]"
    ),
    "a metric of another kind": (
        ("http-status", "/metrics, fresh"),
        lambda answer: replace(answer, body=answer.body.replace(b"n_decode_total counter", b"n_decode_total gauge")),
        "body.llamacpp:n_decode_total.kind",
    ),
    "a metric of another value": (
        ("http-status", "/metrics, after a completion"),
        lambda answer: replace(answer, body=answer.body.replace(b"n_tokens_max 7", b"n_tokens_max 8")),
        "body.llamacpp:n_tokens_max.values.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("known", [(), DIFFERENCES], ids=["no known differences", "all known differences"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_where_it_is(fault: str, known: tuple[KnownDifference, ...]) -> None:
    (set_name, name), plant, path = FAULTS[fault]
    case = case_of(set_name, name)
    faulty = plant(as_recorded(case))
    assert faulty != as_recorded(case)
    outcome = compare(case, faulty, set_name, known)
    assert outcome.verdict == "differs"
    assert path in [difference.path for difference in outcome.differences]


def test_where_a_stream_is_cut_into_chunks_means_nothing() -> None:
    case = case_of(*STREAM)
    assert compare(case, replace(as_recorded(case), chunks=None), "http-text", known=()).verdict == "equal"


@pytest.mark.parametrize(
    ("theirs", "ours", "paths"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"a": 1.0}, ["a"]),
        ({"a": 1}, {"a": True}, ["a"]),
        ({"a": None}, {}, ["a"]),
        ([1, 2], [1], ["[1]"]),
        ([{"a": [0]}], [{"a": [1]}], ["[0].a[0]"]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, [" (order of keys)"]),
        ({"a": 1, "b": 2}, {"c": 3, "a": 1, "b": 2}, ["c"]),
        ({"x": {"logprob": -1.0}}, {"x": {"logprob": -1.0001}}, []),
        ({"x": {"logprob": -1.0}}, {"x": {"logprob": -1.001}}, ["x.logprob"]),
        ({"x": {"logprob": -1.0}}, {"x": {"logprob": None}}, ["x.logprob"]),
        ("a", ["a"], [""]),
    ],
)
def test_differences_are_named_by_their_place(theirs: Any, ours: Any, paths: list[str]) -> None:
    assert [difference.path for difference in differences(theirs, ours)] == [path.strip() for path in paths]


def test_a_difference_is_told_briefly() -> None:
    assert str(Difference("a", ABSENT, 5)) == "a: recorded nothing, answered 5"
    assert len(str(Difference("a", "x" * 10_000, "y" * 10_000))) < 400


def test_metrics_are_read_and_other_text_stays() -> None:
    text = b'# HELP a Words.\n# TYPE a counter\na{w="1"} 2\na{w="2"} 3\n# TYPE b_seconds gauge\nb_seconds 0.5\n'
    plain = [("Content-Type", "text/plain; version=0.0.4")]
    assert as_json(200, plain, text)["body"] == {
        "a": {"kind": "counter", "values": {'{w="1"}': 2.0, '{w="2"}': 3.0}},
        "b_seconds": {"kind": "gauge", "values": {"": "<volatile number>"}},
    }
    assert as_json(200, plain, b"stray 5\n")["body"] == "stray 5\n"


# Known differences.


def rule(without: Rewrite, *patterns: str, owed: bool = False) -> KnownDifference:
    return KnownDifference(
        name="r", why="It is so.", source="judgement", cases={"http-text": patterns}, without=without, owed=owed
    )


def told(outcome: Outcome) -> list[str]:
    return [pattern for _, pattern in outcome.known]


def test_a_known_difference_is_taken_out_and_told() -> None:
    case = case_of(*WHOLE)
    answer = edited(lambda value: value.update(model="forge"))(as_recorded(case))
    renamed = rule(rewrites.changed("model", ("chain-text.gguf", "forge")), "chat cut *", "chat with *", "*")
    outcome = compare(case, answer, "http-text", [renamed])
    assert (outcome.verdict, told(outcome)) == ("known", ["chat cut *", "*"])
    assert compare(case, answer, "http-think", [renamed]).verdict == "differs", "a set it does not name"
    assert compare(case, as_recorded(case), "http-text", [renamed]).verdict == "equal"
    elsewhere = edited(lambda value: value.update(model="anvil"))(as_recorded(case))
    assert compare(case, elsewhere, "http-text", [renamed]).verdict == "differs"


def test_a_rewrite_that_brings_answers_no_nearer_changes_nothing() -> None:
    case = case_of(*WHOLE)

    def blank(_case: Exchange, theirs: Any, ours: Any) -> Any:
        return theirs | {"body": {}}, ours

    assert compare(case, as_recorded(case), "http-text", [rule(blank, "*")]).verdict == "equal"


def test_a_rewrite_that_trips_over_an_answer_does_not_have_its_difference() -> None:
    case = case_of(*WHOLE)
    answer = replace(as_recorded(case), body=b"[]")
    outcome = compare(case, answer, "http-text", [rule(rewrites.less_from_the_cache, "*")])
    assert (outcome.verdict, told(outcome)) == ("differs", [])


def test_what_is_owed_is_missed() -> None:
    case = case_of(*WHOLE)
    owed = rule(rewrites.in_objects(rewrites.cache_ms), "*", owed=True)
    outcome = compare(case, as_recorded(case), "http-text", [owed])
    assert [difference.path for difference in outcome.differences] == ["body.timings.cache_ms"]
    shown = edited(lambda value: value["timings"].update(cache_ms=0.5))(as_recorded(case))
    assert compare(case, shown, "http-text", [owed]).verdict == "known"


def test_a_key_is_inserted_at_its_place() -> None:
    for ours, order in (("xab", "xab"), ("axb", "axb"), ("abx", "abx"), ("ab", "abx"), ("bxa", "abx")):
        theirs = {"a": 0, "b": 0}
        rewrites.insert(theirs, dict.fromkeys(ours, 0), "x", 1)
        assert "".join(theirs) == order
        assert theirs["x"] == 1


@pytest.mark.parametrize("known", DIFFERENCES, ids=lambda known: known.name)
def test_a_known_difference_is_documented_and_names_recorded_cases(known: KnownDifference) -> None:
    assert f"`{known.name}`" in DOCUMENT.read_text()
    assert known.why.endswith(".")
    for set_name, patterns in known.cases.items():
        names = [case.name for case in recording(set_name).cases(Exchange)]
        for pattern in patterns:
            assert any(pattern in known.patterns_for(set_name, name) for name in names), (set_name, pattern)


def test_the_document_names_no_rule_that_is_none() -> None:
    words = [line.split("|")[-2].strip() for line in DOCUMENT.read_text().splitlines() if line.startswith("|")]
    named = {word for cell in words for word in cell.split("`")[1::2]}
    assert named <= {known.name for known in DIFFERENCES}


# Reports.


def report_of(*outcomes: Outcome, stale: tuple[str, ...] = ()) -> ServeReport:
    return ServeReport(set_name="http-text", server="http://x", outcomes=outcomes, connections=1, stale=stale)


def test_a_report_tells_what_it_found() -> None:
    known = rule(rewrites.in_objects(rewrites.cache_ms), "*")
    right = Outcome(case="right", differences=(), known=((known, "*"),))
    wrong = Outcome(case="wrong", differences=(Difference("status", 200, 500),))
    assert report_of(right).passed
    assert str(report_of(right)) == "http-text at http://x: passed (0 equal, 1 known, 0 differs)\n  1 x r"
    report = report_of(right, wrong, stale=("r in *",))
    assert not report.passed
    assert str(report).splitlines()[1:] == [
        "  1 x r",
        "  wrong",
        "    status: recorded 200, answered 500",
        "  did not show: r in *",
    ]
    assert not report_of(right, stale=("r in *",)).passed
    assert not report_of().passed, "nothing was asked"


def test_a_server_that_does_not_answer_differs_everywhere() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    report = check_server(f"http://127.0.0.1:{port}", recording("http-branch"), known=())
    assert [outcome.differences[0].path for outcome in report.outcomes] == ["answer"] * len(report.outcomes)
    assert not report.passed


def test_a_known_difference_that_does_not_show_is_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    few = recording("http-text").only(lambda case: case.name == "chat cut short")
    report = check_server(f"http://127.0.0.1:{port}", few, known=[rule(rewrites.in_objects(rewrites.cache_ms), "*")])
    assert report.stale == ("r in *",)


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "https://127.0.0.1", "http://", "ftp://x"])
def test_an_address_of_no_http_server_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="not the address of an HTTP server"):
        check_server(url, recording("http-branch"))
