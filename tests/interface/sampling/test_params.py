"""Defaults and ranges of the request's sampling fields: those of llama-server's schema."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomery.interface.sampling import SamplingParams


def test_the_defaults_are_llama_servers():
    params = SamplingParams()
    assert dataclasses.asdict(params) == {
        "seed": None,
        "temperature": 0.8,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.05,
        "repeat_penalty": 1.0,
        "repeat_last_n": 64,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "ignore_eos": False,
        "n_probs": 0,
        "min_keep": 0,
    }
    assert params.has_random_seed
    assert not params.has_penalties


@pytest.mark.parametrize(
    ("field", "given", "kept"),
    [
        ("temperature", -3.0, 0.0),
        ("top_k", -1, 0),
        ("top_k", 2**40, 2**31 - 1),
        ("top_p", 1.5, 1.0),
        ("top_p", -0.5, 0.0),
        ("min_p", 7, 1.0),
        ("n_probs", -4, 0),
        ("seed", -1, 4294967295),
        ("seed", -2, 4294967294),
        ("seed", 2**32 + 5, 5),
    ],
)
def test_what_llama_server_clamps_is_clamped(field, given, kept):
    assert getattr(SamplingParams(**{field: given}), field) == kept


@pytest.mark.parametrize("seed", [None, -1, 4294967295])
def test_these_seeds_ask_for_a_random_one(seed):
    assert SamplingParams(seed=seed).has_random_seed


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", 1e39),
        ("temperature", 10**400),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_k", 2.5),
        ("top_p", math.nan),
        ("min_p", None),
        ("repeat_penalty", 0),
        ("repeat_penalty", -1.0),
        ("repeat_penalty", 1e-45),
        ("repeat_penalty", 1e-60),
        ("repeat_last_n", -1),
        ("repeat_last_n", 2**31),
        ("presence_penalty", math.inf),
        ("frequency_penalty", -math.inf),
        ("min_keep", -1),
        ("ignore_eos", 1),
        ("seed", 1.5),
        ("n_probs", "5"),
        ("logit_bias", {3: math.nan}),
        ("logit_bias", {3: math.inf}),
        ("logit_bias", {-1: 2.0}),
        ("logit_bias", {"3": 2.0}),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_field(field, value):
    with pytest.raises(ValueError, match=f"^{field}"):
        SamplingParams(**{field: value})


def test_a_range_that_llama_server_enforces_is_told_in_its_words():
    with pytest.raises(ValueError, match="Value must be between 0 <= value <= 2147483647, but got -7"):
        SamplingParams(repeat_last_n=-7)


@pytest.mark.parametrize(
    ("fields", "active"),
    [
        ({"repeat_penalty": 1.1}, True),
        ({"presence_penalty": -0.1}, True),
        ({"frequency_penalty": 0.1}, True),
        ({"repeat_penalty": 1.1, "repeat_last_n": 0}, False),
    ],
)
def test_penalties_are_active_when_one_of_them_is(fields, active):
    assert SamplingParams(**fields).has_penalties is active


@given(st.floats(allow_nan=False, allow_infinity=False, width=32), st.integers(-(2**70), 2**70))
def test_any_finite_number_makes_params_that_stay_put(number, integer):
    params = SamplingParams(temperature=number, top_p=number, min_p=number, top_k=integer, seed=integer)
    assert params.temperature >= 0
    assert 0 <= params.top_p <= 1
    assert 0 <= params.min_p <= 1
    assert dataclasses.replace(params) == params
