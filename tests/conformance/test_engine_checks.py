"""The checks are checked: a right engine passes, and every planted fault is found by the check that should find it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from bloomery.conformance.bands import BANDS, NoBandError, band_of
from bloomery.conformance.cases import Greedy, Seeded
from bloomery.conformance.compare import Choices, choices, log_softmax, outside, profile, row_distance
from bloomery.conformance.engines.recorded_checks import EngineReport, check_engine, check_set, sampling_params
from bloomery.conformance.fixtures import fixture
from bloomery.conformance.recording import RECORDINGS, RecordedRow, RecordingSet, load_set
from tests.conformance.forward64 import Forward64
from tests.conformance.stand_in import RowFault, StandInEngine, no_fault

Floats = npt.NDArray[np.float32]

SET = "chain-branch.strict"
EOG = (378, 376)


@pytest.fixture(scope="module")
def forward() -> Forward64:
    return Forward64(fixture("chain-branch"))


@pytest.fixture(scope="module")
def few() -> RecordingSet:
    """The recorded set with few of its draws, because the stand-in is slow."""
    draws = {"default, seed 42", "all penalties, seed 42"}
    return load_set(SET).only(lambda case: not isinstance(case, Seeded) or case.name in draws)


def report_of(forward: Forward64, few: RecordingSet, fault: RowFault = no_fault, forgets: bool = False) -> EngineReport:
    return check_engine(StandInEngine(forward, fault=fault, forgets=forgets), few, eog_ids=EOG)


def failed(report: EngineReport) -> set[str]:
    return {finding.check.split(" ")[0] for finding in report.findings if finding.wrong}


def test_a_right_engine_passes_every_check(forward: Forward64, few: RecordingSet) -> None:
    report = report_of(forward, few)
    assert report.passed, report
    assert [finding.check for finding in report.findings] == [
        "distributions",
        "greedy ids",
        "decoding greedy 0",
        "seeded ids",
    ]
    assert "passed" in str(report)


def nudged(logits: Floats, n_past: int) -> Floats:
    """One logit of one row, by a little more than the band."""
    if n_past == 21:
        logits[int(np.argsort(-logits)[3])] += 3e-4
    return logits


def tail_lost(logits: Floats, _n_past: int) -> Floats:
    """A token far down the list, out of sight of the best ten."""
    logits[int(np.argsort(-logits)[40])] += 0.01
    return logits


def not_a_number(logits: Floats, n_past: int) -> Floats:
    if n_past == 3:
        logits[5] = np.nan
    return logits


def tied_wrongly(logits: Floats, n_past: int) -> Floats:
    """The two best swapped, late in the text."""
    if n_past > 90:
        first, second = np.argsort(-logits)[:2]
        logits[[first, second]] = logits[[second, first]]
    return logits


def shifted_by_one(logits: Floats, _n_past: int) -> Floats:
    return np.roll(logits, 1)


def too_warm(logits: Floats, _n_past: int) -> Floats:
    return logits * np.float32(0.999)


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (nudged, {"distributions"}),
        (tail_lost, {"distributions"}),
        (not_a_number, {"distributions"}),
        (tied_wrongly, {"greedy", "decoding"}),
        (shifted_by_one, {"distributions", "greedy", "decoding", "seeded"}),
        (too_warm, {"distributions"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_fault_in_rows_is_found(forward: Forward64, few: RecordingSet, fault: RowFault, found: set[str]) -> None:
    report = report_of(forward, few, fault)
    assert not report.passed
    assert found <= failed(report), report
    assert "FAILED" in str(report)


def test_a_sequence_that_forgets_is_found_by_decoding_alone() -> None:
    """On a model with attention: the state between passes is wrong, every single pass is right."""
    one = load_set("qwen3-b-f32.strict").only(lambda case: isinstance(case, Greedy) and case.name == "greedy 0")
    report = check_engine(StandInEngine(Forward64(fixture("qwen3-b-f32")), forgets=True), one)
    assert failed(report) == {"decoding"}, report


def test_a_sampler_fault_is_found_by_seeded_ids_alone(
    forward: Forward64, few: RecordingSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bloomery.interface.sampling.rng import MersenneTwister

    right: Callable[[MersenneTwister], float] = MersenneTwister.uniform
    monkeypatch.setattr(MersenneTwister, "uniform", lambda self: 1 - right(self))
    report = report_of(forward, few)
    assert failed(report) == {"seeded"}, report


def test_nothing_checked_is_not_a_pass(forward: Forward64, few: RecordingSet) -> None:
    assert not check_engine(StandInEngine(forward), few.only(lambda _: False)).passed


def test_a_request_for_a_sampler_that_is_not_offered_is_skipped_by_name(forward: Forward64) -> None:
    report = check_engine(StandInEngine(forward), load_set(SET).only(lambda case: case.name == "xtc, seed 1"))
    assert not report.passed
    assert [finding.skipped for finding in report.findings] == ["samplers that are not offered: xtc, seed 1"]


def test_sampling_fields_are_read_as_the_server_reads_them() -> None:
    params = sampling_params({"logit_bias": [[65, 2.5], [66, False]], "seed": 3, "n_predict": 5})
    assert params is not None
    assert params.logit_bias == {65: 2.5, 66: -np.inf}
    assert params.seed == 3


def test_a_model_of_another_build_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / SET
    folder.mkdir()
    source = RECORDINGS / SET
    for name in ("cases.jsonl", "arrays.npz"):
        (folder / name).write_bytes((source / name).read_bytes())
    manifest = (source / "manifest.json").read_text()
    sha256 = load_set(SET).manifest.model_sha256
    (folder / "manifest.json").write_text(manifest.replace(sha256, "0" * 64))
    with pytest.raises(RuntimeError, match=r"chain-branch\.strict was recorded of another chain-branch"):
        check_set(SET, recordings=tmp_path)


def test_every_band_says_why_and_bounds_something() -> None:
    for key, band in BANDS.items():
        assert band.why, key
        assert any(bound is not None for bound in (band.p50, band.p90, band.p99, band.most, band.whole)), key
        assert band.sure > 0, key
        assert 0 <= band.slips <= 0.03, key
        assert 0 <= band.outliers <= 0.04, key


def test_an_unknown_combination_has_no_band() -> None:
    with pytest.raises(NoBandError, match="F32/strict/fast; there are F32/strict/exact"):
        band_of("F32", "strict", "fast")


def test_distance_of_a_row_to_itself_is_rounding() -> None:
    logits = np.array([3, 1, 2, -5], np.float32)
    exact = log_softmax(logits)
    order = np.argsort(-exact)
    recorded = RecordedRow(order, exact[order].astype(np.float32))
    distance = row_distance(recorded, logits)
    assert distance.whole < 1e-6
    assert distance.chosen == distance.wanted == 0
    assert distance.lead == pytest.approx(1, abs=1e-6)
    # A constant added to all logits changes nothing.
    assert row_distance(recorded, logits + 7).whole < 1e-6


def test_profiles_do_not_interpolate_towards_infinity() -> None:
    recorded = RecordedRow(np.array([0, 1]), np.log(np.array([0.75, 0.25], np.float32)))
    right = np.log(np.array([0.75, 0.25], np.float32))
    rows = [row_distance(recorded, right)] * 9 + [row_distance(recorded, right * np.float32(np.nan))]
    measured = profile(rows)
    assert measured.p50 < 1e-6
    assert measured.p99 == measured.most == np.inf
    assert measured.outliers == 0.1
    assert any("most is inf" in sentence for sentence in outside(measured, band_of("F32", "strict", "exact")))


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ((1, 2, 3), Choices(steps=3, flips=0, slips=0, prefix=3, sure_prefix=1)),
        ((1, 9, 3), Choices(steps=3, flips=1, slips=0, prefix=1, sure_prefix=1)),
        ((9, 2, 9), Choices(steps=3, flips=2, slips=2, prefix=0, sure_prefix=1)),
    ],
)
def test_choices_count_flips_and_slips(chosen: tuple[int, ...], expected: Choices) -> None:
    leads = np.array([0.5, 0.001, 0.5], np.float32)
    assert choices((1, 2, 3), chosen, leads, band_of("F32", "strict", "exact")) == expected
