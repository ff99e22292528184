"""Hold an engine against recorded models and the laws of its interface, or against another engine on a file of yours.

Without --model: the recorded sets, each with its tiny model, and the laws on those models.
With --model FILE: the laws on that file, and with --against the distance to another engine.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from bloomery.conformance.bands import NoBandError
from bloomery.conformance.cases import Case, Distribution, Drafted, Greedy, Seeded
from bloomery.conformance.commands import UsageError
from bloomery.conformance.engines.bands_between import band_between, weights_of
from bloomery.conformance.engines.comparison import compare_engines
from bloomery.conformance.engines.drafted import check_drafts
from bloomery.conformance.engines.law_checks import STORIES, Held, ReplayError, check_law, load_story, replay_story
from bloomery.conformance.engines.laws import LAWS, Law
from bloomery.conformance.engines.opening import EngineName, Model
from bloomery.conformance.engines.recorded_checks import RECORDED_CHECKS, RecordedOfAnotherFileError, band_for, model_of
from bloomery.conformance.engines.refusals import check_refusals
from bloomery.conformance.engines.story_player import Subject
from bloomery.conformance.finding import Check, Effort, Finding
from bloomery.conformance.fixtures import fixture
from bloomery.conformance.fixtures.catalog import RANDOM_SHAPES
from bloomery.conformance.recording import RECORDINGS, RecordingSet, load_set, set_names
from bloomery.interface.engine import EngineError
from bloomery.interface.files.gguf import open_gguf
from bloomery.interface.tokenizer.load import load_tokenizer

# Stories need room for three sequences and for the fresh one beside them; the ubatch is one that prompts pass.
_LAW_ROOM = {"n_ctx": 64, "n_sequences": 4, "n_ubatch": 16}
# Laws are about state, which the format of the weights does not touch: one plain and one quantised file a shape.
_LAW_RECIPES = ("f32", "q4km")
# A file of the user's own may take seconds a story.
_STORIES_ON_A_FILE = 8
# Which cases of a set each check takes.
_CASES: Mapping[str, Callable[[RecordingSet], Sequence[Case]]] = {
    "distributions": lambda recording: recording.cases(Distribution),
    "greedy ids": lambda recording: recording.cases(Greedy),
    "decoding": lambda recording: recording.cases(Greedy),
    "seeded ids": lambda recording: recording.cases(Seeded),
}

_PROMPTS = {
    "prose": "The forge is warm before the sun is up, and the smith turns the iron on the anvil until it",
    "code": "def strike(bar, times):\n    for _ in range(times):\n        bar = bar.fold()\n    return",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `seat`."""
    parser.add_argument("--engine", metavar="NAME", default="reference", help="the engine (default: %(default)s)")
    parser.add_argument(
        "--numerics",
        metavar="NAME",
        default="exact",
        help="its arithmetic: an installed op set, or module:factory for one that is not (default: %(default)s)",
    )
    parser.add_argument(
        "--seat", metavar="WORD", help="only recorded models of this family: qwen3, qwen3moe, gemma3 ..."
    )
    parser.add_argument(
        "--recordings", type=Path, metavar="DIR", default=RECORDINGS, help="the folder of recorded sets"
    )
    parser.add_argument("--fixtures", type=Path, metavar="DIR", help="where the tiny models are kept")
    parser.add_argument(
        "--model", type=Path, metavar="FILE", help="a GGUF file of yours, in place of the recorded models"
    )
    parser.add_argument("--against", metavar="ENGINE[:NUMERICS]", help="with --model: the engine to compare with")
    parser.add_argument("--prompt", metavar="TEXT", help="with --against: what to continue (default: two texts)")
    parser.add_argument(
        "-n", "--predict", type=int, metavar="N", default=32, help="with --against: ids a prompt (default: %(default)s)"
    )
    parser.add_argument("--replay", type=Path, metavar="FILE", help="play a saved story again, on --model or its own")


def checks(arguments: argparse.Namespace) -> list[Check]:
    """What the arguments ask for; no engine is opened yet.  Raises UsageError and UnknownNameError."""
    name = EngineName(engine=arguments.engine, numerics=arguments.numerics)
    name.find()
    if arguments.model is not None and arguments.seat is not None:
        raise UsageError("--seat chooses recorded models and --model is a file of yours: give one of them")
    if arguments.against is not None and arguments.model is None:
        raise UsageError("--against compares two engines on a file: name it with --model")
    if arguments.prompt is not None and arguments.against is None:
        raise UsageError("--prompt is what two engines continue: name the other with --against")
    if arguments.predict < 1:
        raise UsageError(f"--predict {arguments.predict}: at least one id")
    if arguments.replay is not None:
        return [_replay(arguments, name)]
    if arguments.model is not None:
        return _on_file(arguments, name)
    return _on_recordings(arguments, name)


def _on_recordings(arguments: argparse.Namespace, name: EngineName) -> list[Check]:
    sets = [load_set(each, arguments.recordings) for each in set_names(arguments.recordings)]
    sets = [each for each in sets if each.cases(Drafted) or any(cases(each) for cases in _CASES.values())]
    if not sets:
        raise UsageError(f"--recordings {arguments.recordings}: no set of ids and distributions is there")
    if arguments.seat is not None:
        models = {each.manifest.model for each in sets}
        families = {each: _family(fixture(each, arguments.fixtures)) for each in models}
        if arguments.seat not in families.values():
            known = ", ".join(sorted(set(families.values())))
            raise UsageError(f"--seat {arguments.seat}: no recorded model is of that family; there are {known}")
        sets = [each for each in sets if families[each.manifest.model] == arguments.seat]
    found: list[Check] = []
    for each in sets:
        for check, cases in _CASES.items():
            if cases(each):
                run = partial(_recorded, each.name, check, name, arguments.recordings, arguments.fixtures)
                found.append(Check(subject=each.name, name=check, run=run))
        if each.cases(Drafted):
            run = partial(_drafted, each.name, name, arguments.recordings, arguments.fixtures)
            found.append(Check(subject=each.name, name="drafts", run=run))
    for model in sorted({each.manifest.model for each in sets}):
        shape, _, recipe = model.rpartition("-")
        if shape in RANDOM_SHAPES and recipe in _LAW_RECIPES:
            found += _law_checks(model, name, partial(fixture, model, arguments.fixtures), STORIES)
    return found


