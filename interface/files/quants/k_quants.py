"""The K formats decoded here: Q4_K, Q5_K and Q6_K, super-blocks of 256 weights with scales that are quantised too.

Behaviour: llama.cpp, ggml/src/ggml-quants.c (`dequantize_row_q*_K`, `quantize_row_q*_K_ref`). Decoding multiplies in
float32: half-precision scale times integer scale times code is exact there, so only subtracting a minimum rounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bloomery.interface.files.quants.block_format import BlockFormat, Bytes, Floats
from bloomery.interface.files.quants.scale_search import SMALLEST_AMPLITUDE, search_scale, search_scale_and_minimum
from bloomery.interface.files.quants.unpacking import fill_scaled, halves, join_halves, spread_bits

# Q4_K, 144 bytes, 8 sub-blocks of 32 weights:
#     0-1    d, the scale of the sub-block scales
#     2-3    dmin, the scale of the sub-block minima
#     4-15   8 scales and 8 minima of 6 bits (see `unpack_scales`)
#     16-143 nibbles: of each 32 bytes, the low halves are one sub-block and the high halves the next
# weight = d * scale * q - dmin * minimum.
Q4_K_LAYOUT = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", (12,)), ("qs", "u1", (128,))])

# Q5_K, 176 bytes: as Q4_K, with 16-47 the fifth bits (weight i of sub-block s is bit s of byte i) and 48-175 nibbles.
Q5_K_LAYOUT = np.dtype(
    [("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", (12,)), ("qh", "u1", (32,)), ("qs", "u1", (128,))]
)

# Q6_K, 210 bytes, 16 sub-blocks of 16 weights in two halves of 128:
#     0-127   low nibbles, 64 bytes a half: low halves are weights 0-63 of that half, high halves weights 64-127
#     128-191 upper 2 bits, 32 bytes a half: bits 2r and 2r + 1 of byte i belong to weight 32r + i of that half
#     192-207 scales, signed bytes
#     208-209 d, the scale of the scales
# weight = d * scale * (q - 32).
Q6_K_LAYOUT = np.dtype([("ql", "u1", (128,)), ("qh", "u1", (64,)), ("scales", "i1", (16,)), ("d", "<f2")])


def unpack_scales(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Scales and minima, each `[n, 8]` in 0..63, from their 12 bytes `[n, 12]`.

    Bytes 0-3 and 4-7 hold scales and minima 0-3 in their low 6 bits; bytes 8-11 hold the low 4 bits of scales 4-7 (low
    half) and minima 4-7 (high half), whose upper 2 bits fill the top of bytes 0-3 and 4-7.
    """
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 0x3F, (third & 0x0F) | ((first >> 2) & 0x30)], axis=1)
    minima = np.concatenate([second & 0x3F, (third >> 4) | ((second >> 2) & 0x30)], axis=1)
    return scales, minima


def pack_scales(scales: Bytes, minima: Bytes) -> Bytes:
    """The 12 bytes `[n, 12]` that `unpack_scales` reads; both arguments are `[n, 8]` in 0..63."""
    return np.concatenate(
        [
            scales[:, :4] | ((scales[:, 4:] >> 4) << 6),
            minima[:, :4] | ((minima[:, 4:] >> 4) << 6),
            (scales[:, 4:] & 0x0F) | ((minima[:, 4:] & 0x0F) << 4),
        ],
        axis=1,
    )


def _decode_with_minima(blocks: npt.NDArray[Any], codes: Bytes, out: Floats) -> None:
    integer_scales, integer_minima = unpack_scales(blocks["scales"])
    scales = integer_scales.astype(np.float32)
    scales *= blocks["d"].astype(np.float32)[:, None]
    minima = integer_minima.astype(np.float32)
    minima *= blocks["dmin"].astype(np.float32)[:, None]
    fill_scaled(out, codes, scales, 32)
    weights = out.reshape(-1)
    weights -= np.repeat(minima.reshape(-1), 32)


def _decode_q4_k(blocks: npt.NDArray[Any], out: Floats) -> None:
    _decode_with_minima(blocks, halves(blocks["qs"], 32), out)


def _decode_q5_k(blocks: npt.NDArray[Any], out: Floats) -> None:
    codes = halves(blocks["qs"], 32).reshape(len(blocks), 8, 32)
    codes |= spread_bits(blocks["qh"], (4, 3, 2, 1, 0, -1, -2, -3), 0x10)
    _decode_with_minima(blocks, codes, out)


def _decode_q6_k(blocks: npt.NDArray[Any], out: Floats) -> None:
    n = len(blocks)
    low = blocks["ql"].reshape(n, 2, 64)
    codes = np.empty((n, 2, 4, 32), np.uint8)
    halves = codes.reshape(n, 2, 2, 64)
    np.bitwise_and(low, 0x0F, out=halves[:, :, 0])
    np.right_shift(low, 4, out=halves[:, :, 1])
    codes.reshape(2 * n, 4, 32)[:] |= spread_bits(blocks["qh"].reshape(2 * n, 32), (4, 2, 0, -2), 0x30)
    # Taking 32 from the byte wraps, and reading it as signed puts the sign right.
    codes -= 32
    scales = blocks["scales"].astype(np.float32)
    scales *= blocks["d"].astype(np.float32)[:, None]
    fill_scaled(out, codes.view(np.int8), scales, 16)


