"""The reference engine in `ggml-fa` and `ggml-fa-rows` numerics: engine laws, and recordings of the default server."""

from __future__ import annotations

import numpy as np
import pytest

from bloomery.conformance.cases import Distribution
from bloomery.conformance.compare import row_distance
from bloomery.conformance.engines.recorded_checks import check_set
from bloomery.conformance.plan import PROMPT_IDS
from bloomery.conformance.recording import load_set
from bloomery.interface.engine import Span
from bloomery.reference.ggml_fa_ops import GgmlFaRowsOps
from bloomery.reference.ggml_ops import GgmlOps
from tests.reference.test_engine import prompt, whole
from tests.reference.test_ggml_engine import open_engine

DEFAULT = [
    f"{shape}-{recipe}.default"
    for shape in ("qwen3-a", "qwen3moe-a", "gemma3-a")
    for recipe in ("f32", "f16", "q8_0", "q4km")
]


@pytest.mark.parametrize("numerics", ["ggml-fa", "ggml-fa-rows"])
@pytest.mark.parametrize("model", ["qwen3-a-q8_0", "gemma3-a-f32"])
def test_neither_cutting_nor_company_nor_passes_change_a_bit(model: str, numerics: str) -> None:
    engine, in_small_passes = open_engine(model, numerics), open_engine(model, numerics, n_ubatch=5)
    ids = prompt(engine, 30)
    expected = whole(engine, ids)
    np.testing.assert_array_equal(whole(in_small_passes, ids), expected)
    first, second = engine.sequence(), engine.sequence()
    at = 0
    for cut in (1, 9, 1, 19):
        spans = [Span(sequence=first, ids=ids[at : at + cut]), Span(sequence=second, ids=prompt(engine, 1, at))]
        at += cut
        np.testing.assert_array_equal(engine.run(spans)[0].logits(0), expected[at - 1])


@pytest.mark.parametrize("name", DEFAULT)
def test_rows_numerics_are_inside_the_bands_of_default_recordings(name: str) -> None:
    report = check_set(name, engine="reference", numerics="ggml-fa-rows")
    assert report.passed, report


@pytest.mark.parametrize("name", ["qwen3-a-f32.default", "qwen3-a-q8_0.default"])
def test_other_numerics_are_outside_those_bands(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were sums of attention not in half precision, the bands would notice."""
    monkeypatch.setattr(GgmlFaRowsOps, "attention", GgmlOps.attention)
    assert not check_set(name, engine="reference", numerics="ggml-fa-rows").passed


@pytest.mark.parametrize("model", ["qwen3-a-f32", "qwen3-a-q8_0", "qwen3-a-q4km", "qwen3moe-a-f32", "qwen3moe-a-q4km"])
def test_a_pass_of_64_is_followed_by_the_other_numerics(model: str) -> None:
    """The recorded rows after 64 ids are of one pass: `ggml-fa` is half as far from them as `ggml`, or nearer.

    (Where a model has windows or carries state, llama-server keeps a checkpoint before a prompt's last ids, and
    computes those in a pass of their own.)
    """
    recording = load_set(f"{model}.default")
    medians = {}
    for numerics in ("ggml", "ggml-fa", "ggml-fa-rows"):
        engine = open_engine(model, numerics)
        distances = []
        for case in recording.cases(Distribution):
            assert case.lengths[-1] == PROMPT_IDS == 64
            [*_, recorded] = recording.distribution(case)
            sequence = engine.sequence()
            [rows] = engine.run([Span(sequence=sequence, ids=case.ids)])
            sequence.release()
            distances.append(row_distance(recorded, rows.logits(0)).top)
        medians[numerics] = np.median(distances)
    assert medians["ggml-fa"] < 0.5 * min(medians["ggml"], medians["ggml-fa-rows"]), medians
