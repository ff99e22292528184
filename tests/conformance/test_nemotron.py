"""The reference engine beside the float64 equations of `nemotron_h`, on every row of prompts past several passes; and
faults in reading a file, which the recordings must notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from bloomery.conformance.engines.recorded_checks import check_set
from bloomery.conformance.fixtures import fixture, nemotron
from bloomery.conformance.recorder import random_prompt
from bloomery.interface import registry
from bloomery.interface.engine import Span
from bloomery.interface.files.gguf import GgufFile
from bloomery.interface.spec import FeedForward, Gqa, LayerSpec, Mamba2, Mixer, ModelDescription, Moe
from tests.conformance.forward64_nemotron import NemotronForward64
from tests.reference.test_engine import open_engine

N = 200
# Logits are near 10, of which float32 keeps 1e-6; measured 1e-5 to 3e-5.
BAND = 5e-5


@pytest.mark.parametrize("shape", nemotron.SHAPES)
def test_every_row_of_the_engine_agrees_with_the_equations(shape: str) -> None:
    path = fixture(f"{shape}-f32")
    ids = random_prompt(7, N)
    outcome = NemotronForward64(path).run(ids)
    assert outcome.router_gaps.min(initial=1.0) > 1e-5, "two experts are so near that a rounding may swap them"
    engine = open_engine(path, n_ctx=N, n_ubatch=64)
    [rows] = engine.run([Span(sequence=engine.sequence(), ids=ids, wanted=range(N))])
    logits = np.stack([rows.logits(i) for i in range(N)])
    engine.close()
    assert np.abs(logits - outcome.logits).max() < BAND


def with_mixer(change: Callable[[Mixer], Mixer]) -> Callable[[LayerSpec], LayerSpec]:
    return lambda layer: layer if layer.mixer is None else replace(layer, mixer=change(layer.mixer))


def with_experts(**changes: object) -> Callable[[LayerSpec], LayerSpec]:
    def changed(ffn: FeedForward | None) -> FeedForward | None:
        return replace(ffn, **changes) if isinstance(ffn, Moe) else ffn  # type: ignore[arg-type]

    return lambda layer: replace(layer, ffn=changed(layer.ffn))


def scaled(mixer: Mixer) -> Mixer:
    return replace(mixer, scale=mixer.scale * 1.1) if isinstance(mixer, Gqa) else mixer


def softer_norm(mixer: Mixer) -> Mixer:
    return replace(mixer, norm_eps=1e-3) if isinstance(mixer, Mamba2) else mixer


@pytest.mark.parametrize(
    "fault",
    [
        with_mixer(scaled),
        with_mixer(softer_norm),
        with_experts(score="softmax"),
        with_experts(normalised=False),
        with_experts(weights_scale=1.0),
        with_experts(n_expert_used=3),
    ],
)
def test_a_fault_in_reading_is_found(fault: Callable[[LayerSpec], LayerSpec], monkeypatch: pytest.MonkeyPatch) -> None:
    read = registry.family("nemotron_h_moe")

    def faulty(file: GgufFile) -> ModelDescription:
        description = read(file)
        return replace(description, spec=replace(description.spec, layers=tuple(map(fault, description.spec.layers))))

    monkeypatch.setattr(registry, "family", lambda _name: faulty)
    assert not check_set("nemotronmoe-b-f32.strict", engine="reference").passed
