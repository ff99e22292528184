"""What the oracle is asked is well formed, and the committed sets answer all of it."""

from __future__ import annotations

from collections import Counter

import pytest

from bloomery.conformance.cases import Distribution, Drafted, Exchange, Greedy, Seeded
from bloomery.conformance.corpus.sampling_runs import FEW_RUNS, FIFTY_SEEDS, RUNS
from bloomery.conformance.fixtures import MAKERS, pins
from bloomery.conformance.oracle import BUILDS, PACKAGE, OracleSettings
from bloomery.conformance.plan import DRAFTED_RUNS, LENGTHS, PROMPT_IDS, all_plans
from bloomery.conformance.recorder import random_prompt
from bloomery.conformance.recording import RECORDINGS, load_set, set_names

PLANS = all_plans()


def test_every_planned_set_is_committed_and_no_other() -> None:
    assert set_names() == sorted(PLANS)


def test_the_committed_sets_stay_small() -> None:
    # They are cloned and installed with everything else.
    assert sum(path.stat().st_size for path in RECORDINGS.rglob("*") if path.is_file()) < 16 << 20


def test_plans_name_fixtures() -> None:
    assert {plan.model for plan in PLANS.values()} <= set(MAKERS)
    assert set(FEW_RUNS) <= set(RUNS)
    assert len(set(FIFTY_SEEDS)) == 50
    assert all(plan.numbers is None or plan.requests is None for plan in PLANS.values())


@pytest.mark.parametrize("name", PLANS)
def test_a_committed_set_is_of_this_plan_and_this_fixture(name: str) -> None:
    plan, recorded = PLANS[name], load_set(name)
    manifest = recorded.manifest
    assert manifest.model_sha256 == pins()[plan.model]
    assert (manifest.model, manifest.weights) == (plan.model, plan.weights)
    assert OracleSettings(**manifest.settings) == plan.settings
    assert manifest.oracle.startswith(PACKAGE)
    assert any(build in manifest.oracle for build in BUILDS.values())
    assert name in manifest.command
    if plan.numbers is not None:
        n_continued = len(plan.numbers.continued)
        assert len(recorded.cases(Distribution)) == plan.numbers.distributions + n_continued
        assert len(recorded.cases(Greedy)) == plan.numbers.greedy + n_continued
        assert len(recorded.cases(Seeded)) == sum(map(len, plan.numbers.runs.values()))
    assert len(recorded.cases(Drafted)) == plan.drafted * len(DRAFTED_RUNS)
    if plan.requests is not None:
        asked = [(ask.name, ask.method, ask.path, ask.headers, ask.body) for ask in plan.requests()]
        answered = [(case.name, case.method, case.path, case.headers, case.body) for case in recorded.cases(Exchange)]
        assert answered == asked
        assert max(Counter(name for name, *_ in asked).values()) == 1


def test_the_default_chain_is_recorded_with_fifty_seeds_that_wrap_at_32_bits() -> None:
    drawn = {case.request["seed"]: case for case in load_set("chain-branch.strict").cases(Seeded)[: len(FIFTY_SEEDS)]}
    assert tuple(drawn) == FIFTY_SEEDS
    assert {len(case.ids) for case in drawn.values()} == {64}
    by_start = {seed % 2**32: case.ids for seed, case in drawn.items()}
    assert all(case.ids == by_start[seed % 2**32] for seed, case in drawn.items())


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
