"""A `StoredWeight` of a small file made for it, in any format that weights can be encoded in."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bloomery.conformance.fixtures.gguf_writer import Tensor, write_gguf
from bloomery.interface.files.gguf import open_gguf
from bloomery.interface.spec import WeightRef
from bloomery.reference.weights import Decoded, StoredWeight


def stored_weight(values: npt.NDArray[np.float32], format_name: str) -> StoredWeight:
    """`values` `[..., n_in]` as a weight named `test`; the file is mapped, and gone from its folder."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weight.gguf"
        write_gguf(path, {"general.architecture": "test"}, [Tensor("test.weight", values, format_name)])
        file = open_gguf(path)
    return StoredWeight("test", WeightRef(tensor="test.weight", shape=values.shape), file, Decoded(1 << 30))
