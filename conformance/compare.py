"""Distances between an engine's rows and recorded ones, and whether they are inside a band."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bloomery.conformance.bands import OUTLIER, Band
from bloomery.conformance.recording import RecordedRow

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

TOP = 10


def log_softmax(logits: Floats) -> Doubles:
    """Log-probabilities of one row, in float64."""
    wide = logits.astype(np.float64)
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    return wide


@dataclass(frozen=True, kw_only=True)
class RowDistance:
    """One row against the recorded one.

    top: the largest difference over the oracle's ten best.  whole: over every recorded token.  chosen: the engine's
    best id, wanted: the oracle's, lead: the oracle's lead over its second best.
    """

    top: float
    whole: float
    chosen: int
    wanted: int
    lead: float


def row_distance(recorded: RecordedRow, logits: Floats) -> RowDistance:
    """How far a row of logits is from a recorded distribution. A row that is not finite is infinitely far."""
    with np.errstate(all="ignore"):
        differences = np.abs(log_softmax(logits)[recorded.ids] - recorded.logprobs)
    differences[~np.isfinite(differences)] = np.inf
    return RowDistance(
        top=float(differences[:TOP].max()),
        whole=float(differences.max()),
        chosen=int(logits.argmax()),
        wanted=int(recorded.ids[0]),
        lead=recorded.margin,
    )


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The distances of many rows: percentiles of the top ten, maxima, and counts."""

    rows: int
    p50: float
    p90: float
    p99: float
    most: float
    whole: float
    outliers: float
    flips: int


def profile(distances: Sequence[RowDistance]) -> Profile:
    """Summed up; at least one row."""
    top = np.array([distance.top for distance in distances])
    # Order statistics: interpolating towards an infinite row would give no number.
    p50, p90, p99 = (float(value) for value in np.percentile(top, [50, 90, 99], method="higher"))
    return Profile(
        rows=len(distances),
        p50=p50,
        p90=p90,
        p99=p99,
        most=float(top.max()),
        whole=max(distance.whole for distance in distances),
        outliers=float((top > OUTLIER).mean()),
        flips=sum(distance.chosen != distance.wanted for distance in distances),
    )


def outside(measured: Profile, band: Band) -> Iterator[str]:
    """A sentence for each bound of the band that the profile passes."""
    for name in ("p50", "p90", "p99", "most", "whole", "outliers"):
        bound, value = getattr(band, name), getattr(measured, name)
        if bound is not None and not value <= bound:
            yield f"{name} is {value:.3g}, its band ends at {bound:.3g}"


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Greedy choices against the oracle's, on the oracle's own text.

    steps: how many.  flips: how many differ.  slips: those of them where the oracle's lead was sure.  prefix: how
    many ids agree before the first that differs.  sure_prefix: how many the oracle was sure of before its first
    unsure one.
    """

    steps: int
    flips: int
    slips: int
    prefix: int
    sure_prefix: int


def choices(wanted: Sequence[int], chosen: Sequence[int], leads: Floats, band: Band) -> Choices:
    """Compare id by id; the three have one entry a step, at least one."""
    differ = np.array([a != b for a, b in zip(wanted, chosen, strict=True)], bool)
    sure = leads >= band.sure
    return Choices(
        steps=len(differ),
        flips=int(differ.sum()),
        slips=int((differ & sure).sum()),
        prefix=_before_first(differ),
        sure_prefix=_before_first(~sure),
    )


def _before_first(flags: npt.NDArray[np.bool_]) -> int:
    """How many entries come before the first true one; all of them when none is."""
    return int(flags.argmax()) if flags.any() else len(flags)
