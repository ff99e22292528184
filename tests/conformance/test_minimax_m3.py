"""MiniMax-M3 whose blocks are chosen: the engine and the recordings beside the float64 equations, how far attention to
every block would be off, and faults in reading a file, which the recordings must notice."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from bloomery.conformance.bands import OUTLIER, band_of
from bloomery.conformance.cases import Distribution, Greedy
from bloomery.conformance.engines.opening import EngineName
from bloomery.conformance.engines.recorded_checks import check_distributions, check_set, model_of
from bloomery.conformance.fixtures import fixture, minimax_m3
from bloomery.conformance.plan import PROMPT_IDS
from bloomery.conformance.recorder import random_prompt
from bloomery.conformance.recording import load_set
from bloomery.interface import registry
from bloomery.interface.engine import Span, Tap
from bloomery.interface.files.gguf import GgufFile
from bloomery.interface.spec import BlockSelector, FeedForward, Gqa, LayerSpec, Mixer, ModelDescription, Moe
from tests.conformance.forward64_minimax_m3 import MinimaxM3Forward64, SparseOutcome
from tests.reference.test_engine import open_engine

CHOOSING, READING_ALL = "minimaxm3-b", "minimaxm3-a"
RECORDED = [f"{CHOOSING}-f32.default", f"{CHOOSING}-f32.long"]
# Of longer texts, attention to every block is not computed: shorter ones tell enough.
SHORT = 400
# As many ids as the choosing shape reads whole.
REACH = minimax_m3.SHAPES[CHOOSING].index.block * minimax_m3.SHAPES[CHOOSING].index.n_chosen


@functools.cache
def forward(shape: str, *, dense: bool = False) -> MinimaxM3Forward64:
    return MinimaxM3Forward64(fixture(f"{shape}-f32"), dense=dense)


@functools.cache
def outcome_of(ids: tuple[int, ...], *, dense: bool = False) -> SparseOutcome:
    return forward(CHOOSING, dense=dense).run(list(ids))


@pytest.mark.parametrize(("shape", "n"), [(READING_ALL, 300), (CHOOSING, 300)])
def test_every_row_of_the_engine_agrees_with_the_equations(shape: str, n: int) -> None:
    """Logits are near 10, of which float32 keeps 1e-6."""
    ids = random_prompt(7, n)
    outcome = forward(shape).run(ids)
    assert outcome.router_gaps.min() > 1e-5, "two experts are so near that a rounding may swap them"
    assert outcome.block_gaps.min() > 1e-5, "two blocks are so near that a rounding may swap them"
    engine = open_engine(fixture(f"{shape}-f32"), n_ctx=n, n_ubatch=64)
    [rows] = engine.run([Span(sequence=engine.sequence(), ids=ids, wanted=range(n))])
    logits = np.stack([rows.logits(i) for i in range(n)])
    engine.close()
    assert np.abs(logits - outcome.logits).max() < 5e-5


def distances(name: str, *, dense: bool = False) -> Iterator[tuple[int, float]]:
    """Of each recorded row: how many ids were read, and the largest difference over the oracle's ten best."""
    recorded = load_set(name)
    for case in recorded.cases(Distribution):
        if dense and len(case.ids) > SHORT:
            continue
        outcome = outcome_of(case.ids, dense=dense)
        for length, row in zip(case.lengths, recorded.distribution(case), strict=True):
            off = np.abs(outcome.logprobs[length - 1][row.ids[:10]] - row.logprobs[:10])
            yield length, float(off.max())


@pytest.mark.parametrize("name", RECORDED)
def test_recordings_agree_with_the_equations_and_not_with_attention_to_every_block(name: str) -> None:
    band = band_of(load_set(name).manifest.weights, "default", "exact")
    found = np.array([off for _, off in distances(name)])
    assert band.p50 is not None and np.median(found) < band.p50
    assert band.p90 is not None and np.percentile(found, 90) < band.p90
    assert found.max() < OUTLIER
    of_all = list(distances(name, dense=True))
    assert max(off for n, off in of_all if n <= REACH) < 0.1
    assert np.median([off for n, off in of_all if n > REACH]) > OUTLIER


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_ids_are_those_of_the_equations_and_not_of_attention_to_every_block(name: str) -> None:
    """Where the oracle led by a tenth: nearly all, and not even three in four."""
    recorded = load_set(name)
    others: dict[bool, list[bool]] = {False: [], True: []}
    for greedy in recorded.cases(Greedy):
        ids = (*greedy.prompt, *greedy.ids[:-1])
        sure = recorded.margins(greedy) > 0.1
        for dense in (False, True) if len(ids) <= SHORT else (False,):
            chosen = outcome_of(ids, dense=dense).logits[len(greedy.prompt) - 1 :].argmax(axis=-1)
            others[dense] += (chosen != greedy.ids)[sure].tolist()
    assert np.mean(others[False]) < 0.01
    assert np.mean(others[True]) > 0.25


