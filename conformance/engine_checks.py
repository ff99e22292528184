"""Hold an engine against a recorded set: distributions, greedy ids, seeded ids.

    report = check_set("qwen3-a-f32.strict", engine="reference")
    assert report.passed, report

Ids are compared on the oracle's own text: the engine reads prompt and recorded ids in one span and must choose each
next one. As long as all agree, that is the same as generating them. One continuation is generated id by id as well.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bloomery.conformance.bands import Band, band_of
from bloomery.conformance.cases import Distribution, Greedy, Seeded
from bloomery.conformance.compare import Choices, choices, outside, profile, row_distance
from bloomery.conformance.fixtures import fixture, sha256_of
from bloomery.conformance.recording import RECORDINGS, RecordingSet, load_set
from bloomery.interface import registry
from bloomery.interface.engine import Engine, EngineOptions, Rows, Span
from bloomery.interface.files.gguf import open_gguf
from bloomery.interface.sampling.params import SamplingParams
from bloomery.interface.sampling.sampler import Sampler
from bloomery.interface.tokenizer.load import load_tokenizer

Floats = npt.NDArray[np.float32]

_SAMPLING_FIELDS = frozenset(known.name for known in fields(SamplingParams))
# Fields of a recorded request that say nothing about which ids come.
_OTHER_FIELDS = frozenset({"cache_prompt", "return_tokens", "n_predict", "post_sampling_probs"})


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One check's outcome: the numbers it measured, and a sentence for each thing that is wrong."""

    check: str
    measured: Mapping[str, float]
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EngineReport:
    """All findings of an engine on one set. `skipped` names the cases that no check took, each with the reason."""

    set_name: str
    engine: str
    band: Band
    findings: tuple[Finding, ...]
    skipped: tuple[str, ...] = field(default=())

    @property
    def passed(self) -> bool:
        """Whether something was checked and nothing was wrong."""
        return bool(self.findings) and not any(finding.wrong for finding in self.findings)

    def __str__(self) -> str:
        lines = [f"{self.set_name} on {self.engine}: {'passed' if self.passed else 'FAILED'} (band: {self.band.why})"]
        for finding in self.findings:
            numbers = ", ".join(f"{name} {value:.3g}" for name, value in finding.measured.items())
            lines.append(f"  {finding.check}: {numbers}")
            lines += [f"    {sentence}" for sentence in finding.wrong]
        if self.skipped:
            lines.append(f"  skipped {len(self.skipped)} cases: {'; '.join(self.skipped)}")
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
    yield Finding(check="distributions", measured=asdict(measured), wrong=tuple(wrong))


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
    yield Finding(check="greedy ids", measured=measured, wrong=tuple(wrong))


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
        yield Finding(check=f"decoding {case.name}", measured={"prefix": outcome.prefix}, wrong=tuple(wrong))


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


def check_seeded(
    engine: Engine, recording: RecordingSet, eog_ids: Collection[int], skipped: list[str]
) -> Iterator[Finding]:
    """Each recorded draw on the oracle's text: every id equal."""
    n_vocab = engine.spec.n_vocab
    n_cases = n_ids = 0
    wrong: list[str] = []
    for case in recording.cases(Seeded):
        params = sampling_params(case.request)
        if params is None:
            skipped.append(f"{case.name}: a sampler that is not offered")
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
        yield Finding(check="seeded ids", measured={"cases": n_cases, "ids": n_ids}, wrong=tuple(wrong))


def check_engine(engine: Engine, recording: RecordingSet, *, eog_ids: Collection[int] = ()) -> EngineReport:
    """All checks. The engine has the set's model open, with room for one sequence of the recorded prompts and ids."""
    settings, manifest = recording.manifest.settings, recording.manifest
    band = band_of(manifest.weights, settings["configuration"], engine.options.numerics)
    skipped: list[str] = []
    findings = [
        *check_distributions(engine, recording, band),
        *check_greedy(engine, recording, band),
        *check_decoding(engine, recording, band),
        *check_seeded(engine, recording, eog_ids, skipped),
    ]
    return EngineReport(
        set_name=recording.name,
        engine=f"{engine.name} ({engine.options.numerics})",
        band=band,
        findings=tuple(findings),
        skipped=tuple(skipped),
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
    path = fixture(recording.manifest.model, fixtures)
    if sha256_of(path) != recording.manifest.model_sha256:
        raise RecordedOfAnotherFileError(
            f"{name} was recorded of another {recording.manifest.model} than this build makes; record it again"
        )
    file = open_gguf(path)
    description = registry.family(str(file.metadata["general.architecture"]))(file)
    options = EngineOptions(n_ctx=int(recording.manifest.settings["n_ctx"]), numerics=numerics)
    opened = registry.engine(engine).open(file, description, options)
    try:
        return check_engine(opened, recording, eog_ids=load_tokenizer(file.metadata).eog_ids)
    finally:
        opened.close()


class RecordedOfAnotherFileError(RuntimeError):
    """A set's model is not the one this build makes."""
