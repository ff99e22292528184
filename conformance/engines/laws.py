"""The laws of `bloomery.interface.engine`: what holds for any engine on any file, with no recording of it.

Each law draws stories of one shape (`engines.story`), and playing them holds every row against a fresh sequence's
(`engines.story_player`). A story that breaks is shrunk to the smallest that still does. State that cannot be cut is no
fault: where `Sequence.keep` keeps less than was asked, a story goes on from what it kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from bloomery.conformance.engines.story import Commit, Draft, Keep, Load, Part, Release, Restart, Run, Save, Step, Story
from bloomery.interface.engine import Engine

Ids = tuple[int, ...]
Draw = st.DrawFn

# More best ids than any sampler asks for first, fewer than any vocabulary has.
_BEST = 5
_SEQUENCES = 3


@dataclass(frozen=True, kw_only=True)
class Room:
    """What stories may use: ids below `n_vocab`, `n_cells` cells of each of `n_sequences` sequences, and at most
    `n_trial` inputs on trial."""

    n_vocab: int
    n_cells: int
    n_sequences: int
    n_trial: int

    @classmethod
    def of(cls, engine: Engine) -> Room:
        """An engine's."""
        options = engine.options
        return cls(
            n_vocab=engine.spec.n_vocab,
            n_cells=min(options.n_ctx, 48),
            n_sequences=min(options.n_sequences, _SEQUENCES),
            n_trial=options.n_trial,
        )

    def ids(self, most: int, least: int = 1) -> st.SearchStrategy[Ids]:
        """A text of `least` to `most` ids."""
        one = st.integers(0, self.n_vocab - 1)
        # The length is drawn first: lists of free length are mostly short, and a ubatch is passed by long ones.
        length = st.integers(least, max(least, min(most, self.n_cells)))
        return length.flatmap(lambda n: st.lists(one, min_size=n, max_size=n).map(tuple))


@dataclass(frozen=True, kw_only=True)
class Law:
    """A law by name, what it says, and the stories that try it.  trials: they need inputs on trial."""

    name: str
    says: str
    stories: Callable[[Room], st.SearchStrategy[Story]]
    trials: bool = False
    sequences: int = 1

    def out_of_reach(self, room: Room) -> str | None:
        """Why an engine with this room cannot be asked; None when it can."""
        if self.trials and room.n_trial < 1:
            return "the engine takes no inputs on trial (n_trial is 0)"
        if self.sequences > room.n_sequences:
            return f"the engine holds {room.n_sequences} sequences at once, and this needs {self.sequences}"
        return None


def _read(ids: Ids, sequence: int = 0, trial: int = 0) -> Run:
    return Run(parts=(Part(sequence=sequence, ids=ids, trial=trial),))


def _pieces(draw: Draw, ids: Ids) -> list[Ids]:
    """The ids cut anywhere."""
    cuts = sorted(draw(st.sets(st.integers(1, len(ids) - 1), max_size=5))) if len(ids) > 1 else []
    return [ids[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(ids)], strict=True)]


@st.composite
def _prompt_cuts(draw: Draw, room: Room) -> Story:
    return tuple(_read(piece) for piece in _pieces(draw, draw(room.ids(40, least=2))))


@st.composite
def _company(draw: Draw, room: Room) -> Story:
    n = draw(st.integers(2, room.n_sequences))
    waiting = [_pieces(draw, draw(room.ids(16))) for _ in range(n)]
    order = draw(st.permutations(range(n)))
    story: list[Step] = []
    while any(waiting):
        story.append(Run(parts=tuple(Part(sequence=at, ids=waiting[at].pop(0)) for at in order if waiting[at])))
    return tuple(story)


@st.composite
def _wanted_rows(draw: Draw, room: Room) -> Story:
    parts = []
    for at in range(draw(st.integers(1, room.n_sequences))):
        ids = draw(room.ids(20))
        rows = draw(st.lists(st.integers(-len(ids), len(ids) - 1), max_size=5))
        parts.append(Part(sequence=at, ids=ids, wanted=tuple(rows), best=draw(st.integers(1, _BEST))))
    return (Run(parts=tuple(parts)), _read((0,)))


@st.composite
def _trials(draw: Draw, room: Room) -> Story:
    """One text and one proposal, of which every number of inputs is kept on a sequence of its own turn."""
    text = draw(room.ids(8))
    tried = draw(room.ids(min(room.n_trial, 5)))
    story: list[Step] = []
    for kept in draw(st.permutations(range(len(tried) + 1))):
        story += [_read((*text, *tried), trial=len(tried)), Commit(sequence=0, kept=kept), _read(draw(room.ids(3)))]
        story.append(Release(sequence=0))
    return tuple(story)


@st.composite
def _trials_in_a_row(draw: Draw, room: Room) -> Story:
    story: list[Step] = [_read(draw(room.ids(6)))]
    for _ in range(draw(st.integers(1, 2))):
        tried = draw(room.ids(min(room.n_trial, 16)))
        before = draw(room.ids(2))
        story += [_read((*before, *tried), trial=len(tried)), Commit(sequence=0, kept=draw(_up_to(len(tried))))]
    return (*story, _read(draw(room.ids(2))))


def _up_to(n: int) -> st.SearchStrategy[int]:
    return st.integers(0, n)


