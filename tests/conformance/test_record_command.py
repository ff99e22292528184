"""The recorder: its named errors and, where the oracle is installed, that it takes the committed sets again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bloomery.conformance import oracle, url_recorder
from bloomery.conformance.bands import band_of
from bloomery.conformance.cases import Distribution, Exchange, Greedy, Seeded
from bloomery.conformance.command import main
from bloomery.conformance.compare import outside, profile, row_distance
from bloomery.conformance.corpus.sampling_runs import FEW_RUNS
from bloomery.conformance.fixtures import fixture, sha256_of
from bloomery.conformance.oracle import Oracle, OracleError, OracleSettings
from bloomery.conformance.own_server import own_server
from bloomery.conformance.recording import load_set, set_names
from bloomery.conformance.volatile import settled_body
from bloomery.conformance.wire import ask
from bloomery.interface import registry
from bloomery.interface.engine import EngineOptions, Span
from bloomery.interface.files.gguf import open_gguf


def take(out: Path, name: str) -> int:
    return main(["record", "--oracle", "--quiet", "--out", str(out), "--set", name])


def test_an_unknown_set_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert take(tmp_path, "nothing") == 2
    assert "no set is named nothing; known are qwen3-a-f32.strict" in capsys.readouterr().err
    assert set_names(tmp_path) == []


def test_a_missing_oracle_is_named_with_its_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oracle, "PACKAGE", "no-such-oracle")
    assert take(tmp_path, "http-think") == 2
    assert "no package no-such-oracle" in (error := capsys.readouterr().err)
    assert "pip install 'bloomery[oracle]'" in error
    assert set_names(tmp_path) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--oracle", "--model", "m.gguf"], "--model goes with --url"),
        (["--oracle", "--redact"], "--redact goes with --url"),
        (["--url", "here"], "--url here: not the address"),
        (["--url", "http://a", "--model", "no-such-file"], "--model no-such-file: no such file"),
        (["--url", "http://a", "--set", "nothing"], "no set is named nothing; known are numbers"),
        (["--url", "http://a", "-j", "2"], "--jobs"),
    ],
)
def test_usage_errors_name_the_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["record", "--out", str(tmp_path), *words]) == 2
    assert message in capsys.readouterr().err


# Of a server by its URL.

KEY = "a-secret-key"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    arguments = ["--model-file", str(fixture("qwen3-a-f32")), "--ctx-size", "512", "--parallel", "1", "--api-key", KEY]
    with own_server(arguments) as address:
        yield address


def take_url(url: str, out: Path, *words: str) -> int:
    return main(["record", "--quiet", "--url", url, "--api-key", KEY, "--out", str(out), *words])


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer passages, shorter ones and shorter answers."""
    monkeypatch.setattr(url_recorder, "PASSAGES", tuple(text[:20] for text in url_recorder.PASSAGES[:2]))
    monkeypatch.setattr(url_recorder, "N_CONTINUED", 5)
    monkeypatch.setattr(url_recorder, "SEEDS", (7,))


@pytest.mark.usefixtures("few")
def test_numbers_of_a_server_are_the_model_s(url: str, tmp_path: Path) -> None:
    model = fixture("qwen3-a-f32")
    assert take_url(url, tmp_path, "--set", "numbers", "--model", str(model), "--numerics", "exact") == 0
    taken = load_set("numbers", tmp_path)
    assert taken.manifest.model_sha256 == sha256_of(model)
    assert (taken.manifest.model, taken.manifest.numerics) == ("qwen3-a-f32", "exact")
    file = open_gguf(model)
    description = registry.family("qwen3")(file)
    engine = registry.engine("reference").open(file, description, EngineOptions(n_ctx=512))
    assert len(taken.cases(Distribution)) == len(taken.cases(Greedy)) == 2
    for case in taken.cases(Distribution):
        for length, row in zip(case.lengths, taken.distribution(case), strict=True):
            sequence = engine.sequence()
            [rows] = engine.run([Span(sequence=sequence, ids=case.ids[:length])])
            sequence.release()
            assert len(row.ids) == description.spec.n_vocab
            # The API's numbers are the logarithms of float32 probabilities.
            assert row_distance(row, rows.logits(0)).whole < 2e-5
    for greedy in taken.cases(Greedy):
        ids = [*greedy.prompt, *greedy.ids[:-1]]
        wanted = range(len(greedy.prompt) - 1, len(ids))
        sequence = engine.sequence()
        [rows] = engine.run([Span(sequence=sequence, ids=ids, wanted=wanted)])
        sequence.release()
        for step, margin in enumerate(taken.margins(greedy)):
            best, logits = rows.best(step, 2)
            assert best[0] == greedy.ids[step]
            assert float(logits[0] - logits[1]) == pytest.approx(float(margin), abs=1e-4)
    assert {case.name for case in taken.cases(Seeded)} == {f"{run}, seed 7" for run in FEW_RUNS}
    engine.close()
    file.close()


