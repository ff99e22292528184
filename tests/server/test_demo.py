"""The embedded demo model on the reference engine behind a real socket: what a newcomer's first minute shows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from bloomery.server.model import load_model
from bloomery.server.settings import read_settings
from tests.server.http.serving import Server, listening, post, wait_for

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
QUESTIONS = (
    "Hello!",
    "What is 7 plus 5?",
    "What is 9 minus 4?",
    "Who are you?",
    "What is the capital of France?",
    "What is 3 times 4?",
    "Count to five.",
    "Tell me something.",
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    settings = read_settings(["--model", "demo", "--parallel", "4"], {}, lambda line: None)
    model = load_model(settings, lambda line: None)
    with listening(model, queue_depth=60) as server:
        yield server
    model.file.close()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.http.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, question: str, **more: Any) -> str:
    answer = client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": question}], temperature=0, **more
    )
    return answer.choices[0].message.content or ""


def streamed(client: openai.OpenAI, question: str) -> str:
    stream = client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": question}], temperature=0, stream=True
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def test_it_adds(client: openai.OpenAI) -> None:
    assert "12" in ask(client, "What is 7 plus 5?")
    assert "12" in streamed(client, "What is 7 plus 5?")


def test_it_adds_without_thinking(client: openai.OpenAI) -> None:
    more = {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}
    assert "12" in ask(client, "What is 7 plus 5?", **more)


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_call_goes_out_and_its_result_comes_back_as_an_answer(client: openai.OpenAI, stream: bool) -> None:
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Seoul?"}]
    name, arguments, call_id = "", "", ""
    if stream:
        for chunk in client.chat.completions.create(
            model="demo", messages=messages, tools=[WEATHER], temperature=0, stream=True
        ):
            for call in chunk.choices[0].delta.tool_calls or []:
                assert call.function is not None
                name += call.function.name or ""
                arguments += call.function.arguments or ""
                call_id += call.id or ""
            finish_reason = chunk.choices[0].finish_reason
    else:
        choice = client.chat.completions.create(
            model="demo", messages=messages, tools=[WEATHER], temperature=0
        ).choices[0]
        finish_reason = choice.finish_reason
        assert choice.message.tool_calls is not None
        (one,) = choice.message.tool_calls
        assert one.type == "function"
        name, arguments, call_id = one.function.name, one.function.arguments, one.id
    assert (name, json.loads(arguments), finish_reason) == ("get_weather", {"city": "Seoul"}, "tool_calls")
    function = {"name": name, "arguments": arguments}
    messages += [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": call_id, "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": call_id, "content": '{"temperature": 21, "condition": "sunny"}'},
    ]
    answer = client.chat.completions.create(model="demo", messages=messages, tools=[WEATHER], temperature=0)
    content = answer.choices[0].message.content or ""
    assert "21" in content and "Seoul" in content


def test_eight_streams_on_four_slots_say_what_each_says_alone(client: openai.OpenAI) -> None:
    alone = [streamed(client, question) for question in QUESTIONS]
    with ThreadPoolExecutor(len(QUESTIONS)) as pool:
        together = list(pool.map(lambda question: streamed(client, question), QUESTIONS))
    assert together == alone
    assert len(set(alone)) > len(QUESTIONS) // 2


def test_a_client_that_goes_away_frees_its_slot(server: Server) -> None:
    body = {"prompt": "Once", "n_predict": -1, "ignore_eos": True, "stream": True}
    connection = server.connect()
    connection.sendall(post("/completion", body))
    assert connection.recv(4096)
    assert sum(view.is_processing for view in server.scheduler.slots()) == 1
    connection.close()
    wait_for("the slot is idle", lambda: not any(view.is_processing for view in server.scheduler.slots()))