@st.composite
def _keep(draw: Draw, room: Room) -> Story:
    story: list[Step] = []
    held = 0
    for _ in range(draw(st.integers(1, 3))):
        ids = draw(room.ids(12))
        held += len(ids)
        n = draw(st.integers(0, held + 2))
        story += [_read(ids), Keep(sequence=0, n=n)]
        held = min(held, n)
    return (*story, _read(draw(room.ids(2))))


@st.composite
def _save_and_load(draw: Draw, room: Room) -> Story:
    """Saved, gone on with, and loaded where another text was; and loaded again where it came from."""
    story: list[Step] = [_read(draw(room.ids(12))), Save(sequence=0), _read(draw(room.ids(4)))]
    if draw(st.booleans()):
        story.append(Release(sequence=0))
    if draw(st.booleans()):
        story.append(_read(draw(room.ids(16)), sequence=1))
    back = draw(st.integers(0, 1))
    return (*story, Load(sequence=back, saved=0), _read(draw(room.ids(3)), sequence=back))


@st.composite
def _restart(draw: Draw, room: Room) -> Story:
    return (
        _read(draw(room.ids(12))),
        Save(sequence=0),
        Restart(),
        Load(sequence=0, saved=0),
        _read(draw(room.ids(3))),
    )


@st.composite
def _used_places(draw: Draw, room: Room) -> Story:
    story: list[Step] = []
    for _ in range(draw(st.integers(1, room.n_sequences))):
        story += [_read(draw(room.ids(16))), Release(sequence=0)]
    return (*story, _read(draw(room.ids(8))), _read(draw(room.ids(2))))


@st.composite
def _drafts(draw: Draw, room: Room) -> Story:
    story: list[Step] = [_read(draw(room.ids(8)))]
    most = min(room.n_trial, 4)
    for _ in range(draw(st.integers(1, 3))):
        right = draw(st.integers(0, most))
        story.append(Draft(sequence=0, right=right, wrong=draw(st.integers(0, most - right))))
    return (*story, _read(draw(room.ids(1))))


@st.composite
def _anything(draw: Draw, room: Room) -> Story:
    """Every kind of step in any order that is allowed."""
    # One place stays free for the fresh sequence that a draft needs.
    n = max(1, room.n_sequences - 1)
    story: list[Step] = []
    held = [0] * n
    saved: list[int] = []
    for _ in range(draw(st.integers(1, 10))):
        at = draw(st.integers(0, n - 1))
        if held[at] == 0:
            kind = "run"
        else:
            kinds = ["run", "keep", "save", "release"] + ["load"] * bool(saved)
            kind = draw(st.sampled_from(kinds + ["trial", "draft"] * bool(room.n_trial)))
        space = room.n_cells - held[at]
        if kind in {"run", "trial", "draft"} and space < 12:
            kind = "release"
        match kind:
            case "run":
                other = (at + 1) % n
                parts = [Part(sequence=at, ids=draw(room.ids(6)))]
                if other != at and room.n_cells - held[other] >= 12 and draw(st.booleans()):
                    parts.append(Part(sequence=other, ids=draw(room.ids(3))))
                for part in parts:
                    held[part.sequence] += len(part.ids)
                story.append(Run(parts=tuple(parts)))
            case "trial":
                ids = draw(room.ids(4))
                trial = draw(st.integers(1, min(len(ids), room.n_trial)))
                kept = draw(_up_to(trial))
                story += [_read(ids, at, trial), Commit(sequence=at, kept=kept)]
                held[at] += len(ids) - trial + kept
            case "draft":
                right = draw(st.integers(0, min(2, room.n_trial)))
                story.append(Draft(sequence=at, right=right, wrong=draw(_up_to(min(2, room.n_trial) - right))))
                held[at] += 3
            case "keep":
                # At least one id, because a draft goes on from what is there; an engine may keep none all the same.
                n_kept = draw(st.integers(1, held[at]))
                story += [Keep(sequence=at, n=n_kept), _read(draw(room.ids(1)), at)]
                held[at] = n_kept + 1
            case "save":
                story.append(Save(sequence=at))
                saved.append(held[at])
            case "load":
                which = draw(st.integers(0, len(saved) - 1))
                story.append(Load(sequence=at, saved=which))
                held[at] = saved[which]
            case _:
                story.append(Release(sequence=at))
                held[at] = 0
    return tuple(story)


LAWS: Sequence[Law] = (
    Law(name="prompt cuts", says="how a prompt is cut changes no row", stories=_prompt_cuts),
    Law(
        name="company",
        says="what else is in the call, and in which order, changes no row",
        stories=_company,
        sequences=2,
    ),
    Law(
        name="wanted rows",
        says="the rows that are asked for come, in that order, and `best` is of the row",
        stories=_wanted_rows,
    ),
    Law(name="trials", says="what a trial takes back never was", stories=_trials, trials=True),
    Law(name="trials in a row", says="a trial may follow a trial", stories=_trials_in_a_row, trials=True),
    Law(name="keep", says="a sequence that was cut back goes on as the prefix it says it kept", stories=_keep),
    Law(
        name="save and load",
        says="a saved sequence goes on wherever it is loaded, whatever came after",
        stories=_save_and_load,
        sequences=2,
    ),
    Law(name="restart", says="a saved sequence goes on in an engine that was opened anew", stories=_restart),
    Law(name="used places", says="a new sequence knows nothing of the one before it", stories=_used_places),
    Law(
        name="drafts",
        says="a proposal that is right, wrong or right in part changes no id",
        stories=_drafts,
        trials=True,
        sequences=2,
    ),
    Law(name="anything", says="all of it in any order", stories=_anything),
)
