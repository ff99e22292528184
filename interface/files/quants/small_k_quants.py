"""The K formats of two and three bits: Q2_K and Q3_K, super-blocks of 256 weights in 16 sub-blocks of 16.

Behaviour: llama.cpp, ggml/src/ggml-quants.c (`dequantize_row_q*_K`, `quantize_row_q*_K_ref`). The two-bit codes of both
formats lie in 64 bytes, 32 a half of 128 weights: bits 2r and 2r + 1 of byte i belong to weight 32r + i of that half.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bloomery.interface.files.quants.block_format import BlockFormat, Bytes, Floats
from bloomery.interface.files.quants.rounding import nearest_int
from bloomery.interface.files.quants.scale_search import search_scale_and_minimum, search_scale_by_steps
from bloomery.interface.files.quants.unpacking import fill_scaled, spread_bits

# Q2_K, 84 bytes:
#     0-15  of each sub-block the scale (low half) and the minimum (high half)
#     16-79 two-bit codes
#     80-81 d, the scale of the sub-block scales
#     82-83 dmin, the scale of the sub-block minima
# weight = d * scale * q - dmin * minimum.
Q2_K_LAYOUT = np.dtype([("scales", "u1", (16,)), ("qs", "u1", (64,)), ("d", "<f2"), ("dmin", "<f2")])

# Q3_K, 110 bytes:
#     0-31    third bits: weight 32b + i is bit b of byte i
#     32-95   the lower two bits
#     96-107  16 scales of 6 bits (see `unpack_scales`)
#     108-109 d, the scale of the scales
# weight = d * (scale - 32) * (q - 4).
Q3_K_LAYOUT = np.dtype([("hmask", "u1", (32,)), ("qs", "u1", (64,)), ("scales", "u1", (12,)), ("d", "<f2")])

_PAIRS_OF_BITS = np.array([[0], [2], [4], [6]], np.uint8)


def unpack_scales(packed: Bytes) -> Bytes:
    """The 16 scales of Q3_K, `[n, 16]` in 0..63, from their 12 bytes `[n, 12]`.

    Bytes 0-7 hold the low 4 bits of scales 0-7 (low half) and 8-15 (high half); bits 2r and 2r + 1 of byte 8 + i are
    the upper 2 bits of scale 4r + i.
    """
    low = packed[:, :8]
    upper = (packed[:, None, 8:] << (np.uint8(6) - _PAIRS_OF_BITS) >> 2) & np.uint8(0x30)
    lower: Bytes = np.concatenate([low & 0x0F, low >> 4], axis=1)
    lower |= upper.reshape(len(packed), 16)
    return lower


def pack_scales(scales: Bytes) -> Bytes:
    """The 12 bytes `[n, 12]` that `unpack_scales` reads; `scales` is `[n, 16]` in 0..63."""
    low = scales & 0x0F
    upper = (scales >> 4).reshape(len(scales), 4, 4) << _PAIRS_OF_BITS
    packed: Bytes = np.concatenate([low[:, :8] | (low[:, 8:] << 4), np.bitwise_or.reduce(upper, axis=1)], axis=1)
    return packed


def _two_bit_codes(blocks: npt.NDArray[Any]) -> Bytes:
    """Codes `[n, 256]`."""
    return spread_bits(blocks["qs"].reshape(2 * len(blocks), 32), (0, -2, -4, -6), 0x03).reshape(len(blocks), 256)


def _pack_two_bits(codes: Bytes) -> Bytes:
    """The 64 bytes `[n, 64]` of codes `[n, 256]` in 0..3."""
    shifted = codes.reshape(len(codes), 2, 4, 32) << _PAIRS_OF_BITS
    packed: Bytes = np.bitwise_or.reduce(shifted, axis=2)
    return packed.reshape(len(codes), 64)


def _decode_q2_k(blocks: npt.NDArray[Any], out: Floats) -> None:
    scales = (blocks["scales"] & 0x0F).astype(np.float32)
    scales *= blocks["d"].astype(np.float32)[:, None]
    minima = (blocks["scales"] >> 4).astype(np.float32)
    minima *= blocks["dmin"].astype(np.float32)[:, None]
    fill_scaled(out, _two_bit_codes(blocks), scales, 16)
    weights = out.reshape(-1)
    weights -= np.repeat(minima.reshape(-1), 16)


def _decode_q3_k(blocks: npt.NDArray[Any], out: Floats) -> None:
    codes = _two_bit_codes(blocks)
    codes |= spread_bits(blocks["hmask"], (2, 1, 0, -1, -2, -3, -4, -5), 0x04).reshape(len(blocks), 256)
    # Taking 4 from the byte wraps, and reading it as signed puts the sign right.
    codes -= 4
    scales = (unpack_scales(blocks["scales"]) - np.uint8(32)).view(np.int8).astype(np.float32)
    scales *= blocks["d"].astype(np.float32)[:, None]
    fill_scaled(out, codes.view(np.int8), scales, 16)


def _four_bit_steps(scales: Floats) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float16]]:
    """Integers `[n, 16]` up to 15 for the scales (or minima) of blocks, and their common half-precision scale `[n]`."""
    largest = np.maximum(scales.max(axis=1), np.float32(0))
    inverse = np.where(largest > 0, np.float32(15) / largest, np.float32(0))
    return nearest_int(inverse[:, None] * scales), (largest / np.float32(15)).astype(np.float16)


def _encode_q2_k(values: Floats) -> npt.NDArray[Any]:
    n = len(values)
    sub_blocks = values.reshape(n * 16, 16)
    found = search_scale_and_minimum(sub_blocks, 3, -0.5, 16, by_magnitude=True)
    blocks = np.empty(n, Q2_K_LAYOUT)
    scales, blocks["d"] = _four_bit_steps(found.scale.reshape(n, 16))
    minima, blocks["dmin"] = _four_bit_steps(found.minimum.reshape(n, 16))
    # A negative step keeps its low byte in ggml, upper half included; the definition keeps that.
    blocks["scales"] = (scales | (minima << 4)).astype(np.uint8)
    # The codes are chosen again for the scales as stored; where a stored scale is zero, those of the search stay.
    stored = (blocks["d"].astype(np.float32)[:, None] * (blocks["scales"] & 0x0F)).reshape(n * 16, 1)
    offset = (blocks["dmin"].astype(np.float32)[:, None] * (blocks["scales"] >> 4)).reshape(n * 16, 1)
    codes = np.clip(nearest_int((sub_blocks + offset) / stored), 0, 3)
    blocks["qs"] = _pack_two_bits(np.where(stored != 0, codes, found.codes).astype(np.uint8).reshape(n, 256))
    return blocks


def _encode_q3_k(values: Floats) -> npt.NDArray[Any]:
    n = len(values)
    sub_blocks = values.reshape(n * 16, 16)
    found = search_scale_by_steps(sub_blocks, 4)
    scales = found.scale.reshape(n, 16)
    extreme = np.take_along_axis(scales, np.abs(scales).argmax(axis=1)[:, None], axis=1)[:, 0]
    is_empty = extreme == 0
    inverse = np.float32(-32) / np.where(is_empty, np.float32(1), extreme)
    steps = np.clip(nearest_int(inverse[:, None] * scales), -32, 31)
    steps[is_empty] = -32
    blocks = np.empty(n, Q3_K_LAYOUT)
    blocks["d"] = np.where(is_empty, np.float32(0), np.float32(1) / inverse)
    blocks["scales"] = pack_scales((steps + 32).astype(np.uint8))
    stored = (blocks["d"].astype(np.float32)[:, None] * steps.astype(np.float32)).reshape(n * 16, 1)
    codes = np.clip(nearest_int(sub_blocks / stored), -4, 3) + 4
    chosen = np.where(stored != 0, codes, found.codes).astype(np.uint8).reshape(n, 256)
    blocks["qs"] = _pack_two_bits(chosen & np.uint8(0x03))
    third = (chosen >> 2).reshape(n, 8, 32) << np.arange(8, dtype=np.uint8)[:, None]
    blocks["hmask"] = np.bitwise_or.reduce(third, axis=1)
    return blocks


Q2_K = BlockFormat("Q2_K", 10, 256, 84, Q2_K_LAYOUT, _decode_q2_k, _encode_q2_k)
Q3_K = BlockFormat("Q3_K", 11, 256, 110, Q3_K_LAYOUT, _decode_q3_k, _encode_q3_k)
