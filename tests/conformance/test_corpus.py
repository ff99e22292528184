"""What the oracle is asked is well formed, and the committed sets answer all of it."""

from __future__ import annotations

from collections import Counter

import pytest

from bloomery.conformance.cases import Distribution, Exchange, Greedy, Seeded
from bloomery.conformance.corpus.sampling_runs import FEW_RUNS, RUNS, SEEDS
from bloomery.conformance.fixtures import MAKERS, pins
from bloomery.conformance.oracle import BUILDS, PACKAGE
from bloomery.conformance.plan import LENGTHS, PROMPT_IDS, all_plans
from bloomery.conformance.recorder import random_prompt
from bloomery.conformance.recording import RECORDINGS, load_set, set_names

PLANS = all_plans()


def test_every_planned_set_is_committed_and_no_other() -> None:
    assert set_names() == sorted(PLANS)


def test_the_committed_sets_stay_small() -> None:
    assert sum(path.stat().st_size for path in RECORDINGS.rglob("*") if path.is_file()) < 6 << 20


def test_plans_name_fixtures() -> None:
    assert {plan.model for plan in PLANS.values()} <= set(MAKERS)
    assert set(FEW_RUNS) <= set(RUNS)
    assert all(plan.numbers is None or plan.requests is None for plan in PLANS.values())


@pytest.mark.parametrize("name", PLANS)
def test_a_committed_set_is_of_this_plan_and_this_fixture(name: str) -> None:
    plan, recorded = PLANS[name], load_set(name)
    manifest = recorded.manifest
    assert manifest.model_sha256 == pins()[plan.model]
    assert (manifest.model, manifest.weights) == (plan.model, plan.weights)
    assert manifest.settings == vars(plan.settings)
    assert manifest.oracle.startswith(PACKAGE)
    assert any(build in manifest.oracle for build in BUILDS.values())
    assert name in manifest.command
    if plan.numbers is not None:
        assert len(recorded.cases(Distribution)) == plan.numbers.distributions
        assert len(recorded.cases(Greedy)) == plan.numbers.greedy
        assert len(recorded.cases(Seeded)) == len(plan.numbers.runs) * len(SEEDS)
    if plan.requests is not None:
        asked = [(ask.name, ask.method, ask.path, ask.headers, ask.body) for ask in plan.requests()]
        answered = [(case.name, case.method, case.path, case.headers, case.body) for case in recorded.cases(Exchange)]
        assert answered == asked
        assert max(Counter(name for name, *_ in asked).values()) == 1


@pytest.mark.parametrize("name", [name for name, plan in PLANS.items() if plan.numbers is not None])
def test_recorded_numbers_are_distributions(name: str) -> None:
    recorded = load_set(name)
    for case in recorded.cases(Distribution):
        rows = recorded.distribution(case)
        assert len(rows) == len(case.lengths)
        for row in rows:
            assert (row.logprobs[:-1] >= row.logprobs[1:]).all()
            assert len(set(row.ids.tolist())) == len(row.ids)
            # The best 64 hold at most all of the probability, and in these models most of it.
            assert 0.5 < sum(2.718281828459045**value for value in row.logprobs.tolist()) < 1 + 1e-5
    for greedy in recorded.cases(Greedy):
        margins = recorded.margins(greedy)
        assert len(margins) == len(greedy.ids)
        assert (margins >= 0).all()


def test_prompts_do_not_depend_on_anything() -> None:
    assert LENGTHS[-1] == PROMPT_IDS == 64
    assert random_prompt(0)[:6] == [57, 260, 193, 110, 89, 2]
    assert all(0 <= token < 352 for token in random_prompt(7))
