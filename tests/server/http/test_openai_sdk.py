"""The openai client against a listening server: it parses every object strictly and raises on every error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.server.http.serving import listening
from tests.server.http.test_chat import ASKED, CALL, TEMPLATE, TOOLS, prompt_of, user
from tests.server.scripted import answering, served

KEY = "sk-test"


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    answers = {
        prompt_of("hi"): "<think>\nI muse\n</think>\n\nHello!",
        prompt_of("rain?", tools=True): f"Look.\n{CALL}\n{CALL}",
        prompt_of("bad", tools=True): "<tool_call>\nno json\n</tool_call>",
        "Once": " upon",
    }
    model = served(answering(answers), template=TEMPLATE, n_parallel=2)
    with listening(model, keys=[KEY]) as server, client_of(server.http.url, KEY) as client:
        yield client


def client_of(url: str, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, _strict_response_validation=True)


def test_chat_whole(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="any", messages=ASKED, temperature=0)
    assert answer.choices[0].message.content == "Hello!"
    assert answer.choices[0].message.reasoning_content == "I muse\n"  # type: ignore[attr-defined]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == "scripted"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None


def test_chat_streamed(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="any",
            messages=ASKED,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            logprobs=True,
            top_logprobs=1,
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello!"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 0


def test_tool_calls_accumulate_to_valid_calls(client: openai.OpenAI) -> None:
    messages: Any = user("rain?")
    with client.chat.completions.stream(model="any", messages=messages, temperature=0, tools=TOOLS) as stream:
        final = stream.get_final_completion()
    calls = final.choices[0].message.tool_calls
    assert calls is not None
    assert [call.function.arguments for call in calls] == ['{"city": "Seoul"}'] * 2
    assert final.choices[0].finish_reason == "tool_calls"
    whole = client.chat.completions.create(model="any", messages=messages, temperature=0, tools=TOOLS)
    assert whole.choices[0].message.content == final.choices[0].message.content == "Look.\n"
    assert len(whole.choices[0].message.tool_calls or []) == 2


def test_a_tool_round_trip(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(model="any", messages=user("rain?"), temperature=0, tools=TOOLS)
    message = first.choices[0].message
    calls = message.tool_calls or []
    history: Any = [*user("rain?"), message.model_dump(exclude_none=True)]
    history += [{"role": "tool", "tool_call_id": call.id, "content": "wet"} for call in calls]
    second = client.chat.completions.create(model="any", messages=history, temperature=0, tools=TOOLS)
    assert second.choices[0].finish_reason == "stop"


def test_text_completion_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="any", prompt="Once", temperature=0)
    assert whole.choices[0].text == " upon"
    # The client's own types know no event before the last one, whose finish_reason is null, so they are not enforced.
    with openai.OpenAI(base_url=client.base_url, api_key=KEY, max_retries=0) as lenient:
        stream = lenient.completions.create(model="any", prompt="Once", temperature=0, stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream) == " upon"


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["scripted"]
    assert client.models.retrieve("scripted").owned_by == "bloomery"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


def test_errors_are_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="any", messages=ASKED, temperature=0, n=99)
    assert caught.value.param == "n"
    with client_of(str(client.base_url).removesuffix("/v1/"), "wrong") as stranger:
        with pytest.raises(openai.AuthenticationError, match="Invalid API Key"):
            stranger.models.list()
        with pytest.raises(openai.AuthenticationError):
            stranger.completions.create(model="any", prompt="x" * 2_000_000)


@pytest.mark.parametrize("stream", [True, False])
def test_a_prompt_past_the_context_is_a_bad_request(client: openai.OpenAI, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError, match="exceeds the available context size"):
        client.chat.completions.create(model="any", messages=user("x" * 5000), stream=stream)


def test_an_error_in_a_stream_is_raised(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="any",
        messages=user("bad"),
        temperature=0,
        tools=TOOLS,
        stream=True,
    )
    with pytest.raises(openai.APIError):
        list(stream)