def _quantised_scales(scales: Floats) -> tuple[Bytes, npt.NDArray[np.float16]]:
    """Six-bit integers `[n, 8]` for the scales (or minima) of a block, and their common half-precision scale `[n]`."""
    largest = np.maximum(scales.max(axis=1), np.float32(0))
    inverse = np.float32(63) / largest
    inverse = np.where(np.isfinite(inverse), inverse, np.float32(0))
    steps = np.rint(inverse[:, None] * scales).astype(np.int32)
    common = (largest / np.float32(63)).astype(np.float16)
    # A negative step passes through an unsigned byte in ggml, and then through the limit; the definition keeps that.
    return np.minimum(steps & 0xFF, 63).astype(np.uint8), common


def _encode_with_minima(
    values: Floats, blocks: npt.NDArray[Any], n_max: int, first_trial: float, n_trials: int
) -> Bytes:
    """Fills `d`, `dmin` and `scales` of `blocks` and returns the codes `[n, 8, 32]`."""
    n = len(values)
    sub_blocks = values.reshape(n * 8, 32)
    found = search_scale_and_minimum(sub_blocks, n_max, first_trial, n_trials)
    integer_scales, blocks["d"] = _quantised_scales(found.scale.reshape(n, 8))
    integer_minima, blocks["dmin"] = _quantised_scales(found.minimum.reshape(n, 8))
    blocks["scales"] = pack_scales(integer_scales, integer_minima)
    # The codes are chosen again for the scales as stored; where a stored scale is zero, those of the search stay.
    stored = (blocks["d"].astype(np.float32)[:, None] * integer_scales).reshape(n * 8, 1)
    offset = (blocks["dmin"].astype(np.float32)[:, None] * integer_minima).reshape(n * 8, 1)
    codes = np.clip(np.rint((sub_blocks + offset) / stored), 0, n_max)
    chosen = np.where(stored != 0, codes, found.codes)
    return chosen.astype(np.uint8).reshape(n, 8, 32)


def _encode_q4_k(values: Floats) -> npt.NDArray[Any]:
    blocks = np.empty(len(values), Q4_K_LAYOUT)
    codes = _encode_with_minima(values, blocks, 15, -1.0, 21)
    blocks["qs"] = join_halves(codes.reshape(len(values), 4, 2, 32))
    return blocks


def _encode_q5_k(values: Floats) -> npt.NDArray[Any]:
    blocks = np.empty(len(values), Q5_K_LAYOUT)
    codes = _encode_with_minima(values, blocks, 31, -0.5, 16)
    blocks["qs"] = join_halves((codes & 0x0F).reshape(len(values), 4, 2, 32))
    blocks["qh"] = np.bitwise_or.reduce((codes >> 4) << np.arange(8, dtype=np.uint8)[:, None], axis=1)
    return blocks


def _encode_q6_k(values: Floats) -> npt.NDArray[Any]:
    n = len(values)
    sub_blocks = values.reshape(n * 16, 16)
    found = search_scale(sub_blocks, 32)
    scales = found.scale.reshape(n, 16)
    extreme = np.take_along_axis(scales, np.abs(scales).argmax(axis=1)[:, None], axis=1)[:, 0]
    is_empty = np.abs(extreme) < SMALLEST_AMPLITUDE
    inverse = np.float32(-128) / np.where(is_empty, np.float32(1), extreme)
    blocks = np.empty(n, Q6_K_LAYOUT)
    blocks["d"] = np.float32(1) / inverse
    blocks["scales"] = np.minimum(np.rint(inverse[:, None] * scales), 127)
    stored = (blocks["d"].astype(np.float32)[:, None] * blocks["scales"]).reshape(n * 16, 1)
    codes = np.clip(np.rint(sub_blocks / stored), -32, 31) + 32
    chosen = np.where(stored != 0, codes, found.codes).astype(np.uint8).reshape(n, 2, 4, 32)
    low = (chosen & 0x0F).reshape(n, 2, 2, 64)
    upper = chosen >> 4
    blocks["ql"] = (low[:, :, 0] | (low[:, :, 1] << 4)).reshape(n, 128)
    blocks["qh"] = np.bitwise_or.reduce(upper << np.array([[0], [2], [4], [6]], np.uint8), axis=2).reshape(n, 64)
    # A block without any amplitude is stored as zero bytes throughout.
    blocks[is_empty] = np.zeros((), Q6_K_LAYOUT)
    return blocks


Q4_K = BlockFormat("Q4_K", 12, 256, 144, Q4_K_LAYOUT, _decode_q4_k, _encode_q4_k)
Q5_K = BlockFormat("Q5_K", 13, 256, 176, Q5_K_LAYOUT, _decode_q5_k, _encode_q5_k)
Q6_K = BlockFormat("Q6_K", 14, 256, 210, Q6_K_LAYOUT, _decode_q6_k, _encode_q6_k)
