"""The reference engine in `ggml` numerics obeys the laws it obeys in `exact`, and says everywhere which it is."""

from __future__ import annotations

import numpy as np
import pytest

from bloomery.conformance.fixtures import fixture
from bloomery.interface import registry
from bloomery.interface.engine import EngineError, EngineOptions, Span, Tap
from bloomery.interface.files.gguf import open_gguf
from bloomery.reference.engine import ReferenceEngine
from bloomery.reference.ggml_ops import GgmlOps
from bloomery.reference.ops import NumpyOps
from tests.reference.test_engine import prompt, whole


def open_engine(model: str, numerics: str, n_ubatch: int = 16) -> ReferenceEngine:
    file = open_gguf(fixture(model))
    description = registry.family(file.get_str("general.architecture"))(file)
    options = EngineOptions(n_ctx=64, n_sequences=4, n_ubatch=n_ubatch, numerics=numerics)
    return ReferenceEngine(file, description, options)


@pytest.mark.parametrize(
    "model", ["qwen3-a-q8_0", "qwen3moe-a-q4km", "qwen3moe-b-q8_0", "qwen3-a-f16", "gemma3-a-q4km"]
)
def test_neither_cutting_nor_company_nor_passes_change_a_bit(model: str) -> None:
    engine, in_small_passes = open_engine(model, "ggml"), open_engine(model, "ggml", n_ubatch=5)
    ids = prompt(engine, 40)
    expected = whole(engine, ids)
    np.testing.assert_array_equal(whole(in_small_passes, ids), expected)
    first, second = engine.sequence(), engine.sequence()
    at = 0
    for cut in (1, 7, 9, 1, 22):
        spans = [Span(sequence=first, ids=ids[at : at + cut]), Span(sequence=second, ids=prompt(engine, 1, at))]
        at += cut
        np.testing.assert_array_equal(engine.run(spans)[0].logits(0), expected[at - 1])


def test_a_small_weight_budget_changes_no_bit() -> None:
    file = open_gguf(fixture("qwen3moe-a-q4km"))
    description = registry.family("qwen3moe")(file)
    rows = []
    for budget in (0, 1 << 20, None):
        options = EngineOptions(n_ctx=64, numerics="ggml", weight_budget=budget)
        engine = ReferenceEngine(file, description, options)
        rows.append(whole(engine, prompt(engine, 12)))
    np.testing.assert_array_equal(rows[0], rows[1])
    np.testing.assert_array_equal(rows[0], rows[2])


@pytest.mark.parametrize("model", ["qwen3-a-f32", "qwen3moe-b-f32"])
def test_on_float32_weights_both_numerics_are_one_but_for_the_roundings_of_norms(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact, ggml = open_engine(model, "exact"), open_engine(model, "ggml")
    ids = prompt(exact, 20)
    expected, got = whole(exact, ids), whole(ggml, ids)
    assert 0 < np.abs(got - expected).max() < 1e-3
    monkeypatch.setattr(GgmlOps, "rms_norm", NumpyOps.rms_norm)
    np.testing.assert_array_equal(whole(ggml, ids), expected)


def test_taps_carry_the_same_names_in_both_numerics() -> None:
    labels: dict[str, list[tuple[int | None, str, str, tuple[int, ...]]]] = {"exact": [], "ggml": []}
    for numerics, seen in labels.items():
        engine = open_engine("qwen3moe-a-q4km", numerics)

        def sink(tap: Tap, seen: list[tuple[int | None, str, str, tuple[int, ...]]] = seen) -> None:
            seen.append((tap.layer, tap.op, tap.label, tap.output.shape))

        engine.run([Span(sequence=engine.sequence(), ids=prompt(engine, 5))], taps=sink)
    assert labels["ggml"] == labels["exact"]
    assert len(labels["ggml"]) > 30


def test_a_sequence_saved_in_one_numerics_is_refused_by_the_other() -> None:
    exact, ggml = open_engine("qwen3-a-q8_0", "exact"), open_engine("qwen3-a-q8_0", "ggml")
    assert (exact.options.numerics, ggml.options.numerics) == ("exact", "ggml")
    sequence = ggml.sequence()
    ggml.run([Span(sequence=sequence, ids=[1, 2, 3])])
    saved = sequence.save()
    assert "ggml" in saved.engine
    ggml.sequence().load(saved)
    with pytest.raises(EngineError, match=r"saved by .reference ggml .* does not fit .reference exact "):
        exact.sequence().load(saved)
