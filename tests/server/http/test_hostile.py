"""Whatever is sent, the answer is right or a named refusal, and the server goes on answering."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bloomery.server.fields import FIELDS
from bloomery.server.generation import Generation
from tests.server.http.serving import Client, events, in_process
from tests.server.scripted import ScriptedEngine, answering, scattered, served

POSTS = [
    "/completion", "/completions", "/v1/completions", "/chat/completions", "/v1/chat/completions", "/apply-template",
    "/v1/chat/completions/input_tokens", "/api/show",
    "/tokenize", "/detokenize",
]  # fmt: skip

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([-1, 0, 1, 2, 2**31 - 1, 2**31, 2**32, 2**63, 10**300, 0.5, -0.0, 1e308])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["A", "user", "assistant", "tool", "system", "text", "function", "auto", "none", "required"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELD_NAMES = sorted({name for field in FIELDS for name in field.spellings})
CHAT_NAMES = [
    "messages", "tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs", "reasoning_effort",
    "reasoning_format", "add_generation_prompt", "continue_final_message", "return_prompt_ids",
]  # fmt: skip
NAMES = st.sampled_from([*FIELD_NAMES, *CHAT_NAMES, "prompt", "content", "tokens", "with_pieces", "model"])
MESSAGE_NAMES = st.sampled_from(["role", "content", "tool_calls", "name", "tool_call_id", "reasoning_content", "x"])
MESSAGES = st.lists(
    st.just({"role": "user", "content": "A"}) | st.dictionaries(MESSAGE_NAMES, VALUES, max_size=4) | VALUES, max_size=3
)
BODIES = st.builds(
    lambda body, prompt, messages: {"n_predict": 3, "prompt": prompt, "messages": messages} | body,
    st.dictionaries(NAMES, VALUES, max_size=3),
    st.just("A") | VALUES,
    st.just([{"role": "user", "content": "A"}]) | MESSAGES,
)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with in_process(served(scattered, n_ctx=128, n_parallel=2), queue_depth=4) as client:
        yield client


def check(client: Client, path: str, raw: bytes) -> None:
    result = client.ask(path, raw)
    if result.status_code == 200:
        if result.headers["content-type"].startswith("text/event-stream"):
            payloads = events(result.text)
            assert not any("error" in payload for payload in payloads if isinstance(payload, dict)), result.text
        else:
            assert isinstance(result.json, dict)
    else:
        assert 400 <= result.status_code < 500, (path, raw, result.text)
        error = result.json["error"]
        assert error["code"] == result.status_code
        assert error["message"]
        assert error["type"].endswith("_error")
    assert client.simulate_get("/health").json == {"status": "ok"}


@pytest.mark.parametrize("path", POSTS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=BODIES)
def test_any_json_body_is_answered_or_refused_by_name(client: Client, path: str, body: dict[str, Any]) -> None:
    check(client, path, json.dumps(body).encode())


@pytest.mark.parametrize("path", POSTS)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.binary(max_size=60) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_answered_or_refused(client: Client, path: str, raw: bytes) -> None:
    check(client, path, raw)


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    answer=st.binary(max_size=24) | st.text(max_size=12).map(str.encode),
    stop=st.lists(st.text(min_size=1, max_size=3), max_size=2),
    n_predict=st.integers(-1, 20),
    n_probs=st.integers(0, 3),
)
def test_a_stream_joined_is_the_whole_answer(
    path: str, answer: bytes, stop: list[str], n_predict: int, n_probs: int
) -> None:
    body: dict[str, Any] = {"prompt": "A", "temperature": 0, "stop": stop, "n_predict": n_predict}
    body |= {"return_tokens": True, "n_probs": n_probs} if path == "/completion" else {}
    with in_process(served(answering({"A": answer}))) as client:
        whole = client.ask(path, body).json
        parts = [part for part in events(client.ask(path, body | {"stream": True}).text) if part != "[DONE]"]
    if path == "/completion":
        assert whole["content"] == "".join(part["content"] for part in parts)
        assert whole["tokens"] == [token for part in parts for token in part["tokens"]]
        probabilities = [entry for part in parts for entry in part.get("completion_probabilities", [])]
        assert whole.get("completion_probabilities", []) == probabilities
        same = set(whole) - {"content", "tokens", "completion_probabilities", "timings", "generation_settings"}
        # The second run found its prompt in a slot, which is no part of the answer.
        assert {key: whole[key] for key in same} == {key: parts[-1][key] for key in same}
    else:
        (choice,) = whole["choices"]
        assert choice["text"] == "".join(part["choices"][0]["text"] for part in parts)
        assert choice["finish_reason"] == parts[-1]["choices"][0]["finish_reason"]
        assert whole["usage"]["completion_tokens"] == parts[-1]["usage"]["completion_tokens"]


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
def test_an_error_in_a_running_stream_is_its_last_event(path: str) -> None:
    passes = []

    def fail_at_the_third(_spans: object) -> None:
        passes.append(1)
        if len(passes) == 3:
            raise ValueError("the card fell off")

    with in_process(served(engine=ScriptedEngine(before_pass=fail_at_the_third))) as client:
        result = client.ask(path, {"prompt": "A", "stream": True})
        assert result.status_code == 200
        *pieces, last = events(result.text)
        assert len(pieces) == 2
        assert (last["error"]["code"], last["error"]["type"]) == (500, "server_error")


def test_a_full_queue_is_a_503_that_says_when_to_come_back() -> None:
    engine = ScriptedEngine(held=True)
    with in_process(served(engine=engine), queue_depth=0) as client:
        running = client.scheduler.submit(Generation(endpoint="/completion", prompt=(65,)))
        engine.wait_until_held()
        result = client.ask("/completion", {"prompt": "A", "stream": True})
        assert (result.status_code, result.headers["retry-after"]) == (503, "1")
        assert result.json["error"]["type"] == "unavailable_error"
        assert "param" not in result.json["error"]
        assert client.simulate_get("/slots").status_code == 200
        assert client.simulate_get("/slots", query_string="fail_on_no_slot=1").status_code == 503
        running.cancel()
        engine.free()
