"""Where two engines part on one prompt: the first op that leaves its band, else the first layer, else the first row.

The rule. An op is judged by itself: its definition is evaluated in float64 on the inputs that the engine itself fed it
(`tapped_program` finds them), and the op is out when a reported element is farther from that than the band of the
op's own roundings. Error that was inherited is in the inputs of both sides and so is never counted against an op. Each
engine is judged alone, so a fault is named on the engine that has it.

An engine that reports other taps than the program's ops has no inputs to be judged on. Then the outputs that both
report under the same layer and label are compared in order, and the first is named whose relative distance,
rms(a - b) / rms(a), is past a limit and more than `_GROWTH` times the largest before it: rounding grows by a small
factor a layer, a fault by orders of magnitude. Without taps the rows of logits are left, each held to the band between
the engines; the first that is out says how many ids of the prompt show it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
import numpy.typing as npt

from bloomery.conformance.bands import OUTLIER, Band
from bloomery.conformance.compare import log_softmax, profile, row_distance
from bloomery.conformance.engines.bands_between import band_between, outside_on_a_file, weights_of
from bloomery.conformance.engines.opening import EngineName, Model
from bloomery.conformance.engines.tapped_program import Call, NotTheProgramError, replay
from bloomery.conformance.finding import Effort, Finding, Plot
from bloomery.conformance.ops import replay as op_replay
from bloomery.conformance.ops.case import Array
from bloomery.conformance.ops.checks import VALUES
from bloomery.conformance.ops.claims import ClaimError, Claims, claims_of
from bloomery.conformance.ops.local import Local, judge_locally
from bloomery.conformance.recording import RecordedRow
from bloomery.interface import registry
from bloomery.interface.engine import Engine, EngineError, Span, Tap

Floats = npt.NDArray[np.float32]
Place = tuple[int | None, str]

# Relative distance of two layers' outputs that float32 sums alone do not make, and one that rounded activations do not
# (docs/numerics.md measures 4e-5 to 2e-3 a product).
_FAR = 1e-4
_FAR_ROUNDED = 5e-2
_GROWTH = 10.0
# Ratios of one op that are plotted.
_PLOTTED = 4000


@dataclass(eq=False)
class Side:
    """One engine's run of the prompt.

    outputs: what it reported under each layer and label, its passes joined.  rows: [ids, n_vocab] logits.  widest: of
    each op in program order, its largest error in bands.  first: the first op that is out.  unlike: why its taps are
    not the program's; None when they are.
    """

    name: EngineName
    outputs: Mapping[Place, Array]
    rows: Floats
    widest: dict[Place, float] = field(default_factory=dict)
    first: tuple[Call, Local] | None = None
    unlike: str | None = None


def bisect(a: EngineName, b: EngineName, model: Model, ids: Sequence[int], effort: Effort) -> Iterator[Finding]:
    """Run both on the prompt and say where they part.

    Raises EngineError when an engine cannot be opened on the model or refuses the prompt.
    """
    sides = [_run(name, model, ids) for name in (a, b)]
    for side in sides:
        yield _first_op(side, model, ids, effort)
    one, other = sides
    subject = f"{b} against {a}"
    yield _layers(one, other, subject)
    yield _rows(one, other, subject, band_between(weights_of(model.file, model.description), a.numerics, b.numerics))


def _run(name: EngineName, model: Model, ids: Sequence[int]) -> Side:
    """One fresh sequence reads the prompt in one call, in one pass where the engine can; then its ops are judged."""
    engine = model.open(name, n_ctx=len(ids), n_ubatch=len(ids))
    try:
        taps: list[Tap] = []
        try:
            rows = _read(engine, ids, taps)
        except (EngineError, TypeError):
            # An engine without taps may refuse the argument; asked without it, the fault is the prompt's.
            taps.clear()
            rows = _read(engine, ids, None)
    finally:
        engine.close()
    side = Side(name, _joined(taps), rows)
    _judge(side, taps, model, ids)
    return side


def _read(engine: Engine, ids: Sequence[int], taps: list[Tap] | None) -> Floats:
    sequence = engine.sequence()
    try:
        span = Span(sequence=sequence, ids=ids, wanted=range(len(ids)))
        [rows] = engine.run([span]) if taps is None else engine.run([span], taps=taps.append)
        return np.stack([rows.logits(row) for row in range(len(ids))])
    finally:
        sequence.release()


def _joined(taps: Sequence[Tap]) -> dict[Place, Array]:
    """Outputs by layer and label, in the order they were first reported; rows of later passes behind the earlier."""
    parts: dict[Place, list[Array]] = {}
    for tap in taps:
        parts.setdefault((tap.layer, tap.label), []).append(np.asarray(tap.output))
    return {place: np.concatenate(arrays) for place, arrays in parts.items()}


def _judge(side: Side, taps: Sequence[Tap], model: Model, ids: Sequence[int]) -> None:
    claims = _claims(side.name)

    def seen(call: Call) -> tuple[Array, ...]:
        local = judge_locally(call, claims)
        if call.outputs:
            place = (call.layer, call.label)
            side.widest[place] = max(local.widest, side.widest.get(place, 0.0))
            if local.wrong and side.first is None:
                side.first = call, local
        return local.state

    try:
        if not taps:
            raise NotTheProgramError("it reports no taps")
        replay(taps, model.file, model.description, ids, seen)
    except NotTheProgramError as error:
        side.unlike, side.first = str(error), None
        side.widest.clear()


def _claims(name: EngineName) -> Claims:
    """What the engine's arithmetic claims: its op set does, where its numerics name one."""
    try:
        return claims_of(registry.op_set(name.numerics)())
    except (registry.UnknownNameError, ClaimError, TypeError):
        return Claims()


