"""What is done with an engine, step by step, as data: drawn, shrunk, read by a person, saved and played again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

_MAX_STEPS = 10_000


@dataclass(frozen=True, kw_only=True)
class Part:
    """One span of a pass: inputs of the sequence of that number, the last `trial` of them on trial.

    wanted: the rows to ask for, None for all of them.  best: how many best logits to ask for beside each row.
    """

    sequence: int
    ids: tuple[int, ...]
    wanted: tuple[int, ...] | None = None
    trial: int = 0
    best: int = 0


@dataclass(frozen=True, kw_only=True)
class Run:
    """One call of `Engine.run`, with these spans in this order."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, kw_only=True)
class Commit:
    """Keep the first `kept` inputs of the sequence's trial."""

    sequence: int
    kept: int


@dataclass(frozen=True, kw_only=True)
class Keep:
    """Cut the sequence back to at most `n` inputs."""

    sequence: int
    n: int


@dataclass(frozen=True, kw_only=True)
class Save:
    """Save the sequence; saved ones are numbered in the order they were saved."""

    sequence: int


@dataclass(frozen=True, kw_only=True)
class Load:
    """Load the saved sequence of that number."""

    sequence: int
    saved: int


@dataclass(frozen=True, kw_only=True)
class Release:
    """Give the sequence's place back; the next step that names it opens a new one."""

    sequence: int


@dataclass(frozen=True, kw_only=True)
class Restart:
    """Close the engine and open it again: every sequence is gone, what was saved is not."""


@dataclass(frozen=True, kw_only=True)
class Draft:
    """One round of drafted decoding: the next greedy id, and behind it a proposal on trial.

    The proposal is the `right` greedy ids that come next, then `wrong` ids that do not. The first ids that the rows
    themselves choose are committed.
    """

    sequence: int
    right: int
    wrong: int


Step = Run | Commit | Keep | Save | Load | Release | Restart | Draft
Story = tuple[Step, ...]

_STEPS: Mapping[str, type[Step]] = {kind.__name__.lower(): kind for kind in Step.__args__}


def told(story: Story) -> list[str]:
    """The story as numbered lines."""
    return [f"{number}. {_line(step)}" for number, step in enumerate(story, 1)]


def _line(step: Step) -> str:
    if isinstance(step, Run):
        return "run " + ", and ".join(_part(part) for part in step.parts)
    words = ", ".join(f"{name} {value}" for name, value in asdict(step).items())
    return f"{type(step).__name__.lower()} {words}".rstrip()


def _part(part: Part) -> str:
    text = f"sequence {part.sequence} on {list(part.ids)}"
    if part.trial:
        text += f", the last {part.trial} on trial"
    if part.wanted is not None:
        text += f", rows {list(part.wanted)}"
    return text


def size(story: Story) -> tuple[int, int, int]:
    """What a smaller story has less of: steps, then ids, then the ids' sum."""
    ids = [i for step in story if isinstance(step, Run) for part in step.parts for i in part.ids]
    return len(story), len(ids), sum(ids)


def renamed(story: Story, by: int, n_vocab: int) -> Story:
    """The same story with every id moved on by `by`, around the vocabulary."""

    def moved(part: Part) -> Part:
        return replace(part, ids=tuple((i + by) % n_vocab for i in part.ids))

    return tuple(
        replace(step, parts=tuple(moved(part) for part in step.parts)) if isinstance(step, Run) else step
        for step in story
    )


def to_json(story: Story) -> list[dict[str, Any]]:
    """The story's steps as JSON objects."""
    return [{"do": type(step).__name__.lower(), **asdict(step)} for step in story]


def from_json(steps: Iterable[Any]) -> Story:
    """The inverse of `to_json`.  Raises ValueError on what is no story."""
    story: list[Step] = []
    for number, item in enumerate(steps, 1):
        if number > _MAX_STEPS:
            raise ValueError(f"a story has at most {_MAX_STEPS} steps")
        try:
            fields = dict(item)
            kind = _STEPS[fields.pop("do")]
            if issubclass(kind, Run):
                story.append(Run(parts=tuple(_part_from(part) for part in fields["parts"])))
            else:
                story.append(kind(**{name: int(value) for name, value in fields.items()}))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"step {number} is none that a story has: {error}") from None
    return tuple(story)


def _part_from(fields: Mapping[str, Any]) -> Part:
    wanted = fields["wanted"]
    return Part(
        sequence=int(fields["sequence"]),
        ids=tuple(int(i) for i in fields["ids"]),
        wanted=None if wanted is None else tuple(int(row) for row in wanted),
        trial=int(fields["trial"]),
        best=int(fields["best"]),
    )
