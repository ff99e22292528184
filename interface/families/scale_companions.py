"""Tensors beside a weight that scale it, as files with NVFP4 weights have."""

from __future__ import annotations

from collections.abc import Collection

from bloomery.interface.files.gguf import GgufFile, ModelFileError
from bloomery.interface.quoted import one_line

_SUFFIXES = (".scale", ".input_scale")


def refuse_scale_companions(file: GgufFile, unread: Collection[str] = ()) -> None:
    """Raise ModelFileError naming the first tensor that scales a weight, unless it is one of `unread`."""
    for name in file.tensors:
        if name.endswith(_SUFFIXES) and name not in unread:
            raise ModelFileError(
                f"{file.path}: the tensor {one_line(name)} scales a weight, which this version does not compute; serve"
                " the model from a file in another format than NVFP4"
            )
