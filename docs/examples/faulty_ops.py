"""An op set with one planted fault: attention over blocks of cells, with a running softmax, as a GPU kernel does it.

The conformance suite finds the fault, shrinks it to a few numbers, and says in which layer of a model it shows first:

    bloomery-conformance ops --ops docs.examples.faulty_ops:BlockwiseOps --op attention
    bloomery-conformance bisect --b reference:docs.examples.faulty_ops:BlockwiseOps --model FILE

Everything that is not overridden here is the reference's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bloomery.reference.ops import NumpyOps

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

BLOCK = 2


class BlockwiseOps(NumpyOps):
    """The reference's ops, with an attention of its own that decides in float32."""

    decides_in = "float32"
    rows_stand_alone = False

    def attention(
        self,
        q: Floats,
        k_cache: Floats,
        v_cache: Floats,
        slots: Ints,
        cells: Ints,
        *,
        scale: float,
        window: int | None = None,
        **rest: Any,
    ) -> Floats:
        """See `OpSet.attention`; sinks and chosen blocks are left to the reference."""
        if rest.get("sinks") is not None or rest.get("chosen") is not None:
            return super().attention(q, k_cache, v_cache, slots, cells, scale=scale, window=window, **rest)
        y = np.empty((*q.shape[:2], v_cache.shape[-1]), np.float32)
        for t, h in np.ndindex(q.shape[:2]):
            kv_head = h // (q.shape[1] // k_cache.shape[2])
            seen = slice(0 if window is None else max(0, cells[t] + 1 - window), cells[t] + 1)
            k, v = k_cache[slots[t], seen, kv_head], v_cache[slots[t], seen, kv_head]
            y[t, h] = _blockwise(q[t, h] * np.float32(scale), k, v)
        return y


def _blockwise(q: Floats, k: Floats, v: Floats) -> Floats:
    """softmax(k q) v, read block by block with the largest score so far.  q: [d].  k: [n, d].  v: [n, e]."""
    most = np.float32(-np.inf)
    total = np.float32(0)
    mixed = np.zeros(v.shape[-1], np.float32)
    for start in range(0, len(k), BLOCK):
        scores = k[start : start + BLOCK] @ q
        larger = max(most, scores.max())
        powers = np.exp(scores - larger)
        total = total * np.exp(most - larger) + powers.sum()
        # The fault: what was mixed under a smaller maximum must shrink as the total does,
        #     mixed = mixed * np.exp(most - larger) + powers @ v[start : start + BLOCK]
        mixed = mixed + powers @ v[start : start + BLOCK]
        most = larger
    return mixed / total
