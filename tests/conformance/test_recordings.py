"""The reference engine against every recorded set, and both against an independent float64 forward pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from bloomery.conformance.cases import Distribution, Greedy
from bloomery.conformance.engines.recorded_checks import check_set
from bloomery.conformance.fixtures import fixture, gemma3
from bloomery.conformance.plan import all_plans
from bloomery.conformance.recording import load_set
from bloomery.interface import registry
from bloomery.interface.files.quants.activations import codes_and_scales
from bloomery.interface.spec import Gqa, ModelDescription
from bloomery.reference import ggml_ops
from bloomery.reference.ops import NumpyOps
from tests.conformance.forward64 import Forward64
from tests.conformance.forward64_gemma3 import Gemma3Forward64, half_precision_gelu
from tests.conformance.forward64_mimo2 import Mimo2Forward64
from tests.conformance.forward64_minimax_m3 import MinimaxM3Forward64
from tests.conformance.forward64_nemotron import NemotronForward64
from tests.conformance.forward64_qwen35 import Qwen35Forward64

Floats = npt.NDArray[np.float32]

NUMBERS = [name for name, plan in all_plans().items() if plan.numbers is not None]
F32_STRICT = [name for name in NUMBERS if name.endswith("-f32.strict")]
# The sets of models whose gates llama.cpp looks up in a table of half-precision numbers.
TABLED = [f"{shape}-f32.strict" for shape in gemma3.TABLED]

# How near two experts may be (log-ratio of the last taken to the first left out) before rounding could swap them: a
# thousand times float32's rounding of a router's logit. No recorded F32 position is that near, so none is put apart.
NEAR_TIE = 1e-4


@pytest.mark.parametrize("name", NUMBERS)
def test_the_reference_engine_is_inside_the_bands(name: str) -> None:
    report = check_set(name, engine="reference")
    assert report.passed, report


@pytest.mark.parametrize("name", [name for name in NUMBERS if name.endswith(".strict")])
def test_ggml_numerics_are_inside_the_bands_of_strict_recordings(name: str) -> None:
    report = check_set(name, engine="reference", numerics="ggml")
    assert report.passed, report
    assert report.engine == "reference (ggml)"


def scale_kept_in_float32(values: Floats, name: str) -> tuple[npt.NDArray[np.int8], Floats]:
    codes, scales = codes_and_scales(values, name)
    if name != "Q8_K":
        scales = np.abs(values).reshape(*scales.shape, -1).max(axis=-1) / np.float32(127)
    return codes, scales


def one_code_too_high(values: Floats, name: str) -> tuple[npt.NDArray[np.int8], Floats]:
    codes, scales = codes_and_scales(values, name)
    codes[..., 17] += codes[..., 17] < 127
    return codes, scales


def cut_off_towards_zero(values: Floats, name: str) -> tuple[npt.NDArray[np.int8], Floats]:
    """Codes cut off towards zero in place of the nearest."""
    _, scales = codes_and_scales(values, name)
    by_block = values.reshape(*scales.shape, -1)
    cut = np.trunc(by_block / np.where(scales == 0, np.float32(1), scales)[..., None])
    return np.clip(cut, -127, 127).astype(np.int8).reshape(values.shape), scales


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("qwen3-a-q8_0.strict", scale_kept_in_float32),
        ("qwen3-a-q8_0.strict", one_code_too_high),
        ("qwen3moe-a-q4km.strict", one_code_too_high),
        ("qwen3moe-a-q4km.strict", cut_off_towards_zero),
    ],
)
def test_a_fault_in_the_rounding_of_activations_is_found(
    name: str, fault: Callable[[Floats, str], tuple[npt.NDArray[np.int8], Floats]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ggml_ops, "codes_and_scales", fault)
    report = check_set(name, engine="reference", numerics="ggml")
    assert "p50" in str([finding.wrong for finding in report.findings]), report


@pytest.mark.parametrize("name", ["qwen3-a-q8_0.strict", "qwen3moe-a-q4km.strict"])
def test_exact_numerics_are_outside_the_bands_of_ggml(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were activations not rounded at all, the bands would notice."""
    monkeypatch.setattr(ggml_ops.GgmlOps, "_product", NumpyOps._product)
    assert not check_set(name, engine="reference", numerics="ggml").passed


def with_mixer(description: ModelDescription, change: Callable[[Gqa], Gqa]) -> ModelDescription:
    layers = tuple(replace(layer, mixer=change(layer.mixer)) for layer in description.spec.layers)
    return replace(description, spec=replace(description.spec, layers=layers))


def window_wider_by(n: int) -> Callable[[Gqa], Gqa]:
    return lambda mixer: mixer if mixer.window is None else replace(mixer, window=mixer.window + n)