def _first_op(side: Side, model: Model, ids: Sequence[int], effort: Effort) -> Finding:
    """The first op of one engine that leaves its band, with its error profile and its inputs in a file."""
    subject, check = str(side.name), "first op out of its band"
    if side.unlike is not None:
        why = f"{side.unlike}; so no op can be judged on its own inputs, and layers and rows are compared instead"
        return Finding(subject=subject, check=check, measured={}, skipped=why)
    measured = {"ops": float(len(side.widest)), "widest error, in bands": max(side.widest.values(), default=0.0)}
    plots = [_heat("largest error of each op, in bands", side.widest, band=1.0)]
    if side.first is None:
        return Finding(subject=subject, check=check, measured=measured, plots=tuple(plots))
    call, local = side.first
    where = "outside the layers" if call.layer is None else f"layer {call.layer}"
    notes = {"where": where, "label": call.label, "engine": str(side.name), "model": model.path.name, "ids": list(ids)}
    replay_file = op_replay.save(effort.replays, local.case or call.case, VALUES, notes)
    some = local.ratios[:: max(1, len(local.ratios) // _PLOTTED)]
    finite = tuple(float(ratio) for ratio in some if np.isfinite(ratio))
    if finite:
        title = f"{where}, {call.label}: error of each element, in bands"
        plots.insert(0, Plot(kind="histogram", title=title, rows=(finite,), x="|error| / band", band=1.0, log=True))
    return Finding(
        subject=subject,
        check=check,
        measured=measured | _profile(local),
        wrong=(f"{where}, {call.case.op} ({call.label}): {local.wrong[0]}", *local.wrong[1:]),
        replay=replay_file,
        plots=tuple(plots),
    )


def _profile(local: Local) -> dict[str, float]:
    """The op's error over its elements."""
    if not local.ratios.size:
        return {}
    p50, p99 = (float(value) for value in np.percentile(local.ratios, [50, 99], method="higher"))
    return {"its p50, in bands": p50, "p99": p99, "elements out": float((local.ratios > 1).sum())}


def _layers(one: Side, other: Side, subject: str) -> Finding:
    """What both report, side by side; judged where an engine's ops could not be."""
    check = "distance along the program"
    distances = {
        place: _relative(output, other.outputs[place])
        for place, output in one.outputs.items()
        if place in other.outputs and other.outputs[place].shape == output.shape
    }
    if not distances:
        return Finding(subject=subject, check=check, measured={}, skipped="the two report nothing under the same label")
    wrong: list[str] = []
    if one.unlike is not None or other.unlike is not None:
        limit = _FAR_ROUNDED if "ggml" in (one.name.numerics, other.name.numerics) else _FAR
        before = 0.0
        for (layer, label), distance in distances.items():
            if distance > limit and distance > _GROWTH * before:
                where = "outside the layers" if layer is None else f"layer {layer}"
                wrong.append(
                    f"{where}, {label}: the outputs are {distance:.3g} apart, relative, and {before:.3g} before"
                )
                break
            before = max(before, distance)
    return Finding(
        subject=subject,
        check=check,
        measured={"outputs": float(len(distances)), "farthest, relative": max(distances.values())},
        wrong=tuple(wrong),
        plots=(_heat("relative distance of the two engines' outputs", distances),),
    )


def _relative(a: Array, b: Array) -> float:
    """rms(a - b) / rms(a); of integers, the share that differs."""
    if a.dtype.kind != "f":
        return float((a != b).mean()) if a.size else 0.0
    with np.errstate(all="ignore"):
        difference = a.astype(np.float64) - b
        size = float(np.sqrt(np.mean(np.square(a, dtype=np.float64)))) if a.size else 0.0
        distance = float(np.sqrt(np.mean(difference * difference))) if a.size else 0.0
    if distance == 0.0:
        return 0.0
    return distance / size if size > 0 and np.isfinite(distance) else float("inf")


def _rows(one: Side, other: Side, subject: str, band: Band) -> Finding:
    """The logits after each id of the prompt, and the first that are out."""
    distances = [row_distance(_as_recorded(a), b) for a, b in zip(one.rows, other.rows, strict=True)]
    measured = profile(distances)
    wrong = outside_on_a_file(measured, band)
    sure = [d for d in distances if d.chosen != d.wanted and d.lead >= band.sure]
    if len(sure) > band.slips * len(distances):
        wrong.append(f"{len(sure)} best ids are others where the first engine leads by {band.sure:g} or more")
    limit = OUTLIER if band.most is None else band.most
    far = [place for place, distance in enumerate(distances) if not distance.top <= limit]
    if wrong and far:
        wrong.append(f"the first row that is out is after {far[0] + 1} ids")
    if wrong and all(side.unlike is None and side.first is None for side in (one, other)):
        wrong.append("no op is out by itself: what is different is the order or the number of many roundings")
    plot = Plot(
        kind="line",
        title="distance of the rows along the prompt, over the first engine's ten best",
        rows=(tuple(distance.top for distance in distances),),
        x="ids of the prompt",
        y="difference of log-probability",
        band=limit,
        log=True,
    )
    return Finding(subject=subject, check="rows", measured=asdict(measured), wrong=tuple(wrong), plots=(plot,))


def _as_recorded(logits: Floats) -> RecordedRow:
    logprobs = log_softmax(logits).astype(np.float32)
    order = np.argsort(-logprobs, kind="stable")
    return RecordedRow(order, logprobs[order])


def _heat(title: str, values: Mapping[Place, float], band: float | None = None) -> Plot:
    """Layers down, ops across, each under its label without the layer's prefix; what stands outside is the last row."""
    columns = list(dict.fromkeys(_column(place) for place in values))
    layers = sorted({layer for layer, _ in values if layer is not None})
    found = {(layer, _column((layer, label))): value for (layer, label), value in values.items()}
    rows = [*layers, *([None] if any(layer is None for layer, _ in values) else [])]
    return Plot(
        kind="heat",
        title=title,
        rows=tuple(tuple(found.get((layer, column), float("nan")) for column in columns) for layer in rows),
        names=tuple("outside" if layer is None else f"layer {layer}" for layer in rows),
        x=", ".join(columns),
        band=band,
        log=True,
    )


def _column(place: Place) -> str:
    layer, label = place
    return label.removeprefix(f"blk.{layer}.")