def test_half_precision_where_llama_server_has_it_comes_nearer() -> None:
    """Its arithmetic of small passes leaves a fifth of the distance, so none of it is another reading of the file."""
    recording, medians = load_set(f"{CHOOSING}-f32.default"), {}
    for numerics in ("exact", "ggml-fa-rows"):
        engine = model_of(recording).open(EngineName(engine="reference", numerics=numerics), n_ctx=PROMPT_IDS)
        [finding] = check_distributions(engine, recording, band_of("F32", "default", numerics))
        assert finding.wrong == ()
        medians[numerics] = finding.measured["p50"]
        engine.close()
    assert medians["ggml-fa-rows"] < medians["exact"] / 3


def test_where_all_blocks_are_chosen_it_is_attention_to_all() -> None:
    ids = random_prompt(7, 300)
    chosen, every = (forward(READING_ALL, dense=dense).run(ids).logits for dense in (False, True))
    np.testing.assert_array_equal(chosen, every)


def test_both_limits_of_the_activation_are_met() -> None:
    seen: dict[str, npt.NDArray[np.float32]] = {}
    engine = open_engine(fixture(f"{READING_ALL}-f32"), n_ctx=64)

    def keep(tap: Tap) -> None:
        for name in ("ffn_gate", "ffn_up", "ffn_gate_exps", "ffn_up_exps", "ffn_gate_shexp", "ffn_up_shexp"):
            if tap.label.endswith(f".{name}"):
                seen[name] = np.asarray(tap.output)

    engine.run([Span(sequence=engine.sequence(), ids=random_prompt(0))], taps=keep)
    engine.close()
    assert len(seen) == 6
    for name, values in seen.items():
        assert values.max() > 7 and values.min() < -7, name


def with_selector(**changes: object) -> Callable[[LayerSpec], LayerSpec]:
    def changed(mixer: Mixer | None) -> Mixer | None:
        if not isinstance(mixer, Gqa) or mixer.selector is None:
            return mixer
        return replace(mixer, selector=replace(mixer.selector, **changes))  # type: ignore[arg-type]

    return lambda layer: replace(layer, mixer=changed(layer.mixer))


def unturned(layer: LayerSpec) -> LayerSpec:
    mixer = layer.mixer
    if not isinstance(mixer, Gqa) or not isinstance(mixer.selector, BlockSelector):
        return layer
    return with_selector(rope=replace(mixer.selector.rope, base=1e9))(layer)


def with_experts(**changes: object) -> Callable[[LayerSpec], LayerSpec]:
    def changed(ffn: FeedForward | None) -> FeedForward | None:
        return replace(ffn, **changes) if isinstance(ffn, Moe) else ffn  # type: ignore[arg-type]

    return lambda layer: replace(layer, ffn=changed(layer.ffn))


@pytest.mark.parametrize(
    ("shape", "fault"),
    [
        (CHOOSING, with_selector(n_chosen=4)),
        (CHOOSING, with_selector(n_chosen=2)),
        (CHOOSING, with_selector(n_local=1)),
        (CHOOSING, with_selector(n_local=3)),
        (CHOOSING, with_selector(block=5)),
        (CHOOSING, unturned),
        (CHOOSING, with_experts(normalised=True)),
        (READING_ALL, with_experts(weights_scale=1.0)),
        (READING_ALL, with_experts(activation="silu")),
        (READING_ALL, with_experts(score="softmax")),
    ],
)
def test_a_fault_in_reading_is_found(
    shape: str, fault: Callable[[LayerSpec], LayerSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = registry.family("minimax-m3")

    def faulty(file: GgufFile) -> ModelDescription:
        description = read(file)
        return replace(description, spec=replace(description.spec, layers=tuple(map(fault, description.spec.layers))))

    monkeypatch.setattr(registry, "family", lambda _name: faulty)
    assert not check_set(f"{shape}-f32.default", engine="reference").passed
