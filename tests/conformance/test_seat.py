"""The laws are checked: a right engine keeps them all, and each planted fault breaks the law that it ought to."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from bloomery.conformance.commands import UsageError, seat
from bloomery.conformance.engines import story
from bloomery.conformance.engines.bands_between import Alone, alone, band_between, weights_of
from bloomery.conformance.engines.law_checks import (
    STORIES,
    Held,
    ReplayError,
    check_law,
    law_named,
    load_story,
    replay_story,
)
from bloomery.conformance.engines.laws import LAWS, Law
from bloomery.conformance.engines.opening import EngineName, Model
from bloomery.conformance.engines.refusals import check_refusals
from bloomery.conformance.engines.story_player import Subject
from bloomery.conformance.finding import Check, Effort, Finding
from bloomery.conformance.fixtures import fixture
from tests.conformance import faulty_engines as faulty
from tests.conformance.faulty_engines import WrappedEngine, opener, with_sequences

MODEL = "qwen3-b-f32"


def held(name: str = "subject") -> Held:
    return Held(subject=name, engine="wrapped", model=fixture(MODEL), weights="F32")


def kept(law: Law, kind: type[WrappedEngine], replays: Path, stories: int = STORIES) -> Finding:
    subject = Subject(opener(MODEL, kind))
    try:
        return check_law(law, subject, held(), Effort(replays=replays), stories=stories)
    finally:
        subject.close()


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_a_right_engine_keeps_every_law(law: Law, tmp_path: Path) -> None:
    finding = kept(law, WrappedEngine, tmp_path, stories=10)
    assert finding.verdict == "passed", finding.wrong
    assert finding.measured["rows"] >= 20
    assert finding.measured["farthest"] == 0
    assert not list(tmp_path.iterdir())


def test_a_right_engine_refuses_what_it_must() -> None:
    [finding] = check_refusals(Subject(opener(MODEL, WrappedEngine)), held())
    assert finding.verdict == "passed", finding.wrong
    assert finding.measured["asked"] > 25


FAULTS: list[tuple[type[WrappedEngine], str]] = [
    (with_sequences(faulty.KeepLeavesTheState), "keep"),
    (with_sequences(faulty.KeepCutsOneMore), "keep"),
    (with_sequences(faulty.KeepSaysMore), "keep"),
    (with_sequences(faulty.CommitOneMore), "trials"),
    (with_sequences(faulty.CommitForgetsTheLast), "trials"),
    (with_sequences(faulty.CommitKeepsAll), "trials in a row"),
    (with_sequences(faulty.CommitKeepsAll), "drafts"),
    (with_sequences(faulty.SavesNoIds), "save and load"),
    (with_sequences(faulty.SavesOneCellLess), "save and load"),
    (with_sequences(faulty.LoadsKeysAlone), "restart"),
    (faulty.SavesForThisOpeningOnly, "restart"),
    (faulty.ReleasedPlacesAreNotCleared, "used places"),
    (faulty.SwapsSpans, "company"),
    (faulty.SingleRowsDiffer, "prompt cuts"),
    (faulty.CompanyShows, "company"),
    (faulty.UbatchEdge, "prompt cuts"),
    (faulty.TrialRowsAreLate, "drafts"),
    (faulty.RowsInOrderOfPlace, "wanted rows"),
    (faulty.BestIsNotSorted, "wanted rows"),
    (faulty.NoNumbersLater, "prompt cuts"),
    (faulty.TooNoisy, "prompt cuts"),
]


@pytest.mark.parametrize(("kind", "name"), FAULTS, ids=[f"{kind.__name__}, {name}" for kind, name in FAULTS])
def test_a_fault_breaks_its_law(kind: type[WrappedEngine], name: str, tmp_path: Path) -> None:
    finding = kept(law_named(name), kind, tmp_path)
    assert finding.verdict == "failed"
    law, smallest, model = load_story(finding.replay or tmp_path)
    assert law.name == name
    assert model == fixture(MODEL)
    # What a person reads: the law, what is wrong, and the steps.
    assert finding.wrong[0].startswith(law.says)
    assert len(finding.wrong) == 1 + len(smallest) <= 9
    subject = Subject(opener(MODEL, kind))
    [again] = replay_story(finding.replay or tmp_path, subject, held())
    assert again.verdict == "failed"
    [right] = replay_story(finding.replay or tmp_path, Subject(opener(MODEL, WrappedEngine)), held())
    assert right.verdict == "passed", right.wrong


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (faulty.TakesAnyId, "an id past the vocabulary is not refused"),
        (faulty.RunsBeforeItRefuses, "after a wrong span beside a right one was refused: the sequence holds"),
        (faulty.RaisesValueErrors, "a negative id raises ValueError in place of EngineError"),
        (faulty.RunsOnWhenClosed, "a closed engine runs on"),
        (with_sequences(faulty.CommitsWithoutTrial), "a commit without a trial is not refused"),
        (with_sequences(faulty.KeepsNegativeLengths), "keep of a negative length is not refused"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_not_refused_is_named(kind: type[WrappedEngine], told: str) -> None:
    [finding] = check_refusals(Subject(opener(MODEL, kind)), held())
    assert any(sentence.startswith(told) for sentence in finding.wrong), finding.wrong


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_state_that_cannot_be_cut_breaks_no_law(law: Law, tmp_path: Path) -> None:
    finding = kept(law, with_sequences(faulty.KeepsAllOrNothing), tmp_path, stories=8)
    assert finding.verdict == "passed", finding.wrong
    if law.name == "keep":
        assert finding.measured["kept of what was asked"] < 1


def test_an_engine_without_trials_is_told_what_was_not_asked(tmp_path: Path) -> None:
    verdicts = {law.name: kept(law, faulty.TakesNoTrials, tmp_path, stories=5) for law in LAWS}
    skipped = {name for name, finding in verdicts.items() if finding.verdict == "skipped"}
    assert skipped == {"trials", "trials in a row", "drafts"}
    assert not [finding.wrong for finding in verdicts.values() if finding.wrong]
    assert "n_trial is 0" in str(verdicts["drafts"].skipped)


def test_another_engine_is_held_to_a_band_and_not_to_bits(tmp_path: Path) -> None:
    for law in LAWS[:3]:
        finding = kept(law, faulty.Noisy, tmp_path, stories=8)
        assert finding.verdict == "passed", finding.wrong
        assert 0 < finding.measured["farthest"] < finding.measured["band"] == 2e-4


def test_a_budget_of_seconds_is_kept_to_and_tries_at_least_one_story(tmp_path: Path) -> None:
    subject = Subject(opener(MODEL, WrappedEngine))
    finding = check_law(LAWS[0], subject, held(), Effort(seconds=1e-6, replays=tmp_path))
    assert finding.measured["stories"] == 1


def test_the_seed_decides_what_is_drawn() -> None:
    def rows(seed: int) -> float:
        subject = Subject(opener(MODEL, WrappedEngine))
        return check_law(LAWS[0], subject, held(), Effort(seed=seed), stories=4).measured["rows"]

    assert rows(1) == rows(1)
    assert rows(1) != rows(2)


def test_a_difference_of_a_rounding_edge_must_show_on_other_ids_too(tmp_path: Path) -> None:
    """On quantised weights one far row proves nothing about state; the same steps on other ids do."""

    class OneTextIsFar(WrappedEngine):
        @property
        def name(self) -> str:
            return "third party"

        def changed(self, span: object, rows: object, spans: object) -> faulty.HeldRows:
            held_rows = faulty.rows_of(rows)  # type: ignore[arg-type]
            for row in held_rows:
                if list(span.ids) == [0]:  # type: ignore[attr-defined]
                    row[0] += 30
            return faulty.HeldRows(held_rows)

    subject = Subject(
        lambda: OneTextIsFar(
            Model(fixture("qwen3-b-q8_0")).open(EngineName.parse("reference:ggml"), n_ctx=64, n_sequences=4)
        )
    )
    quantised = Held(subject="s", engine="wrapped", model=fixture("qwen3-b-q8_0"), weights="Q8_0")
    assert alone(subject.engine, "Q8_0").renamings > 1
    finding = check_law(law_named("prompt cuts"), subject, quantised, Effort(replays=tmp_path))
    assert finding.verdict == "passed", finding.wrong
    assert alone(subject.engine, "F32").renamings == 1


def test_stories_survive_json() -> None:
    whole: story.Story = (
        story.Run(parts=(story.Part(sequence=0, ids=(1, 2)), story.Part(sequence=1, ids=(3,), wanted=(-1,), trial=1))),
        story.Commit(sequence=1, kept=0),
        story.Keep(sequence=0, n=1),
        story.Save(sequence=0),
        story.Load(sequence=1, saved=0),
        story.Release(sequence=1),
        story.Restart(),
        story.Draft(sequence=0, right=1, wrong=2),
    )
    assert story.from_json(json.loads(json.dumps(story.to_json(whole)))) == whole
    assert len(story.told(whole)) == len(whole)
    assert "the last 1 on trial, rows [-1]" in story.told(whole)[0]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "Expecting"),
        ("[]", "not a bloomery-story"),
        ('{"format": "bloomery-story", "version": 2}', "version 1"),
        ('{"format": "bloomery-story", "version": 1, "law": "gravity", "steps": [], "model": ""}', "no law 'gravity'"),
        ('{"format": "bloomery-story", "version": 1, "law": "keep", "steps": [{"do": "fly"}], "model": ""}', "step 1"),
        ('{"format": "bloomery-story", "version": 1, "law": "keep", "steps": [7], "model": ""}', "step 1"),
    ],
)
def test_a_file_that_is_no_story_is_named(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "story.json"
    path.write_text(text)
    with pytest.raises(ReplayError, match=told) as caught:
        load_story(path)
    assert str(path) in str(caught.value)


# The command.


def asked(*words: str) -> list[Check]:
    parser = argparse.ArgumentParser()
    seat.add_arguments(parser)
    return seat.checks(parser.parse_args(list(words)))


def test_a_seat_is_its_recorded_models_and_the_laws_on_them() -> None:
    found = asked("--seat", "qwen3moe")
    subjects = {check.subject for check in found}
    assert "qwen3moe-a-q4km.strict" in subjects
    assert "qwen3moe-a-q4km" in subjects
    assert all(subject.startswith("qwen3moe") for subject in subjects)
    assert len({(check.subject, check.name) for check in found}) == len(found)
    assert {law.name for law in LAWS} | {"refusals"} <= {check.name for check in found}
    [one] = [check for check in found if (check.subject, check.name) == ("qwen3moe-a-f32.strict", "distributions")]
    [finding] = one.run(Effort())
    assert finding.verdict == "passed", finding.wrong
    assert finding.plots[0].kind == "histogram"


def test_a_recorded_set_without_a_band_for_the_numerics_is_skipped_by_name() -> None:
    found = asked("--numerics", "ggml", "--seat", "qwen3moe")
    [one] = [check for check in found if (check.subject, check.name) == ("qwen3moe-a-f16.default", "greedy ids")]
    [finding] = one.run(Effort())
    assert finding.verdict == "skipped"
    assert "no band for F16/default/ggml" in str(finding.skipped)


def test_a_file_is_compared_with_another_engine() -> None:
    path = str(fixture("qwen3-a-q8_0"))
    found = asked("--model", path, "--against", "reference:ggml", "-n", "12")
    assert [check.name for check in found] == ["comparison", *(law.name for law in LAWS), "refusals"]
    distributions, ids = found[0].run(Effort())
    assert distributions.verdict == "passed", distributions.wrong
    assert 0 < distributions.measured["KL most"] < 0.1
    line = distributions.plots[0]
    assert (line.kind, line.names, [len(row) for row in line.rows]) == ("line", ("prose", "code"), [12, 12])
    assert ids.measured["steps"] == 24


def test_an_op_set_that_is_not_installed_is_named_by_its_place() -> None:
    path = str(fixture("qwen3-a-f32"))
    there = "tests.conformance.doubling_ops:DoublingOps"
    found = asked("--model", path, "--numerics", there, "--against", "reference", "-n", "4")
    distributions, ids = found[0].run(Effort())
    assert distributions.verdict == ids.verdict == "failed"
    assert distributions.measured["p50"] > 0.01


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--seat", "nemotron"), "no recorded model is of that family; there are gemma3"),
        (("--seat", "qwen3", "--model", "x.gguf"), "give one of them"),
        (("--against", "reference"), "name it with --model"),
        (("--model", "x.gguf", "--against", ":ggml"), "names no engine"),
        (("--model", "x.gguf", "--prompt", "a"), "name the other with --against"),
        (("--predict", "0"), "at least one id"),
        (("--replay", "none.json"), "none.json"),
        (("--recordings", "tests"), "no set of ids"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(words: tuple[str, ...], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        asked(*words)


@pytest.mark.parametrize(
    ("model", "weights"),
    [
        ("qwen3-a-f32", "F32"),
        ("qwen3-a-f16", "F16"),
        ("qwen3-a-bf16", "BF16"),
        ("qwen3-a-q8_0", "Q8_0"),
        ("qwen3moe-a-q4km", "Q4_K mix"),
        ("gemma3-a-f32", "F32 with GELU"),
    ],
)
def test_weights_are_named_as_bands_name_them(model: str, weights: str) -> None:
    file = Model(fixture(model))
    assert weights_of(file.file, file.description) == weights


def test_two_engines_of_exact_numerics_are_as_near_as_two_orders_of_sums() -> None:
    assert band_between("Q8_0", "exact", "mine").most == 2e-4
    assert band_between("Q8_0", "ggml", "ggml").p50 == 1e-4
    assert band_between("Q8_0", "exact", "ggml").p50 == 0.4


def test_the_reference_is_held_to_bits() -> None:
    engine = Model(fixture(MODEL)).open(EngineName(engine="reference"), n_ctx=8)
    assert alone(engine, "F32") == Alone(
        bits=True, most=0, sure=0, renamings=1, why="a row of exact depends on no company"
    )
