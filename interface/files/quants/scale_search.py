"""The searches that choose the scale (and the minimum) of a sub-block of weights when a K format is encoded.

Two of them try a small family of scales near the obvious one, round the weights to codes under each, fit the best real
scale to those codes by weighted least squares, and keep the trial with the smallest weighted error; the third changes
one code at a time. Trials, weights, order of summation and ties are those of llama.cpp (ggml/src/ggml-quants.c,
`make_qkx2_quants`, `make_qx_quants` and `make_q3_quants`), so that the same values give the same bytes. Everything is
float32, one sub-block a column: sums then run down the rows in order, as a C loop adds, and a sub-block's result does
not depend on which others are encoded beside it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bloomery.interface.files.quants.block_format import Floats
from bloomery.interface.files.quants.rounding import nearest_int

# Below this largest magnitude a sub-block counts as all zero.
SMALLEST_AMPLITUDE = np.float32(1e-15)


class ScaleAndMinimum(NamedTuple):
    """`weight = scale * code - minimum`; scale and minimum `[n]`, codes `[n, size]` as whole float32 numbers."""

    scale: Floats
    minimum: Floats
    codes: Floats


class Scale(NamedTuple):
    """`weight = scale * (code - n_max)`; scale `[n]`, codes `[n, size]` as whole float32 numbers."""

    scale: Floats
    codes: Floats


def ordered_sum(terms: Floats) -> Floats:
    """The sum of the rows of `[size, n]`, first to last."""
    total: Floats = terms[0].copy()
    for row in terms[1:]:
        total += row
    return total


def search_scale_and_minimum(
    sub_blocks: Floats, n_max: int, first_trial: float, n_trials: int, *, by_magnitude: bool = False
) -> ScaleAndMinimum:
    """Scale and minimum for codes 0..n_max; `sub_blocks` is `[n, size]`, finite.

    Trial t divides the range by `n_max + first_trial + t / 10`. The minimum is stored positive and never lets the range
    exclude zero. The error of a weight is squared and counts with its magnitude plus the root mean square of its
    sub-block; `by_magnitude` takes the plain error and the magnitude alone instead.
    """
    x = np.ascontiguousarray(sub_blocks.T)
    weights = np.abs(x)
    if not by_magnitude:
        weights += np.sqrt(ordered_sum(x * x) / np.float32(len(x)))
    sum_w = ordered_sum(weights)
    weighted = weights * x
    sum_x = ordered_sum(weighted)
    low = np.minimum(x.min(axis=0), np.float32(0))
    high = x.max(axis=0)
    is_flat = high == low

    def codes_under(n_steps: np.float32, minimum: Floats) -> Floats:
        codes: Floats = x - minimum
        codes *= n_steps / (high - minimum)
        np.rint(codes, out=codes)
        return np.clip(codes, np.float32(0), np.float32(n_max), out=codes)

    def error_of(codes: Floats, scale: npt.NDArray[Any], minimum: npt.NDArray[Any]) -> Floats:
        miss: Floats = scale * codes
        miss += minimum
        miss -= x
        miss = np.abs(miss) if by_magnitude else miss * miss
        miss *= weights
        return ordered_sum(miss)

    best_scale = np.float32(1) / (np.float32(n_max) / (high - low))
    best_minimum = low
    best_codes = codes_under(np.float32(n_max), low)
    best_error = error_of(best_codes, best_scale, best_minimum)
    for trial in range(n_trials):
        n_steps = np.float32(first_trial) + np.float32(0.1) * np.float32(trial) + np.float32(n_max)
        # The range starts at the best minimum so far, not at the smallest weight.
        codes = codes_under(n_steps, best_minimum)
        products = weights * codes
        sum_l = ordered_sum(products)
        sum_xl = ordered_sum(products * x)
        products *= codes
        sum_l2 = ordered_sum(products)
        determinant = sum_w * sum_l2 - sum_l * sum_l
        scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
        minimum = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
        excludes_zero = minimum > 0
        scale = np.where(excludes_zero, sum_xl / sum_l2, scale)
        minimum = np.minimum(minimum, np.float32(0))
        error = error_of(codes, scale, minimum)
        better = (determinant > 0) & (error < best_error)
        best_error = np.where(better, error, best_error)
        best_scale = np.where(better, scale, best_scale)
        best_minimum = np.where(better, minimum, best_minimum)
        np.copyto(best_codes, codes, where=better)
    # Weights that are all equal and not positive need no codes: the minimum alone is their value.
    best_scale = np.where(is_flat, np.float32(0), best_scale)
    best_minimum = np.where(is_flat, low, best_minimum)
    # A range of zero, or too small to divide by, makes codes that are not numbers.
    np.nan_to_num(best_codes, copy=False, nan=0.0)
    return ScaleAndMinimum(best_scale, -best_minimum, best_codes.T)


def search_scale(sub_blocks: Floats, n_max: int) -> Scale:
    """Scale for codes -n_max..n_max-1; `sub_blocks` is `[n, size]`, finite.

    Trials map the value of largest magnitude to -(n_max + t / 10) for t from -9 to 9, the plain one first. A weight
    counts with its square. A sub-block below `SMALLEST_AMPLITUDE` gets scale 0 and code 0.
    """
    x = np.ascontiguousarray(sub_blocks.T)
    extreme = np.take_along_axis(x, np.abs(x).argmax(axis=0)[None], axis=0)[0]
    is_empty = np.abs(extreme) < SMALLEST_AMPLITUDE
    safe_extreme = np.where(is_empty, np.float32(1), extreme)
    weights = x * x
    weighted = weights * x
    best_codes = np.zeros_like(x)
    best_scale = np.zeros_like(extreme)
    best_gain = np.zeros_like(extreme)
    for trial in (0, *range(-9, 0), *range(1, 10)):
        steps = np.float32(n_max) + np.float32(0.1) * np.float32(trial)
        codes = np.clip(np.rint((-steps / safe_extreme) * x), np.float32(-n_max), np.float32(n_max - 1))
        sum_xl = ordered_sum(weighted * codes)
        sum_l2 = ordered_sum(weights * codes * codes)
        better = sum_l2 > 0
        if trial != 0:
            better &= sum_xl * sum_xl > best_gain * sum_l2
        scale = sum_xl / sum_l2
        best_scale = np.where(better, scale, best_scale)
        best_gain = np.where(better, scale * sum_xl, best_gain)
        np.copyto(best_codes, codes, where=better if trial != 0 else True)
    best_codes += np.float32(n_max)
    best_codes[:, is_empty] = 0
    return Scale(np.where(is_empty, np.float32(0), best_scale), best_codes.T)


def search_scale_by_steps(sub_blocks: Floats, n_max: int) -> Scale:
    """As `search_scale`, but from the plain codes on by changing one at a time, five times through the sub-block.

    A change is kept where it lowers the weighted squared error that the best scale leaves.
    """
    x = np.ascontiguousarray(sub_blocks.T)
    extreme = np.take_along_axis(x, np.abs(x).argmax(axis=0)[None], axis=0)[0]
    is_empty = np.abs(extreme) < SMALLEST_AMPLITUDE
    safe_extreme = np.where(is_empty, np.float32(1), extreme)
    weights = x * x
    weighted = weights * x
    lowest, highest = np.int32(-n_max), np.int32(n_max - 1)
    codes = np.clip(nearest_int((np.float32(-n_max) / safe_extreme) * x), lowest, highest).astype(np.float32)
    sum_xl = ordered_sum(weighted * codes)
    sum_l2 = ordered_sum(weights * codes * codes)
    for _ in range(5):
        for row in range(len(x)):
            code = codes[row]
            other_xl = sum_xl - weighted[row] * code
            other_l2 = sum_l2 - weights[row] * code * code
            trial = np.clip(nearest_int(x[row] * other_l2 / other_xl), lowest, highest).astype(np.float32)
            trial_xl = other_xl + weighted[row] * trial
            trial_l2 = other_l2 + weights[row] * trial * trial
            better = (other_xl > 0) & (trial != code) & (trial_l2 > 0)
            better &= trial_xl * trial_xl * sum_l2 > sum_xl * sum_xl * trial_l2
            np.copyto(code, trial, where=better)
            sum_xl = np.where(better, trial_xl, sum_xl)
            sum_l2 = np.where(better, trial_l2, sum_l2)
    scale = np.where(sum_l2 > 0, sum_xl / sum_l2, np.float32(0))
    codes += np.float32(n_max)
    codes[:, is_empty] = 0
    return Scale(np.where(is_empty, np.float32(0), scale), codes.T)
