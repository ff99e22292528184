"""Hold an engine against a recorded set: distributions, greedy ids, decoding, seeded ids.

    report = check_set("qwen3-a-f32.strict", engine="reference")
    assert report.passed, report

Ids are compared on the oracle's own text: the engine reads prompt and recorded ids in one span and must choose each
next one. As long as all agree, that is the same as generating them. One continuation is generated id by id as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bloomery.conformance.bands import BANDS, Band, band_of
from bloomery.conformance.cases import Distribution, Greedy, Seeded
from bloomery.conformance.compare import Choices, choices, outside, profile, row_distance
from bloomery.conformance.engines.opening import EngineName, Model
from bloomery.conformance.finding import Finding, Plot
from bloomery.conformance.fixtures import fixture, sha256_of
from bloomery.conformance.recording import RECORDINGS, RecordingSet, load_set
from bloomery.interface.engine import Engine, Rows, Span
from bloomery.interface.sampling.params import SamplingParams
from bloomery.interface.sampling.sampler import Sampler
from bloomery.interface.tokenizer.load import load_tokenizer

Floats = npt.NDArray[np.float32]

_SAMPLING_FIELDS = frozenset(known.name for known in fields(SamplingParams))
# Fields of a recorded request that say nothing about which ids come.
_OTHER_FIELDS = frozenset({"cache_prompt", "return_tokens", "n_predict", "post_sampling_probs"})
# The numerics that bands were derived for.
_NUMERICS = frozenset(numerics for _, _, numerics in BANDS)


@dataclass(frozen=True, kw_only=True)
class EngineReport:
    """All findings of an engine on one set."""

    set_name: str
    engine: str
    band: Band
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether something was checked and nothing was wrong."""
        verdicts = {finding.verdict for finding in self.findings}
        return "passed" in verdicts and "failed" not in verdicts

    def __str__(self) -> str:
        lines = [f"{self.set_name} on {self.engine}: {'passed' if self.passed else 'FAILED'} (band: {self.band.why})"]
        for finding in self.findings:
            numbers = ", ".join(f"{name} {value:.3g}" for name, value in finding.measured.items())
            lines.append(f"  {finding.check}: {numbers}")
            lines += [f"    {sentence}" for sentence in finding.wrong]
            if finding.skipped is not None:
                lines.append(f"    skipped: {finding.skipped}")
        return "\n".join(lines)


def _read(engine: Engine, ids: Sequence[int], wanted: Sequence[int]) -> Rows:
    """The rows of one span on a fresh sequence. (The rows are the host's own, so the sequence may go.)"""
    sequence = engine.sequence()
    try:
        [rows] = engine.run([Span(sequence=sequence, ids=ids, wanted=wanted)])
        return rows
    finally:
        sequence.release()


def check_distributions(engine: Engine, recording: RecordingSet, band: Band) -> Iterator[Finding]:
    """Every recorded row: distances inside the band, and the sure choices the oracle's."""
    distances = []
    worst = ("", -1.0)
    for case in recording.cases(Distribution):
        rows = _read(engine, case.ids, [length - 1 for length in case.lengths])
        for index, (length, recorded) in enumerate(zip(case.lengths, recording.distribution(case), strict=True)):
            distance = row_distance(recorded, rows.logits(index))
            distances.append(distance)
            if distance.top > worst[1]:
                worst = (f"{case.name} after {length} ids", distance.top)
    if not distances:
        return
    measured = profile(distances)
    wrong = list(outside(measured, band))
    slips = [distance for distance in distances if distance.chosen != distance.wanted and distance.lead >= band.sure]
    if len(slips) > band.slips * len(distances):
        wrong.append(f"{len(slips)} of {len(distances)} sure best tokens are others; the first: {slips[0]}")
    if wrong:
        wrong.append(f"the farthest row is {worst[0]}")
    plot = Plot(
        kind="histogram",
        title="distance of each row, over the oracle's ten best",
        rows=(tuple(distance.top for distance in distances),),
        x="difference of log-probability",
        band=band.most if band.most is not None else band.p99 if band.p99 is not None else band.p90,
        log=True,
    )
    yield Finding(
        subject=recording.name,
        check="distributions",
        measured=asdict(measured),
        wrong=tuple(wrong),
        plots=(plot,),
    )


