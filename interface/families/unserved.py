"""What a file of any family may ask for and no program computes."""

from __future__ import annotations

from collections.abc import Collection

from bloomery.interface.files.gguf import GgufFile, ModelFileError
from bloomery.interface.quoted import one_line

# Tensors beside a weight that scale it, as files with NVFP4 weights have.
_SCALES = (".scale", ".input_scale")


def refuse_unserved(file: GgufFile, unread: Collection[str] = ()) -> None:
    """Raise ModelFileError for attention that is not causal, or a tensor, not of `unread`, that scales a weight."""
    key = f"{file.get_str('general.architecture')}.attention.causal"
    if not file.get_bool(key, True):
        raise ModelFileError(f"{file.path}: {key} is false; this version computes causal attention only")
    for name in file.tensors:
        if name.endswith(_SCALES) and name not in unread:
            raise ModelFileError(
                f"{file.path}: the tensor {one_line(name)} scales a weight, which this version does not compute; serve"
                " the model from a file in another format than NVFP4"
            )


def unread_drafts(file: GgufFile, n_layer: int, n_block: int) -> frozenset[str]:
    """The tensors of the draft blocks behind `n_layer`, which are known and not run.

    A file that was cut from one with draft blocks may still count them and have none. Raises ModelFileError for a
    block of another kind: a model must not lose a layer to a wrong count.
    """
    unread: set[str] = set()
    for i in range(n_layer, n_block):
        tensors = {name for name in file.tensors if name.startswith(f"blk.{i}.")}
        needed = f"blk.{i}.nextn.eh_proj.weight"
        if tensors and needed not in tensors:
            raise ModelFileError(
                f"{file.path}: {file.get_str('general.architecture')}.nextn_predict_layers says that blk.{i} is a draft"
                f" block, but the tensor {needed} is missing"
            )
        unread |= tensors
    return frozenset(unread)
