"""The recorder: its named errors and, where the oracle is installed, that it takes the committed sets again."""

from __future__ import annotations

from pathlib import Path

import pytest

from bloomery.conformance import oracle
from bloomery.conformance.bands import band_of
from bloomery.conformance.cases import Distribution, Exchange, Greedy, Seeded
from bloomery.conformance.compare import outside, profile, row_distance
from bloomery.conformance.fixtures import fixture
from bloomery.conformance.oracle import Oracle, OracleError, OracleSettings
from bloomery.conformance.record import main
from bloomery.conformance.recording import load_set, set_names
from bloomery.conformance.volatile import settled_body
from bloomery.conformance.wire import ask


def test_an_unknown_set_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path), "--only", "nothing"]) == 2
    assert "no set is named nothing; known are qwen3-a-f32.strict" in capsys.readouterr().err
    assert set_names(tmp_path) == []


def test_a_missing_oracle_is_named_with_its_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oracle, "PACKAGE", "no-such-oracle")
    assert main(["--out", str(tmp_path), "--only", "http-think"]) == 2
    assert "no package no-such-oracle" in (error := capsys.readouterr().err)
    assert "pip install 'bloomery[oracle]'" in error
    assert set_names(tmp_path) == []


@pytest.mark.oracle
def test_a_set_of_numbers_is_taken_again_the_same(tmp_path: Path) -> None:
    name = "qwen3-b-f32.strict"
    assert main(["--out", str(tmp_path), "--only", name]) == 0
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
    assert main(["--out", str(tmp_path), "--only", name]) == 0
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
