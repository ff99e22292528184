"""The formats of four-bit floats: MXFP4 with a power of two a block, and NVFP4 with a small float each 16 weights.

A code is a sign, two exponent bits and one fraction bit (E2M1). Behaviour: llama.cpp, ggml/src/ggml-quants.c
(`dequantize_row_*fp4`, `quantize_row_*fp4_ref`) and ggml-impl.h (the two scales); MXFP4 follows the OCP Microscaling
Formats specification 1.0, but for its not-a-number scale, which ggml reads as one more power of two.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bloomery.interface.files.quants.block_format import BlockFormat, Bytes, Floats
from bloomery.interface.files.quants.unpacking import fill_scaled, half_table, halves, join_halves, look_up

# MXFP4, 17 bytes: 0 the exponent e; 1-16 codes, weight i in the low half of byte i and weight i + 16 in the high half.
# weight = 2**(e - 127) * value of the code.
MXFP4_LAYOUT = np.dtype([("e", "u1"), ("qs", "u1", (16,))])

# NVFP4, 36 bytes, 4 sub-blocks of 16 weights: 0-3 their scales d, unsigned floats of 4 exponent and 3 fraction bits;
# 4-35 codes, 8 bytes a sub-block, weight i in the low half of byte i and weight i + 8 in the high half.
# weight = d * value of the code.
NVFP4_LAYOUT = np.dtype([("d", "u1", (4,)), ("qs", "u1", (32,))])

# Twice the value of each code, so that they are whole; the scales below are halved for it.
DOUBLED_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
_DOUBLED_TABLE = half_table(DOUBLED_VALUES)


def _half_powers() -> Floats:
    """2**(e - 128) for every exponent byte; the first two are subnormal."""
    powers: Floats = np.ldexp(np.float32(1), np.arange(256) - 128)
    return powers


def _half_small_floats() -> Floats:
    """Half the value of every scale byte of NVFP4: bias 7, the top bit ignored, and 127 (all ones) taken as zero."""
    codes = np.arange(256)
    exponents, fractions = (codes >> 3) & 0x0F, codes & 0x07
    significands = np.where(exponents == 0, fractions, fractions + 8)
    values: Floats = np.ldexp(significands.astype(np.float32), np.maximum(exponents, 1) - 11)
    values[127] = 0
    return values


_HALF_POWERS = _half_powers()
_HALF_SMALL_FLOATS = _half_small_floats()


def _decode_mxfp4(blocks: npt.NDArray[Any], out: Floats) -> None:
    fill_scaled(out, look_up(halves(blocks["qs"], 16), _DOUBLED_TABLE), _HALF_POWERS[blocks["e"]], 32)


def _decode_nvfp4(blocks: npt.NDArray[Any], out: Floats) -> None:
    fill_scaled(out, look_up(halves(blocks["qs"], 8), _DOUBLED_TABLE), _HALF_SMALL_FLOATS[blocks["d"]], 16)


def _nearest_codes(values: Floats, half_scales: Floats) -> Bytes:
    """The code `[n, size]` nearest to each value under its row's scale; the lower code where two are as near."""
    best = np.zeros(values.shape, np.uint8)
    least = np.abs(values)
    for code, doubled in enumerate(DOUBLED_VALUES):
        miss = np.abs(np.float32(doubled) * half_scales[:, None] - values)
        nearer = miss < least
        best[nearer] = code
        np.minimum(least, miss, out=least)
    return best


def _encode_mxfp4(values: Floats) -> npt.NDArray[Any]:
    largest = np.abs(values).max(axis=1)
    # Rounding the logarithm to float32 before its floor, as C's log2f does, takes what is just below a power of two up.
    logarithm = np.log2(largest.astype(np.float64)).astype(np.float32)
    exponents = np.where(largest > 0, np.floor(logarithm) + np.float32(125), np.float32(0))
    blocks = np.empty(len(values), MXFP4_LAYOUT)
    # Below the smallest exponent the byte wraps in ggml; the definition keeps that.
    blocks["e"] = exponents.astype(np.int64) & 0xFF
    codes = _nearest_codes(values, _HALF_POWERS[blocks["e"]])
    blocks["qs"] = join_halves(codes.reshape(len(values), 1, 2, 16))
    return blocks


def _small_float_codes(values: Floats) -> Bytes:
    """The scale byte of NVFP4 nearest to each value `>= 0`, a half rounded up; 126 from the exponent 15 on."""
    bits = np.minimum(values, np.float32(448)).view(np.int32)
    # The exponent moves from bias 127 to bias 7, and the highest dropped bit of the fraction rounds.
    normal = (((bits >> 19) + 1) >> 1) - ((127 - 7) << 3)
    normal = np.where(normal >= 15 << 3, 0x7E, normal)
    subnormal = np.minimum((values * np.float32(512) + np.float32(0.5)).astype(np.int32), 7)
    codes = np.where((bits >> 23) - 127 + 7 <= 0, subnormal, normal)
    return codes.astype(np.uint8)


def _encode_nvfp4(values: Floats) -> npt.NDArray[Any]:
    n = len(values)
    sub_blocks = values.reshape(n * 4, 16)
    scales = _small_float_codes(np.abs(sub_blocks).max(axis=1) / np.float32(6))
    codes = _nearest_codes(sub_blocks, _HALF_SMALL_FLOATS[scales])
    blocks = np.empty(n, NVFP4_LAYOUT)
    blocks["d"] = scales.reshape(n, 4)
    blocks["qs"] = join_halves(codes.reshape(n, 4, 2, 8))
    return blocks


MXFP4 = BlockFormat("MXFP4", 39, 32, 17, MXFP4_LAYOUT, _decode_mxfp4, _encode_mxfp4)
NVFP4 = BlockFormat("NVFP4", 40, 64, 36, NVFP4_LAYOUT, _decode_nvfp4, _encode_nvfp4)
