"""The four-bit formats whose codes stand for 16 uneven values: IQ4_NL, and IQ4_XS with scales that are quantised too.

Behaviour: llama.cpp, ggml/src/ggml-quants.c (`dequantize_row_iq4_*`, `quantize_iq4_*` without an importance matrix).
A nibble field holds, of 32 weights, weight i in the low half of byte i and weight i + 16 in the high half.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bloomery.interface.files.quants.block_format import BlockFormat, Floats
from bloomery.interface.files.quants.rounding import inverse_or_zero, nearest_int
from bloomery.interface.files.quants.scale_search import SMALLEST_AMPLITUDE, ordered_sum
from bloomery.interface.files.quants.unpacking import (
    fill_scaled,
    half_table,
    halves,
    join_halves,
    look_up,
    neighbours,
)

# IQ4_NL, 18 bytes: 0-1 the scale d; 2-17 codes. weight = d * value of the code.
IQ4_NL_LAYOUT = np.dtype([("d", "<f2"), ("qs", "u1", (16,))])

# IQ4_XS, 136 bytes, 8 sub-blocks of 32 weights:
#     0-1   d, the scale of the sub-block scales
#     2-3   upper 2 bits of the scales, scale s in bits 2s and 2s + 1
#     4-7   low 4 bits of the scales, two a byte, the low half first
#     8-135 codes, 16 bytes a sub-block
# weight = d * (scale - 32) * value of the code.
IQ4_XS_LAYOUT = np.dtype([("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", (4,)), ("qs", "u1", (128,))])

VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_VALUE_TABLE = half_table(VALUES)
_FLOAT_VALUES = np.array(VALUES, np.float32)
_MIDDLES = (_FLOAT_VALUES[1:] + _FLOAT_VALUES[:-1]) / np.float32(2)

_SCALE_SHIFTS = np.arange(0, 16, 2, dtype=np.uint16)


def _decode_iq4_nl(blocks: npt.NDArray[Any], out: Floats) -> None:
    fill_scaled(out, look_up(halves(blocks["qs"], 16), _VALUE_TABLE), blocks["d"].astype(np.float32), 32)


def _decode_iq4_xs(blocks: npt.NDArray[Any], out: Floats) -> None:
    upper = ((blocks["scales_h"][:, None] >> _SCALE_SHIFTS) & 3).astype(np.uint8)
    integer_scales = (neighbours(blocks["scales_l"]) | (upper << 4)) - np.uint8(32)
    scales = integer_scales.view(np.int8).astype(np.float32)
    scales *= blocks["d"].astype(np.float32)[:, None]
    fill_scaled(out, look_up(halves(blocks["qs"], 16), _VALUE_TABLE), scales, 32)


def _nearest_codes(scaled: Floats) -> npt.NDArray[np.intp]:
    """The code whose value is nearest to each scaled weight; the upper one where two are as near."""
    return np.searchsorted(_MIDDLES, scaled, side="right")


def _best_scales(sub_blocks: Floats) -> Floats:
    """The scale `[n]` for each of the finite `sub_blocks` `[n, 32]`; 0 for one below `SMALLEST_AMPLITUDE`.

    Trials map the value of largest magnitude to the lowest value plus t, for t from -7 to 7, after a first one that
    maps it to that value's positive twin. Each rounds the weights to codes and fits the best real scale to them, where
    a weight counts with its square; the trial with the smallest weighted squared error wins.
    """
    x = np.ascontiguousarray(sub_blocks.T)
    extreme = np.take_along_axis(x, np.abs(x).argmax(axis=0)[None], axis=0)[0]
    is_empty = np.abs(extreme) < SMALLEST_AMPLITUDE
    safe_extreme = np.where(is_empty, np.float32(1), extreme)
    lowest = _FLOAT_VALUES[0]
    weights = x * x
    best_scale = np.zeros_like(extreme)
    best_gain = np.zeros_like(extreme)
    inverses = [np.float32(1) / (-safe_extreme / lowest)]
    inverses += [(np.float32(trial) + lowest) / safe_extreme for trial in range(-7, 8)]
    for trial, inverse in enumerate(inverses):
        values = _FLOAT_VALUES[_nearest_codes(inverse * x)]
        weighted = weights * values
        sum_qx = ordered_sum(weighted * x)
        sum_q2 = ordered_sum(weighted * values)
        better = sum_q2 > 0
        if trial > 0:
            better &= sum_qx * sum_qx > best_gain * sum_q2
        scale = sum_qx / sum_q2
        best_scale = np.where(better, scale, best_scale)
        best_gain = np.where(better, scale * sum_qx, best_gain)
    return np.where(is_empty, np.float32(0), best_scale)


def _encode_iq4_nl(values: Floats) -> npt.NDArray[Any]:
    scale = _best_scales(values)
    blocks = np.empty(len(values), IQ4_NL_LAYOUT)
    blocks["d"] = scale
    # The codes are chosen for the scale before it is rounded to half precision.
    codes = _nearest_codes(inverse_or_zero(scale)[:, None] * values)
    blocks["qs"] = join_halves(codes.reshape(len(values), 1, 2, 16))
    return blocks


def _encode_iq4_xs(values: Floats) -> npt.NDArray[Any]:
    n = len(values)
    sub_blocks = values.reshape(n * 8, 32)
    scales = _best_scales(sub_blocks).reshape(n, 8)
    extreme = np.take_along_axis(scales, np.abs(scales).argmax(axis=1)[:, None], axis=1)[:, 0]
    common = -extreme / np.float32(32)
    steps = np.clip(nearest_int(inverse_or_zero(common)[:, None] * scales), -32, 31)
    scale = (common[:, None] * steps.astype(np.float32)).reshape(n * 8)
    codes = _nearest_codes(inverse_or_zero(scale)[:, None] * sub_blocks)
    stored = (steps + 32).astype(np.uint8)
    blocks = np.empty(n, IQ4_XS_LAYOUT)
    blocks["d"] = common
    blocks["scales_h"] = np.bitwise_or.reduce((stored >> 4).astype(np.uint16) << _SCALE_SHIFTS, axis=1)
    blocks["scales_l"] = (stored[:, 0::2] & 0x0F) | (stored[:, 1::2] << 4)
    blocks["qs"] = join_halves(codes.reshape(n, 8, 2, 16))
    return blocks


IQ4_NL = BlockFormat("IQ4_NL", 20, 32, 18, IQ4_NL_LAYOUT, _decode_iq4_nl, _encode_iq4_nl)
IQ4_XS = BlockFormat("IQ4_XS", 23, 256, 136, IQ4_XS_LAYOUT, _decode_iq4_xs, _encode_iq4_xs)