def check_greedy(engine: Engine, recording: RecordingSet, band: Band) -> Iterator[Finding]:
    """Ids on the oracle's text: equal up to each case's first unsure one, and the sure ones after it nearly all."""
    found: list[Choices] = []
    wrong = []
    for case in recording.cases(Greedy):
        ids = (*case.prompt, *case.ids[:-1])
        rows = _read(engine, ids, range(len(case.prompt) - 1, len(ids)))
        chosen = [int(rows.best(step, 1)[0][0]) for step in range(len(case.ids))]
        outcome = choices(case.ids, chosen, recording.margins(case), band)
        if outcome.prefix < outcome.sure_prefix:
            place = outcome.prefix
            wrong.append(f"{case.name}: id {place} is {chosen[place]}, the oracle's {case.ids[place]}")
        found.append(outcome)
    if not found:
        return
    steps, flips, slips = (sum(getattr(one, name) for one in found) for name in ("steps", "flips", "slips"))
    if slips > band.slips * steps:
        wrong.append(f"{slips} of {steps} ids differ where the oracle led by {band.sure:g} or more")
    measured = {"steps": steps, "flips": flips, "slips": slips, "prefixes": sum(one.prefix for one in found)}
    yield Finding(subject=recording.name, check="greedy ids", measured=measured, wrong=tuple(wrong))


def check_decoding(engine: Engine, recording: RecordingSet, band: Band) -> Iterator[Finding]:
    """One continuation generated id by id on one sequence: equal up to the first unsure id."""
    for case in recording.cases(Greedy)[:1]:
        leads = recording.margins(case)
        chosen = _generate(engine, case)
        outcome = choices(case.ids[: len(chosen)], chosen, leads[: len(chosen)], band)
        wrong = []
        if outcome.prefix < outcome.sure_prefix:
            place = outcome.prefix
            lead = f"with a lead of {leads[place]:.3g}"
            wrong.append(f"id {place} is {chosen[place]}, the oracle's {case.ids[place]} {lead}")
        measured = {"prefix": outcome.prefix}
        yield Finding(subject=recording.name, check=f"decoding {case.name}", measured=measured, wrong=tuple(wrong))


def _generate(engine: Engine, case: Greedy) -> list[int]:
    """Greedy ids, one pass each, until one is not the recorded one or all are there."""
    sequence = engine.sequence()
    try:
        inputs: Sequence[int] = case.prompt
        chosen: list[int] = []
        for wanted in case.ids:
            [rows] = engine.run([Span(sequence=sequence, ids=inputs)])
            chosen.append(int(rows.best(0, 1)[0][0]))
            if chosen[-1] != wanted:
                break
            inputs = chosen[-1:]
        return chosen
    finally:
        sequence.release()


def sampling_params(request: Mapping[str, Any]) -> SamplingParams | None:
    """The sampler's parameters of a recorded request; None when it asks for a sampler that is not offered."""
    if set(request) - _SAMPLING_FIELDS - _OTHER_FIELDS:
        return None
    asked = {name: value for name, value in request.items() if name in _SAMPLING_FIELDS}
    if "logit_bias" in asked:
        asked["logit_bias"] = {key: -math.inf if bias is False else bias for key, bias in asked["logit_bias"]}
    return SamplingParams(**asked)


