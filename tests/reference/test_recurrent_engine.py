"""Sequences whose state no tail can be cut from, with and without a draft layer beside: whatever is done with one, its
whole state has the bits of a sequence that only ever saw the same ids."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.conformance.fixtures import fixture
from bloomery.interface.draft import Ask
from bloomery.interface.engine import EngineError, SavedSequence, Span, Tap
from bloomery.reference.engine import ReferenceEngine
from bloomery.reference.sequence import ReferenceSequence
from tests.reference.test_engine import open_engine, whole

# Passes are short, so that prompts and trials reach over several of them.
OPTIONS = {"n_ubatch": 5, "n_trial": 7, "n_ctx": 64}
# By whether the draft layer runs.
NAMES = {False: "qwen35-b-f32", True: "qwen35moe-b-f32"}


@pytest.fixture(scope="module", params=NAMES, ids=["plain", "drafting"])
def engine(request: pytest.FixtureRequest) -> Iterator[ReferenceEngine]:
    engine = open_engine(fixture(NAMES[request.param]), draft=request.param, **OPTIONS)
    yield engine
    engine.close()


def assert_same(found: SavedSequence, expected: SavedSequence) -> None:
    assert (found.engine, found.ids, found.arrays.keys()) == (expected.engine, expected.ids, expected.arrays.keys())
    for name, array in expected.arrays.items():
        np.testing.assert_array_equal(found.arrays[name], array, err_msg=name, strict=True)


@contextlib.contextmanager
def opened(engine: ReferenceEngine, n: int) -> Iterator[list[ReferenceSequence]]:
    """Empty sequences, which are released whatever happens."""
    sequences = [engine.sequence() for _ in range(n)]
    try:
        yield sequences
    finally:
        for sequence in sequences:
            sequence.release()


def fresh(engine: ReferenceEngine, ids: Sequence[int]) -> SavedSequence:
    """The state of a new sequence that saw the ids in one call."""
    with opened(engine, 1) as [sequence]:
        if ids:
            engine.run([Span(sequence=sequence, ids=ids)])
        return sequence.save()


def assert_goes_on(engine: ReferenceEngine, sequence: ReferenceSequence, ids: Sequence[int]) -> None:
    """The sequence holds the ids, and answers, drafts and ends as a fresh one."""
    assert_same(sequence.save(), fresh(engine, ids))
    if engine.draft_source is not None:
        with opened(engine, 1) as [twin]:
            twin.load(fresh(engine, ids))
            asks = [Ask(sequence=one, last=9, n=3) for one in (sequence, twin)]
            assert len(set(engine.draft_source.propose(asks))) == 1
    [rows] = engine.run([Span(sequence=sequence, ids=[3])])
    np.testing.assert_array_equal(rows.logits(0), whole(engine, [*ids, 3])[-1])
    assert_same(sequence.save(), fresh(engine, [*ids, 3]))


def inputs(n: int, seed: int = 0) -> list[int]:
    """`n` ids of any model."""
    return [int(token) for token in np.random.default_rng(seed).integers(0, 365, n)]


@given(cuts=st.lists(st.integers(1, 13), min_size=1, max_size=6))
@settings(max_examples=10, deadline=None)
def test_cutting_a_prompt_changes_no_bit_of_the_state(engine: ReferenceEngine, cuts: list[int]) -> None:
    ids, at = inputs(33), 0
    with opened(engine, 1) as [sequence]:
        for cut in [*cuts, len(ids)]:
            if part := ids[at : at + cut]:
                engine.run([Span(sequence=sequence, ids=part)])
            at += cut
        assert_goes_on(engine, sequence, ids)


# Which of three sequences are in a call, in which order, and how many inputs each has there.
calls = st.permutations(range(3)).flatmap(
    lambda order: st.tuples(*[st.tuples(st.just(at), st.integers(1, 8)) for at in order])
)


@given(seed=st.integers(0, 1000), plan=st.lists(calls, min_size=1, max_size=3))
@settings(max_examples=15, deadline=None)
def test_company_changes_no_bit_of_the_state(
    engine: ReferenceEngine, seed: int, plan: list[tuple[tuple[int, int], ...]]
) -> None:
    texts: list[list[int]] = [[], [], []]
    with opened(engine, 3) as sequences:
        for number, call in enumerate(plan):
            spans = []
            for at, n in call:
                ids = inputs(n, seed + 3 * number + at)
                texts[at] += ids
                spans.append(Span(sequence=sequences[at], ids=ids))
            engine.run(spans)
        for sequence, ids in zip(sequences, texts, strict=True):
            assert_same(sequence.save(), fresh(engine, ids))


@given(
    before=st.integers(0, 7),
    sure=st.integers(0, 7),
    trial=st.integers(1, 7),
    kept=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=2),
)
@settings(max_examples=15, deadline=None)
def test_a_trial_over_several_passes_keeps_any_number(
    engine: ReferenceEngine, before: int, sure: int, trial: int, kept: list[tuple[int, int]]
) -> None:
    """Beside another sequence's trial, of which another number is kept; and again, so that lanes are used again."""
    texts = [inputs(before, 1), inputs(2, 2)]
    with opened(engine, 2) as sequences:
        for sequence, ids in zip(sequences, texts, strict=True):
            if ids:
                engine.run([Span(sequence=sequence, ids=ids)])
        for turn, numbers in enumerate(kept):
            proposals = [inputs(sure + trial, 3 + turn), inputs(1 + trial, 5 + turn)]
            spans = zip(sequences, proposals, strict=True)
            engine.run([Span(sequence=sequence, ids=ids, trial=trial) for sequence, ids in spans])
            for at, (sequence, ids, number) in enumerate(zip(sequences, proposals, numbers, strict=True)):
                sequence.commit(min(number, trial))
                texts[at] += ids[: len(ids) - trial + min(number, trial)]
                assert sequence.ids == tuple(texts[at])
                assert_same(sequence.save(), fresh(engine, texts[at]))
        for sequence, ids in zip(sequences, texts, strict=True):
            assert_goes_on(engine, sequence, ids)


