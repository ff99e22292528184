"""/v1/completions against llama-server's shape, with one choice and with several."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.http.serving import Client, events, in_process
from tests.server.scripted import ScriptedEngine, answering, scattered, served

HEAD = ["choices", "created", "model", "system_fingerprint", "object"]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with in_process(served(answering({"A": "One two"}), n_parallel=2), queue_depth=3) as client:
        yield client


def ask(client: Client, **body: Any) -> Any:
    result = client.ask("/v1/completions", {"temperature": 0} | body)
    assert result.status_code == 200, result.text
    return events(result.text) if body.get("stream") else result.json


def test_the_whole_answer(client: Client) -> None:
    answer = ask(client, prompt="A")
    assert list(answer) == [*HEAD, "usage", "id", "timings"]
    assert answer["choices"] == [{"text": "One two", "index": 0, "logprobs": None, "finish_reason": "stop"}]
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert len(answer["id"]) == 37
    assert answer["usage"] == {
        "completion_tokens": 8,
        "prompt_tokens": 1,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_the_stream(client: Client) -> None:
    *pieces, last, done = ask(client, prompt="A", stream=True, max_tokens=2)
    assert done == "[DONE]"
    assert [list(piece) for piece in pieces] == [[*HEAD, "id"]] * 2
    assert list(last) == [*HEAD, "usage", "id", "timings"]
    assert [piece["choices"][0]["text"] for piece in pieces] == ["O", "n"]
    assert last["choices"] == [{"text": "", "index": 0, "logprobs": None, "finish_reason": "length"}]
    assert len({event["id"] for event in [*pieces, last]}) == 1


def test_several_choices_cost_their_ids_and_one_prompt(client: Client) -> None:
    answer = ask(client, prompt="A", n=5)
    assert [choice["index"] for choice in answer["choices"]] == list(range(5))
    assert {choice["text"] for choice in answer["choices"]} == {"One two"}
    assert answer["usage"]["prompt_tokens"] == 1
    assert answer["usage"]["completion_tokens"] == 5 * 8


def test_several_choices_stream_side_by_side(client: Client) -> None:
    *objects, done = ask(client, prompt="A", n=3, stream=True)
    assert done == "[DONE]"
    texts = ["", "", ""]
    for choice in (each["choices"][0] for each in objects):
        texts[choice["index"]] += choice["text"]
    assert texts == ["One two"] * 3
    assert [each["choices"][0]["finish_reason"] for each in objects].count("stop") == 3
    assert [index for index, each in enumerate(objects) if "usage" in each] == [len(objects) - 1]
    assert objects[-1]["usage"]["completion_tokens"] == 3 * 8


def test_choice_i_draws_with_the_seed_plus_i() -> None:
    engine = ScriptedEngine(scattered, margin=1.0, n_sequences=2)
    with in_process(served(engine=engine)) as client:
        drawn = {"prompt": "zq", "temperature": 1, "max_tokens": 12, "cache_prompt": False}
        several = ask(client, **drawn, n=3, seed=11)["choices"]
        alone = [ask(client, **drawn, seed=11 + choice)["choices"][0]["text"] for choice in range(3)]
        assert [choice["text"] for choice in several] == alone
        assert len(set(alone)) == 3


@pytest.mark.parametrize(("n", "status"), [(5, 200), (6, 400)])
def test_at_most_as_many_choices_as_places(client: Client, n: int, status: int) -> None:
    result = client.ask("/v1/completions", {"prompt": "A", "n": n})
    assert result.status_code == status
    if status == 400:
        assert result.json["error"]["message"] == "Field 'n': Value must be between 1 <= value <= 5, but got 6"


def test_usage_counts_a_reused_prompt_in_full(client: Client) -> None:
    prompt = "a prompt that is long enough to be reused"
    first, second = (ask(client, prompt=prompt, id_slot=0)["usage"] for _ in range(2))
    assert first["prompt_tokens"] == second["prompt_tokens"] == len(prompt)
    assert second["prompt_tokens_details"]["cached_tokens"] == len(prompt) - 1
