"""Generating with a draft, and the law of it: a draft changes how many passes a reply takes, and no id of it.

found = list(check_drafts(engine, load_set("qwen35-a-f32.draft-3")))
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bloomery.conformance.cases import Drafted
from bloomery.conformance.engines.recorded_checks import sampling_params
from bloomery.conformance.finding import Finding
from bloomery.conformance.recording import RecordingSet
from bloomery.interface.draft import Ask, Drafting, DraftSource
from bloomery.interface.engine import Engine, Span
from bloomery.interface.sampling.params import SamplingParams
from bloomery.interface.sampling.sampler import Sampler


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a prompt is continued with.

    proposed, accepted: how many proposals had an id at each place, and how many of those ids were the sampler's own
    picks, [window].  passes: calls of the engine, the prompt's included.
    """

    ids: tuple[int, ...]
    proposed: tuple[int, ...]
    accepted: tuple[int, ...]
    passes: int


def generate(
    engine: Engine,
    prompt: Sequence[int],
    n: int,
    sampler: Sampler,
    *,
    source: DraftSource | None = None,
    window: int = 0,
    stops: Collection[int] = (),
) -> Reply:
    """Continue a prompt by at most `n` ids, up to the first of `stops`; with `source`, `window` ids drafted at once.

    Every id is the sampler's own pick from a row of the model, in order; a row behind a pick that was not proposed is
    never looked at, so it draws nothing.
    """
    sequence = engine.sequence()
    proposed, accepted = [0] * window, [0] * window
    sampler.accept_all(prompt)
    try:
        ids: list[int] = []
        inputs: tuple[int, ...] = tuple(prompt)
        proposal: tuple[int, ...] = ()
        passes = 0
        while True:
            span = Span(
                sequence=sequence,
                ids=(*inputs, *proposal),
                wanted=range(len(inputs) - 1, len(inputs) + len(proposal)),
                trial=len(proposal),
            )
            [rows] = engine.run([span])
            passes += 1
            kept = 0
            for place in range(len(rows)):
                ids.append(sampler.sample(rows.logits(place)))
                sampler.accept(ids[-1])
                right = place < len(proposal) and ids[-1] == proposal[place]
                kept += right
                if not right or ids[-1] in stops or len(ids) == n:
                    break
            if proposal:
                sequence.commit(kept)
            for place in range(len(proposal)):
                proposed[place] += 1
                accepted[place] += place < kept
            if ids[-1] in stops or len(ids) == n:
                return Reply(ids=tuple(ids), proposed=tuple(proposed), accepted=tuple(accepted), passes=passes)
            inputs = (ids[-1],)
            if source is not None:
                # The last id of a reply is always picked, never proposed.
                ask = Ask(sequence=sequence, last=ids[-1], n=min(window, n - len(ids) - 1))
                [proposal] = source.propose([ask])
    finally:
        sequence.release()


def check_unchanged(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    runs: Mapping[str, SamplingParams],
    *,
    n: int,
    windows: Sequence[int] = (1, 2, 3, 4),
) -> Iterator[Finding]:
    """Each run of each prompt with the engine's own draft at each window: the ids of the same run without it."""
    source = source_of(engine)
    n_vocab = engine.spec.n_vocab
    plain = {
        (name, index): generate(engine, prompt, n, Sampler(params, n_vocab=n_vocab))
        for name, params in runs.items()
        for index, prompt in enumerate(prompts)
    }
    for window in windows:
        wrong, replies = [], []
        for (name, index), expected in plain.items():
            sampler = Sampler(runs[name], n_vocab=n_vocab)
            reply = generate(engine, prompts[index], n, sampler, source=source, window=window)
            replies.append(reply)
            if reply.ids != expected.ids:
                wrong.append(f"{name}, prompt {index}: {_first_other(reply.ids, expected.ids)}")
        yield Finding(
            subject=engine.spec.architecture,
            check=f"drafts of {window}",
            measured=_counted(replies),
            wrong=tuple(wrong),
        )


def check_drafts(engine: Engine, recording: RecordingSet) -> Iterator[Finding]:
    """Every recorded reply: the oracle's ids, and as many proposed and accepted as the oracle counted."""
    source = source_of(engine)
    window = int(recording.manifest.settings["draft_window"])
    wrong, replies = [], []
    for case in recording.cases(Drafted):
        params = sampling_params(case.request)
        if params is None:
            raise ValueError(f"{recording.name}: {case.name} asks for a sampler that is not offered")
        sampler = Sampler(params, n_vocab=engine.spec.n_vocab)
        reply = generate(engine, case.prompt, len(case.ids), sampler, source=source, window=window)
        replies.append(reply)
        if reply.ids != case.ids:
            wrong.append(f"{case.name}: {_first_other(reply.ids, case.ids)}")
        counts = sum(reply.proposed), sum(reply.accepted)
        if counts != (case.proposed, case.accepted):
            wrong.append(
                f"{case.name}: {counts[0]} proposed and {counts[1]} accepted, by the oracle {case.proposed} and"
                f" {case.accepted}"
            )
    yield Finding(subject=recording.name, check="drafts", measured=_counted(replies), wrong=tuple(wrong))


def source_of(engine: Engine) -> DraftSource:
    """The engine's own draft.  Raises ValueError when it was opened without one."""
    source = engine.draft_source if isinstance(engine, Drafting) else None
    if source is None:
        raise ValueError(f"the engine {engine.name} was opened without its model's own draft")
    return source


def _first_other(ids: Sequence[int], expected: Sequence[int]) -> str:
    place = next(
        (at for at, pair in enumerate(zip(ids, expected, strict=False)) if pair[0] != pair[1]),
        min(len(ids), len(expected)),
    )
    return f"id {place} is {ids[place : place + 1]}, expected {expected[place : place + 1]}"


def _counted(replies: Sequence[Reply]) -> dict[str, float]:
    """All replies together, and what share of the proposals for each place was accepted."""
    proposed = [sum(one) for one in zip(*(reply.proposed for reply in replies), strict=True)]
    accepted = [sum(one) for one in zip(*(reply.accepted for reply in replies), strict=True)]
    counted: dict[str, float] = {
        "ids": sum(len(reply.ids) for reply in replies),
        "passes": sum(reply.passes for reply in replies),
        "proposed": sum(proposed),
        "accepted": sum(accepted),
    }
    for place, (right, of) in enumerate(zip(accepted, proposed, strict=True)):
        counted[f"accepted at place {place + 1}"] = right / of if of else 0.0
    return counted
