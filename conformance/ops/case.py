"""One call of one op as data: arrays, stored weights and parameters under the names of the op's own arguments."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from bloomery.interface.files.quants import by_name, decode
from bloomery.interface.ops import OpSet

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

Layout = Literal["rows", "columns", "every second", "backwards"]
"""How an array that is handed to `from_host` lies in memory: C order, Fortran order, strided, with negative strides."""


@dataclass(frozen=True, eq=False)
class Stored:
    """A weight as a file holds it.

    shape: in NumPy order, any number of axes.  raw: [rows, bytes a row] uint8, where rows is the product of all axes
    but the last.
    """

    format_name: str
    shape: tuple[int, ...]
    raw: Bytes

    def __post_init__(self) -> None:
        rows = int(np.prod(self.shape[:-1], dtype=np.int64))
        wanted = (rows, by_name(self.format_name).row_bytes(self.shape[-1]))
        if self.raw.dtype != np.uint8 or self.raw.shape != wanted:
            raise ValueError(f"{self.format_name} weights of shape {list(self.shape)} are uint8 {list(wanted)}")

    def values(self) -> Floats:
        """The decoded weights, of `shape`."""
        return decode(self.raw, by_name(self.format_name), self.shape)

    def fields(self, name: str) -> Floats:
        """One number of every block, [rows, blocks a row].  ValueError where the format has no such field."""
        layout = by_name(self.format_name).layout
        if layout is None or layout.names is None or name not in layout.names:
            raise ValueError(f"a block of {self.format_name} has no field {name!r}")
        blocks = np.ascontiguousarray(self.raw).reshape(-1).view(layout)
        values: Floats = blocks[name].astype(np.float32).reshape(len(self.raw), -1)
        return values


class HostWeight:
    """What an op set without a `weight` method of its own is handed: the surface of the reference engine's weights.

    A weight of experts is [n_expert, n_out, n_in].
    """

    def __init__(self, name: str, stored: Stored) -> None:
        self.name = name
        self.shape = stored.shape
        self.format_name = stored.format_name
        self._stored = stored
        self._matrix = stored.values().reshape(-1, stored.shape[-1])
        self._matrix.setflags(write=False)

    def row_blocks(self, expert: int = 0) -> Iterator[tuple[int, Floats]]:
        """The matrix [n_out, n_in] (of one expert) as (first row, rows) blocks in order: here, one block."""
        yield 0, self._matrix[self._rows_of(expert)]

    def field(self, name: str, expert: int = 0) -> Floats:
        """One number of every stored block of the matrix (of one expert), [n_out, blocks a row]."""
        return self._stored.fields(name)[self._rows_of(expert)]

    def rows(self, ids: npt.NDArray[np.int32]) -> Floats:
        """The decoded rows of those ids, [n, n_in]."""
        rows: Floats = self._matrix[ids]
        return rows

    def values(self) -> Floats:
        """The weight whole, in its shape."""
        return self._matrix.reshape(self.shape)

    def _rows_of(self, expert: int) -> slice:
        n_out = self.shape[-2] if len(self.shape) > 1 else 1
        return slice(expert * n_out, (expert + 1) * n_out)


@dataclass(frozen=True, eq=False)
class OpCase:
    """A call. Everything is named after the op's parameters; a parameter named nowhere keeps its default.

    format_name: what the weight that the case is about is stored as; "" where there is none.  layouts: of the arrays
    that do not lie in C order.
    """

    op: str
    arrays: Mapping[str, Array]
    weights: Mapping[str, Stored] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    format_name: str = ""

    def doubles(self, name: str) -> npt.NDArray[np.float64]:
        """An activation or a decoded weight in float64."""
        values = self.arrays[name] if name in self.arrays else self.weights[name].values()
        return values.astype(np.float64)

    def key(self) -> bytes:
        """Everything that makes the case: two of one key are the same."""
        parts = [self.op, self.format_name, repr(self.params), repr(self.layouts)]
        parts += [f"{name} {array.dtype} {array.shape}" for name, array in self.arrays.items()]
        parts += [f"{name} {stored.format_name} {stored.shape}" for name, stored in self.weights.items()]
        contents = [*self.arrays.values(), *(stored.raw for stored in self.weights.values())]
        return "\n".join(parts).encode() + b"".join(array.tobytes() for array in contents)

    def rows(self, names: tuple[str, ...], rows: npt.NDArray[np.intp]) -> OpCase:
        """The same call with only these rows of the arrays in `names`, whose first axis is the tokens."""
        fewer = {name: array[rows] if name in names else array for name, array in self.arrays.items()}
        return replace(self, arrays=fewer, layouts={})


def parameters_of(op: str) -> list[inspect.Parameter]:
    """The op's parameters as `OpSet` declares them, without self."""
    return list(inspect.signature(getattr(OpSet, op)).parameters.values())[1:]


def laid_out(values: Array, layout: Layout) -> Array:
    """A fresh array of the same values that lies in memory as `layout` says."""
    if layout == "columns":
        return np.array(values, order="F")
    if layout == "every second" and values.ndim:
        roomy = np.zeros((*values.shape[:-1], 2 * values.shape[-1]), values.dtype)
        roomy[..., ::2] = values
        return roomy[..., ::2]
    if layout == "backwards" and values.ndim:
        return np.array(values[::-1], order="C")[::-1]
    return np.array(values, order="C")