def check_seeded(engine: Engine, recording: RecordingSet, eog_ids: Collection[int]) -> Iterator[Finding]:
    """Each recorded draw on the oracle's text: every id equal. Draws of a sampler that is not offered are skipped."""
    n_vocab = engine.spec.n_vocab
    n_cases = n_ids = 0
    wrong: list[str] = []
    left_out: list[str] = []
    for case in recording.cases(Seeded):
        params = sampling_params(case.request)
        if params is None:
            left_out.append(case.name)
            continue
        ids = (*case.prompt, *case.ids[:-1])
        rows = _read(engine, ids, range(len(case.prompt) - 1, len(ids)))
        sampler = Sampler(params, n_vocab=n_vocab, eog_ids=eog_ids)
        sampler.accept_all(case.prompt)
        n_cases += 1
        for step, wanted in enumerate(case.ids):
            drawn = sampler.sample(rows.logits(step))
            if drawn != wanted:
                wrong.append(f"{case.name}: id {step} is {drawn}, the oracle's {wanted}")
                break
            sampler.accept(drawn)
            n_ids += 1
    if n_cases:
        measured = {"cases": n_cases, "ids": n_ids}
        yield Finding(subject=recording.name, check="seeded ids", measured=measured, wrong=tuple(wrong))
    if left_out:
        why = f"samplers that are not offered: {'; '.join(left_out)}"
        yield Finding(subject=recording.name, check="seeded ids of other samplers", measured={}, skipped=why)


RecordedCheck = Callable[[Engine, RecordingSet, Band, Collection[int]], Iterator[Finding]]

# By name, the most telling first.
RECORDED_CHECKS: Mapping[str, RecordedCheck] = {
    "distributions": lambda engine, recording, band, _eog_ids: check_distributions(engine, recording, band),
    "greedy ids": lambda engine, recording, band, _eog_ids: check_greedy(engine, recording, band),
    "decoding": lambda engine, recording, band, _eog_ids: check_decoding(engine, recording, band),
    "seeded ids": lambda engine, recording, _band, eog_ids: check_seeded(engine, recording, eog_ids),
}


def band_for(engine: Engine, recording: RecordingSet) -> Band:
    """The band of the set's weights and configuration and the engine's numerics; an op set's of another name than those
    that have bands is that of `exact`, which is the definition it is held to."""
    numerics = engine.options.numerics if engine.options.numerics in _NUMERICS else "exact"
    return band_of(recording.manifest.weights, recording.manifest.settings["configuration"], numerics)


def check_engine(engine: Engine, recording: RecordingSet, *, eog_ids: Collection[int] = ()) -> EngineReport:
    """All checks. The engine has the set's model open, with room for one sequence of the recorded prompts and ids."""
    band = band_for(engine, recording)
    return EngineReport(
        set_name=recording.name,
        engine=f"{engine.name} ({engine.options.numerics})",
        band=band,
        findings=tuple(
            finding for check in RECORDED_CHECKS.values() for finding in check(engine, recording, band, eog_ids)
        ),
    )


def check_set(
    name: str,
    *,
    engine: str = "reference",
    numerics: str = "exact",
    recordings: Path = RECORDINGS,
    fixtures: Path | None = None,
) -> EngineReport:
    """Make or find the set's fixture, open it with the engine of that name, and check it."""
    recording = load_set(name, recordings)
    model = model_of(recording, fixtures)
    opened = model.open(EngineName(engine=engine, numerics=numerics), n_ctx=int(recording.manifest.settings["n_ctx"]))
    try:
        return check_engine(opened, recording, eog_ids=load_tokenizer(model.file.metadata).eog_ids)
    finally:
        opened.close()


def model_of(recording: RecordingSet, fixtures: Path | None = None) -> Model:
    """The model a set was recorded of.  Raises RecordedOfAnotherFileError when this build makes another file."""
    path = fixture(recording.manifest.model, fixtures)
    if sha256_of(path) != recording.manifest.model_sha256:
        raise RecordedOfAnotherFileError(
            f"{recording.name} was recorded of another {recording.manifest.model} than this build makes; "
            "record it again"
        )
    return Model(path)


class RecordedOfAnotherFileError(RuntimeError):
    """A set's model is not the one this build makes."""
