"""`mimo2` beside its float64 equations: every row of the engine, and the recordings of long prompts; and faults in
reading a file, which the recordings must notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from bloomery.conformance.cases import Distribution, Greedy
from bloomery.conformance.engines.recorded_checks import check_set
from bloomery.conformance.fixtures import fixture, mimo2
from bloomery.conformance.plan import CONTINUED
from bloomery.conformance.recorder import random_prompt
from bloomery.conformance.recording import load_set
from bloomery.interface import registry
from bloomery.interface.engine import Span
from bloomery.interface.files.gguf import GgufFile
from bloomery.interface.spec import FeedForward, Gqa, Mixer, ModelDescription, Moe
from tests.conformance.forward64_mimo2 import Mimo2Forward64
from tests.reference.test_engine import open_engine

N = 200
# Logits are near 10, of which float32 keeps 1e-6; measured 2e-5.
BAND = 5e-5
# Of log-probabilities after 1,500 ids; measured 4e-5.
LONG_BAND = 2e-4


@pytest.mark.parametrize("shape", mimo2.SHAPES)
def test_every_row_of_the_engine_agrees_with_the_equations(shape: str) -> None:
    path = fixture(f"{shape}-f32")
    ids = random_prompt(7, N)
    outcome = Mimo2Forward64(path).run(ids)
    assert outcome.router_gaps.min() > 1e-5, "two experts are so near that a rounding may swap them"
    engine = open_engine(path, n_ctx=N, n_ubatch=64)
    [rows] = engine.run([Span(sequence=engine.sequence(), ids=ids, wanted=range(N))])
    logits = np.stack([rows.logits(i) for i in range(N)])
    engine.close()
    assert np.abs(logits - outcome.logits).max() < BAND


@pytest.mark.parametrize("n", [n if n < 1000 else pytest.param(n, marks=pytest.mark.fuzz) for n in CONTINUED])
@pytest.mark.parametrize("shape", mimo2.SHAPES)
def test_recordings_of_long_prompts_agree_with_the_equations(shape: str, n: int) -> None:
    recorded = load_set(f"{shape}-f32.long").only(lambda case: case.name in (f"{n} ids", f"{n} ids and on"))
    [greedy], [case] = recorded.cases(Greedy), recorded.cases(Distribution)
    assert case.ids == (*greedy.prompt, *greedy.ids[:-1])
    outcome = Mimo2Forward64(fixture(recorded.manifest.model)).run(list(case.ids))
    assert outcome.logits[n - 1 :].argmax(axis=-1).tolist() == list(greedy.ids)
    for length, row in zip(case.lengths, recorded.distribution(case), strict=True):
        difference = np.abs(outcome.logprobs[length - 1][row.ids] - row.logprobs).max()
        assert difference < LONG_BAND, f"after {length} ids"


Fault = Callable[[ModelDescription], ModelDescription]


def mixers(change: Callable[[Gqa], Gqa]) -> Fault:
    def changed(mixer: Mixer | None) -> Mixer:
        assert isinstance(mixer, Gqa)
        return change(mixer)

    return lambda description: replace(
        description,
        spec=replace(
            description.spec,
            layers=tuple(replace(layer, mixer=changed(layer.mixer)) for layer in description.spec.layers),
        ),
    )


def experts(**changes: object) -> Fault:
    def changed(ffn: FeedForward | None) -> FeedForward | None:
        return replace(ffn, **changes) if isinstance(ffn, Moe) else ffn  # type: ignore[arg-type]

    return lambda description: replace(
        description,
        spec=replace(
            description.spec,
            layers=tuple(replace(layer, ffn=changed(layer.ffn)) for layer in description.spec.layers),
        ),
    )


def unread(weight: str) -> Fault:
    """The weight of every layer that has it is left alone."""

    def without(description: ModelDescription) -> ModelDescription:
        left_out = {name: ref for name, ref in description.weights.items() if name.endswith(f".{weight}")}
        assert left_out
        kept = {name: ref for name, ref in description.weights.items() if name not in left_out}
        tensors = {ref.tensor for ref in left_out.values()}
        return replace(description, weights=kept, unread=description.unread | tensors)

    return without


def without_sinks(description: ModelDescription) -> ModelDescription:
    return unread("attn_sinks")(mixers(lambda mixer: replace(mixer, sinks=False))(description))


def without_selection_bias(description: ModelDescription) -> ModelDescription:
    return unread("exp_probs_b.bias")(experts(selection_bias=False)(description))


def window_wider_by(n: int) -> Fault:
    return mixers(lambda mixer: mixer if mixer.window is None else replace(mixer, window=mixer.window + n))


def turning(**changes: object) -> Fault:
    def changed(mixer: Gqa) -> Gqa:
        assert mixer.rope is not None
        return replace(mixer, rope=replace(mixer.rope, **changes))  # type: ignore[arg-type]

    return mixers(changed)


FAULTS: dict[str, Fault] = {
    "a wider window": window_wider_by(1),
    "a narrower window": window_wider_by(-1),
    "no window": mixers(lambda mixer: replace(mixer, window=None)),
    "a window everywhere": mixers(lambda mixer: replace(mixer, window=8)),
    "no sinks": without_sinks,
    "one base": turning(base=5e5),
    "a whole head turned": turning(n_dims=24),
    "the other pairs": turning(style="norm"),
    "the scale of values": mixers(lambda mixer: replace(mixer, scale=16**-0.5)),
    "a scaled output": mixers(lambda mixer: replace(mixer, output_scale=0.707)),
    "softmax": experts(score="softmax"),
    "shares as they are": experts(normalised=False),
    "no bias for the choice": without_selection_bias,
    "one expert fewer": experts(n_expert_used=2),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_reading_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = registry.family("mimo2")

    def faulty(file: GgufFile) -> ModelDescription:
        return FAULTS[fault](read(file))

    monkeypatch.setattr(registry, "family", lambda _name: faulty)
    assert not check_set("mimo2-b-f32.strict", engine="reference").passed


def test_an_output_scale_left_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other shape has one."""
    read = registry.family("mimo2")
    plain = mixers(lambda mixer: replace(mixer, output_scale=1.0))
    monkeypatch.setattr(registry, "family", lambda _name: lambda file: plain(read(file)))
    assert not check_set("mimo2-a-f32.strict", engine="reference").passed
