"""This server, with the reference engine, against every exchange recorded of a real llama-server."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomery.conformance.cases import Exchange
from bloomery.conformance.fixtures import fixture
from bloomery.conformance.plan import all_plans
from bloomery.conformance.recording import RecordingSet, load_set
from bloomery.conformance.serve_checks import check_server, compare
from bloomery.conformance.wire import Answer, ask
from bloomery.server.model import load_model
from bloomery.server.settings import read_settings
from tests.server.http.serving import Server, listening

SETS = [name for name, plan in all_plans().items() if plan.requests is not None]


@contextlib.contextmanager
def serving(recording: RecordingSet) -> Iterator[Server]:
    """This server on a free port, started as the recorded one was."""
    started = recording.manifest.settings
    arguments = [
        "--model-file", str(fixture(recording.manifest.model)),
        "--engine", "reference",
        "--ctx-size", str(started["n_ctx"]),
        "--parallel", str(started["n_parallel"]),
        "--ubatch-size", str(started["n_ubatch"]),
    ]  # fmt: skip
    if started["alias"]:
        arguments += ["--alias", started["alias"]]
    model = load_model(read_settings(arguments, {}, lambda line: None), lambda line: None)
    keys = [started["api_key"]] if started["api_key"] else []
    with contextlib.closing(model.file), listening(model, keys=keys) as server:
        yield server


@pytest.mark.parametrize("keep_alive", [False, True], ids=["a connection each", "kept connections"])
@pytest.mark.parametrize("name", SETS)
def test_every_recorded_exchange(name: str, keep_alive: bool) -> None:
    recording = load_set(name)
    with serving(recording) as server:
        report = check_server(server.http.url, recording, keep_alive=keep_alive)
    assert report.passed, report
    assert len(report.outcomes) == len(recording.cases(Exchange))
    if keep_alive:
        refused = sum(case.status == 401 for case in recording.cases(Exchange))
        # A refused key ends its connection, as does a body on a route that reads none.
        assert report.connections <= 2 + refused


# The check is only as good as the faults it finds in these very answers.


@cache
def answers() -> list[tuple[str, Exchange, Answer]]:
    """What this server answers to some of the sets."""
    found = []
    for name in ("http-status", "http-think", "http-branch"):
        recording = load_set(name)
        with serving(recording) as server:
            address = (server.http.host, server.http.port)
            for case in recording.cases(Exchange):
                answer = ask(address, case.method, case.path, case.body, case.headers)
                found.append((name, case, answer))
    return found


# Places where any value of its kind is right, by the ends of their keys: times, names of the build, own words.
FREE = ("_ms", "_per_second", "created", "modified_at", "system_fingerprint", "build_info", "message")
# What only this server says of itself, which its own tests look at.
OWN = ("routes", "engine", "thinking_off", "n_ctx", "ui", "architecture", "aliases", "tags", "owned_by", "meta")


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every value inside a value, after its path."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key), inner
        yield from places(inner, (*path, key))


def another(value: Any) -> Any:
    """Another value of the same kind."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value + "x"
        case None:
            return 0
        case _:
            return [value]


def parts_of(answer: Answer) -> tuple[list[Any], bytes]:
    """The JSON values of an answer, and what stands between them; nothing for other answers."""
    if answer.header("Content-Type") == "text/event-stream":
        events = [event.removeprefix(b"data: ") for event in answer.body.split(b"\n\n")]
        return [json.loads(event) for event in events if event.startswith(b"{")], b"data: "
    return ([json.loads(answer.body)], b"") if answer.body.startswith((b"{", b"[")) else ([], b"")


def with_parts(answer: Answer, parts: list[Any], head: bytes) -> Answer:
    body = [head + json.dumps(part).encode() + (b"\n\n" if head else b"") for part in parts]
    done = b"data: [DONE]\n\n" if answer.body.endswith(b"[DONE]\n\n") else b""
    return replace(answer, body=b"".join(body) + done)


def is_free(path: tuple[str | int, ...], value: Any) -> bool:
    """Whether another value may stand at a path; a random id is text, a token's id is a number."""
    last = path[-1]
    return (
        path[0] in OWN or (isinstance(last, str) and last.endswith(FREE)) or (last == "id" and isinstance(value, str))
    )


@given(data=st.data())
def test_any_one_change_of_an_answer_is_found(data: st.DataObject) -> None:
    name, case, answer = data.draw(st.sampled_from([each for each in answers() if parts_of(each[2])[0]]))
    parts, head = parts_of(answer)
    changed = deepcopy(parts)
    at = data.draw(st.integers(0, len(parts) - 1))
    path = data.draw(st.sampled_from([path for path, value in places(parts[at]) if not is_free(path, value)]))
    holder: Any = changed[at]
    for key in path[:-1]:
        holder = holder[key]
    if data.draw(st.booleans()):
        holder[path[-1]] = another(holder[path[-1]])
    else:
        del holder[path[-1]]
    assert compare(case, with_parts(answer, parts, head), name).verdict != "differs"
    assert compare(case, with_parts(answer, changed, head), name).verdict == "differs", (case.name, path)


def test_a_wrong_status_is_found_in_every_answer() -> None:
    for name, case, answer in answers():
        assert compare(case, replace(answer, status=answer.status + 1), name).verdict == "differs", case.name
