"""Split sets as gguf's writer makes them, whole and with every kind of damage."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from bloomery.interface.files.gguf import ModelFileError, open_gguf

WEIGHTS = {f"blk.{index}.weight": np.full((2, 32), index, np.float32) for index in range(5)}


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "qwen3", split_max_tensors=2)
    writer.add_context_length(77)
    for name, weights in WEIGHTS.items():
        writer.add_tensor(name, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    paths = sorted(tmp_path.glob("model-*.gguf"))
    assert [path.name for path in paths] == [f"model-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    return paths


def set_value(path: Path, key: str, layout: str, value: int) -> None:
    """Overwrites the value of a scalar key in place."""
    content = bytearray(path.read_bytes())
    struct.pack_into(layout, content, content.index(key.encode()) + len(key) + 4, value)
    path.write_bytes(content)


def test_the_first_file_opens_the_whole_set(shards: list[Path]) -> None:
    model = open_gguf(shards[0])
    assert model.path == shards[0]
    assert model.paths == tuple(shards)
    assert model.size_bytes == sum(path.stat().st_size for path in shards)
    assert model.get_int("qwen3.context_length") == 77
    assert list(model.tensors) == list(WEIGHTS)
    for name, weights in WEIGHTS.items():
        assert (model.tensors[name].decode() == weights).all()
    assert [stored.path for stored in model.tensors.values()] == [shards[0]] * 2 + [shards[1]] * 2 + [shards[2]]


def test_a_relative_path_finds_the_set(shards: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shards[0].parent)
    assert len(open_gguf(shards[0].name).tensors) == len(WEIGHTS)


def refusal(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        open_gguf(path)
    return str(caught.value)


@pytest.mark.parametrize("index", [1, 2])
def test_another_file_is_refused_naming_the_first(shards: list[Path], index: int) -> None:
    message = refusal(shards[index])
    assert f"this is file {index + 1} of a split set of 3; open the first one, {shards[0].name}" in message


def test_a_missing_file_is_named(shards: list[Path]) -> None:
    shards[1].unlink()
    assert refusal(shards[0]).startswith(f"{shards[1]}: the file cannot be opened")


def test_a_damaged_file_is_named(shards: list[Path]) -> None:
    shards[2].write_bytes(shards[2].read_bytes()[:-65])
    message = refusal(shards[0])
    assert str(shards[2]) in message
    assert "'blk.4.weight'" in message


def test_a_file_in_the_place_of_another_is_refused(shards: list[Path]) -> None:
    shutil.copy(shards[2], shards[1])
    assert "say file 3 of 3, but its name says file 2 of 3" in refusal(shards[0])


def test_files_of_sets_of_different_sizes_are_refused(shards: list[Path]) -> None:
    set_value(shards[1], "split.count", "<H", 4)
    assert "say file 2 of 4, but its name says file 2 of 3" in refusal(shards[0])


def test_a_tensor_in_two_files_is_refused(shards: list[Path]) -> None:
    content = shards[1].read_bytes().replace(b"blk.3.weight", b"blk.0.weight")
    shards[1].write_bytes(content)
    assert f"{shards[1]}: tensor 'blk.0.weight' is already in {shards[0].name}" in refusal(shards[0])


def test_a_wrong_total_is_refused(shards: list[Path]) -> None:
    set_value(shards[0], "split.tensors.count", "<i", 6)
    assert "the key 'split.tensors.count' is 6, but the 3 files hold 5" in refusal(shards[0])


def test_a_renamed_first_file_is_refused_naming_the_pattern(shards: list[Path]) -> None:
    renamed = shards[0].with_name("renamed.gguf")
    shards[0].rename(renamed)
    message = refusal(renamed)
    assert "the first file of a split set of 3, so it must be named like renamed-00001-of-00003.gguf" in message


@pytest.mark.parametrize("count", [0, 1])
def test_a_set_of_one_stands_alone(count: int, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(None, "any")
    writer.add_uint16("split.count", count)
    path = tmp_path / "alone.gguf"
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert open_gguf(path).paths == (path,)
