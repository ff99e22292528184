"""The formats whose weights are a few multiples of one scale: TQ1_0 and TQ2_0, Q1_0 and Q2_0.

Behaviour: llama.cpp, ggml/src/ggml-quants.c (`dequantize_row_*`, `quantize_row_*_ref`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bloomery.interface.files.quants.block_format import BlockFormat, Bytes, Floats
from bloomery.interface.files.quants.rounding import inverse_or_zero, round_half_away
from bloomery.interface.files.quants.scale_search import ordered_sum
from bloomery.interface.files.quants.unpacking import SignedBytes, fill_scaled, spread_bits

# TQ1_0, 54 bytes, base-3 digits of 256 weights, five a byte (four in the last four bytes):
#     0-31  weights 0-159: weight 32k + i is digit k of byte i
#     32-47 weights 160-239: weight 160 + 16k + i is digit k of byte 32 + i
#     48-51 weights 240-255: weight 240 + 4k + i is digit k of byte 48 + i
#     52-53 the scale d
# A byte b is a fraction b / 256, and digit k is the whole part of 3 * (3**k * b mod 256) / 256.
# weight = d * (digit - 1).
TQ1_0_LAYOUT = np.dtype([("qs", "u1", (48,)), ("qh", "u1", (4,)), ("d", "<f2")])

# TQ2_0, 66 bytes: 0-63 two-bit codes of 256 weights, 32 bytes a half of 128: bits 2r and 2r + 1 of byte i belong to
# weight 32r + i of that half; 64-65 the scale d. weight = d * (q - 1).
TQ2_0_LAYOUT = np.dtype([("qs", "u1", (64,)), ("d", "<f2")])

# Q1_0, 18 bytes, 128 weights: 0-1 the scale d; 2-17 one bit a weight, the lowest first. weight = d or, for bit 0, -d.
Q1_0_LAYOUT = np.dtype([("d", "<f2"), ("qs", "u1", (16,))])

# Q2_0, 18 bytes, 64 weights: 0-1 the scale d; 2-17 two-bit codes, the lowest first. weight = d * (q - 1).
Q2_0_LAYOUT = np.dtype([("d", "<f2"), ("qs", "u1", (16,))])

# The bytes of TQ1_0 that are laid out alike: first byte, end, digits a byte.
_TRIT_FIELDS = ((0, 32, 5), (32, 48, 5), (48, 52, 4))


def _trits(digits: Bytes) -> SignedBytes:
    """The leading base-3 digit of each byte taken as a fraction of 256, less one."""
    above_one_third = (digits >= 86).view(np.int8)
    above_one_third += (digits >= 171).view(np.int8)
    above_one_third -= 1
    return above_one_third


def _decode_tq1_0(blocks: npt.NDArray[Any], out: Floats) -> None:
    n = len(blocks)
    packed = np.concatenate([blocks["qs"], blocks["qh"]], axis=1)
    digits = np.empty((n, 256), np.uint8)
    start = 0
    for first, end, count in _TRIT_FIELDS:
        size = end - first
        for _ in range(count):
            # Multiplying by 3 drops the leading digit out of the byte and brings up the next.
            digits[:, start : start + size] = packed[:, first:end]
            packed[:, first:end] *= 3
            start += size
    fill_scaled(out, _trits(digits), blocks["d"].astype(np.float32), 256)


def _decode_tq2_0(blocks: npt.NDArray[Any], out: Floats) -> None:
    codes = spread_bits(blocks["qs"].reshape(2 * len(blocks), 32), (0, -2, -4, -6), 0x03)
    codes -= 1
    fill_scaled(out, codes.view(np.int8), blocks["d"].astype(np.float32), 256)


def _decode_q1_0(blocks: npt.NDArray[Any], out: Floats) -> None:
    signs = np.unpackbits(blocks["qs"], axis=1, bitorder="little").view(np.int8)
    signs <<= 1
    signs -= 1
    fill_scaled(out, signs, blocks["d"].astype(np.float32), 128)


# The four weights of every byte of Q2_0, before the scale, as one word.
_FOUR_LEVELS = np.ascontiguousarray(
    ((np.arange(256)[:, None] >> np.array([0, 2, 4, 6])) & 3).astype(np.int8) - np.int8(1)
).view(np.uint32)[:, 0]


def _decode_q2_0(blocks: npt.NDArray[Any], out: Floats) -> None:
    fill_scaled(out, np.take(_FOUR_LEVELS, blocks["qs"]).view(np.int8), blocks["d"].astype(np.float32), 64)


def _levels(values: Floats) -> tuple[Floats, Floats]:
    """The largest magnitude `[n]` of each block, and its weights `[n, size]` over that, rounded to whole numbers."""
    largest = np.abs(values).max(axis=1)
    return largest, round_half_away(values * inverse_or_zero(largest)[:, None])


def _encode_tq1_0(values: Floats) -> npt.NDArray[Any]:
    n = len(values)
    largest, levels = _levels(values)
    trits = (levels + 1).astype(np.uint16)
    packed = np.empty((n, 52), np.uint16)
    start = 0
    for first, end, count in _TRIT_FIELDS:
        size = end - first
        fields = trits[:, start : start + size * count].reshape(n, count, size)
        places = np.uint16(3) ** np.arange(4, 4 - count, -1, dtype=np.uint16)
        # The number of five digits, over 243, becomes the fraction of 256 next above, so that no digit reads short.
        number = (fields * places[:, None]).sum(axis=1, dtype=np.uint16)
        packed[:, first:end] = (number * np.uint16(256) + np.uint16(242)) // np.uint16(243)
        start += size * count
    blocks = np.empty(n, TQ1_0_LAYOUT)
    blocks["qs"], blocks["qh"] = packed[:, :48], packed[:, 48:]
    blocks["d"] = largest
    return blocks


def _encode_tq2_0(values: Floats) -> npt.NDArray[Any]:
    largest, levels = _levels(values)
    codes = (levels + 1).astype(np.uint8).reshape(len(values), 2, 4, 32)
    blocks = np.empty(len(values), TQ2_0_LAYOUT)
    shifted = codes << np.array([[0], [2], [4], [6]], np.uint8)
    blocks["qs"] = np.bitwise_or.reduce(shifted, axis=2).reshape(len(values), 64)
    blocks["d"] = largest
    return blocks


def _encode_q1_0(values: Floats) -> npt.NDArray[Any]:
    # The scale is the mean magnitude, and zero counts as positive.
    blocks = np.empty(len(values), Q1_0_LAYOUT)
    blocks["d"] = ordered_sum(np.ascontiguousarray(np.abs(values).T)) / np.float32(128)
    blocks["qs"] = np.packbits(values >= 0, axis=1, bitorder="little")
    return blocks


def _encode_q2_0(values: Floats) -> npt.NDArray[Any]:
    largest, levels = _levels(values)
    codes = (levels + 1).astype(np.uint8).reshape(len(values), 16, 4)
    blocks = np.empty(len(values), Q2_0_LAYOUT)
    blocks["qs"] = np.bitwise_or.reduce(codes << np.array([0, 2, 4, 6], np.uint8), axis=2)
    blocks["d"] = largest
    return blocks


TQ1_0 = BlockFormat("TQ1_0", 34, 256, 54, TQ1_0_LAYOUT, _decode_tq1_0, _encode_tq1_0)
TQ2_0 = BlockFormat("TQ2_0", 35, 256, 66, TQ2_0_LAYOUT, _decode_tq2_0, _encode_tq2_0)
Q1_0 = BlockFormat("Q1_0", 41, 128, 18, Q1_0_LAYOUT, _decode_q1_0, _encode_q1_0)
Q2_0 = BlockFormat("Q2_0", 42, 64, 18, Q2_0_LAYOUT, _decode_q2_0, _encode_q2_0)
