"""The writer, read back by the gguf package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize

from bloomery.conformance.fixtures import gguf_writer
from bloomery.conformance.fixtures.counter import bell
from bloomery.conformance.fixtures.gguf_writer import Tensor, Value, write_gguf

METADATA: dict[str, Value] = {
    "general.architecture": "qwen3",
    "a.count": 7,
    "a.share": 0.5,
    "a.flag": True,
    "a.words": ("x", "é", ""),
    "a.ids": (1, -2, 3),
    "a.shares": (0.25, -1.5),
}


def tensors() -> list[Tensor]:
    return [
        Tensor("odd", bell(1, "odd", (3,), 1.0)),
        Tensor("rows", bell(1, "rows", (5, 32), 1.0), "Q8_0"),
        Tensor("cube", bell(1, "cube", (2, 3, 256), 1.0), "Q4_K"),
        Tensor("half", bell(1, "half", (2, 5), 1.0), "F16"),
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    written = tmp_path / "a.gguf"
    write_gguf(written, METADATA, tensors())
    return written


def test_the_gguf_package_reads_every_key(path: Path) -> None:
    fields = {key: field.contents() for key, field in GGUFReader(path).fields.items() if not key.startswith("GGUF.")}
    assert fields == {key: list(value) if isinstance(value, tuple) else value for key, value in METADATA.items()}


def test_the_gguf_package_reads_every_tensor(path: Path) -> None:
    read = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    assert list(read) == [tensor.name for tensor in tensors()]
    for tensor in tensors():
        found = read[tensor.name]
        assert found.tensor_type == GGMLQuantizationType[tensor.format_name]
        assert tuple(found.shape[::-1]) == tensor.values.shape
        assert found.data_offset % gguf_writer.ALIGNMENT == 0
        values = dequantize(found.data, found.tensor_type)
        # A Q4_K step is about a fifteenth of a sub-block's range, here at most seven deviations.
        assert (
            np.abs(values - tensor.values).max()
            <= {"F32": 0, "F16": 1e-3, "Q8_0": 0.02, "Q4_K": 0.3}[tensor.format_name]
        )


def test_the_same_content_gives_the_same_bytes(path: Path, tmp_path: Path) -> None:
    write_gguf(tmp_path / "b.gguf", METADATA, tensors())
    assert (tmp_path / "b.gguf").read_bytes() == path.read_bytes()


def test_an_empty_array_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="empty metadata array"):
        write_gguf(tmp_path / "a.gguf", {"a": ()}, [])
    assert list(tmp_path.iterdir()) == []
