"""Where two recordings of the same cases part: cases, distances of distributions, ids, and JSON of exchanges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import zip_longest
from reprlib import Repr

import numpy as np

from bloomery.conformance.cases import Case, Distribution, Drafted, Exchange, Greedy, Seeded
from bloomery.conformance.compare import TOP, RowDistance, profile
from bloomery.conformance.finding import Finding, Plot
from bloomery.conformance.known_difference import KnownDifference
from bloomery.conformance.recording import RecordedRow, RecordingSet
from bloomery.conformance.reports.report import first_few
from bloomery.conformance.serve_checks import compare
from bloomery.conformance.wire import Answer

_MOST_SENTENCES = 30
_MOST_PLACES = 3
_WithIds = Greedy | Seeded | Drafted
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 160


def diff_sets(
    a: RecordingSet, b: RecordingSet, *, band: float, known: Sequence[KnownDifference] = ()
) -> Iterator[Finding]:
    """The findings of a pair: a failed one wherever they differ.

    band: how far log-probabilities may be from each other.  known: the rules for differences of `b`'s exchanges from
    `a`'s that are none.
    """
    yield _cases(a, b)
    yield from _distributions(a, b, band)
    yield from _ids(a, a.cases(Greedy), b.cases(Greedy), "greedy ids")
    yield from _ids(a, a.cases(Seeded), b.cases(Seeded), "seeded ids")
    yield from _ids(a, a.cases(Drafted), b.cases(Drafted), "drafted ids")
    yield from _exchanges(a, b, known)


def _finding(
    subject: str, check: str, measured: dict[str, float], wrong: list[str], plots: tuple[Plot, ...] = ()
) -> Finding:
    told = first_few(wrong, _MOST_SENTENCES)
    return Finding(subject=subject, check=check, measured=measured, wrong=told, plots=plots)


def _cases(a: RecordingSet, b: RecordingSet) -> Finding:
    """Both hold the same cases of the same model."""
    in_a, in_b = _names(a), _names(b)
    wrong = [f"only A has the {kind} {name!r}" for kind, name in sorted(in_a - in_b)]
    wrong += [f"only B has the {kind} {name!r}" for kind, name in sorted(in_b - in_a)]
    if not in_a and not in_b:
        wrong.append("neither has a case, so nothing is compared")
    shas = (a.manifest.model_sha256, b.manifest.model_sha256)
    if all(shas) and shas[0] != shas[1]:
        wrong.insert(0, f"they are of different models: {a.manifest.model} {shas[0]}, {b.manifest.model} {shas[1]}")
    return _finding(a.name, "cases", {"A": float(len(in_a)), "B": float(len(in_b))}, wrong)


def _names(recording: RecordingSet) -> set[tuple[str, str]]:
    """Kind and name of every case."""
    cases: list[Case] = [*recording.cases(Distribution), *recording.cases(Greedy)]
    cases += [*recording.cases(Seeded), *recording.cases(Drafted), *recording.cases(Exchange)]
    return {(case.kind, case.name) for case in cases}


def row_difference(a: RecordedRow, b: RecordedRow) -> tuple[RowDistance, float]:
    """The distance of two rows, over the ids that both name, and the divergence KL(A || B) over the same, in nats."""
    at = {int(token): place for place, token in enumerate(b.ids)}
    shared = [(place, at[int(token)]) for place, token in enumerate(a.ids) if int(token) in at]
    mine, theirs = (np.array(side, np.int64) for side in zip(*shared, strict=True)) if shared else (None, None)
    if mine is None or theirs is None:
        differences = np.full(1, np.inf)
        divergence = float("inf")
    else:
        left, right = a.logprobs[mine].astype(np.float64), b.logprobs[theirs].astype(np.float64)
        with np.errstate(invalid="ignore"):
            differences = np.abs(left - right)
            divergence = float((np.exp(left) * (left - right)).sum())
        # What is no number is nowhere near one.
        differences = np.nan_to_num(differences, nan=np.inf, posinf=np.inf)
    # One of A's ten best that B does not name is further away than any that it names.
    lost = any(int(token) not in at for token in a.ids[:TOP])
    return (
        RowDistance(
            top=float("inf") if lost else float(differences[: min(TOP, len(differences))].max()),
            whole=float(differences.max()),
            chosen=int(b.ids[0]),
            wanted=int(a.ids[0]),
            lead=a.margin,
        ),
        divergence,
    )


def _distributions(a: RecordingSet, b: RecordingSet, band: float) -> Iterator[Finding]:
    others = {case.name: case for case in b.cases(Distribution)}
    found: list[RowDistance] = []
    divergences: list[tuple[float, ...]] = []
    names: list[str] = []
    wrong: list[str] = []
    for case in a.cases(Distribution):
        other = others.get(case.name)
        if other is None:
            continue
        if (case.ids, case.lengths) != (other.ids, other.lengths):
            wrong.append(f"{case.name}: they were asked after different ids")
            continue
        rows = [row_difference(*pair) for pair in zip(a.distribution(case), b.distribution(other), strict=True)]
        # A row that lost one of the best is infinitely far by its top alone.
        distances = [(length, max(row.top, row.whole)) for length, (row, _) in zip(case.lengths, rows, strict=True)]
        far = [(length, distance) for length, distance in distances if distance > band]
        if far:
            worst = max(far, key=lambda pair: pair[1])
            wrong.append(
                f"{case.name}: {len(far)} of {len(rows)} rows are further apart than {band:g}, "
                f"the one after {worst[0]} ids by {worst[1]:.3g}"
            )
        found += [row for row, _ in rows]
        divergences.append(tuple(divergence for _, divergence in rows))
        names.append(case.name)
    if found:
        plots = (
            Plot(
                kind="histogram", title="distance of the ten best", rows=(tuple(row.top for row in found),),
                x="|difference of log-probability|", y="rows", band=band, log=True,
            ),
            Plot(
                kind="line", title="KL(A || B) along each prompt", rows=tuple(divergences), names=tuple(names),
                x="recorded row", y="nats", log=True,
            ),
        )  # fmt: skip
        yield _finding(a.name, "distributions", asdict(profile(found)), wrong, plots)
    elif wrong:
        yield _finding(a.name, "distributions", {}, wrong)


def _ids(a: RecordingSet, in_a: Sequence[_WithIds], in_b: Sequence[_WithIds], check: str) -> Iterator[Finding]:
    others = {case.name: case for case in in_b}
    pairs = [(case, others[case.name]) for case in in_a if case.name in others]
    wrong = []
    for case, other in pairs:
        if case.prompt != other.prompt:
            wrong.append(f"{case.name}: they were asked after different ids")
            continue
        for place, (left, right) in enumerate(zip_longest(case.ids, other.ids)):
            if left != right:
                lead = _lead(a, case, place)
                wrong.append(f"{case.name}: id {place} is {left} in A and {right} in B{lead}")
                break
        else:
            if case.stop_type != other.stop_type:
                wrong.append(f"{case.name}: ends by {case.stop_type} in A and by {other.stop_type} in B")
    if pairs:
        yield _finding(a.name, check, {"cases": float(len(pairs)), "differ": float(len(wrong))}, wrong)


def _lead(recording: RecordingSet, case: _WithIds, place: int) -> str:
    """By how much A's id led there, where that was recorded."""
    if not isinstance(case, Greedy) or place >= len(case.ids):
        return ""
    return f", where A led by {recording.margins(case)[place]:.3g}"


def _exchanges(a: RecordingSet, b: RecordingSet, known: Sequence[KnownDifference]) -> Iterator[Finding]:
    others = {case.name: case for case in b.cases(Exchange)}
    pairs = [(case, others[case.name]) for case in a.cases(Exchange) if case.name in others]
    wrong = []
    differ = 0
    for case, other in pairs:
        asked, other_asked = ((each.method, each.path, each.body) for each in (case, other))
        if asked != other_asked:
            wrong.append(f"{case.name}: they were asked for different things")
            differ += 1
            continue
        answer = Answer(
            status=other.status, reason="", headers=other.response_headers, body=other.response, chunks=other.chunks
        )
        outcome = compare(case, answer, a.name, known)
        differ += bool(outcome.differences)
        places = (
            f"{case.name}: {each.path}: A {_SHORT.repr(each.theirs)}, B {_SHORT.repr(each.ours)}"
            for each in outcome.differences
        )
        # Where a stream parts, every event after it differs; the first ones tell.
        wrong += first_few(places, _MOST_PLACES, f"{case.name}: ")
    if pairs:
        yield _finding(a.name, "exchanges", {"cases": float(len(pairs)), "differ": float(differ)}, wrong)