def _family(path: Path) -> str:
    return open_gguf(path).get_str("general.architecture")


def _recorded(
    set_name: str, check: str, name: EngineName, recordings: Path, fixtures: Path | None, _effort: Effort
) -> Iterator[Finding]:
    recording = load_set(set_name, recordings)
    try:
        model = model_of(recording, fixtures)
        engine = model.open(name, n_ctx=int(recording.manifest.settings["n_ctx"]))
        band = band_for(engine, recording)
    except (NoBandError, RecordedOfAnotherFileError) as error:
        yield Finding(subject=set_name, check=check, measured={}, skipped=str(error))
        return
    try:
        yield from RECORDED_CHECKS[check](engine, recording, band, _eog_ids(model, recording))
    finally:
        engine.close()


def _drafted(
    set_name: str, name: EngineName, recordings: Path, fixtures: Path | None, _effort: Effort
) -> Iterator[Finding]:
    recording = load_set(set_name, recordings)
    try:
        model = model_of(recording, fixtures)
        engine = model.open(name, n_ctx=int(recording.manifest.settings["n_ctx"]), draft=True)
    except (EngineError, RecordedOfAnotherFileError) as error:
        yield Finding(subject=set_name, check="drafts", measured={}, skipped=str(error))
        return
    try:
        yield from check_drafts(engine, recording)
    finally:
        engine.close()


def _eog_ids(model: Model, recording: RecordingSet) -> Collection[int]:
    return load_tokenizer(model.file.metadata).eog_ids if recording.cases(Seeded) else ()


def _law_checks(subject: str, name: EngineName, path: partial[Path], stories: int) -> list[Check]:
    laws = [Check(subject=subject, name=law.name, run=partial(_law, subject, law, name, path, stories)) for law in LAWS]
    return [*laws, Check(subject=subject, name="refusals", run=partial(_refusals, subject, name, path))]


def _held(subject: str, name: EngineName, path: Path) -> tuple[Subject, Held]:
    model = Model(path)
    weights = weights_of(model.file, model.description)
    held = Held(subject=subject, engine=str(name), model=path, weights=weights)
    return Subject(partial(model.open, name, **_LAW_ROOM)), held


def _law(
    subject: str, law: Law, name: EngineName, path: partial[Path], stories: int, effort: Effort
) -> Iterator[Finding]:
    engine, held = _held(subject, name, path())
    try:
        yield check_law(law, engine, held, effort, stories=stories)
    finally:
        engine.close()


def _refusals(subject: str, name: EngineName, path: partial[Path], _effort: Effort) -> Iterator[Finding]:
    engine, held = _held(subject, name, path())
    try:
        yield from check_refusals(engine, held)
    finally:
        engine.close()


def _on_file(arguments: argparse.Namespace, name: EngineName) -> list[Check]:
    found: list[Check] = []
    if arguments.against is not None:
        try:
            definition = EngineName.parse(arguments.against)
        except ValueError as error:
            raise UsageError(f"--against: {error}") from None
        definition.find()
        subject = f"{arguments.model.name} against {definition}"
        run = partial(_against, subject, name, definition, arguments.model, arguments.prompt, arguments.predict)
        found.append(Check(subject=subject, name="comparison", run=run))
    return found + _law_checks(arguments.model.name, name, partial(Path, arguments.model), _STORIES_ON_A_FILE)


def _against(
    subject: str, name: EngineName, definition: EngineName, path: Path, text: str | None, n_predict: int, effort: Effort
) -> Iterator[Finding]:
    model = Model(path)
    tokenizer = load_tokenizer(model.file.metadata)
    texts = _PROMPTS if text is None else {"the prompt": text}
    prompts = {each: tokenizer.encode(words, add_special=True, parse_special=False) for each, words in texts.items()}
    if empty := [each for each, ids in prompts.items() if not ids]:
        raise UsageError(f"--prompt: {empty[0]} has no ids in this vocabulary")
    n_ctx = max(map(len, prompts.values())) + n_predict
    band = band_between(weights_of(model.file, model.description), name.numerics, definition.numerics)
    engine, other = model.open(name, n_ctx=n_ctx), model.open(definition, n_ctx=n_ctx)
    try:
        yield from compare_engines(
            engine, other, prompts, band, subject=subject, n_predict=n_predict, seconds=effort.seconds
        )
    finally:
        engine.close()
        other.close()


def _replay(arguments: argparse.Namespace, name: EngineName) -> Check:
    try:
        law, _, model = load_story(arguments.replay)
    except ReplayError as error:
        raise UsageError(f"--replay {error}") from None
    path = arguments.model if arguments.model is not None else model
    return Check(subject=path.name, name=law.name, run=partial(_replayed, name, path, arguments.replay))


def _replayed(name: EngineName, path: Path, replay: Path, _effort: Effort) -> Iterator[Finding]:
    engine, held = _held(path.name, name, path)
    try:
        yield from replay_story(replay, engine, held)
    finally:
        engine.close()
