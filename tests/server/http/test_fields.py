"""The table of request fields: what each route reads, refuses and ignores."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomery.interface.sampling import SamplingParams
from bloomery.server.body import json_object
from bloomery.server.errors import ApiError
from bloomery.server.field_types import INT32_MAX, Limits
from bloomery.server.fields import FIELDS, Options, Route, read

LIMITS = Limits(n_vocab=300, n_parallel=4, max_choices=64)
ROUTES = list(Route)


def refusal(body: dict[str, Any], route: Route = Route.COMPLETION) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(body, route, LIMITS)
    assert (caught.value.code, caught.value.type) == (400, "invalid_request_error")
    return caught.value


@pytest.mark.parametrize("route", ROUTES)
def test_an_empty_request_gets_the_defaults(route: Route) -> None:
    assert read({}, route, LIMITS) == Options(sampling=SamplingParams(), asked=SamplingParams())


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", [name for field in FIELDS for name in field.spellings])
def test_null_is_unset(name: str, route: Route) -> None:
    assert read({name: None}, route, LIMITS) == read({}, route, LIMITS)


@pytest.mark.parametrize("route", ROUTES)
@given(body=st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text()))
def test_unknown_fields_are_ignored(route: Route, body: dict[str, Any]) -> None:
    known = {name for field in FIELDS for name in field.spellings}
    unknown = {name: value for name, value in body.items() if name not in known}
    assert read(unknown, route, LIMITS) == read({}, route, LIMITS)


# (field, value, what it becomes): the values a real llama-server echoed in generation_settings.
@pytest.mark.parametrize(
    ("name", "value", "becomes"),
    [
        ("temperature", -1, 0.0),
        ("temperature", 0, 0.0),
        ("top_k", -1, 0),
        ("top_k", 7.0, 7),
        ("top_p", 2, 1.0),
        ("top_p", -1, 0.0),
        ("min_p", 7, 1.0),
        ("presence_penalty", 9, 9.0),
        ("seed", -5, 4294967291),
        ("seed", 4294967296, 0),
        ("repeat_last_n", 0, 0),
        ("ignore_eos", True, True),
        ("min_keep", 3, 3),
    ],
)
@pytest.mark.parametrize("route", ROUTES)
def test_sampling_fields_are_brought_into_llama_servers_ranges(
    name: str, value: Any, becomes: Any, route: Route
) -> None:
    assert getattr(read({name: value}, route, LIMITS).sampling, name) == becomes


@pytest.mark.parametrize(
    ("body", "n_predict"),
    [
        ({"n_predict": 0}, 0),
        ({"n_predict": -1}, -1),
        ({"n_predict": INT32_MAX}, INT32_MAX),
        ({"max_tokens": 3}, 3),
        ({"max_completion_tokens": 3}, 3),
        ({"max_tokens": 3, "max_completion_tokens": 1}, 1),
        ({"max_tokens": 3, "max_completion_tokens": 1, "n_predict": 2}, 2),
        ({"max_tokens": 3, "max_completion_tokens": None, "n_predict": None}, 3),
    ],
)
@pytest.mark.parametrize("route", ROUTES)
def test_the_limit_has_three_names_and_an_order(body: dict[str, Any], n_predict: int, route: Route) -> None:
    assert read(body, route, LIMITS).n_predict == n_predict


@pytest.mark.parametrize("name", ["n_predict", "max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [-2, INT32_MAX + 1, 10**30, 1e300])
@pytest.mark.parametrize("route", ROUTES)
def test_a_limit_out_of_range_is_refused_in_the_clients_spelling(name: str, value: float, route: Route) -> None:
    error = refusal({name: value}, route)
    assert error.param == name
    assert error.message == (f"Field '{name}': Value must be between -1 <= value <= 2147483647, but got {int(value)}")


WRONG: dict[str, list[Any]] = {
    "temperature": ["x", True, [], {}],
    "top_k": ["3", 2.5, False],
    "top_p": ["x"],
    "min_p": [[]],
    "repeat_penalty": [0, -3, "x", 1e-46],
    "repeat_last_n": [-1, INT32_MAX + 1, "x"],
    "presence_penalty": ["a"],
    "frequency_penalty": ["a", 1e39],
    "seed": ["1", 1.5, True],
    "ignore_eos": [1, "x"],
    "stop": [5, [5], {}, True],
    "cache_prompt": ["no", 0],
    "id_slot": ["a", 1.5],
    "stream": [0, "x"],
    "return_progress": [3],
    "timings_per_token": [3],
    "samplers": [5, [1], ["zz"], "kq", ["top_k", "top_k"], ["top_p", "top_k"], "tk"],
    "min_keep": [-1, "x"],
    "logit_bias": ["x", [[1, 1]], {"1": "x"}, {"1": False}, {"1": 101}, {"a": 1}, {"01": 1}, {"300": 1}, {" 1": 1}],
    "typical_p": [0.5, "x"],
    "mirostat": [1, 2, "x"],
    "dry_multiplier": [0.8],
    "xtc_probability": [0.1],
    "top_n_sigma": [1],
    "dynatemp_range": [0.5],
    "adaptive_target": [0.5],
    "grammar": ['root ::= "a"', 5],
    "json_schema": [{}, "x"],
    "response_format": [{"type": "json_object"}, {"type": "json_schema"}, {"type": "zz"}, {"type": 5}, 5],
    "post_sampling_probs": [1, "yes"],
    "lora": [[{"id": 0, "scale": 1}]],
    "reasoning_budget": [0, 5, -2, "x"],
    "reasoning_loop": [True, "x"],
    "t_max_predict_ms": [5],
    "n_indent": [2],
}  # fmt: skip


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_what_cannot_be_honoured_is_refused_by_name_on_every_route(name: str, value: Any, route: Route) -> None:
    error = refusal({name: value}, route)
    assert error.param == name
    assert error.message.startswith(f"Field '{name}'")


NEUTRAL: dict[str, list[Any]] = {
    "typical_p": [1, 1.0, 2],
    "mirostat": [0],
    "mirostat_tau": [3.0],
    "dry_multiplier": [0],
    "dry_base": [2.0],
    "xtc_probability": [0.0],
    "xtc_threshold": [0.5],
    "top_n_sigma": [-1, 0],
    "dynatemp_range": [0],
    "dynatemp_exponent": [2.0],
    "grammar": [""],
    "response_format": [{"type": "text"}, {}],
    "lora": [[]],
    "reasoning_budget": [-1],
    "reasoning_loop": [False],
    "post_sampling_probs": [False],
    "n": [1, 1.0],
    "n_probs": [0, -1],
    "logprobs": [False, 0],
    "echo": [False],
    "suffix": [""],
    "best_of": [1],
    "model": ["zzz", 5],
}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in NEUTRAL.items() for value in values])
def test_a_value_that_asks_for_nothing_changes_nothing(name: str, value: Any, route: Route) -> None:
    assert read({name: value}, route, LIMITS) == read({}, route, LIMITS)


@pytest.mark.parametrize(
    ("body", "route", "param"),
    [
        ({"n": 2}, Route.COMPLETION, "n"),
        ({"n": 0}, Route.CHAT, "n"),
        ({"n": 65}, Route.CHAT, "n"),
        ({"n": "a"}, Route.COMPLETIONS, "n"),
        ({"n_probs": 1}, Route.CHAT, "n_probs"),
        ({"n_probs": 1}, Route.COMPLETIONS, "n_probs"),
        ({"post_sampling_probs": True}, Route.COMPLETIONS, "post_sampling_probs"),
        ({"logprobs": True}, Route.COMPLETION, "logprobs"),
        ({"logprobs": 2}, Route.COMPLETIONS, "logprobs"),
        ({"top_logprobs": 2, "logprobs": True}, Route.COMPLETION, "logprobs"),
        ({"top_logprobs": 2}, Route.COMPLETIONS, "top_logprobs"),
        ({"top_logprobs": 2}, Route.CHAT, "top_logprobs"),
        ({"top_logprobs": 0, "logprobs": False}, Route.CHAT, "top_logprobs"),
        ({"logprobs": "x"}, Route.CHAT, "logprobs"),
        ({"echo": True}, Route.COMPLETIONS, "echo"),
        ({"suffix": "x"}, Route.COMPLETIONS, "suffix"),
        ({"best_of": 2}, Route.COMPLETIONS, "best_of"),
        ({"stream_options": 5}, Route.CHAT, "stream_options"),
        ({"stream_options": {"include_usage": 5}}, Route.CHAT, "stream_options"),
        ({"return_tokens": 1}, Route.COMPLETION, "return_tokens"),
    ],
)
def test_a_field_of_other_routes_is_refused_by_name(body: dict[str, Any], route: Route, param: str) -> None:
    assert refusal(body, route).param == param


@pytest.mark.parametrize(
    ("body", "n_probs"),
    [
        ({"logprobs": True}, 20),
        ({"logprobs": True, "top_logprobs": 0}, 0),
        ({"logprobs": True, "top_logprobs": 3}, 3),
        ({"logprobs": True, "top_logprobs": 9999}, 300),
        ({"logprobs": False}, 0),
        ({"logprobs": 4}, 4),
    ],
)
def test_chat_probabilities(body: dict[str, Any], n_probs: int) -> None:
    options = read(body, Route.CHAT, LIMITS)
    assert (options.n_probs, options.sampling.n_probs) == (n_probs, n_probs)


def test_completion_probabilities_reach_the_whole_vocabulary() -> None:
    assert read({"n_probs": 300}, Route.COMPLETION, LIMITS).n_probs == 300
    assert read({"n_probs": 10**9}, Route.COMPLETION, LIMITS).n_probs == 300


def test_stop_is_a_text_or_texts() -> None:
    assert read({"stop": "x"}, Route.CHAT, LIMITS).stop == ("x",)
    assert read({"stop": ["x", "yy"]}, Route.CHAT, LIMITS).stop == ("x", "yy")


def test_a_slot_is_taken_modulo_the_slots() -> None:
    assert [read({"id_slot": slot}, Route.CHAT, LIMITS).id_slot for slot in (-1, -7, 0, 3, 4, 9)] == [
        -1,
        -1,
        0,
        3,
        0,
        1,
    ]


def test_logit_bias_is_read_by_id() -> None:
    assert read({"logit_bias": {"0": -100, "299": 1.5}}, Route.CHAT, LIMITS).sampling.logit_bias == {
        0: -100.0,
        299: 1.5,
    }


def test_an_id_biased_twice_is_refused() -> None:
    assert refusal(json_object(b'{"logit_bias":{"5":1,"5":1}}')).param == "logit_bias"


def test_samplers_left_out_are_off() -> None:
    sampling = read({"samplers": ["top_k", "temperature"], "repeat_penalty": 1.5}, Route.COMPLETION, LIMITS).sampling
    assert sampling == SamplingParams(top_p=1.0, min_p=0.0)
    assert read({"samplers": []}, Route.COMPLETION, LIMITS).sampling == SamplingParams(
        top_k=0, top_p=1.0, min_p=0.0, temperature=1.0
    )
    assert read({"samplers": "edskypmxt"}, Route.COMPLETION, LIMITS).sampling == SamplingParams()


def test_only_the_order_of_stages_that_are_on_matters() -> None:
    off = {"top_p": 1, "samplers": ["top_p", "top_k", "min_p", "temperature"]}
    assert read(off, Route.COMPLETION, LIMITS).sampling == SamplingParams(top_p=1.0)


def test_every_field_says_what_it_is() -> None:
    for field in FIELDS:
        assert field.about
        assert field.type.words
        assert bool(field.refused) == (field.asks is not None) == bool(field.remedy)
        assert not field.routes & field.refused
