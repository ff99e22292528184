"""The ops that choose: a token's experts, and the blocks of cells its attention reads. Float64, lowest index first."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import expit

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]

# The smallest sum of picked router probabilities that is divided by: half precision's smallest normal number.
_SMALLEST_SHARE = 2.0**-14


def softmax(x: Doubles) -> Doubles:
    """exp(x - max) / sum over the last axis.  x: its rows' maximum finite."""
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    shares: Doubles = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def best_first(scores: Doubles, n: int) -> npt.NDArray[np.intp]:
    """The indices of the n largest on the last axis, largest first, the lower index first among equals."""
    # A stable sort of the negated scores keeps equals in their order.
    return np.argsort(-scores, axis=-1, kind="stable")[..., :n]


def route(
    logits: Floats,
    *,
    n_used: int,
    score: Literal["softmax", "sigmoid"],
    bias: Floats | None,
    normalised: bool,
    scale: float,
) -> tuple[Ints, Floats]:
    """logits: [tokens, n_expert].  bias: [n_expert].  Returns (experts, weights), both [tokens, n_used]."""
    wide = logits.astype(np.float64)
    shares = softmax(wide) if score == "softmax" else expit(wide)
    experts = best_first(shares if bias is None else shares + bias, n_used)
    picked = np.take_along_axis(shares, experts, axis=-1)
    if normalised:
        picked = picked / np.maximum(picked.sum(axis=-1, keepdims=True), _SMALLEST_SHARE)
    return experts.astype(np.int32), (picked * scale).astype(np.float32)


def select_blocks(
    q: Floats, k_cache: Floats, slots: Ints, cells: Ints, *, block: int, n_chosen: int, n_local: int
) -> Ints:
    """q: [tokens, heads, head_dim].  k_cache: [slots, cells, head_dim].  Returns [tokens, heads, n_chosen]."""
    n_tokens, n_head, _ = q.shape
    chosen = np.full((n_tokens, n_head, n_chosen), -1, np.int32)
    for t in range(n_tokens):
        keys = k_cache[slots[t], : cells[t] + 1].astype(np.float64)
        by_cell = q[t].astype(np.float64) @ keys.T
        by_block = np.maximum.reduceat(by_cell, np.arange(0, len(keys), block), axis=-1)
        by_block[:, max(0, by_block.shape[1] - n_local) :] = np.inf
        taken = np.sort(best_first(by_block, n_chosen), axis=-1)
        chosen[t, :, : taken.shape[-1]] = taken
    return chosen