@pytest.mark.parametrize("n", [0, 1, 19, 20, 21])
def test_keep_keeps_all_or_nothing(engine: ReferenceEngine, n: int) -> None:
    ids = inputs(20)
    with opened(engine, 1) as [sequence]:
        engine.run([Span(sequence=sequence, ids=ids)])
        assert sequence.keep(n) == sequence.n_past == (20 if n >= 20 else 0)
        assert_goes_on(engine, sequence, ids if n >= 20 else [])


def test_keep_after_a_trial_that_was_taken_back(engine: ReferenceEngine) -> None:
    with opened(engine, 1) as [sequence]:
        engine.run([Span(sequence=sequence, ids=[*inputs(6), 1, 2], trial=2)])
        sequence.commit(0)
        assert sequence.keep(6) == 6
        assert sequence.keep(5) == 0
        assert_goes_on(engine, sequence, [])


def test_a_place_that_was_used_is_as_new(engine: ReferenceEngine) -> None:
    for n in (0, 9):
        with opened(engine, 1) as [sequence]:
            assert_same(sequence.save(), fresh(engine, []))
            engine.run([Span(sequence=sequence, ids=inputs(n + 8, n), trial=3)])


def test_a_saved_sequence_goes_on_in_a_newly_opened_engine(engine: ReferenceEngine) -> None:
    saved = fresh(engine, inputs(17))
    other = open_engine(fixture(NAMES[engine.options.draft]), draft=engine.options.draft, **OPTIONS)
    sequence = other.sequence()
    other.run([Span(sequence=sequence, ids=inputs(30, 1))])
    sequence.load(saved)
    assert_goes_on(other, sequence, inputs(17))


def test_a_saved_sequence_that_does_not_fit_is_refused_and_changes_nothing(engine: ReferenceEngine) -> None:
    saved = fresh(engine, inputs(9, 4))
    recurrent = next(name for name in saved.arrays if name.endswith("rule"))
    arrays = dict(saved.arrays)
    with opened(engine, 1) as [sequence]:
        engine.run([Span(sequence=sequence, ids=inputs(6))])
        for wrong in (
            {**arrays, recurrent: arrays[recurrent][1:]},
            {**arrays, recurrent: arrays[recurrent].astype(np.float64)},
            {name: array for name, array in arrays.items() if name != recurrent},
        ):
            with pytest.raises(EngineError, match=recurrent):
                sequence.load(dataclasses.replace(saved, arrays=wrong))
        with pytest.raises(EngineError, match="does not fit"):
            sequence.load(dataclasses.replace(saved, engine="another"))
        assert_goes_on(engine, sequence, inputs(6))


def test_a_draft_layer_changes_no_row_and_makes_another_state() -> None:
    plain, drafting = (open_engine(fixture(NAMES[True]), draft=draft, **OPTIONS) for draft in (False, True))
    np.testing.assert_array_equal(whole(plain, inputs(9)), whole(drafting, inputs(9)))
    with pytest.raises(EngineError, match="does not fit"):
        drafting.sequence().load(fresh(plain, inputs(9)))


class StoppedError(Exception):
    """A sink of taps will have no more."""


@given(share=st.floats(0, 1, exclude_max=True), trial=st.integers(0, 5))
@settings(max_examples=25, deadline=None)
def test_a_run_that_fails_on_the_way_changes_nothing(engine: ReferenceEngine, share: float, trial: int) -> None:
    """Twelve inputs of one sequence and one of another are three passes; a sink gives up in any of them."""
    texts, taps = [inputs(8, 1), inputs(3, 2)], []
    with opened(engine, 2) as twins:
        engine.run([Span(sequence=twins[0], ids=[5]), Span(sequence=twins[1], ids=inputs(12, 3))], taps=taps.append)
    left = int(share * len(taps))

    def sink(_tap: Tap) -> None:
        nonlocal left
        if left == 0:
            raise StoppedError
        left -= 1

    with opened(engine, 2) as sequences:
        for sequence, ids in zip(sequences, texts, strict=True):
            engine.run([Span(sequence=sequence, ids=ids)])
        spans = [Span(sequence=sequences[1], ids=[5]), Span(sequence=sequences[0], ids=inputs(12, 3), trial=trial)]
        with pytest.raises(StoppedError):
            engine.run(spans, taps=sink)
        for sequence, ids in zip(sequences, texts, strict=True):
            assert_goes_on(engine, sequence, ids)


def test_memory_for_trials_is_touched_by_trials_alone() -> None:
    engine = open_engine(fixture(NAMES[False]), **OPTIONS)
    sequence = engine.sequence()
    states = engine._pool.arrays[1]["rule"][sequence.slot]
    for n in (7, 1, 1, 4):
        engine.run([Span(sequence=sequence, ids=inputs(n, n))])
    assert [bool(lane.any()) for lane in states] == [True, True, *[False] * 7]
    engine.run([Span(sequence=sequence, ids=[1, 2, 3], trial=2)])
    assert [bool(lane.any()) for lane in states] == [True, True, True, True, *[False] * 5]
