"""Drafts of the model's own layer: the ids and the counts of a real llama-server that drafts, the layer's equations,
and the law that no id is another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from bloomery.conformance.cases import Drafted
from bloomery.conformance.engines.drafted import check_drafts, check_unchanged, generate, source_of
from bloomery.conformance.engines.opening import EngineName, Model
from bloomery.conformance.fixtures import fixture
from bloomery.conformance.plan import DRAFT_WINDOWS
from bloomery.conformance.recorder import random_prompt
from bloomery.conformance.recording import load_set
from bloomery.interface import engine as engines
from bloomery.interface.draft import Ask
from bloomery.interface.engine import Engine, EngineError, Span
from bloomery.interface.sampling.params import SamplingParams
from bloomery.interface.sampling.sampler import Sampler
from tests.conformance.forward64_qwen35 import Qwen35Forward64

NAMES = ("qwen35-a-f32", "qwen35moe-b-f32")
GREEDY = SamplingParams(temperature=0)
# Penalties look back at ids that a pass has just kept, and a high temperature follows few drafts.
RUNS = {
    "greedy": GREEDY,
    "seeded": SamplingParams(temperature=0.8, seed=3),
    "penalised": SamplingParams(temperature=1.5, seed=4, repeat_penalty=1.3, repeat_last_n=8, top_k=0),
}


def open_engine(name: str, numerics: str = "exact", **options: object) -> Engine:
    chosen = {"n_ctx": 256, "n_sequences": 4, "draft": True} | options
    return Model(fixture(name)).open(EngineName(engine="reference", numerics=numerics), **chosen)


@pytest.fixture(scope="module", params=NAMES)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = open_engine(request.param)
    yield engine
    engine.close()


def read(engine: Engine, ids: Sequence[int]) -> engines.Sequence:
    sequence = engine.sequence()
    engine.run([Span(sequence=sequence, ids=ids)])
    return sequence


def proposal(engine: Engine, ids: Sequence[int], n: int) -> tuple[int, ...]:
    """What is drafted behind the ids, of which the last is the next input."""
    sequence = engine.sequence()
    try:
        if len(ids) > 1:
            engine.run([Span(sequence=sequence, ids=ids[:-1])])
        [found] = source_of(engine).propose([Ask(sequence=sequence, last=ids[-1], n=n)])
        return found
    finally:
        sequence.release()


@pytest.mark.parametrize("window", DRAFT_WINDOWS)
@pytest.mark.parametrize("name", NAMES)
def test_a_drafting_llama_server_proposes_and_accepts_the_same(name: str, window: int) -> None:
    recording = load_set(f"{name}.draft-{window}")
    [finding] = check_drafts(open_engine(name), recording)
    assert finding.verdict == "passed", finding
    counted = finding.measured
    assert 0 < counted["accepted"] < counted["proposed"]
    # Every number of proposals is accepted somewhere: the last place has been reached and missed.
    assert 0 < counted[f"accepted at place {window}"] < 1


def test_a_recording_of_other_counts_or_ids_is_noticed(engine: Engine) -> None:
    recording = load_set(f"{NAMES[0]}.draft-2" if engine.spec.architecture == "qwen35" else f"{NAMES[1]}.draft-2")
    first = recording.only(lambda case: case is recording.cases(Drafted)[0])
    [case] = first.cases(Drafted)
    for change, told in (
        ({"accepted": case.accepted + 1}, "accepted, by the oracle"),
        ({"ids": (*case.ids[:-1], 0)}, "id 63"),
    ):
        wrong = type(recording)("wrong", recording.manifest, [Drafted(**{**vars(case), **change})], {})
        [finding] = check_drafts(engine, wrong)
        assert told in str(finding.wrong)


@pytest.mark.parametrize("n_prompt", [1, 2, 30])
def test_proposals_are_those_of_the_equations(engine: Engine, n_prompt: int) -> None:
    name = NAMES[engine.spec.architecture == "qwen35moe"]
    ids = random_prompt(7, n_prompt)
    drafted = Qwen35Forward64(fixture(name)).drafted(ids, 4)
    best = np.sort(drafted, axis=-1)
    assert (best[:, -1] - best[:, -2]).min() > 1e-3, "a tie decides nothing"
    assert proposal(engine, ids, 4) == tuple(drafted.argmax(axis=-1))


@pytest.mark.parametrize("numerics", ["exact", "ggml"])
def test_drafts_change_no_id(numerics: str) -> None:
    prompts = [random_prompt(20, 1), random_prompt(21, 12)]
    for name in (NAMES[1], "qwen35-a-q4km"):
        for finding in check_unchanged(open_engine(name, numerics), prompts, RUNS, n=16):
            assert finding.verdict == "passed", finding
            assert finding.measured["proposed"] > 0


def test_a_reply_counts_its_passes_and_stops_where_it_would(engine: Engine) -> None:
    n_vocab, prompt = engine.spec.n_vocab, random_prompt(22, 10)
    plain = generate(engine, prompt, 20, Sampler(GREEDY, n_vocab=n_vocab))
    assert (len(plain.ids), plain.passes, plain.proposed) == (20, 20, ())
    for stop in {plain.ids[7], plain.ids[12]}:
        end = plain.ids.index(stop) + 1
        for window in DRAFT_WINDOWS:
            sampler = Sampler(GREEDY, n_vocab=n_vocab)
            reply = generate(engine, prompt, 20, sampler, source=source_of(engine), window=window, stops={stop})
            assert reply.ids == plain.ids[:end]
            assert end <= reply.passes + sum(reply.accepted) <= end + 1
            assert all(right <= of for right, of in zip(reply.accepted, reply.proposed, strict=True))


def test_proposals_of_several_sequences_are_each_alone(engine: Engine) -> None:
    texts = [random_prompt(30 + at, n) for at, n in enumerate((1, 5, 17, 9))]
    numbers = (3, 0, 1, 4)
    alone = [proposal(engine, ids, n) for ids, n in zip(texts, numbers, strict=True)]
    assert [len(one) for one in alone] == list(numbers)
    sequences = [engine.sequence() for _ in texts]
    started = [(sequence, ids[:-1]) for sequence, ids in zip(sequences, texts, strict=True) if len(ids) > 1]
    engine.run([Span(sequence=sequence, ids=ids) for sequence, ids in started])
    asks = [Ask(sequence=s, last=ids[-1], n=n) for s, ids, n in zip(sequences, texts, numbers, strict=True)]
    assert source_of(engine).propose(asks) == alone
    assert source_of(engine).propose(asks[::-1]) == alone[::-1]
    for sequence in sequences:
        sequence.release()


def test_a_proposal_changes_no_state(engine: Engine) -> None:
    ids = random_prompt(31, 9)
    sequence = read(engine, ids)
    before = sequence.save()
    first = source_of(engine).propose([Ask(sequence=sequence, last=5, n=4)])
    after = sequence.save()
    assert before.ids == after.ids
    assert all(np.array_equal(before.arrays[name], after.arrays[name]) for name in before.arrays)
    assert source_of(engine).propose([Ask(sequence=sequence, last=5, n=4)]) == first
    sequence.release()
    assert proposal(engine, [*ids, 5], 4) == first[0]


def test_a_proposal_ends_with_the_context() -> None:
    engine = open_engine(NAMES[1], n_ctx=12)
    sequence = read(engine, random_prompt(32, 9))
    # The span that verifies holds the next input as well.
    [found] = source_of(engine).propose([Ask(sequence=sequence, last=5, n=8)])
    assert len(found) == 2
    engine.run([Span(sequence=sequence, ids=[5, *found], trial=2)])
    sequence.commit(2)
    assert source_of(engine).propose([Ask(sequence=sequence, last=5, n=8)]) == [()]


def test_drafting_is_asked_for_and_refusals_name_the_fault(engine: Engine) -> None:
    with pytest.raises(ValueError, match="without its model's own draft"):
        source_of(open_engine(NAMES[1], draft=False))
    with pytest.raises(EngineError, match="the model has no draft layer"):
        open_engine("qwen35-b-f32")
    source, sequence = source_of(engine), read(engine, [1, 2])
    for ask, told in (
        (Ask(sequence=sequence, last=engine.spec.n_vocab, n=1), "outside the vocabulary"),
        (Ask(sequence=sequence, last=0, n=-1), "no negative length"),
        (Ask(sequence=read(open_engine(NAMES[1]), [1]), last=0, n=1), "another engine"),
    ):
        with pytest.raises(EngineError, match=told):
            source.propose([ask])
    with pytest.raises(EngineError, match="twice"):
        source.propose([Ask(sequence=sequence, last=0, n=1)] * 2)
    engine.run([Span(sequence=sequence, ids=[3, 4], trial=1)])
    with pytest.raises(EngineError, match="waits for commit"):
        source.propose([Ask(sequence=sequence, last=0, n=1)])
    sequence.release()
    with pytest.raises(EngineError, match="released"):
        source.propose([Ask(sequence=sequence, last=0, n=1)])


def test_a_closed_engine_drafts_no_more() -> None:
    engine = open_engine(NAMES[1])
    source, sequence = source_of(engine), read(engine, [1])
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        source.propose([Ask(sequence=sequence, last=0, n=1)])