@pytest.mark.usefixtures("few")
def test_the_best_are_kept_where_a_vocabulary_is_large(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert take_url(url, tmp_path / "whole", "--set", "numbers") == 0
    monkeypatch.setattr(url_recorder, "WHOLE_VOCABULARY", 100)
    assert take_url(url, tmp_path / "best", "--set", "numbers") == 0
    whole, best = (load_set("numbers", tmp_path / name) for name in ("whole", "best"))
    for one, other in zip(whole.cases(Distribution), best.cases(Distribution), strict=True):
        for row, kept in zip(whole.distribution(one), best.distribution(other), strict=True):
            assert kept.ids.tolist() == row.ids[:64].tolist()
            assert kept.logprobs.tolist() == row.logprobs[:64].tolist()


@pytest.mark.parametrize("words", [[], ["--redact"]], ids=["as it is", "redacted"])
def test_exchanges_hold_no_key_and_redacted_ones_no_folder(url: str, tmp_path: Path, words: list[str]) -> None:
    assert take_url(url, tmp_path, "--set", "http-status", *words) == 0
    taken = load_set("http-status", tmp_path)
    assert [case.name for case in taken.cases(Exchange)] == [
        case.name for case in load_set("http-status").cases(Exchange)
    ]
    text = "".join(path.read_text() for path in (tmp_path / "http-status").glob("*.json*"))
    assert KEY not in text
    assert (str(fixture("qwen3-a-f32").parent) in text) == (not words)
    assert taken.manifest.settings["redacted"] == bool(words)
    # Without its key the server would have answered 401.
    assert {case.status for case in taken.cases(Exchange)} >= {200}


def test_a_server_that_is_not_there_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "--quiet", "--url", "http://127.0.0.1:1", "--out", str(tmp_path)]) == 1
    assert "was not answered" in capsys.readouterr().out
    assert set_names(tmp_path) == []


@pytest.mark.oracle
def test_a_set_of_numbers_is_taken_again_the_same(tmp_path: Path) -> None:
    name = "qwen3-b-f32.strict"
    assert take(tmp_path, name) == 0
    taken, committed = load_set(name, tmp_path), load_set(name)
    assert [case.ids for case in taken.cases(Greedy)] == [case.ids for case in committed.cases(Greedy)]
    assert [case.ids for case in taken.cases(Seeded)] == [case.ids for case in committed.cases(Seeded)]
    distances = [
        # Log-probabilities are as good as logits here, scattered back to their ids.
        row_distance(old, new.logprobs[new.ids.argsort()])
        for new_case, old_case in zip(taken.cases(Distribution), committed.cases(Distribution), strict=True)
        for new, old in zip(taken.distribution(new_case), committed.distribution(old_case), strict=True)
    ]
    assert list(outside(profile(distances), band_of("F32", "strict", "exact"))) == []


@pytest.mark.oracle
def test_a_set_of_exchanges_is_taken_again_the_same(tmp_path: Path) -> None:
    name = "http-think"
    assert take(tmp_path, name) == 0
    for taken, committed in zip(load_set(name, tmp_path).cases(Exchange), load_set(name).cases(Exchange), strict=True):
        assert taken.status == committed.status
        assert settled_body(taken.response) == settled_body(committed.response), taken.name
        assert (taken.chunks is None) == (committed.chunks is None)


@pytest.mark.oracle
def test_the_oracle_dies_with_its_context() -> None:
    with Oracle(fixture("chain-think"), OracleSettings(configuration="strict")) as running:
        assert running.n_vocab() > 365
        with pytest.raises(OracleError, match="POST /nothing answered 404"):
            running.post("/nothing", {})
        address = running.address
    with pytest.raises(OSError, match="refused"):
        ask(address, "GET", "/health", timeout=5)


@pytest.mark.oracle
def test_a_model_the_oracle_refuses_is_an_error_with_its_log(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(OracleError, match="did not start"):
        Oracle(path, OracleSettings(configuration="default"))
