"""Only what differs between two runs is replaced."""

from __future__ import annotations

import json

import pytest

from bloomery.conformance.cases import Exchange
from bloomery.conformance.recording import load_set
from bloomery.conformance.volatile import NUMBER, TEXT, settled, settled_body


def test_times_and_random_ids_go_and_the_rest_stays() -> None:
    body = {
        "id": "chatcmpl-LaaYzZ5LR4mscPm9pPExJ2wYfFhK0iyz",
        "created": 5,
        "timings": {"prompt_n": 3, "prompt_ms": 0.1, "prompt_per_second": 9},
        "choices": [{"id": 65, "text": "a"}],
        "content": "chatcmpl-LaaYzZ5LR4mscPm9pPExJ2wYfFhK0iyz",
    }
    assert settled(body) == {
        "id": f"chatcmpl-{TEXT}",
        "created": NUMBER,
        "timings": {"prompt_n": 3, "prompt_ms": NUMBER, "prompt_per_second": NUMBER},
        "choices": [{"id": 65, "text": "a"}],
        "content": body["content"],
    }


@pytest.mark.parametrize("model", ["chain-text.gguf", "forge"])
def test_a_name_is_no_random_id(model: str) -> None:
    assert settled({"id": model}) == {"id": model}


def test_what_is_of_another_kind_stays() -> None:
    body = {"created": None, "build_info": True, "prompt_ms": [1.5], "id": "call_0_x"}
    assert settled(body) == body


def test_key_order_is_kept() -> None:
    assert json.dumps(settled_body(b'{"b": 1, "a": {"x_ms": 2, "c": 3}}')) == json.dumps(
        {"b": 1, "a": {"x_ms": NUMBER, "c": 3}}
    )


def test_streams_are_settled_event_by_event() -> None:
    body = b'data: {"created": 1, "x": 2}\n\ndata: [DONE]\n\n'
    assert settled_body(body) == [{"created": NUMBER, "x": 2}, "data: [DONE]"]


def test_other_bodies_stay() -> None:
    assert settled_body(b"# HELP x\n") == "# HELP x\n"
    assert settled_body(b"\xff") == b"\xff"


def test_the_same_question_twice_settles_to_the_same_answer() -> None:
    """Whole answers of `http-text` under two names of one route differ only in what is volatile and cached."""
    answers = {case.name: case.response for case in load_set("http-text").cases(Exchange)}
    bodies = [settled_body(answers[name]) for name in ("chat cut short", "chat with max_completion_tokens")]
    for body in bodies:
        body["usage"].pop("prompt_tokens_details")
        body["timings"] = sorted(body["timings"])
    assert bodies[0] == bodies[1]
