"""Matrix products whose every row has the same bits whatever rows it is computed with.

A BLAS picks its kernel by the number of rows, and another kernel adds in another order: NumPy's product of one row
differs in the last bits from the same row inside a larger product. Here every product has exactly ROW_TILE rows, padded
with zeros, so the kernel and its order depend on the weight's shape alone.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

# Few enough that one decoded token, which pays for a whole tile, is still bound by reading the weights; enough that a
# prompt's product runs at a useful part of the machine's speed.
ROW_TILE = 8


def rows_times_matrix(x: Floats | Doubles, blocks: Iterable[tuple[int, Floats]], n_out: int) -> Floats:
    """y[t, o] = sum_i x[t, i] * W[o, i] for W given as (first row, rows [n, n_in]) blocks.

    x: [tokens, n_in], float32 or float64.  Returns [tokens, n_out] float32; summed in x's type, in an order fixed by
    W's shape.
    """
    n_tokens, n_in = x.shape
    if n_tokens == 0:
        return np.empty((0, n_out), np.float32)
    n_tiles = -(-n_tokens // ROW_TILE)
    tiles = np.zeros((n_tiles, ROW_TILE, n_in), x.dtype)
    tiles.reshape(-1, n_in)[:n_tokens] = x
    y = np.empty((n_tiles, ROW_TILE, n_out), np.float32)
    for start, rows in blocks:
        transposed = rows.astype(x.dtype, copy=False).T
        for tile, out in zip(tiles, y, strict=True):
            out[:, start : start + len(rows)] = tile @ transposed
    return y.reshape(-1, n_out)[:n_tokens]
