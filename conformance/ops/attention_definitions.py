"""Attention and the choice of its blocks in float64, with their bands."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bloomery.conformance.ops.case import Array, OpCase
from bloomery.conformance.ops.claims import FLOAT32, HALF, HALF_SUBNORMAL_STEP, LARGEST_HALF, Claims
from bloomery.conformance.ops.definitions import Expected

Doubles = npt.NDArray[np.float64]


def attention(case: OpCase, claims: Claims, _got: tuple[Array, ...]) -> tuple[Expected, ...]:
    """For each token and head, over the n cells that it may read.

    A score is a float32 sum of head_dim products, off by (head_dim + 2) u of its sum of magnitudes, times scale;
    scaling it, subtracting the maximum and reducing the power's argument take (3 |score| + 3 |maximum|) w, and the
    power 4 w. Call all that d[c], to be read as a relative error of exp(score[c]). The sum of powers is then off by
    sum_c p[c] d[c] and n w, so that the share of c is off by d[c] + sum_c p[c] d[c] + (n + 1) w of itself, and by u
    once it is rounded; expm1 bounds what large d do. The sum of shares times values is one in float32: (n + 2) u of
    sum_c p[c] |v[c]|.
    A share or a product too small for float32 is lost: `tiny`, and `lost_power` of the values.

    Where attention works in half precision, a query is off by 2^-11, or by half its smallest step, and so a score by
    that times the keys. The running sum is at most sum_c p[c] |v[c]| by the end and no larger before, in the measure of
    the last maximum; a cell rounds it twice. Past half precision's range anything may come of it.
    """
    q, keys, values = (case.doubles(name) for name in ("q", "k_cache", "v_cache"))
    slots, scale = case.arrays["slots"], case.params["scale"]
    sinks = case.doubles("sinks") if "sinks" in case.weights else None
    group = q.shape[1] // keys.shape[2]
    want = np.zeros((*q.shape[:2], values.shape[-1]))
    band, w, in_half = np.zeros(want.shape), claims.inner, claims.attends_in == "float16"
    for t, h in np.ndindex(q.shape[:2]):
        seen = _seen(case, t, h // group)
        k, v = keys[slots[t], seen, h // group], values[slots[t], seen, h // group]
        scores = scale * (k @ q[t, h])
        off = abs(scale) * (q.shape[2] + 2) * FLOAT32 * (np.abs(k) @ np.abs(q[t, h]))
        if in_half:
            off += abs(scale) * (np.abs(k) @ (HALF * np.abs(q[t, h]) + HALF_SUBNORMAL_STEP))
        if sinks is not None:
            # A sink is a cell whose value is zero and whose score is given.
            scores, off, v = np.append(scores, sinks[h]), np.append(off, 0.0), np.vstack([v, np.zeros(v.shape[1])])
        most = scores.max()
        powers = np.exp(scores - most)
        p = powers / powers.sum()
        off = off + (3 * np.abs(scores) + 3 * abs(most) + 4) * w
        n, size = len(scores), np.abs(v)
        with np.errstate(over="ignore"):
            of_share = np.expm1(off + np.log1p((p * np.expm1(off)).sum())) + (n + 1) * w + FLOAT32
        want[t, h] = p @ v
        # Nothing is farther off than the largest value from the smallest, and a share is in 0..1.
        band[t, h] = np.minimum((p * of_share) @ size, 2 * size.sum(axis=0)) + (n + 2) * FLOAT32 * (p @ size)
        band[t, h] += (claims.tiny + claims.lost_power) * (n + size.sum(axis=0))
        if in_half:
            band[t, h] += (2 * n + 1) * (HALF * (p @ size) + HALF_SUBNORMAL_STEP)
            # A value of weight 1 passes through the sum when its score is the largest so far.
            if max(np.abs(q[t, h]).max(), size.max()) > LARGEST_HALF / 2:
                band[t, h] = np.inf
    return (Expected(want, band),)


def _seen(case: OpCase, t: int, kv_head: int) -> list[int]:
    """The cells that a token reads for a KV head."""
    own, window = int(case.arrays["cells"][t]), case.params.get("window")
    seen = [c for c in range(own + 1) if window is None or own - c < window]
    if "chosen" in case.arrays:
        chosen, block = set(case.arrays["chosen"][t, kv_head].tolist()), case.params["block"]
        seen = [c for c in seen if c // block in chosen]
    return seen


def select_blocks(case: OpCase, claims: Claims, got: tuple[Array, ...]) -> tuple[Expected, ...]:
    """A score is a sum of head_dim products: (head_dim + 1) w of its sum of magnitudes, and `tiny` for each product
    where they are float32 ones and may be lost near zero; and nothing where all of them
    are whole numbers whose sum stays below 2^24, which float32 adds exactly in any order. Among blocks whose scores are
    nearer than that another choice is accepted.
    """
    q, keys = case.doubles("q"), case.doubles("k_cache")
    block, n_chosen, n_local = (case.params[name] for name in ("block", "n_chosen", "n_local"))
    want = np.full((*q.shape[:2], n_chosen), -1, np.int32)
    for t, h in np.ndindex(q.shape[:2]):
        cell = int(case.arrays["cells"][t])
        own = cell // block
        k = keys[case.arrays["slots"][t], : cell + 1]
        by_cell, sizes = k @ q[t, h], np.abs(k) @ np.abs(q[t, h])
        whole = bool((np.rint(q[t, h]) == q[t, h]).all() and (np.rint(k) == k).all() and sizes.max() < 2**24)
        lost = q.shape[2] * claims.tiny if claims.decides_in == "float32" else 0.0
        near = 0.0 if whole else float((q.shape[2] + 1) * claims.inner * sizes.max()) + lost
        scores = [float(by_cell[b * block : (b + 1) * block].max()) for b in range(own + 1)]
        local = [b for b in range(own, own - n_local, -1) if b >= 0]
        others = sorted((b for b in range(own + 1) if b not in local), key=lambda b: (-scores[b], b))
        ideal = sorted((local + others)[:n_chosen])
        chosen = ideal
        if got[0].shape == want.shape:
            chosen = [int(b) for b in got[0][t, h, : len(ideal)]]
        if not _may_be_read(chosen, ideal, local, scores, near):
            chosen = ideal
        want[t, h, : len(chosen)] = chosen
    return (Expected(want, None),)


def _may_be_read(chosen: list[int], ideal: list[int], local: list[int], scores: list[float], near: float) -> bool:
    """Whether an ascending choice of blocks is the definition's, but for scores that rounding may swap."""
    if chosen != sorted(set(chosen)) or not set(local) <= set(chosen) <= set(range(len(scores))):
        return False
    added, left_out = set(chosen) - set(ideal), set(ideal) - set(chosen)
    return all(abs(scores[a] - scores[b]) <= 2 * near and near > 0 for a in added for b in left_out)
