"""The reference engine on Mamba-2 blocks, with attention and experts between them: no cut, no company, no trial that
was taken back and no save shows in a bit, and a state that cannot be cut back says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.conformance.fixtures import fixture
from bloomery.interface.engine import Span, Tap
from bloomery.reference.engine import PROVIDER, ReferenceEngine
from bloomery.reference.ops import Floats
from bloomery.reference.sequence import ReferenceSequence
from bloomery.reference.state import StatePool
from tests.reference.test_engine import open_engine

N = 40
IDS, OTHERS = (tuple(int(i) for i in np.random.default_rng(seed).integers(0, 352, N)) for seed in (0, 1))


@pytest.fixture(scope="module", params=["nemotron-b-f32", "nemotronmoe-b-q8_0"])
def engine(request: pytest.FixtureRequest) -> Iterator[ReferenceEngine]:
    engine = open_engine(fixture(request.param), n_ctx=2 * N, n_trial=5)
    yield engine
    engine.close()


def new(engine: ReferenceEngine, stack: ExitStack) -> ReferenceSequence:
    """A sequence that is given back when the stack closes."""
    sequence = engine.sequence()
    stack.callback(sequence.release)
    return sequence


def read(engine: ReferenceEngine, sequence: ReferenceSequence, ids: tuple[int, ...]) -> Floats:
    """The logits of each id, all in one span."""
    [rows] = engine.run([Span(sequence=sequence, ids=ids, wanted=range(len(ids)))])
    return np.stack([rows.logits(i) for i in range(len(ids))])


@pytest.fixture(scope="module")
def expected(engine: ReferenceEngine) -> Floats:
    """The logits of each of IDS, on a sequence that saw them in one call."""
    with ExitStack() as stack:
        return read(engine, new(engine, stack), IDS)


@given(cuts=st.lists(st.integers(1, 20), max_size=8))
@settings(max_examples=8, deadline=None)
def test_a_prompt_cut_anywhere(engine: ReferenceEngine, expected: Floats, cuts: list[int]) -> None:
    ends = [end for end in np.cumsum(cuts).tolist() if end < N]
    with ExitStack() as stack:
        sequence = new(engine, stack)
        parts = [IDS[start:end] for start, end in zip([0, *ends], [*ends, N], strict=True)]
        np.testing.assert_array_equal(np.concatenate([read(engine, sequence, part) for part in parts]), expected)


@given(data=st.data())
@settings(max_examples=4, deadline=None)
def test_three_sequences_in_any_company(engine: ReferenceEngine, expected: Floats, data: st.DataObject) -> None:
    """Three sequences of the same ids, each at its own pace and in another order every call."""
    with ExitStack() as stack:
        sequences = [new(engine, stack) for _ in range(3)]
        got: list[list[Floats]] = [[], [], []]
        while behind := [i for i in range(3) if sequences[i].n_past < N]:
            called = data.draw(st.permutations(behind))[: data.draw(st.integers(1, 3))]
            parts = [IDS[sequences[i].n_past :][: data.draw(st.integers(1, 25))] for i in called]
            spans = [
                Span(sequence=sequences[i], ids=ids, wanted=range(len(ids)))
                for i, ids in zip(called, parts, strict=True)
            ]
            for i, rows in zip(called, engine.run(spans), strict=True):
                got[i] += [rows.logits(row) for row in range(len(rows))]
    for rows_of_one in got:
        np.testing.assert_array_equal(np.stack(rows_of_one), expected)


@pytest.mark.parametrize("trial", [1, 5])
@pytest.mark.parametrize("before", [0, 1, 14])
def test_every_part_of_a_trial_that_is_kept(engine: ReferenceEngine, expected: Floats, before: int, trial: int) -> None:
    """Inputs that are right up to the kept ones: what follows is what follows without the trial."""
    for kept in range(trial + 1):
        with ExitStack() as stack:
            sequence = new(engine, stack)
            ids = (*IDS[: before + kept], *OTHERS[: trial - kept])
            engine.run([Span(sequence=sequence, ids=ids, trial=trial)])
            sequence.commit(kept)
            assert sequence.ids == IDS[: before + kept]
            got = read(engine, sequence, IDS[before + kept : before + kept + 3])
        np.testing.assert_array_equal(got, expected[before + kept : before + kept + 3])


@given(rounds=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), min_size=1, max_size=6))
@settings(max_examples=8, deadline=None)
def test_trial_after_trial(engine: ReferenceEngine, expected: Floats, rounds: list[tuple[int, int]]) -> None:
    """As drafts are verified: one sure input, then guesses, of which the first few are right."""
    with ExitStack() as stack:
        sequence = new(engine, stack)
        for trial, right in rounds:
            kept, at = min(trial, right), sequence.n_past
            ids = (*IDS[at : at + 1 + kept], *OTHERS[: trial - kept])
            engine.run([Span(sequence=sequence, ids=ids, trial=trial)])
            sequence.commit(kept)
        at = sequence.n_past
        np.testing.assert_array_equal(read(engine, sequence, IDS[at : at + 1]), expected[at : at + 1])


@given(n=st.integers(0, N - 1))
@settings(max_examples=8, deadline=None)
def test_saved_and_loaded(engine: ReferenceEngine, expected: Floats, n: int) -> None:
    with ExitStack() as stack:
        first, second = new(engine, stack), new(engine, stack)
        if n:
            read(engine, first, IDS[:n])
        saved = first.save()
        read(engine, first, OTHERS[:3])
        read(engine, second, OTHERS[:7])
        second.load(saved)
        assert second.ids == IDS[:n]
        np.testing.assert_array_equal(read(engine, second, IDS[n : n + 4]), expected[n : n + 4])


@given(n=st.integers(0, 25))
@settings(max_examples=8, deadline=None)
def test_all_or_nothing_is_kept(engine: ReferenceEngine, expected: Floats, n: int) -> None:
    """The whole sequence goes on where it was; a shorter prefix is nothing, and then the ids begin anew."""
    held = 20
    with ExitStack() as stack:
        sequence = new(engine, stack)
        read(engine, sequence, IDS[:held])
        kept = sequence.keep(n)
        assert kept == sequence.n_past == (held if n >= held else 0)
        np.testing.assert_array_equal(read(engine, sequence, IDS[kept : kept + 4]), expected[kept : kept + 4])


@pytest.mark.parametrize("n_trial", [1, 4])
def test_the_bytes_to_size_a_context_with_are_those_of_the_arrays(engine: ReferenceEngine, n_trial: int) -> None:
    spec = engine.spec
    pool = StatePool(spec, numerics="exact", n_sequences=3, n_ctx=50, n_trial=n_trial)
    held = sum(array.nbytes for arrays in pool.arrays for array in arrays.values())
    assert held == 3 * (50 * PROVIDER.bytes_per_cell(spec) + PROVIDER.bytes_per_sequence(spec, n_trial))
    assert PROVIDER.bytes_per_sequence(spec, n_trial) > 0


def test_taps_name_every_output_of_a_block_once(engine: ReferenceEngine) -> None:
    taps: list[Tap] = []
    with ExitStack() as stack:
        engine.run([Span(sequence=new(engine, stack), ids=IDS[:3])], taps=taps.append)
    assert len({(tap.layer, tap.label) for tap in taps}) == len(taps)
    first = next(i for i, layer in enumerate(engine.spec.layers) if type(layer.mixer).__name__ == "Mamba2")
    assert [tap.label for tap in taps if tap.layer == first and tap.op not in {"split", "split_heads"}] == [
        f"blk.{first}.attn_norm", f"blk.{first}.ssm_in", f"blk.{first}.ssm_conv1d", "ssm_scan.0", "merge_heads.0",
        "swiglu.0", f"blk.{first}.ssm_norm", "merge_heads.1", f"blk.{first}.ssm_out", "add.0",
    ]  # fmt: skip
