"""Trying a law on an engine: stories are drawn until one breaks, and the smallest that does is told and saved."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings

from bloomery.conformance.engines import story
from bloomery.conformance.engines.bands_between import Alone, alone
from bloomery.conformance.engines.laws import LAWS, Law, Room
from bloomery.conformance.engines.story import Story
from bloomery.conformance.engines.story_player import Subject, Tally, play
from bloomery.conformance.finding import Effort, Finding

# Stories drawn of a law where no budget of seconds says otherwise; and of one that is measured in seconds, at most.
STORIES = 25
_MOST_STORIES = 1000
# Of a check's seconds, the part in which stories are drawn; shrinking has the rest.
_DRAWING = 0.6

FORMAT = "bloomery-story"


class ReplayError(ValueError):
    """A file that is no saved story; the message names it."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """What a law is held against: the engine, by what it is called, and the file's weights as `bands` names them."""

    subject: str
    engine: str
    model: Path
    weights: str


def law_named(name: str) -> Law:
    """Raises ReplayError for a law that there is not."""
    for law in LAWS:
        if law.name == name:
            return law
    raise ReplayError(f"there is no law {name!r}; there are {', '.join(law.name for law in LAWS)}")


class _TimeIsUp(BaseException):
    """Not an Exception, so that the search ends at once instead of taking it for a failing story."""


def check_law(law: Law, subject: Subject, held: Held, effort: Effort, *, stories: int = STORIES) -> Finding:
    """Draw that many stories of the law, or as many as the effort's seconds allow, and tell the smallest that breaks;
    it is saved in the effort's folder."""
    room = Room.of(subject.engine)
    if why := law.out_of_reach(room):
        return Finding(subject=held.subject, check=law.name, measured={}, skipped=why)
    band = alone(subject.engine, held.weights)
    tally = Tally()

    def broken(one: Story) -> str | None:
        return _broken(one, subject, band, tally, room.n_vocab)

    smallest = _search(law, room, broken, effort, stories)
    if smallest is None:
        return Finding(subject=held.subject, check=law.name, measured=_measured(tally, band))
    # On an engine that no earlier story has touched, so that the story is the whole of the fault.
    subject.close()
    again = broken(smallest[0])
    wrong = [f"{law.says}: {again or smallest[1]}", *story.told(smallest[0])]
    if again is None:
        wrong.append("on a newly opened engine the same steps are right, so what came before them matters")
    replay = _save(law, held, smallest[0], effort)
    return Finding(
        subject=held.subject, check=law.name, measured=_measured(tally, band), wrong=tuple(wrong), replay=replay
    )


def _broken(one: Story, subject: Subject, band: Alone, tally: Tally, n_vocab: int) -> str | None:
    """What is wrong by the story, once all the renamings of it that the band asks for are wrong."""
    first = play(one, subject, band, tally)
    for by in range(1, band.renamings):
        if first is None or play(story.renamed(one, by * 7, n_vocab), subject, band, tally) is None:
            return None
    return first


def _measured(tally: Tally, band: Alone) -> dict[str, float]:
    measured: dict[str, float] = {"stories": tally.stories, "rows": tally.rows, "farthest": tally.farthest}
    if not band.bits:
        measured["band"] = band.most
    if tally.cut_to:
        measured["kept of what was asked"] = tally.kept / tally.cut_to
    return measured


def _search(
    law: Law, room: Room, broken: Callable[[Story], str | None], effort: Effort, stories: int
) -> tuple[Story, str] | None:
    """The smallest story found that breaks, and what is wrong by it."""
    start = time.monotonic()
    # Drawing ends and shrinking ends by the clock; what was found by then counts.
    drawn_by = None if effort.seconds is None else start + _DRAWING * effort.seconds
    ends = None if effort.seconds is None else start + effort.seconds
    found: tuple[Story, str] | None = None
    n_tried = 0

    @seed(effort.seed)
    @settings(
        max_examples=stories if effort.seconds is None else _MOST_STORIES,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
        report_multiple_bugs=False,
    )
    @given(law.stories(room))
    def tried(one: Story) -> None:
        nonlocal found, n_tried
        until = ends if found else drawn_by
        # The first story is played whatever the clock says: a check that tried nothing has not passed.
        if n_tried and until is not None and time.monotonic() > until:
            raise _TimeIsUp
        n_tried += 1
        wrong = broken(one)
        if wrong is not None:
            if found is None or story.size(one) < story.size(found[0]):
                found = (one, wrong)
            raise AssertionError(wrong)

    # Whatever the search ends with, `found` has the outcome.
    with contextlib.suppress(Exception, _TimeIsUp):
        tried()
    return found


def _save(law: Law, held: Held, smallest: Story, effort: Effort) -> Path:
    """Write the story where it can be found again."""
    effort.replays.mkdir(parents=True, exist_ok=True)
    name = f"{held.subject}-{law.name}".replace(" ", "-").replace("/", "-")
    path = effort.replays / f"{name}.json"
    saved = {
        "format": FORMAT,
        "version": 1,
        "law": law.name,
        "engine": held.engine,
        "model": str(held.model),
        "steps": story.to_json(smallest),
    }
    path.write_text(json.dumps(saved, indent=1) + "\n")
    return path


def load_story(path: Path) -> tuple[Law, Story, Path]:
    """A saved story's law, its steps and the model it broke on.  Raises ReplayError."""
    try:
        saved = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ReplayError(f"{path}: {error}") from None
    if not isinstance(saved, dict) or saved.get("format") != FORMAT or saved.get("version") != 1:
        raise ReplayError(f"{path}: not a {FORMAT} of version 1")
    try:
        return law_named(str(saved["law"])), story.from_json(saved["steps"]), Path(saved["model"])
    except (KeyError, TypeError, ValueError) as error:
        raise ReplayError(f"{path}: {error}") from None


def replay_story(path: Path, subject: Subject, held: Held) -> Iterator[Finding]:
    """Play a saved story again."""
    law, one, _ = load_story(path)
    band = alone(subject.engine, held.weights)
    tally = Tally()
    wrong = _broken(one, subject, band, tally, subject.engine.spec.n_vocab)
    lines = () if wrong is None else (f"{law.says}: {wrong}", *story.told(one))
    yield Finding(subject=held.subject, check=law.name, measured=_measured(tally, band), wrong=lines, replay=path)