@pytest.mark.parametrize(
    "fault",
    [
        window_wider_by(1),
        window_wider_by(-1),
        lambda mixer: replace(mixer, window=None),
        lambda mixer: replace(mixer, window=11),
        lambda mixer: replace(mixer, rope=replace(mixer.rope, base=2000.0)),
        lambda mixer: replace(mixer, rope=replace(mixer.rope, freq_scale=1.0)),
        lambda mixer: replace(mixer, rope=replace(mixer.rope, freq_scale=0.125)),
        lambda mixer: replace(mixer, scale=1 / math.sqrt(96 / 4)),
    ],
)
def test_a_fault_in_reading_gemma3_is_found(fault: Callable[[Gqa], Gqa], monkeypatch: pytest.MonkeyPatch) -> None:
    read = registry.family("gemma3")
    monkeypatch.setattr(registry, "family", lambda _name: lambda file: with_mixer(read(file), fault))
    assert not check_set("gemma3-b-f32.strict", engine="reference").passed


def forward_of(model: str) -> Forward64:
    own = {
        "gemma3": Gemma3Forward64,
        "mimo2": Mimo2Forward64,
        "minimaxm3": MinimaxM3Forward64,
        "nemotron": NemotronForward64,
        "nemotronmoe": NemotronForward64,
        "qwen35": Qwen35Forward64,
        "qwen35moe": Qwen35Forward64,
    }
    return own.get(model.partition("-")[0], Forward64)(fixture(model))


@pytest.mark.parametrize("name", sorted({*F32_STRICT} - {*TABLED}))
def test_recordings_agree_with_the_equations(name: str) -> None:
    """Every recorded F32 distribution within 1e-4 over the whole vocabulary, every greedy id equal."""
    recorded = load_set(name)
    forward = forward_of(recorded.manifest.model)
    nearest = math.inf
    for case in recorded.cases(Distribution):
        outcome = forward.run(list(case.ids))
        nearest = min(nearest, outcome.router_gaps.min(initial=math.inf))
        for length, row in zip(case.lengths, recorded.distribution(case), strict=True):
            assert len(row.ids) == forward.n_vocab
            difference = np.abs(outcome.logprobs[length - 1][row.ids] - row.logprobs).max()
            assert difference < 1e-4, f"{case.name} after {length} ids"
    for greedy in recorded.cases(Greedy):
        outcome = forward.run([*greedy.prompt, *greedy.ids[:-1]])
        nearest = min(nearest, outcome.router_gaps.min(initial=math.inf))
        assert outcome.logits[len(greedy.prompt) - 1 :].argmax(axis=-1).tolist() == list(greedy.ids)
    assert nearest > NEAR_TIE, f"two experts are {nearest:.2g} apart: choose other prompts or another seed"


@pytest.mark.parametrize("name", TABLED)
def test_recordings_of_looked_up_gates_agree_with_the_equations(name: str) -> None:
    """To the rounding of the table, and three times nearer with the table in the place of GELU."""
    recorded = load_set(name)
    forward, tabled = (Gemma3Forward64(fixture(recorded.manifest.model)) for _ in range(2))
    tabled.gelu_of = half_precision_gelu  # type: ignore[assignment]
    exact, looked_up = [], []
    for case in recorded.cases(Distribution):
        outcomes = forward.run(list(case.ids)), tabled.run(list(case.ids))
        for length, row in zip(case.lengths, recorded.distribution(case), strict=True):
            for found, outcome in zip((exact, looked_up), outcomes, strict=True):
                found.append(np.abs(outcome.logprobs[length - 1][row.ids] - row.logprobs).max())
    assert max(exact) < 2e-2 and max(looked_up) < 1e-2
    assert np.median(looked_up) < np.median(exact) / 3
    for greedy in recorded.cases(Greedy):
        outcome = forward.run([*greedy.prompt, *greedy.ids[:-1]])
        chosen = outcome.logits[len(greedy.prompt) - 1 :].argmax(axis=-1)
        sure = recorded.margins(greedy) > 0.05
        assert (chosen == greedy.ids)[sure].all()


@pytest.mark.parametrize("name", F32_STRICT)
def test_distributions_are_peaked_enough_to_prove_something(name: str) -> None:
    """The best token leads by far more than noise almost everywhere, without all the probability, and varies."""
    recorded = load_set(name)
    rows = [row for case in recorded.cases(Distribution) for row in recorded.distribution(case)]
    leads = np.array([row.margin for row in rows])
    best = np.exp([float(row.logprobs[0]) for row in rows])
    assert np.percentile(leads, 1) > 0.01
    assert np.median(leads) > 0.5
    assert 0.3 < np.median(best) < 0.7
    assert len({int(row.ids[0]) for row in rows}) > len(rows) / 3
