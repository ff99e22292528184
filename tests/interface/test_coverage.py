"""What a load refuses before a weight is read: everything that is missing, in one message."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from bloomery.conformance.fixtures import fixture, qwen3
from bloomery.conformance.fixtures.gguf_writer import Tensor, write_gguf
from bloomery.interface import coverage, registry
from bloomery.interface.files.gguf import GgufFile, open_gguf
from bloomery.interface.spec import ModelDescription
from bloomery.reference.ops import NumpyOps

SHAPE = qwen3.SHAPES["qwen3-b"]


def described(path: Path) -> tuple[GgufFile, ModelDescription]:
    file = open_gguf(path)
    return file, registry.family(file.get_str("general.architecture"))(file)


def written(path: Path, change: dict[str, Tensor | None]) -> Path:
    """The fixture's file with some tensors replaced, left out, or added."""
    tensors = {tensor.name: tensor for tensor in qwen3.tensors(SHAPE, "f32")} | change
    write_gguf(path, qwen3.metadata(SHAPE, "f32"), [tensor for tensor in tensors.values() if tensor is not None])
    return path


def lacks(path: Path) -> tuple[str, ...]:
    with pytest.raises(coverage.CoverageError) as caught:
        coverage.check(*described(path))
    return caught.value.lacks


def test_a_whole_file_is_covered() -> None:
    file, description = described(fixture("qwen3-b-f32"))
    coverage.check(file, description, dir(NumpyOps))


def test_everything_that_is_wrong_is_listed(tmp_path: Path) -> None:
    path = written(
        tmp_path / "model.gguf",
        {
            "blk.0.ffn_up.weight": None,
            "blk.1.attn_norm.weight": Tensor("blk.1.attn_norm.weight", np.ones(SHAPE.n_embd + 1, np.float32)),
            "stray.weight": Tensor("stray.weight", np.ones(4, np.float32)),
        },
    )
    found = lacks(path)
    assert len(found) == 3
    for lack, words in zip(
        found, ("blk.0.ffn_up.weight is missing", "blk.1.attn_norm.weight", "stray.weight"), strict=True
    ):
        assert words in lack


@pytest.mark.parametrize("extra", [-1, 1, 32])
def test_a_fused_tensor_ends_with_its_last_weight(tmp_path: Path, extra: int) -> None:
    tensors = {tensor.name: tensor for tensor in qwen3.tensors(SHAPE, "f32")}
    parts = [tensors[f"blk.0.attn_{part}.weight"].values for part in "qkv"]
    fused = np.concatenate([*parts, np.zeros((max(extra, 0), SHAPE.n_embd), np.float32)])[
        : extra if extra < 0 else None
    ]
    change: dict[str, Tensor | None] = dict.fromkeys(f"blk.0.attn_{part}.weight" for part in "qkv")
    change["blk.0.attn_qkv.weight"] = Tensor("blk.0.attn_qkv.weight", fused)
    assert any("blk.0.attn_qkv.weight has the shape" in lack for lack in lacks(written(tmp_path / "m.gguf", change)))


def test_a_kind_without_a_program_and_an_op_that_is_not_there_are_named() -> None:
    file, description = described(fixture("qwen3-b-f32"))

    @dataclasses.dataclass(frozen=True)
    class Strange:
        pass

    layer = dataclasses.replace(description.spec.layers[0], ffn=Strange())  # type: ignore[arg-type]
    strange = dataclasses.replace(
        description, spec=dataclasses.replace(description.spec, layers=(layer, *description.spec.layers[1:]))
    )
    with pytest.raises(coverage.CoverageError, match=r"no program for the layer kind Strange"):
        coverage.check(file, strange)
    with pytest.raises(coverage.CoverageError, match=r"the engine has no op rope"):
        coverage.check(file, description, set(dir(NumpyOps)) - {"rope"})
