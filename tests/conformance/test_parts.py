"""The checks of block formats, tokenizers and the sampler: they pass here, and each kind notices a fault."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bloomery.conformance.finding import Check, Effort, Finding
from bloomery.conformance.parts import draws as part_draws
from bloomery.conformance.parts import formats as part_formats
from bloomery.conformance.parts import tokens as part_tokens
from bloomery.conformance.parts.recordings import PARTS, cases_of, manifest_of
from bloomery.conformance.recording import RecordingError
from bloomery.interface.files.quants import by_name
from bloomery.interface.tokenizer import Tokenizer


def found(checks: list[Check], name: str) -> Finding:
    [check] = [each for each in checks if f"{each.subject}: {each.name}" == name]
    [finding] = check.run(Effort())
    assert f"{finding.subject}: {finding.check}" == name
    return finding


@pytest.mark.parametrize("name", ["format Q4_K: decoding", "format Q1_0: decoding", "format Q6_K: encoding"])
def test_a_format_is_ggmls(name: str) -> None:
    assert found(part_formats.checks(), name).verdict == "passed"


def test_every_decodable_format_has_a_check() -> None:
    names = {check.subject for check in part_formats.checks() if check.name == part_formats.DECODING}
    assert {"format IQ1_M", "format F64", "format Q8_1"} <= names
    assert len(names) == 31


@pytest.mark.parametrize("name", ["Q5_K", "Q2_0"])
def test_a_wrong_weight_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = part_formats.decode

    def wrong(*arguments: Any) -> Any:
        weights = right(*arguments)
        weights[7, 3] = np.nextafter(weights[7, 3], np.float32(np.inf))
        return weights

    monkeypatch.setattr(part_formats, "decode", wrong)
    finding = found(part_formats.checks(), f"format {name}: decoding")
    assert finding.verdict == "failed"
    if name == "Q5_K":
        assert finding.wrong[0].startswith("weight 3 of block")


def test_a_wrong_byte_and_a_wrong_rounding_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    encode, round_to = part_formats.encode, part_formats.round_to
    monkeypatch.setattr(part_formats, "encode", lambda values, name: encode(values, name) ^ np.uint8(1))
    monkeypatch.setattr(part_formats, "round_to", lambda values, name: round_to(values, name) * np.float32(2))
    for name in ("format Q8_0: encoding", "format Q8_0: activations"):
        assert found(part_formats.checks(), name).verdict == "failed"


TOKENS = ["tokenizer chatml: stream", "tokenizer gemma4: pieces", "tokenizer sentencepiece: detokenize"]


@pytest.mark.parametrize("name", [*TOKENS, "tokenizer chatml: repeated merges", "pre-tokenizer: qwen2"])
def test_a_tokenizer_is_llama_servers(name: str) -> None:
    assert found(part_tokens.checks(), name).verdict == "passed"


@pytest.mark.parametrize(
    ("name", "method", "wrong"),
    [
        ("tokenizer chatml: encode", "encode", lambda *_, **__: [1]),
        ("tokenizer chatml: pieces", "token_to_piece", lambda *_, **__: b"?"),
        ("tokenizer chatml: stream", "token_to_piece", lambda *_, **__: b"?"),
        ("tokenizer chatml: detokenize", "detokenize", lambda *_, **__: "?"),
        ("tokenizer chatml: repeated merges", "encode", lambda *_, **__: [1]),
        ("pre-tokenizer: qwen2", "encode", lambda *_, **__: [1]),
    ],
)
def test_a_wrong_tokenizer_is_noticed(
    name: str, method: str, wrong: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tokenizer, method, wrong)
    finding = found(part_tokens.checks(), name)
    assert finding.verdict == "failed"
    assert 0 < len(finding.wrong) < 20


DRAWS = [f"sampler: {check.name}" for check in part_draws.checks()]


@pytest.mark.parametrize("name", DRAWS)
def test_the_sampler_is_llama_servers(name: str) -> None:
    assert found(part_draws.checks(), name).verdict == "passed"


@pytest.mark.parametrize("name", DRAWS)
def test_a_wrong_sampler_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A temperature that is not applied, of a softmax of base 2, and a last bit.
    expf, logf, draw = part_draws.expf, part_draws.logf, part_draws.chain.draw
    monkeypatch.setitem(part_draws._STAGES, "temp_ext", lambda candidates, *_: candidates)  # type: ignore[arg-type]
    monkeypatch.setattr(part_draws, "expf", lambda x: np.nextafter(expf(x), np.float32(0)))
    monkeypatch.setattr(part_draws, "logf", lambda x: logf(x) * np.float32(2))
    monkeypatch.setattr(part_draws.chain, "draw", lambda candidates, uniform: draw(candidates, 1 - uniform))
    report = part_draws.probabilities
    monkeypatch.setattr(part_draws, "probabilities", lambda row, k: report(row * np.float32(2), k))
    assert found(part_draws.checks(), name).verdict == "failed"


def test_a_recording_that_is_another_is_refused(tmp_path: Any) -> None:
    with pytest.raises(RecordingError, match="no whole recording"):
        manifest_of(tmp_path)
    (tmp_path / "manifest.json").write_text('{"version": 2, "sha256": {}}')
    with pytest.raises(RecordingError, match="version 2"):
        manifest_of(tmp_path)
    (tmp_path / "cases.jsonl").write_text("{}")
    (tmp_path / "manifest.json").write_text('{"version": 1, "sha256": {"cases.jsonl": "00"}}')
    with pytest.raises(RecordingError, match="not the file"):
        cases_of(tmp_path, "encode")


def test_a_format_known_by_size_alone_has_no_blocks_to_decode() -> None:
    from bloomery.conformance.parts.ggml_digests import blocks_to_decode

    with pytest.raises(ValueError, match="by its size alone"):
        blocks_to_decode(dataclasses.replace(by_name("I32")))


def test_the_recorded_vocabularies_are_all_asked_about() -> None:
    folders = {path.parent.name for path in PARTS.glob("*/vocabulary.json")}
    assert folders == set(part_tokens.VOCABULARIES)
