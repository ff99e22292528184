"""`qwen35` and `qwen35moe` beside the equations: every row of the engine, long recordings, taps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bloomery.conformance.cases import Distribution, Greedy
from bloomery.conformance.engines.opening import EngineName, Model
from bloomery.conformance.engines.recorded_checks import check_set
from bloomery.conformance.fixtures import fixture, qwen35
from bloomery.conformance.recorder import random_prompt
from bloomery.conformance.recording import load_set
from bloomery.interface import registry
from bloomery.interface.engine import Engine, Span, Tap
from bloomery.interface.spec import DeltaRule, Gqa, LayerSpec, ModelDescription, Moe
from bloomery.reference import recurrent
from tests.conformance.forward64_qwen35 import Qwen35Forward64, of_text

# A thousand times float32's rounding of a router's logit.
NEAR_TIE = 1e-4


def opened(path: Path, **options: object) -> Engine:
    return Model(path).open(EngineName(engine="reference"), **({"n_ctx": 128} | options))


@pytest.mark.parametrize("name", qwen35.SHAPES)
def test_every_row_is_that_of_the_equations(name: str) -> None:
    path, ids = fixture(f"{name}-f32"), random_prompt(50)
    engine, outcome = opened(path), Qwen35Forward64(path).run(random_prompt(50))
    [rows] = engine.run([Span(sequence=engine.sequence(), ids=ids, wanted=range(len(ids)))])
    found = np.stack([rows.logits(row) for row in range(len(ids))])
    assert outcome.router_gaps.min(initial=1.0) > NEAR_TIE
    assert np.abs(found - outcome.logits).max() < 2e-5


def test_components_that_differ_are_seen_by_the_equations() -> None:
    """The positions of a text are three equal numbers, so what they turn says nothing of which is which."""
    forward, ids = Qwen35Forward64(fixture("qwen35-b-f32")), random_prompt(51, 12)
    text = forward.run(ids).logits
    np.testing.assert_array_equal(forward.run(ids, of_text(12)).logits, text)
    for component, differs in ((0, True), (1, True), (2, True), (3, False)):
        moved = of_text(12)
        moved[6:, component] += 5
        assert (np.abs(forward.run(ids, moved).logits[-1] - text[-1]).max() > 1e-3) == differs


@pytest.mark.parametrize("name", ["qwen35-a-f32.long", "qwen35moe-b-f32.long"])
def test_long_recordings_agree_with_the_equations(name: str) -> None:
    """After 300 and 1,500 ids, and to the end of their continuations: 1e-4 over the whole vocabulary."""
    recorded = load_set(name)
    forward = Qwen35Forward64(fixture(recorded.manifest.model))
    for case, greedy in zip(recorded.cases(Distribution)[3:], recorded.cases(Greedy)[3:], strict=True):
        outcome = forward.run([*greedy.prompt, *greedy.ids[:-1]])
        assert outcome.router_gaps.min(initial=1.0) > NEAR_TIE
        assert outcome.logits[len(greedy.prompt) - 1 :].argmax(axis=-1).tolist() == list(greedy.ids)
        for length, row in zip(case.lengths, recorded.distribution(case), strict=True):
            assert np.abs(outcome.logprobs[length - 1][row.ids] - row.logprobs).max() < 1e-4


def with_layers(description: ModelDescription, change: Callable[[LayerSpec], LayerSpec]) -> ModelDescription:
    return dataclasses.replace(
        description, spec=dataclasses.replace(description.spec, layers=tuple(map(change, description.spec.layers)))
    )


def without_gate(layer: LayerSpec) -> LayerSpec:
    assert isinstance(layer.ffn, Moe) and layer.ffn.shared is not None
    shared = dataclasses.replace(layer.ffn.shared, gated=False)
    return dataclasses.replace(layer, ffn=dataclasses.replace(layer.ffn, shared=shared))


def turned_by(base: float) -> Callable[[LayerSpec], LayerSpec]:
    def change(layer: LayerSpec) -> LayerSpec:
        if not isinstance(layer.mixer, Gqa) or layer.mixer.rope is None:
            return layer
        rope = dataclasses.replace(layer.mixer.rope, base=base)
        return dataclasses.replace(layer, mixer=dataclasses.replace(layer.mixer, rope=rope))

    return change


def normed_by(eps: float) -> Callable[[LayerSpec], LayerSpec]:
    def change(layer: LayerSpec) -> LayerSpec:
        if not isinstance(layer.mixer, DeltaRule):
            return layer
        return dataclasses.replace(layer, mixer=dataclasses.replace(layer.mixer, norm_eps=eps))

    return change


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("qwen35moe-a-f32.strict", without_gate),
        ("qwen35-b-f32.strict", turned_by(2e4)),
        ("qwen35-b-f32.strict", normed_by(1e-2)),
    ],
)
def test_a_fault_in_reading_is_found(
    name: str, fault: Callable[[LayerSpec], LayerSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = registry.family(name.partition("-")[0])
    monkeypatch.setattr(registry, "family", lambda _name: lambda file: with_layers(read(file), fault))
    assert not check_set(name, engine="reference").passed


def test_value_heads_that_share_keys_in_blocks_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrent.np, "tile", lambda x, repeats: np.repeat(x, repeats[1], axis=1))
    assert not check_set("qwen35-b-f32.strict", engine="reference").passed


def test_taps_name_every_output_once_with_a_draft_layer_behind_the_others() -> None:
    engine = opened(fixture("qwen35moe-b-f32"), draft=True)
    taps: list[Tap] = []
    engine.run([Span(sequence=engine.sequence(), ids=[1, 2, 3])], taps=taps.append)
    assert len({(tap.layer, tap.label) for tap in taps}) == len(taps)
    layers = [tap.layer for tap in taps if tap.layer is not None]
    assert layers == sorted(layers) and set(layers) == {0, 1, 2, 3}
    first = [tap.label for tap in taps if tap.layer == 0]
    assert first[:3] == ["blk.0.attn_norm", "blk.0.attn_qkv", "blk.0.ssm_conv1d"]
    assert {"delta_rule.0", "log_decay.0", "l2_norm.1", "sigmoid_gate.0", "blk.0.ffn_gate_inp_shexp"} <= set(first)
    assert {"sigmoid_gate.0", "sigmoid_gate.1", "rope.1"} <= {tap.label for tap in taps if tap.layer == 1}
    draft = [tap.label for tap in taps if tap.layer == 3]
    assert draft[:3] == ["previous.0", "nextn.embed", "nextn.enorm"]
