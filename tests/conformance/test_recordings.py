"""The reference engine against every recorded set, and both against an independent float64 forward pass."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bloomery.conformance.cases import Distribution, Greedy
from bloomery.conformance.engine_checks import check_set
from bloomery.conformance.fixtures import fixture
from bloomery.conformance.plan import all_plans
from bloomery.conformance.recording import load_set
from tests.conformance.forward64 import Forward64

NUMBERS = [name for name, plan in all_plans().items() if plan.numbers is not None]
F32_STRICT = [name for name in NUMBERS if name.endswith("-f32.strict")]

# How near two experts may be (log-ratio of the last taken to the first left out) before rounding could swap them: a
# thousand times float32's rounding of a router's logit. No recorded F32 position is that near, so none is put apart.
NEAR_TIE = 1e-4


@pytest.mark.parametrize("name", NUMBERS)
def test_the_reference_engine_is_inside_the_bands(name: str) -> None:
    report = check_set(name, engine="reference")
    assert report.passed, report


@pytest.mark.parametrize("name", F32_STRICT)
def test_recordings_agree_with_the_equations(name: str) -> None:
    """Every recorded F32 distribution within 1e-4 over the whole vocabulary, every greedy id equal."""
    recorded = load_set(name)
    forward = Forward64(fixture(recorded.manifest.model))
    nearest = math.inf
    for case in recorded.cases(Distribution):
        outcome = forward.run(list(case.ids))
        nearest = min(nearest, outcome.router_gaps.min(initial=math.inf))
        for length, row in zip(case.lengths, recorded.distribution(case), strict=True):
            assert len(row.ids) == forward.n_vocab
            difference = np.abs(outcome.logprobs[length - 1][row.ids] - row.logprobs).max()
            assert difference < 1e-4, f"{case.name} after {length} ids"
    for greedy in recorded.cases(Greedy):
        outcome = forward.run([*greedy.prompt, *greedy.ids[:-1]])
        nearest = min(nearest, outcome.router_gaps.min(initial=math.inf))
        assert outcome.logits[len(greedy.prompt) - 1 :].argmax(axis=-1).tolist() == list(greedy.ids)
    assert nearest > NEAR_TIE, f"two experts are {nearest:.2g} apart: choose other prompts or another seed"


@pytest.mark.parametrize("name", F32_STRICT)
def test_distributions_are_peaked_enough_to_prove_something(name: str) -> None:
    """The best token leads by far more than noise almost everywhere, without all the probability, and varies."""
    recorded = load_set(name)
    rows = [row for case in recorded.cases(Distribution) for row in recorded.distribution(case)]
    leads = np.array([row.margin for row in rows])
    best = np.exp([float(row.logprobs[0]) for row in rows])
    assert np.percentile(leads, 1) > 0.01
    assert np.median(leads) > 0.5
    assert 0.3 < np.median(best) < 0.7
    assert len({int(row.ids[0]) for row in rows}) > len(rows) / 3
