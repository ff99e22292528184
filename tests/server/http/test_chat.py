"""/v1/chat/completions and /apply-template against llama-server's shape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.http.serving import Client, events, in_process, wait_for
from tests.server.scripted import EOS, SPECIAL, answering, ids_of, served

# ChatML with a think span and Hermes calls: what the served families' templates do, in as few words as it takes.
TEMPLATE = """
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}{% endif %}"""
TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Seoul"}}\n</tool_call>'
HEAD = ["choices", "created", "id", "model", "system_fingerprint", "object"]
ASKED: Any = [{"role": "user", "content": "hi"}]


def prompt_of(content: str = "hi", tools: bool = False) -> str:
    """The prompt of one user turn, written out by hand."""
    tool = '{"type": "function", "function": {"name": "weather", "description": "", "parameters": {"type": "object"}}}'
    system = f"<|im_start|>system\n{tool}\n<|im_end|>\n" if tools else ""
    return f"{system}<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"


def serving(answers: dict[str, str], **options: Any) -> Any:
    return in_process(served(answering(answers), template=TEMPLATE, n_parallel=2), **options)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    answers = {
        prompt_of("hi"): "<think>\nI muse\n</think>\n\nHello!",
        prompt_of("plain"): "Hello!",
        prompt_of("rain?", tools=True): f"Look.\n{CALL}",
        prompt_of("two", tools=True): f"{CALL}\n{CALL}",
        prompt_of("open", tools=True): '<tool_call>\n{"name": "weather", "arg',
        prompt_of("bad", tools=True): "<tool_call>\nno json\n</tool_call>",
        prompt_of("go on") + "<think>\n\n</think>\n\nOnce": " upon",
    }
    with serving(answers) as client:
        yield client


def ask(client: Client, **body: Any) -> Any:
    result = client.ask("/v1/chat/completions", {"messages": ASKED, "temperature": 0} | body)
    assert result.status_code == 200, result.text
    return events(result.text) if body.get("stream") else result.json


def user(content: str) -> Any:
    return [{"role": "user", "content": content}]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/completions"])
def test_the_whole_answer(client: Client, path: str) -> None:
    answer = client.ask(path, {"messages": ASKED, "temperature": 0}).json
    assert list(answer) == [
        "choices", "created", "model", "system_fingerprint", "object", "usage", "id", "timings"
    ]  # fmt: skip
    (choice,) = answer["choices"]
    assert list(choice) == ["finish_reason", "index", "message"]
    assert choice["message"] == {"role": "assistant", "content": "Hello!", "reasoning_content": "I muse\n"}
    assert choice["finish_reason"] == "stop"
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == "scripted"
    assert answer["usage"]["prompt_tokens"] == len(ids_of(prompt_of()))
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"]


def test_the_stream(client: Client) -> None:
    first, *chunks, last, done = ask(client, stream=True)
    assert done == "[DONE]"
    assert list(first) == HEAD
    assert first["choices"] == [{"finish_reason": None, "index": 0, "delta": {"role": "assistant", "content": None}}]
    assert first["object"] == "chat.completion.chunk"
    assert list(last) == [*HEAD, "timings"]
    assert last["choices"] == [{"finish_reason": "stop", "index": 0, "delta": {}}]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert all(len(delta) == 1 for delta in deltas)
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "I muse\n"
    assert "".join(delta.get("content", "") for delta in deltas) == "Hello!"
    assert len({event["id"] for event in [first, *chunks, last]}) == 1


@pytest.mark.parametrize("asked", [True, False])
def test_usage_comes_in_an_event_of_its_own_when_asked_for(client: Client, asked: bool) -> None:
    *chunks, _done = ask(client, stream=True, stream_options={"include_usage": asked})
    with_usage = [chunk for chunk in chunks if "usage" in chunk]
    assert len(with_usage) == asked
    if asked:
        assert chunks[-1]["choices"] == []
        assert list(chunks[-1]) == [*HEAD, "usage", "timings"]
        assert chunks[-1]["usage"]["completion_tokens"] == ask(client)["usage"]["completion_tokens"]


def test_a_call_is_answered_as_one(client: Client) -> None:
    (choice,) = ask(client, messages=user("rain?"), tools=TOOLS)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Look.\n"
    (call,) = choice["message"]["tool_calls"]
    assert list(call) == ["type", "function", "id"]
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Seoul"}'}
    assert call["id"].startswith("call_0_")


def test_a_call_streams_its_name_and_then_its_arguments(client: Client) -> None:
    *chunks, last, _done = ask(client, messages=user("two"), tools=TOOLS, stream=True)
    assert last["choices"][0]["finish_reason"] == "tool_calls"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    starts = [call for call in calls if "id" in call]
    assert [(call["index"], call["type"], call["function"]) for call in starts] == [
        (index, "function", {"name": "weather", "arguments": ""}) for index in (0, 1)
    ]
    assert len({call["id"] for call in starts}) == 2
    for index in (0, 1):
        arguments = "".join(call["function"]["arguments"] for call in calls if call["index"] == index)
        assert arguments == '{"city": "Seoul"}'


def test_a_call_the_limit_cuts_is_an_answer(client: Client) -> None:
    text = f"Look.\n{CALL}"
    for limit in range(1, len(ids_of(text))):
        (choice,) = ask(client, messages=user("rain?"), tools=TOOLS, max_tokens=limit)["choices"]
        assert choice["finish_reason"] == "length"
        for call in choice["message"].get("tool_calls", []):
            assert '{"city": "Seoul"}'.startswith(call["function"]["arguments"])


@pytest.mark.parametrize("content", ["open", "bad"])
def test_markup_that_is_no_call_is_a_500_that_names_it(client: Client, content: str) -> None:
    body = {"messages": user(content), "tools": TOOLS, "temperature": 0}
    whole = client.ask("/v1/chat/completions", body)
    assert (whole.status_code, whole.json["error"]["type"]) == (500, "server_error")
    stream = client.ask("/v1/chat/completions", body | {"stream": True})
    assert stream.status_code == 200
    last = events(stream.text)[-1]
    assert last["error"] == whole.json["error"]
    wait_for("nothing goes on", lambda: not any(slot.is_processing for slot in client.scheduler.slots()))


def test_without_tools_a_call_is_text() -> None:
    with serving({prompt_of("rain?"): CALL}) as client:
        (choice,) = ask(client, messages=user("rain?"))["choices"]
        assert choice["message"] == {"role": "assistant", "content": CALL}
        assert choice["finish_reason"] == "stop"


def test_log_probabilities_have_an_entry_for_every_id(client: Client) -> None:
    answer = ask(client, logprobs=True, top_logprobs=2)
    (choice,) = answer["choices"]
    entries = choice["logprobs"]["content"]
    assert [entry["id"] for entry in entries] == [*ids_of("<think>\nI muse\n</think>\n\nHello!"), EOS]
    assert list(entries[0]) == ["id", "token", "bytes", "logprob", "top_logprobs"]
    assert (entries[0]["token"], entries[0]["bytes"]) == ("<think>", list(b"<think>"))
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    *chunks, _done = ask(client, logprobs=True, top_logprobs=2, stream=True)
    streamed = [entry for chunk in chunks for entry in chunk["choices"][0].get("logprobs", {}).get("content", [])]
    assert streamed == entries


def test_a_chunk_that_names_the_role_has_log_probabilities_only_of_ids_that_show_nothing_else(client: Client) -> None:
    role, text, *_ = ask(client, messages=user("plain"), logprobs=True, stream=True)
    assert "logprobs" not in role["choices"][0]
    assert [entry["token"] for entry in text["choices"][0]["logprobs"]["content"]] == ["H"]
    role, *_ = ask(client, logprobs=True, stream=True)
    assert [entry["token"] for entry in role["choices"][0]["logprobs"]["content"]] == ["<think>"]


def test_several_choices(client: Client) -> None:
    answer = ask(client, n=3)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in answer["choices"]} == {"Hello!"}
    alone = ask(client)["usage"]
    assert answer["usage"]["completion_tokens"] == 3 * alone["completion_tokens"]
    assert answer["usage"]["prompt_tokens"] == alone["prompt_tokens"]
    *chunks, cost, _done = ask(client, n=3, stream=True, stream_options={"include_usage": True})
    assert cost["usage"]["completion_tokens"] == 3 * alone["completion_tokens"]
    finished = [part["index"] for chunk in chunks for part in chunk["choices"] if part["finish_reason"]]
    assert sorted(finished) == [0, 1, 2]
    roles = [part["index"] for chunk in chunks for part in chunk["choices"] if "role" in part["delta"]]
    assert sorted(roles) == [0, 1, 2]


def test_progress_and_timings_ride_the_chunks(client: Client) -> None:
    *chunks, _done = ask(client, stream=True, return_progress=True, timings_per_token=True, max_tokens=3)
    assert chunks[0]["prompt_progress"]["total"] == len(ids_of(prompt_of()))
    assert all("timings" in chunk for chunk in chunks)


def test_thinking_can_be_turned_off_and_left_in_the_content(client: Client) -> None:
    prompt = client.ask("/apply-template", {"messages": ASKED, "reasoning_effort": "none"}).json["prompt"]
    assert prompt.endswith("<think>\n\n</think>\n\n")
    (choice,) = ask(client, reasoning_format="none")["choices"]
    assert choice["message"] == {"role": "assistant", "content": "<think>\nI muse\n</think>\n\nHello!"}


def test_an_assistants_last_message_is_continued(client: Client) -> None:
    messages = [*user("go on"), {"role": "assistant", "content": "Once"}]
    (choice,) = ask(client, messages=messages)["choices"]
    # llama-server repeats the message in the whole answer; a stream has only what is new.
    assert choice["message"] == {"role": "assistant", "content": "Once upon"}
    chunks = ask(client, messages=messages, stream=True)[:-1]
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == " upon"


def test_apply_template_shows_the_prompt_and_its_ids(client: Client) -> None:
    assert client.ask("/apply-template", {"messages": ASKED}).json == {"prompt": prompt_of()}
    for absent in (False, None):
        body = {"messages": ASKED, "return_prompt_ids": absent}
        assert client.ask("/apply-template", body).json == {"prompt": prompt_of()}
    answer = client.ask("/apply-template", {"messages": user("<think>"), "return_prompt_ids": True}).json
    start = [SPECIAL["<|im_start|>"], *b"user\n"]
    assert answer["prompt_ids"][: len(start)] == start
    assert answer["prompt_ids"][len(start) : len(start) + 8] == [*b"<think>", SPECIAL["<|im_end|>"]]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": 5}, "messages"),
        ({"messages": [5]}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ({"messages": ASKED, "tools": 5}, "tools"),
        ({"messages": ASKED, "tool_choice": "zz"}, "tool_choice"),
        ({"messages": ASKED, "tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
        ({"messages": ASKED, "reasoning_effort": ""}, "reasoning_effort"),
        ({"messages": ASKED, "chat_template_kwargs": {"enable_thinking": "x"}}, "chat_template_kwargs"),
        ({"messages": ASKED, "reasoning_format": "zz"}, "reasoning_format"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/apply-template"])
def test_what_is_no_conversation_is_refused_by_name(
    client: Client, path: str, body: dict[str, Any], param: str
) -> None:
    result = client.ask(path, body)
    assert (result.status_code, result.json["error"].get("param")) == (400, param)


def test_return_prompt_ids_is_a_boolean(client: Client) -> None:
    result = client.ask("/apply-template", {"messages": ASKED, "return_prompt_ids": 1})
    assert (result.status_code, result.json["error"]["param"]) == (400, "return_prompt_ids")


@pytest.mark.parametrize("path", ["/chat/completions/input_tokens", "/v1/chat/completions/input_tokens"])
@pytest.mark.parametrize(
    "body",
    [
        {"messages": ASKED},
        {"messages": user("<|im_end|><think>"), "tools": TOOLS},
        {"messages": user("x" * 5000), "max_tokens": "unread"},
    ],
)
def test_a_conversations_ids_are_counted(client: Client, path: str, body: dict[str, Any]) -> None:
    shown = client.ask("/apply-template", body | {"return_prompt_ids": True}).json
    assert client.ask(path, body).json == {
        "input_tokens": len(shown["prompt_ids"]), "object": "response.input_tokens",
    }  # fmt: skip


@pytest.mark.parametrize("stream", [True, False])
def test_a_conversation_past_the_context_is_a_plain_error(client: Client, stream: bool) -> None:
    result = client.ask("/v1/chat/completions", {"messages": user("x" * 5000), "stream": stream})
    assert result.status_code == 400
    assert result.json["error"]["type"] == "exceed_context_size_error"
    assert result.json["error"]["n_ctx"] == 4096


PIECES = st.sampled_from(
    ["<think>", "</think>", "\n", "<tool_call>", "</tool_call>", CALL, "word", " ", "é😀", "<", '{"name"', "<tool_c"]
)


@settings(max_examples=80)
@given(answer=st.lists(PIECES, max_size=7).map("".join), tools=st.booleans(), limit=st.integers(1, 60), stop=PIECES)
def test_a_stream_joined_is_the_whole_answer(answer: str, tools: bool, limit: int, stop: str) -> None:
    body: dict[str, Any] = {"messages": ASKED, "temperature": 0, "max_tokens": limit, "stop": [stop], "logprobs": True}
    body |= {"tools": TOOLS} if tools else {}
    with serving({prompt_of(tools=tools): answer}) as client:
        whole = client.ask("/v1/chat/completions", body)
        stream = events(client.ask("/v1/chat/completions", body | {"stream": True}).text)
    if whole.status_code == 500:
        assert stream[-1]["error"] == whole.json["error"]
        return
    (choice,) = whole.json["choices"]
    parts = [chunk["choices"][0] for chunk in stream[:-1]]
    deltas = [part["delta"] for part in parts]
    message = choice["message"]
    assert message["content"] == "".join(delta.get("content") or "" for delta in deltas)
    assert message.get("reasoning_content", "") == "".join(delta.get("reasoning_content", "") for delta in deltas)
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    for index, call in enumerate(message.get("tool_calls", [])):
        fragments = [each["function"] for each in calls if each["index"] == index]
        assert call["function"]["name"] == fragments[0]["name"]
        assert call["function"]["arguments"] == "".join(fragment["arguments"] for fragment in fragments)
    assert len(message.get("tool_calls", [])) == len([call for call in calls if "id" in call])
    assert choice["finish_reason"] == parts[-1]["finish_reason"]
    entries = [entry for part in parts for entry in part.get("logprobs", {}).get("content", [])]
    assert choice["logprobs"]["content"] == entries
    assert whole.json["usage"]["completion_tokens"] == len(entries)
