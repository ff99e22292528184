"""What a model file calls itself reaches neither a terminal nor a log but escaped and cut."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bloomery.conformance.fixtures import qwen3
from bloomery.conformance.fixtures.gguf_writer import write_gguf
from bloomery.interface.files.gguf import ModelFileError
from bloomery.interface.tokenizer import TokenizerError
from bloomery.server.model import ServedModel, load_model
from bloomery.server.settings import read_settings

SHAPE = qwen3.SHAPES["qwen3-a"]
FORGED = "\x1b[31mred\nbloomery-serve: listening on http://evil"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def load(path: Path, changes: Mapping[str, Any], *argv: str) -> tuple[ServedModel, list[str]]:
    write_gguf(path, {**qwen3.metadata(SHAPE, "f32"), **changes}, qwen3.tensors(SHAPE, "f32"))
    lines: list[str] = []
    model = load_model(read_settings(["-m", str(path), *argv], {}, lambda line: None), lines.append)
    model.engine.close()
    return model, lines


def test_a_name_with_control_characters_is_served_as_it_is_and_logged_escaped(path: Path) -> None:
    model, lines = load(path, {"general.name": FORGED})
    assert model.name == FORGED
    assert r" name='\x1b[31mred\nbloomery-serve: listening on http://evil' arch=qwen3 " in lines[0]
    assert all(line.isprintable() for line in lines)


def test_a_long_name_is_cut_in_the_log_and_refused_when_it_is_absurd(path: Path) -> None:
    model, lines = load(path, {"general.name": "n" * 4096})
    assert model.name == "n" * 4096
    assert len(lines[0]) < len(str(path)) + 200
    with pytest.raises(ModelFileError, match=r"'general.name' has 4097 bytes, more than the 4096 allowed"):
        load(path, {"general.name": "n" * 4097})


@pytest.mark.parametrize("value", [FORGED, "\n" * 4000, "x" * 100_000, "\u202e" * 1000])
@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("general.architecture", ModelFileError),
        ("tokenizer.ggml.model", TokenizerError),
        ("tokenizer.ggml.pre", TokenizerError),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_escaped_and_cut(
    path: Path, key: str, kind: type[Exception], value: str
) -> None:
    with pytest.raises(kind) as caught:
        load(path, {key: value})
    message = str(caught.value)
    assert message.startswith(str(path))
    assert message.isprintable()
    # The names of all pre-tokenizers are in one of them.
    assert len(message) < len(str(path)) + 2500


@pytest.mark.parametrize("value", [FORGED, "x" * 100_000])
def test_a_scaling_type_that_cannot_be_used_is_refused_escaped(path: Path, value: str) -> None:
    with pytest.raises(ModelFileError, match=r"rope\.scaling\.type") as caught:
        load(path, {"qwen3.rope.scaling.type": value})
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < len(str(path)) + 300


def test_a_template_is_limited_and_unread_where_another_is_given(path: Path, tmp_path: Path) -> None:
    changes = {"tokenizer.chat_template": "x" * (2**20 + 1)}
    with pytest.raises(ModelFileError, match=r"'tokenizer.chat_template' has 1048577 bytes"):
        load(path, changes)
    other = tmp_path / "other.jinja"
    other.write_text("{{ messages[0].content }}", encoding="utf-8")
    model, _ = load(path, changes, "--chat-template-file", str(other))
    assert model.template.source == "{{ messages[0].content }}"
