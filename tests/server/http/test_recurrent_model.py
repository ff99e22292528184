"""A model whose state cannot be cut back, over HTTP: a slot goes on where a prompt extends all it holds, and computes
any other prompt whole. Every route says which, and the ids are llama-server's either way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from bloomery.conformance.cases import Greedy
from bloomery.conformance.fixtures import fixture
from bloomery.conformance.recording import load_set
from bloomery.server.model import load_model
from bloomery.server.settings import read_settings
from tests.server.http.serving import Client, events, in_process

RECORDED = load_set("nemotron-b-f32.strict").cases(Greedy)[0]
PROMPT, ANSWER = list(RECORDED.prompt), list(RECORDED.ids)


@pytest.fixture(params=[1, 3], ids=["one slot", "three slots"])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    path = str(fixture("nemotron-b-f32"))
    model = load_model(
        read_settings(["-m", path, "--model", "nemotron", "-np", str(request.param)], {}, lambda _line: None),
        lambda _line: None,
    )
    with in_process(model) as client:
        yield client


def complete(client: Client, prompt: list[int], n_predict: int, **fields: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "n_predict": n_predict, "temperature": 0, "return_tokens": True, "id_slot": 0} | fields
    result = client.ask("/completion", body)
    assert result.status_code == 200, result.text
    answer: dict[str, Any] = result.json
    return answer


def counts(answer: dict[str, Any]) -> tuple[int, int]:
    """How many ids of the prompt were reused, and how many computed."""
    timings = answer["timings"]
    return timings["cache_n"], timings["prompt_n"]


def test_the_same_prompt_and_a_prefix_of_it_are_computed_whole(client: Client) -> None:
    n = len(PROMPT)
    first, again = (complete(client, PROMPT, 20) for _ in range(2))
    assert first["tokens"] == again["tokens"] == ANSWER[:20]
    assert counts(first) == counts(again) == (0, n)
    shorter = complete(client, PROMPT[:40], 8)
    assert counts(shorter) == (0, 40)
    assert shorter["tokens"] == complete(client, PROMPT[:40], 8, cache_prompt=False)["tokens"]
    # Nothing of the sequences between shows.
    after = complete(client, PROMPT, 20)
    assert after["tokens"] == ANSWER[:20] and counts(after) == (0, n)
    assert after["tokens_evaluated"] == n and after["tokens_cached"] == n + 19


def test_what_extends_all_that_a_slot_holds_goes_on_there(client: Client) -> None:
    """The slot holds the prompt and the answer but for its last id, which was never an input."""
    n = len(PROMPT)
    complete(client, PROMPT, 10)
    longer = complete(client, PROMPT + ANSWER[:10], 10)
    assert counts(longer) == (n + 9, 1)
    assert longer["tokens"] == ANSWER[10:20]
    longest = complete(client, PROMPT + ANSWER[:25], 5)
    assert counts(longest) == (n + 19, 6)
    assert longest["tokens"] == ANSWER[25:30]


def test_what_leaves_the_held_ids_anywhere_is_computed_whole(client: Client) -> None:
    other = complete(client, [*PROMPT, 7, 8, 9], 8, cache_prompt=False)["tokens"]
    complete(client, PROMPT, 10)
    answer = complete(client, [*PROMPT, 7, 8, 9], 8)
    assert counts(answer) == (0, len(PROMPT) + 3)
    assert answer["tokens"] == other
    # An answer of one id leaves the prompt alone in the slot, and then the prompt and more extends it.
    complete(client, PROMPT, 1)
    answer = complete(client, [*PROMPT, 7, 8, 9], 8)
    assert counts(answer) == (len(PROMPT), 3)
    assert answer["tokens"] == other


def test_a_slot_that_holds_the_start_of_a_prompt_goes_on_from_there(client: Client) -> None:
    complete(client, PROMPT[:30], 1)
    assert counts(complete(client, PROMPT, 5)) == (30, len(PROMPT) - 30)
    assert counts(complete(client, PROMPT[:31], 5)) == (0, 31)


def test_a_stream_counts_alike(client: Client) -> None:
    n = len(PROMPT)
    complete(client, PROMPT, 10)
    body = {
        "prompt": PROMPT, "n_predict": 4, "temperature": 0, "stream": True, "return_progress": True, "id_slot": 0,
    }  # fmt: skip
    *pieces, last = events(client.ask("/completion", body).text)
    progress = [piece["prompt_progress"] for piece in pieces if "prompt_progress" in piece]
    assert [(each["cache"], each["processed"]) for each in progress] == [(0, 0), (0, n)]
    assert counts(last) == (0, n)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "The forge is warm before the sun is up."}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "The forge is warm."}]}),
    ],
)
def test_usage_of_the_openai_routes_says_that_nothing_was_cached(
    client: Client, path: str, body: dict[str, Any]
) -> None:
    fields = {"max_tokens": 6, "temperature": 0, "id_slot": 0}
    first, again = (client.ask(path, body | fields).json for _ in range(2))
    assert first["choices"] == again["choices"]
    for answer in (first, again):
        assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
        assert counts(answer) == (0, answer["usage"]["prompt_tokens"])


def test_a_chat_that_goes_on_reuses_its_own_turns(client: Client) -> None:
    asked = [{"role": "user", "content": "The forge is warm."}]
    fields = {"max_tokens": 6, "temperature": 0, "id_slot": 0}
    first = client.ask("/v1/chat/completions", {"messages": asked} | fields).json
    said = first["choices"][0]["message"]["content"]
    turns = [*asked, {"role": "assistant", "content": said}, {"role": "user", "content": "And then?"}]
    second = client.ask("/v1/chat/completions", {"messages": turns} | fields).json
    # All of the first turn's prompt, and its answer but for the last id.
    held = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"] - 1
    assert second["usage"]["prompt_tokens_details"] == {"cached_tokens": held}
    assert counts(second) == (held, second["usage"]["prompt_tokens"] - held)


def test_slots_answer_side_by_side(client: Client) -> None:
    """More requests than slots, at once: each gets the ids it gets alone."""
    alone = [complete(client, PROMPT[: 64 - 9 * i], 12, cache_prompt=False)["tokens"] for i in range(5)]
    found: list[Any] = [None] * 5

    def ask(i: int) -> None:
        found[i] = complete(client, PROMPT[: 64 - 9 * i], 12, id_slot=-1)["tokens"]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == alone
