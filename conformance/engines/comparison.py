"""Two engines on one file: greedy ids and whole distributions along a generation.

The second engine is the definition. It continues each prompt greedily, and the first reads the same ids, so that every
row of both follows the same text. Then the first continues the prompt by itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

import numpy as np
import numpy.typing as npt

from bloomery.conformance.bands import Band
from bloomery.conformance.compare import choices, log_softmax, profile, row_distance
from bloomery.conformance.engines.bands_between import outside_on_a_file
from bloomery.conformance.finding import Finding, Plot
from bloomery.conformance.recording import RecordedRow
from bloomery.interface.engine import Engine, Span

Floats = npt.NDArray[np.float32]

# Of a check's seconds, the part in which the definition may go on generating.
_GENERATING = 0.5


def divergence(definition: Floats, other: Floats) -> float:
    """KL(definition || other) of two rows of logits, in nats; infinite when a row is not finite."""
    with np.errstate(all="ignore"):
        p, q = log_softmax(definition), log_softmax(other)
        terms = np.where(np.exp(p) > 0, np.exp(p) * (p - q), 0.0)
        total = float(terms.sum())
    return max(total, 0.0) if np.isfinite(total) else float("inf")


def _generated(engine: Engine, prompt: Sequence[int], n: int, until: float | None) -> tuple[list[int], list[Floats]]:
    """Up to `n` greedy ids, at least one, and the row each was chosen from."""
    sequence = engine.sequence()
    try:
        inputs = prompt
        ids: list[int] = []
        rows: list[Floats] = []
        while len(ids) < n and (not ids or until is None or time.monotonic() < until):
            [answer] = engine.run([Span(sequence=sequence, ids=inputs)])
            rows.append(np.array(answer.logits(0)))
            ids.append(int(rows[-1].argmax()))
            inputs = ids[-1:]
        return ids, rows
    finally:
        sequence.release()


def _read(engine: Engine, prompt: Sequence[int], ids: Sequence[int]) -> list[Floats]:
    """The rows that choose each of `ids` behind the prompt, read in one call."""
    sequence = engine.sequence()
    try:
        text = [*prompt, *ids[:-1]]
        [rows] = engine.run([Span(sequence=sequence, ids=text, wanted=range(len(prompt) - 1, len(text)))])
        return [np.array(rows.logits(index)) for index in range(len(ids))]
    finally:
        sequence.release()


def compare_engines(
    engine: Engine,
    definition: Engine,
    prompts: Mapping[str, Sequence[int]],
    band: Band,
    *,
    subject: str,
    n_predict: int,
    seconds: float | None,
) -> Iterator[Finding]:
    """Findings "distributions" and "greedy ids" of `engine` held against `definition`."""
    distances = []
    wrong_ids: list[str] = []
    lines: dict[str, tuple[float, ...]] = {}
    flips = slips = steps = 0
    until = None if seconds is None else time.monotonic() + _GENERATING * seconds / max(1, len(prompts))
    for name, prompt in prompts.items():
        ids, expected = _generated(definition, prompt, n_predict, until)
        rows = _read(engine, prompt, ids)
        lines[name] = tuple(divergence(want, row) for want, row in zip(expected, rows, strict=True))
        leads = []
        for want, row in zip(expected, rows, strict=True):
            logprobs = log_softmax(want).astype(np.float32)
            order = np.argsort(-logprobs, kind="stable")
            recorded = RecordedRow(order, logprobs[order])
            leads.append(recorded.margin)
            distances.append(row_distance(recorded, row))
        own, _ = _generated(engine, prompt, len(ids), None)
        outcome = choices(ids, own, np.array(leads, np.float32), band)
        if outcome.prefix < outcome.sure_prefix:
            place = outcome.prefix
            wrong_ids.append(
                f"{name}: id {place} is {own[place]}, the definition's {ids[place]} with a lead of {leads[place]:.3g}"
            )
        read = choices(ids, [int(row.argmax()) for row in rows], np.array(leads, np.float32), band)
        steps, flips, slips = steps + read.steps, flips + read.flips, slips + read.slips
    measured = profile(distances)
    wrong = outside_on_a_file(measured, band)
    if slips > band.slips * steps:
        wrong_ids.append(f"{slips} of {steps} ids differ where the definition leads by {band.sure:g} or more")
    yield Finding(
        subject=subject,
        check="distributions",
        measured={**asdict(measured), "KL most": max(max(line) for line in lines.values())},
        wrong=tuple(wrong),
        plots=(
            Plot(
                kind="line",
                title="divergence from the definition along a generation",
                rows=tuple(lines.values()),
                names=tuple(lines),
                x="generated ids",
                y="KL, nats",
                log=True,
            ),
            Plot(
                kind="histogram",
                title="distance of each row, over the definition's ten best",
                rows=(tuple(distance.top for distance in distances),),
                x="difference of log-probability",
                band=band.most if band.most is not None else band.p99,
                log=True,
            ),
        ),
    )
    yield Finding(
        subject=subject, check="greedy ids", measured={"steps": steps, "flips": flips}, wrong=tuple(wrong_ids)
    )
