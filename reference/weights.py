"""Weights as the op set sees them: stored bytes, decoded in blocks of rows when a product needs them.

A file larger than memory still runs: decoded blocks are kept only up to a budget of bytes, and every other block is
decoded again for each use. A product does not see where one block ends, so the budget changes the time and never a bit
of the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from bloomery.interface.files.gguf import GgufFile, StoredTensor
from bloomery.interface.files.quants import decode
from bloomery.interface.spec import WeightRef

Floats = npt.NDArray[np.float32]

# Weights in one decoded block: 16 MiB of float32, which the system may keep in large pages.
BLOCK_WEIGHTS = 1 << 22


class Decoded:
    """The decoded blocks of all weights, kept while they fit `budget` bytes.

    What came first stays: a pass walks the weights in the same order every time, and under such a walk dropping the
    least recently used block would drop each one just before it is needed again.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._kept: dict[tuple[str, int, int], Floats] = {}
        self.n_bytes = 0

    def block(self, tensor: StoredTensor, start: int, stop: int) -> Floats:
        """Rows start..stop of the tensor seen as a matrix, [stop - start, columns] float32; not to be written to."""
        key = (tensor.name, start, stop)
        kept = self._kept.get(key)
        if kept is not None:
            return kept
        rows = tensor.decode(slice(start, stop))
        rows.setflags(write=False)
        if self.n_bytes + rows.nbytes <= self._budget:
            self._kept[key] = rows
            self.n_bytes += rows.nbytes
        return rows


class StoredWeight:
    """One weight of the file.

    `shape` is the program's, in NumPy order. A weight of experts is [n_expert, n_out, n_in] and lies in the file as
    n_expert * n_out rows. `format_name` says how it is stored there.
    """

    def __init__(self, name: str, ref: WeightRef, file: GgufFile, decoded: Decoded) -> None:
        self.name = name
        self.shape = ref.shape
        self._tensor = file.tensors[ref.tensor]
        self.format_name = self._tensor.format.name
        self._first = ref.rows[0] if ref.rows else 0
        # Rows from one expert to the next: the tensor's own, where experts share it with another weight.
        self._stride = self._tensor.shape[-2] if len(ref.shape) > 2 else 0
        self._decoded = decoded

    def row_blocks(self, expert: int = 0) -> Iterator[tuple[int, Floats]]:
        """The matrix [n_out, n_in] (of one expert) as (first row, rows) blocks in order."""
        n_out, n_in = self.shape[-2:]
        first = self._first + expert * self._stride
        step = max(1, BLOCK_WEIGHTS // n_in)
        for start in range(0, n_out, step):
            stop = min(n_out, start + step)
            yield start, self._decoded.block(self._tensor, first + start, first + stop)

    def field(self, name: str, expert: int = 0) -> Floats:
        """One number of every stored block of the matrix (of one expert), [n_out, blocks a row]; read at each call.

        name: a field of the format's layout. ValueError where the format has no such field.
        """
        layout = self._tensor.format.layout
        if layout is None or layout.names is None or name not in layout.names:
            raise ValueError(f"{self.name}: a block of {self.format_name} has no field {name!r}")
        n_out = self.shape[-2]
        first = self._first + expert * self._stride
        stored = self._tensor.rows(first, first + n_out).reshape(-1).view(layout)
        field: Floats = stored[name].astype(np.float32).reshape(n_out, -1)
        return field

    def rows(self, ids: npt.NDArray[np.int32]) -> Floats:
        """The decoded rows of those ids, [n, n_in], read without decoding the rest."""
        stored = self._tensor.blocks()[self._first + ids]
        return decode(stored, self._tensor.format, (len(ids), self.shape[-1]))

    def values(self) -> Floats:
        """A small weight whole, in its shape, float32: a norm, a bias, the taps of a convolution."""
        n_rows = math.prod(self.shape[:-1])
        return self._decoded.block(self._tensor, self._first, self._first + n_rows).reshape(self.shape)
