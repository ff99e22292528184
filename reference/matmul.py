"""Matrix products whose every number depends on two vectors alone.

A BLAS picks its kernel for a product of matrices by their shapes, and another kernel adds in another order: NumPy's
product of one row differs in the last bits from the same row inside a larger product. Here every number is a dot
product of its own, a row of activations with a row of weights, so that what is computed with it cannot show.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from bloomery.reference.threads import share_out

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

# Weights in one piece: 1 MiB of float32, which stays in a core's cache while row after row is multiplied with it. So
# the products of a prompt run at the cache's speed, though each reads all of its weights.
PIECE_WEIGHTS = 1 << 18

# Below so many multiplications a product is done before another thread has woken up.
_SMALL_PRODUCT = 1 << 19


def rows_times_matrix(x: Floats | Doubles, blocks: Iterable[tuple[int, Floats]], n_out: int) -> Floats:
    """y[t, o] = sum_i x[t, i] * W[o, i] for W given as (first row, rows [n, n_in]) blocks.

    x: [tokens, n_in], float32 or float64.  Returns [tokens, n_out] float32; each number is the BLAS's dot product of
    its two rows in x's type, rounded to float32.
    """
    n_tokens, n_in = x.shape
    y = np.empty((n_tokens, n_out), np.float32)
    if n_tokens == 0:
        return y
    # Another kernel adds numbers that do not lie side by side.
    rows = np.ascontiguousarray(x)[:, None]

    def multiply(piece: tuple[int, Floats]) -> None:
        start, weights = piece
        np.vecdot(rows, weights.astype(x.dtype, copy=False), out=y[:, start : start + len(weights)])

    share_out(multiply, _pieces(blocks, n_in), alone=n_tokens * n_in * n_out < _SMALL_PRODUCT)
    return y


def _pieces(blocks: Iterable[tuple[int, Floats]], n_in: int) -> Iterator[tuple[int, Floats]]:
    step = max(1, PIECE_WEIGHTS // n_in)
    for start, rows in blocks:
        for at in range(0, len(rows), step):
            yield start + at, rows[at : at + step]
