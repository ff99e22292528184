"""Every recorded answer of the real sampler, to the bit. `python -m tools.record_sampling` makes the recording anew."""

import hashlib
import json
import math
from itertools import pairwise

import numpy as np
import pytest

from bloomery.conformance.recording import RECORDINGS
from bloomery.interface.sampling import Sampler, SamplingParams, chain, probabilities
from bloomery.interface.sampling.candidates import Candidates
from bloomery.interface.sampling.rng import MersenneTwister

FOLDER = RECORDINGS / "parts/sampling"
MANIFEST = json.loads((FOLDER / "manifest.json").read_text())
CASES = [json.loads(line) for line in (FOLDER / "cases.jsonl").read_text().splitlines()]
ARRAYS = np.load(FOLDER / "arrays.npz")
ROWS = np.split(ARRAYS["rows"], ARRAYS["starts"][1:-1])
TABLE = ARRAYS["table"]
STAGES = {
    "top_k": chain.top_k,
    "top_p": chain.top_p,
    "min_p": chain.min_p,
    "temp_ext": lambda candidates, t, _delta, _exponent: chain.temperature(candidates, t),
}


def of_kind(kind):
    return [case for case in CASES if case["kind"] == kind]


def digest(ids, numbers):
    return hashlib.sha256(ids.astype("<i4").tobytes() + numbers.astype("<f4").tobytes()).hexdigest()


def run(case):
    candidates = Candidates.of_row(ROWS[case["row"]])
    for name, *arguments in case["stages"]:
        candidates = STAGES[name](candidates, *arguments)
    return candidates


def params_of(case):
    fields = dict(case["params"])
    fields["logit_bias"] = {token: -math.inf if bias is None else bias for token, bias in fields["logit_bias"]}
    return SamplingParams(**fields)


def sampler_of(case, n_vocab):
    sampler = Sampler(params_of(case), n_vocab=n_vocab, eog_ids=[MANIFEST["eog_id"]])
    sampler.accept_all(case["prompt"])
    return sampler


def test_the_recording_is_whole():
    assert MANIFEST["version"] == 1
    for name, expected in MANIFEST["sha256"].items():
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == expected, name
    kinds = [case["kind"] for case in CASES]
    assert {kind: kinds.count(kind) for kind in kinds} == MANIFEST["counts"]


@pytest.mark.parametrize("row", range(len(ROWS)))
def test_stages_leave_the_same_ids_and_logits_in_the_same_order(row):
    cases = [case for case in of_kind("stages") if case["row"] == row]
    assert cases
    for case in cases:
        left = run(case)
        assert len(left) == case["count"], case["stages"]
        assert left.ids[:8].tolist() == case["first_ids"], case["stages"]
        assert left.best_first == case["best_first"], case["stages"]
        assert digest(left.ids, left.logits) == case["digest"], case["stages"]


def test_draws_have_the_same_probabilities_and_positions():
    for case in of_kind("draw"):
        left = run(case)
        chosen, drawn_by = chain.draw(left, MersenneTwister(case["seed"]).uniform())
        assert chosen == case["selected"], case
        assert digest(left.ids, drawn_by) == case["digest"], case


def test_sequences_of_draws_give_the_same_ids():
    for case in of_kind("chain"):
        rows = [ROWS[row] for row in case["rows"]]
        sampler = sampler_of(case, case["n_vocab"])
        for row, expected in zip(rows, case["drawn"], strict=True):
            assert sampler.sample(row) == expected, case
            sampler.accept(expected)


def test_server_requests_give_the_same_ids():
    for case in of_kind("server"):
        sampler = sampler_of(case, len(TABLE))
        for last, expected in pairwise([case["prompt"][-1], *case["drawn"]]):
            assert sampler.sample(TABLE[last]) == expected, case
            sampler.accept(expected)


def test_reported_probabilities_are_those_of_the_server():
    compared = 0
    for case in of_kind("server"):
        previous = case["prompt"][-1]
        for token, logprob, top in case["reported"]:
            report = probabilities(TABLE[previous], case["params"]["n_probs"])
            previous = token
            assert [entry.id for entry in report] == [entry_id for entry_id, _ in top]
            ours = np.array([report.logprob(token), *(entry.logprob for entry in report)], np.float32)
            theirs = np.array([logprob, *(value for _, value in top)], np.float32)
            assert np.array_equal(ours, theirs)
            compared += len(ours)
    assert compared > 10_000


def test_probabilities_after_sampling_are_those_of_the_server():
    compared = 0
    for case in of_kind("after"):
        sampler = sampler_of(case, len(TABLE))
        previous = case["prompt"][-1]
        for token, probability, best in case["reported"]:
            drawn = sampler.draw(TABLE[previous])
            sampler.accept(token)
            previous = token
            assert (drawn.token, drawn.probability) == (token, probability), case
            assert [list(entry) for entry in drawn.best(case["params"]["n_probs"])] == best, case
            compared += len(best)
    assert compared > 1_000


def test_fifty_seeds_of_the_default_settings_are_recorded():
    defaults = [case for case in of_kind("server") if case["params"].keys() == {"seed", "ignore_eos", "logit_bias"}]
    assert len({case["params"]["seed"] for case in defaults}) == 50
    assert {len(case["drawn"]) for case in defaults} == {64}
