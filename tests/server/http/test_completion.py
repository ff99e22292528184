"""/completion against llama-server's shape: keys and their order, streams event by event, prompts of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.http.serving import Client, events, in_process
from tests.server.scripted import EOS, N_VOCAB, SPECIAL, answering, served

# The key order of a real llama-server (b11549), with this server's own keys where they stand.
FINAL = [
    "index", "content", "tokens", "id_slot", "stop", "model", "tokens_predicted", "tokens_evaluated",
    "generation_settings", "prompt", "has_new_line", "truncated", "stop_type", "stopping_word", "stopped_eos",
    "stopped_word", "stopped_limit", "tokens_cached", "timings",
]  # fmt: skip
PIECE = ["index", "content", "tokens", "stop", "id_slot", "tokens_predicted", "tokens_evaluated"]
SETTINGS = [
    "seed", "temperature", "dynatemp_range", "dynatemp_exponent", "top_k", "top_p", "min_p", "top_n_sigma",
    "xtc_probability", "xtc_threshold", "typical_p", "repeat_last_n", "repeat_penalty", "presence_penalty",
    "frequency_penalty", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n",
    "dry_sequence_breakers", "mirostat", "mirostat_tau", "mirostat_eta", "adaptive_target", "adaptive_decay", "stop",
    "max_tokens", "n_predict", "n_keep", "n_discard", "ignore_eos", "stream", "logit_bias", "n_probs", "min_keep",
    "grammar", "grammar_lazy", "grammar_triggers", "preserved_tokens", "chat_format", "reasoning_format",
    "reasoning_in_content", "generation_prompt", "samplers", "speculative.types", "timings_per_token",
    "post_sampling_probs", "backend_sampling", "lora",
]  # fmt: skip
TIMINGS = [
    "cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second", "predicted_n", "predicted_ms",
    "predicted_per_token_ms", "predicted_per_second", "cache_ms",
]  # fmt: skip

ANSWERS: dict[str, str | bytes] = {"A": "One two\nend", "E": "a😀!", "H": b"x\xc3", "S": "this TREAT"}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with in_process(served(answering(ANSWERS), n_ctx=64, n_parallel=2)) as client:
        yield client


def whole(client: Client, **body: Any) -> dict[str, Any]:
    result = client.ask("/completion", {"temperature": 0} | body)
    assert result.status_code == 200, result.text
    return dict(result.json)


def streamed(client: Client, **body: Any) -> list[dict[str, Any]]:
    result = client.ask("/completion", {"temperature": 0, "stream": True} | body)
    assert result.status_code == 200, result.text
    assert result.headers["content-type"] == "text/event-stream"
    return events(result.text)


def test_the_whole_answer_has_llama_servers_keys(client: Client) -> None:
    answer = whole(client, prompt="A", seed=7, stop=["zz"], logit_bias={"15": -100})
    assert list(answer) == FINAL
    assert list(answer["generation_settings"]) == SETTINGS
    assert list(answer["timings"]) == TIMINGS
    assert answer["content"] == "One two\nend"
    assert answer["tokens"] == []
    assert answer["stop_type"] == "eos"
    assert (answer["stopped_eos"], answer["stopped_word"], answer["stopped_limit"]) == (True, False, False)
    assert (answer["tokens_predicted"], answer["tokens_evaluated"], answer["tokens_cached"]) == (12, 1, 12)
    assert (answer["has_new_line"], answer["truncated"]) == (True, False)
    assert (answer["prompt"], answer["model"]) == ("A", "scripted")
    settings = answer["generation_settings"]
    assert settings["logit_bias"] == [{"bias": -100.0, "token": 15}]
    assert (settings["seed"], settings["stop"]) == (7, ["zz"])
    # Numbers are reported as the sampler has them, in float32.
    assert settings["top_p"] == 0.949999988079071


def test_a_stream_has_an_event_for_each_id(client: Client) -> None:
    *pieces, last = streamed(client, prompt="A", n_predict=3)
    assert [list(piece) for piece in pieces] == [PIECE] * 3
    assert list(last) == FINAL
    assert [(piece["content"], piece["tokens"]) for piece in pieces] == [("O", [79]), ("n", [110]), ("e", [101])]
    assert [piece["tokens_predicted"] for piece in pieces] == [1, 2, 3]
    assert all(piece["id_slot"] == -1 and not piece["stop"] for piece in pieces)
    assert (last["content"], last["tokens"], last["stop"], last["stop_type"]) == ("", [], True, "limit")


def test_the_id_that_ends_an_answer_has_an_event_without_text(client: Client) -> None:
    *_, before, _last = streamed(client, prompt="A")
    assert (before["content"], before["tokens"]) == ("", [EOS])


def test_a_character_comes_with_the_last_of_its_ids(client: Client) -> None:
    *pieces, _last = streamed(client, prompt="E", n_probs=1)
    assert [piece["content"] for piece in pieces] == ["a", "😀", "!", ""]
    assert pieces[1]["tokens"] == list("😀".encode())
    assert [entry["bytes"] for entry in pieces[1]["completion_probabilities"]] == [[240], [159], [152], [128]]


def test_a_character_that_is_never_whole_is_replaced(client: Client) -> None:
    assert whole(client, prompt="H")["content"] == "x\ufffd"
    assert "".join(event["content"] for event in streamed(client, prompt="H")) == "x\ufffd"


@pytest.mark.parametrize(
    ("stop", "content", "word"),
    [("EA", "this TR", "EA"), (["zz", "T"], "this ", "T"), ("TREATY", "this TREAT", ""), ([], "this TREAT", "")],
)
def test_stop_strings_end_the_text_and_held_text_is_never_lost(
    client: Client, stop: Any, content: str, word: str
) -> None:
    answer = whole(client, prompt="S", stop=stop)
    assert (answer["content"], answer["stopping_word"]) == (content, word)
    assert answer["stop_type"] == ("word" if word else "eos")
    assert "".join(event["content"] for event in streamed(client, prompt="S", stop=stop)) == content


def test_probabilities_are_the_models_own(client: Client) -> None:
    answer = whole(client, prompt="A", n_predict=2, n_probs=2, logit_bias={"79": -50})
    first, _second = answer["completion_probabilities"]
    assert list(answer) == [*FINAL, "completion_probabilities"]
    assert list(first) == ["id", "token", "bytes", "logprob", "top_logprobs"]
    assert first["top_logprobs"][0] == {"id": 79, "token": "O", "bytes": [79], "logprob": 0.0}
    assert len(first["top_logprobs"]) == 2
    every = whole(client, prompt="A", n_predict=1, n_probs=N_VOCAB)["completion_probabilities"][0]
    assert sorted(entry["id"] for entry in every["top_logprobs"]) == list(range(N_VOCAB))


def test_extras_come_when_they_are_asked_for(client: Client) -> None:
    assert whole(client, prompt="A", n_predict=2, return_tokens=True)["tokens"] == [79, 110]
    pieces = streamed(client, prompt="A", n_predict=2, return_progress=True, timings_per_token=True)
    progress = [piece["prompt_progress"] for piece in pieces if "prompt_progress" in piece]
    assert progress[-1]["processed"] == progress[-1]["total"] == 1
    assert [piece["timings"]["predicted_n"] for piece in pieces if piece["tokens"]] == [1, 2]
    assert all(list(piece["timings"]) == TIMINGS for piece in pieces)


@pytest.mark.parametrize("stream", [False, True])
def test_response_fields_choose_the_keys_of_the_answer(client: Client, stream: bool) -> None:
    fields = ["content", "generation_settings/n_predict", "timings/predicted_n", "nothing", "content/x", "stop_type"]
    body: dict[str, Any] = {"prompt": "A", "n_predict": 2, "response_fields": fields}
    if stream:
        *pieces, answer = streamed(client, **body)
        assert [list(piece) for piece in pieces] == [PIECE] * 2
    else:
        answer = whole(client, **body)
    assert answer == {
        "content": "" if stream else "On",
        "generation_settings/n_predict": 2,
        "timings/predicted_n": 2,
        "stop_type": "limit",
    }
    assert list(answer) == [field for field in fields if field in answer]


@pytest.mark.parametrize("value", ["content", ["content", 5], {}])
def test_response_fields_are_strings(client: Client, value: Any) -> None:
    result = client.ask("/completion", {"prompt": "A", "response_fields": value})
    assert (result.status_code, result.json["error"]["param"]) == (400, "response_fields")


def test_ids_that_ignore_eos_bans_are_reported_after_the_biases(client: Client) -> None:
    settings = whole(client, prompt="A", n_predict=1, ignore_eos=True, logit_bias={"79": 1})["generation_settings"]
    banned = [{"bias": None, "token": token} for token in (SPECIAL["<|endoftext|>"], EOS)]
    assert settings["logit_bias"] == [{"bias": 1.0, "token": 79}, *banned]


def test_what_is_kept_of_a_shifted_context_is_only_reported(client: Client) -> None:
    settings = whole(client, prompt="A", n_predict=1, n_keep=-1, n_discard=4)["generation_settings"]
    assert (settings["n_keep"], settings["n_discard"]) == (-1, 4)


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("A", "A"),
        ([65], "A"),
        ([66, 65], "BA"),
        (["A", 66, "A<|im_end|>"], "ABA<|im_end|>"),
        (["A"], "A"),
        ([["A", 65]], "AA"),
        ({"prompt_string": "A"}, "A"),
        ("<think>x", "<think>x"),
    ],
)
def test_prompts_of_every_kind(client: Client, prompt: Any, text: str) -> None:
    answer = whole(client, prompt=prompt, n_predict=1)
    assert answer["prompt"] == text
    assert whole(client, prompt=text, n_predict=1)["tokens_evaluated"] == answer["tokens_evaluated"]


@pytest.mark.parametrize(
    "prompt",
    [
        None, 5, True, {}, "", [], [[]], [None], [True], [1.5], ["A", None], [65, ["A"]], [-1], [N_VOCAB], [10**30],
        ["A", "B"], [[65], [66]], [["A", 65], "B"], {"prompt_string": "A", "multimodal_data": ["x"]},
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/completion", "/completions", "/v1/completions"])
def test_what_is_no_prompt_is_refused_by_name(client: Client, prompt: Any, path: str) -> None:
    result = client.ask(path, {"prompt": prompt})
    assert result.status_code == 400
    assert result.json["error"]["param"] == "prompt"


def test_a_missing_prompt_is_refused_by_name(client: Client) -> None:
    assert client.ask("/completion", {}).json["error"]["param"] == "prompt"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
def test_a_prompt_past_the_context_is_a_plain_error_with_both_lengths(client: Client, path: str, stream: bool) -> None:
    result = client.ask(path, {"prompt": "x" * 64, "stream": stream})
    assert result.status_code == 400
    assert result.json == {
        "error": {
            "code": 400,
            "message": "request (64 tokens) exceeds the available context size (64 tokens), try increasing it",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 64,
            "n_ctx": 64,
        }
    }


def test_a_generation_that_fills_the_context_is_cut(client: Client) -> None:
    answer = whole(client, prompt="A", ignore_eos=True)
    assert (answer["stop_type"], answer["truncated"]) == ("limit", True)


def test_a_seeded_request_repeats_and_a_random_one_says_so(client: Client) -> None:
    drawn = {"prompt": "zq", "temperature": 3, "n_predict": 8}
    assert whole(client, **drawn, seed=5)["content"] == whole(client, **drawn, seed=5)["content"]
    assert whole(client, **drawn)["generation_settings"]["seed"] == 4294967295
