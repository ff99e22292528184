"""Before a weight is read: does the file hold what the programs ask for, and can the engine run it all?"""

from __future__ import annotations

from collections.abc import Collection

from bloomery.interface.files.gguf import GgufFile
from bloomery.interface.layers.layer import PROGRAMS, parts_of
from bloomery.interface.layers.model import model_ops
from bloomery.interface.quoted import one_line
from bloomery.interface.spec import ModelDescription

_SHOWN = 12


class CoverageError(ValueError):
    """What a load would lack, all of it in one message."""

    def __init__(self, path: str, lacks: list[str]) -> None:
        shown = lacks[:_SHOWN] + ([f"and {len(lacks) - _SHOWN} more"] if len(lacks) > _SHOWN else [])
        super().__init__(f"{path} cannot be served: " + "; ".join(shown))
        self.lacks = tuple(lacks)


def check(file: GgufFile, description: ModelDescription, ops: Collection[str] | None = None) -> None:
    """Raise CoverageError listing every lack, or return.

    A lack is: a layer kind without a program; an op that a program calls and `ops` does not offer (None: not asked); a
    tensor that is missing, has another shape or lies in a block format that this build cannot decode; a tensor of the
    file that nothing would read, because a weight left out silently changes the answers.
    """
    lacks: list[str] = []
    spec = description.spec
    layers = (*spec.layers, spec.nextn.layer) if spec.nextn is not None else spec.layers
    unknown = {type(kind) for layer in layers for _, kind, _ in parts_of(layer)} - PROGRAMS.keys()
    lacks.extend(f"no program for the layer kind {kind.__name__}" for kind in unknown)
    if ops is not None and not unknown:
        lacks.extend(f"the engine has no op {op}" for op in sorted(model_ops(spec) - set(ops)))
    unread = set(file.tensors) - description.unread
    # A tensor that holds several weights ends where the last of them does.
    rows_of: dict[str, int] = {}
    for ref in description.weights.values():
        if ref.rows is not None:
            rows_of[ref.tensor] = max(rows_of.get(ref.tensor, 0), ref.rows[1])
    for ref in description.weights.values():
        unread.discard(ref.tensor)
        tensor = file.tensors.get(ref.tensor)
        if tensor is None:
            lacks.append(f"the tensor {ref.tensor} is missing")
            continue
        shape = ref.shape if ref.rows is None else (*ref.shape[:-2], rows_of[ref.tensor], ref.shape[-1])
        if _significant(tensor.shape) != _significant(shape):
            lacks.append(f"the tensor {ref.tensor} has the shape {list(tensor.shape)}, not {list(shape)}")
        if not tensor.format.decodable:
            lacks.append(f"the tensor {ref.tensor} is stored as {tensor.format.name}, which this build cannot decode")
    lacks.extend(
        f"nothing reads the tensor {one_line(name)} ({file.tensors[name].format.name})" for name in sorted(unread)
    )
    if lacks:
        raise CoverageError(str(file.path), list(dict.fromkeys(lacks)))


def _significant(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without leading ones, which a file may leave out."""
    return shape[next((i for i, n in enumerate(shape) if n != 1), len(shape)) :]
