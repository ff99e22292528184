"""The reference engine as a server drives it: chunks, company, trials, cuts, saved sequences, taps and refusals."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.conformance.fixtures import fixture
from bloomery.interface import registry
from bloomery.interface.engine import EngineError, EngineOptions, Span, Tap
from bloomery.interface.files.gguf import open_gguf
from bloomery.reference.engine import ReferenceEngine
from bloomery.reference.ops import Floats, NumpyOps

N_CTX = 48


def open_engine(path: Path, **options: object) -> ReferenceEngine:
    file = open_gguf(path)
    description = registry.family(file.get_str("general.architecture"))(file)
    chosen = {"n_ctx": N_CTX, "n_sequences": 4, "n_ubatch": 16} | options
    return ReferenceEngine(file, description, EngineOptions(**chosen))  # type: ignore[arg-type]


@pytest.fixture(
    scope="module",
    params=["qwen3-a-f32", "qwen3moe-a-f32", "qwen3moe-a-q4km", "gemma3-b-f32", "mimo2-b-f32", "minimaxm3-b-f32"],
)
def engine(request: pytest.FixtureRequest) -> Iterator[ReferenceEngine]:
    engine = open_engine(fixture(request.param))
    yield engine
    engine.close()


def prompt(engine: ReferenceEngine, n: int, seed: int = 0) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, engine.spec.n_vocab, n)]


def whole(engine: ReferenceEngine, ids: list[int]) -> npt.NDArray[np.float32]:
    """The logits of every position, from one sequence that saw all the ids in one call."""
    sequence = engine.sequence()
    try:
        rows = engine.run([Span(sequence=sequence, ids=ids, wanted=range(len(ids)))])[0]
        return np.stack([rows.logits(i) for i in range(len(ids))])
    finally:
        sequence.release()


@given(cuts=st.lists(st.integers(1, 20), min_size=1, max_size=8))
@settings(max_examples=15, deadline=None)
def test_cutting_a_prompt_changes_no_bit(engine: ReferenceEngine, cuts: list[int]) -> None:
    ids = prompt(engine, 40)
    expected = whole(engine, ids)
    sequence = engine.sequence()
    at = 0
    for cut in [*cuts, len(ids)]:
        part = ids[at : at + cut]
        if not part:
            break
        rows = engine.run([Span(sequence=sequence, ids=part, wanted=range(len(part)))])[0]
        for i in range(len(part)):
            np.testing.assert_array_equal(rows.logits(i), expected[at + i])
        at += len(part)
    sequence.release()


@given(seed=st.integers(0, 1000), lengths=st.lists(st.integers(1, 12), min_size=2, max_size=3))
@settings(max_examples=15, deadline=None)
def test_company_changes_no_bit(engine: ReferenceEngine, seed: int, lengths: list[int]) -> None:
    texts = [prompt(engine, n, seed + i) for i, n in enumerate(lengths)]
    alone = [whole(engine, ids)[-1] for ids in texts]
    sequences = [engine.sequence() for _ in texts]
    rows = engine.run([Span(sequence=s, ids=ids) for s, ids in zip(sequences, texts, strict=True)])
    for row, expected in zip(rows, alone, strict=True):
        np.testing.assert_array_equal(row.logits(0), expected)
    steps = engine.run([Span(sequence=s, ids=[7]) for s in sequences])
    for step, ids in zip(steps, texts, strict=True):
        np.testing.assert_array_equal(step.logits(0), whole(engine, [*ids, 7])[-1])
    for sequence in sequences:
        sequence.release()


@given(trial=st.integers(1, 6), data=st.data())
@settings(max_examples=15, deadline=None)
def test_what_a_trial_takes_back_never_was(engine: ReferenceEngine, trial: int, data: st.DataObject) -> None:
    kept = data.draw(st.integers(0, trial))
    ids = prompt(engine, 10)
    sequence = engine.sequence()
    engine.run([Span(sequence=sequence, ids=[*ids, *prompt(engine, trial, 9)], trial=trial)])
    sequence.commit(kept)
    stays = [*ids, *prompt(engine, trial, 9)[:kept]]
    assert sequence.ids == tuple(stays)
    after = engine.run([Span(sequence=sequence, ids=[3])])[0]
    np.testing.assert_array_equal(after.logits(0), whole(engine, [*stays, 3])[-1])
    sequence.release()


@given(n=st.integers(0, 30))
@settings(max_examples=10, deadline=None)
def test_keep_cuts_back_to_any_prefix(engine: ReferenceEngine, n: int) -> None:
    ids = prompt(engine, 20)
    sequence = engine.sequence()
    engine.run([Span(sequence=sequence, ids=ids)])
    assert sequence.keep(n) == min(n, 20) == sequence.n_past
    after = engine.run([Span(sequence=sequence, ids=[3])])[0]
    np.testing.assert_array_equal(after.logits(0), whole(engine, [*ids[:n], 3])[-1])
    sequence.release()


def test_a_saved_sequence_goes_on_as_if_it_never_stopped(engine: ReferenceEngine) -> None:
    ids = prompt(engine, 20)
    first = engine.sequence()
    engine.run([Span(sequence=first, ids=ids)])
    saved = first.save()
    engine.run([Span(sequence=first, ids=prompt(engine, 5, 2))])
    first.release()
    second = engine.sequence()
    engine.run([Span(sequence=second, ids=prompt(engine, 30, 3))])
    second.load(saved)
    assert second.ids == tuple(ids)
    after = engine.run([Span(sequence=second, ids=[3])])[0]
    np.testing.assert_array_equal(after.logits(0), whole(engine, [*ids, 3])[-1])
    wrong = dataclasses.replace(saved, arrays={**saved.arrays, "0.k": saved.arrays["0.k"][:-1]})
    for bad, why in [(dataclasses.replace(saved, engine="other"), "other"), (wrong, r"0\.k")]:
        with pytest.raises(EngineError, match=why):
            second.load(bad)
        assert second.ids == (*ids, 3)
    second.release()


def test_a_byte_budget_changes_no_bit() -> None:
    path = fixture("qwen3moe-a-q4km")
    starved, fed = open_engine(path, weight_budget=0), open_engine(path)
    ids = prompt(fed, 12)
    np.testing.assert_array_equal(whole(starved, ids), whole(fed, ids))


def test_best_is_the_largest_logits_lower_id_first(engine: ReferenceEngine) -> None:
    sequence = engine.sequence()
    rows = engine.run([Span(sequence=sequence, ids=prompt(engine, 4), wanted=[-1, 0])])[0]
    assert len(rows) == 2
    for row in range(2):
        ids, logits = rows.best(row, 5)
        ranked = sorted(range(engine.spec.n_vocab), key=lambda i, r=row: (-rows.logits(r)[i], i))[:5]
        assert ids.tolist() == ranked
        np.testing.assert_array_equal(logits, rows.logits(row)[ranked])
    sequence.release()


def test_taps_report_every_op_in_program_order(engine: ReferenceEngine) -> None:
    taps: list[Tap] = []
    sequence = engine.sequence()
    plain = whole(engine, [1, 2, 3])[-1]
    rows = engine.run([Span(sequence=sequence, ids=[1, 2, 3])], taps=taps.append)[0]
    sequence.release()
    np.testing.assert_array_equal(rows.logits(0), plain)
    assert (taps[0].layer, taps[0].op, taps[0].label) == (None, "embed", "token_embd")
    assert (taps[-1].layer, taps[-1].op, taps[-1].label) == (None, "linear", "output")
    np.testing.assert_array_equal(taps[-1].output[0], plain)
    first_layer = [tap.label for tap in taps if tap.layer == 0]
    assert first_layer[:3] == ["blk.0.attn_norm", "blk.0.attn_q", "split_heads.0"]
    assert first_layer.index("rope.0") < first_layer.index("rope.1") < first_layer.index("attention.0")
    assert len({(tap.layer, tap.label) for tap in taps}) == len(taps), "a label names one output of a layer"
    inner = [layer for layer in range(len(engine.spec.layers)) for tap in taps if tap.layer == layer]
    before = [None] * (1 if engine.spec.embedding_scale == 1.0 else 2)
    assert [tap.layer for tap in taps] == [*before, *inner, None, None, None]


def test_refusals_name_the_fault_and_change_nothing(engine: ReferenceEngine) -> None:
    ids = prompt(engine, 10)
    sequence, other = engine.sequence(), engine.sequence()
    engine.run([Span(sequence=sequence, ids=ids)])
    n_vocab = engine.spec.n_vocab
    cases: list[tuple[list[Span], str]] = [
        ([Span(sequence=sequence, ids=[])], "no inputs"),
        ([Span(sequence=sequence, ids=[n_vocab])], f"{n_vocab}"),
        ([Span(sequence=sequence, ids=[-1])], "-1"),
        ([Span(sequence=sequence, ids=[0] * N_CTX)], f"context of {N_CTX}"),
        ([Span(sequence=sequence, ids=[0]), Span(sequence=sequence, ids=[0])], "twice"),
        ([Span(sequence=sequence, ids=[0], wanted=[1])], "wanted row 1"),
        ([Span(sequence=sequence, ids=[0], trial=2)], "trial of 2"),
        ([Span(sequence=sequence, ids=[0]), Span(sequence=other, ids=[])], "no inputs"),
    ]
    for spans, why in cases:
        with pytest.raises(EngineError, match=why):
            engine.run(spans)
    with pytest.raises(EngineError, match="commit"):
        sequence.commit(0)
    with pytest.raises(EngineError, match="keep"):
        sequence.keep(-1)
    assert sequence.ids == tuple(ids)
    np.testing.assert_array_equal(
        engine.run([Span(sequence=sequence, ids=[3])])[0].logits(0), whole(engine, [*ids, 3])[-1]
    )
    engine.run([Span(sequence=sequence, ids=[1, 2], trial=1)])
    for action in (sequence.save, lambda: sequence.keep(1), lambda: engine.run([Span(sequence=sequence, ids=[1])])):
        with pytest.raises(EngineError, match="trial"):
            action()
    with pytest.raises(EngineError, match=r"0\.\.1"):
        sequence.commit(2)
    sequence.commit(1)
    rest = [engine.sequence(), engine.sequence()]
    with pytest.raises(EngineError, match="all 4 sequences"):
        engine.sequence()
    for one in (sequence, other, *rest):
        one.release()
        one.release()
    with pytest.raises(EngineError, match="released"):
        engine.run([Span(sequence=sequence, ids=[1])])


def test_an_unknown_numerics_is_refused() -> None:
    file = open_gguf(fixture("qwen3-a-f32"))
    with pytest.raises(EngineError, match=r"wild.*installed: exact, ggml, ggml-fa, ggml-fa-rows"):
        ReferenceEngine(file, registry.family("qwen3")(file), EngineOptions(n_ctx=8, numerics="wild"))


def test_an_op_set_of_somebody_else_runs_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Doubling(NumpyOps):
        def swiglu(self, gate: Floats, up: Floats) -> Floats:
            return 2 * super().swiglu(gate, up)

    found = registry.op_set
    monkeypatch.setattr(registry, "op_set", lambda name: Doubling if name == "doubling" else found(name))
    outputs: dict[str, list[Tap]] = {"exact": [], "doubling": []}
    for numerics, taps in outputs.items():
        engine = open_engine(fixture("qwen3-a-f32"), numerics=numerics)
        engine.run([Span(sequence=engine.sequence(), ids=[1, 2])], taps=taps.append)
    first = next(
        mine.label
        for theirs, mine in zip(outputs["exact"], outputs["doubling"], strict=True)
        if not np.array_equal(theirs.output, mine.output)
    )
    assert first == "swiglu.0"


def test_a_closed_engine_and_a_released_sequence_say_so() -> None:
    engine = open_engine(fixture("qwen3-a-f32"))
    sequence = engine.sequence()
    engine.run([Span(sequence=sequence, ids=np.array([1, 2]), trial=1)])  # type: ignore[arg-type]
    sequence.release()
    with pytest.raises(EngineError, match="commit: the sequence was released"):
        sequence.commit(1)
    other = engine.sequence()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.run([Span(sequence=other, ids=[1])])


def test_rows_cannot_be_written_to() -> None:
    engine = open_engine(fixture("qwen3-a-f32"))
    rows = engine.run([Span(sequence=engine.sequence(), ids=[1])])[0]
    with pytest.raises(ValueError, match="read-only"):
        rows.logits(0)[0] = 0
