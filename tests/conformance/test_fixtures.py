"""Fixtures are what their pins say, their vocabulary is whole, and the scripted ones follow their script."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bloomery.conformance import fixtures
from bloomery.conformance.fixtures import catalog, chain
from bloomery.conformance.fixtures.vocabulary import NORMAL, SPECIAL_TOKENS, byte_alphabet, spelled, vocabulary
from tests.conformance.forward64 import Forward64

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", fixtures.MAKERS)
def test_a_fixture_made_now_has_its_pinned_sha256(name: str, tmp_path: Path) -> None:
    assert fixtures.sha256_of(fixtures.make(name, tmp_path)) == fixtures.pins()[name]


def test_every_fixture_is_pinned_and_nothing_else() -> None:
    assert list(fixtures.pins()) == list(fixtures.MAKERS)


def test_a_fixture_is_made_once(tmp_path: Path) -> None:
    first = fixtures.fixture("chain-think", tmp_path)
    made = first.stat().st_mtime_ns
    assert fixtures.fixture("chain-think", tmp_path) == first
    assert first.stat().st_mtime_ns == made


def test_a_damaged_fixture_is_made_again(tmp_path: Path) -> None:
    path = fixtures.fixture("chain-think", tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    assert fixtures.sha256_of(fixtures.fixture("chain-think", tmp_path)) == fixtures.pins()["chain-think"]


def test_a_fixture_that_differs_from_its_pin_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pins = tmp_path / "pins.json"
    pins.write_text(json.dumps({"chain-think": "0" * 64}))
    monkeypatch.setattr(catalog, "PINS_FILE", pins)
    with pytest.raises(fixtures.FixtureError, match=r"chain-think was made with sha256 [0-9a-f]{64}, but 0{64}"):
        fixtures.fixture("chain-think", tmp_path)


def test_an_unknown_fixture_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(fixtures.FixtureError, match="no fixture 'nothing'; known are qwen3-a-f32"):
        fixtures.make("nothing", tmp_path)


def test_the_cache_folder_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(catalog.CACHE_VARIABLE, str(tmp_path))
    assert fixtures.cache_folder() == tmp_path
    monkeypatch.delenv(catalog.CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert fixtures.cache_folder() == Path.home() / ".cache" / "bloomery" / "fixtures"


def test_the_byte_alphabet_is_256_printable_characters() -> None:
    alphabet = byte_alphabet()
    assert len(set(alphabet)) == 256
    assert all(letter.isprintable() and not letter.isspace() for letter in alphabet)
    assert spelled(b"a \n") == "aĠĊ"


def test_every_merge_joins_tokens_into_a_token() -> None:
    words = vocabulary()
    assert len(set(words.tokens)) == len(words) == 365
    for left, right in words.merges:
        assert {left, right, left + right} <= set(words.tokens)


def test_some_merges_end_inside_a_character() -> None:
    words = vocabulary()

    def is_whole(token: int) -> bool:
        try:
            words.token_bytes(token).decode()
        except UnicodeDecodeError:
            return False
        return True

    merged = range(256, 256 + len(words.merges))
    assert 10 < sum(not is_whole(token) for token in merged) < len(merged) / 2


def test_special_tokens_come_last_and_of_every_type() -> None:
    words = vocabulary((b" extra",))
    assert words.tokens[-len(SPECIAL_TOKENS) :] == tuple(text for text, _ in SPECIAL_TOKENS)
    assert set(words.types) == {1, 2, 3, 4, 5}
    assert words.types[words.id_of("Ġextra")] == NORMAL


def test_a_line_refuses_a_piece_twice() -> None:
    with pytest.raises(ValueError, match="b'x' occurs twice"):
        chain.line(b"x", b"y", b"x")


@pytest.mark.parametrize("script", chain.CHAINS.values(), ids=lambda script: script.name)
def test_a_chain_says_its_table(script: chain.Chain, tmp_path: Path) -> None:
    words = script.vocabulary()
    forward = Forward64(fixtures.make(script.name, tmp_path))
    for state, successors in script.table.items():
        token = 0 if state == chain.START else words.id_of(state if isinstance(state, str) else spelled(state))
        # A token before it must not matter.
        for ids in ([token], [3, token]):
            logits = forward.run(ids).logits[-1]
            for piece, logit in successors.items():
                heir = words.id_of(piece if isinstance(piece, str) else spelled(piece))
                assert logits[heir] == pytest.approx(logit, abs=1e-5)
            others = np.sort(logits)[: -len(successors)]
            assert others.max() < 4
            assert np.diff(others).min() > 1e-3


def test_the_command_writes_fixtures(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.tiny_models", "--out", str(tmp_path), "--only"]
    done = subprocess.run([*command, "chain-think"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "chain-think.gguf" in done.stdout
    refused = subprocess.run([*command, "nothing"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "no fixture 'nothing'" in refused.stderr
