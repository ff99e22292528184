"""A weight of the NumPy op set made from an array, for tests that have no file."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


class ArrayWeight:
    """Offers what `StoredWeight` offers, cut into blocks of `step` rows."""

    def __init__(self, values: Floats, step: int = 1 << 20) -> None:
        self.name = "test"
        self.shape = values.shape
        self._values = values
        self._step = step

    def row_blocks(self, expert: int = 0) -> Iterator[tuple[int, Floats]]:
        matrix = self._values[expert] if self._values.ndim == 3 else self._values
        for start in range(0, len(matrix), self._step):
            yield start, matrix[start : start + self._step]

    def rows(self, ids: npt.NDArray[np.int32]) -> Floats:
        return self._values[ids]

    def values(self) -> Floats:
        return self._values
