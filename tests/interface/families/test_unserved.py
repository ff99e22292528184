"""What no family computes is refused by every reader, by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bloomery.conformance.fixtures import catalog
from bloomery.conformance.fixtures.gguf_writer import Tensor, write_gguf
from bloomery.interface import registry
from bloomery.interface.files.gguf import ModelFileError, open_gguf

# One shape of each architecture.
SHAPES: dict[str, Any] = {
    str(catalog.family_of(shape).metadata(shape, "f32")["general.architecture"]): shape
    for shape in catalog.RANDOM_SHAPES.values()
}


def test_every_family_is_here() -> None:
    assert set(SHAPES) == set(registry.families())


@pytest.mark.parametrize("arch", SHAPES)
def test_attention_that_is_not_causal(arch: str, tmp_path: Path) -> None:
    shape = SHAPES[arch]
    family = catalog.family_of(shape)
    for causal in (True, False):
        path = tmp_path / f"{causal}.gguf"
        write_gguf(
            path, family.metadata(shape, "f32") | {f"{arch}.attention.causal": causal}, family.tensors(shape, "f32")
        )
        with open_gguf(path) as file:
            if causal:
                registry.family(arch)(file)
            else:
                with pytest.raises(ModelFileError, match=rf"{arch}.attention.causal is false"):
                    registry.family(arch)(file)


@pytest.mark.parametrize("arch", SHAPES)
def test_a_tensor_that_scales_a_weight(arch: str, tmp_path: Path) -> None:
    shape = SHAPES[arch]
    family = catalog.family_of(shape)
    scale = Tensor("blk.0.attn_output.scale", np.ones(1, np.float32))
    path = tmp_path / "scaled.gguf"
    write_gguf(path, family.metadata(shape, "f32"), [*family.tensors(shape, "f32"), scale])
    with open_gguf(path) as file, pytest.raises(ModelFileError, match=r"blk.0.attn_output.scale scales a weight"):
        registry.family(arch)(file)
