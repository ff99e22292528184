"""The formats of 32 weights a block with one scale: Q8_0, Q4_0, Q5_0 and, with an offset too, Q4_1 and Q5_1.

Behaviour: llama.cpp, ggml/src/ggml-quants.c (`dequantize_row_*` and `quantize_row_*_ref`). A nibble field holds
weight i in the low half of byte i and weight i + 16 in the high half.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bloomery.interface.files.quants.block_format import BlockFormat, Bytes, Floats
from bloomery.interface.files.quants.rounding import inverse_or_zero, round_half_away
from bloomery.interface.files.quants.unpacking import halves, join_halves

# Q8_0, 34 bytes: 0-1 the scale d; 2-33 the weights as signed bytes. weight = d * q.
Q8_0_LAYOUT = np.dtype([("d", "<f2"), ("qs", "i1", (32,))])

# Q4_0, 18 bytes: 0-1 the scale d; 2-17 nibbles. weight = d * (q - 8).
Q4_0_LAYOUT = np.dtype([("d", "<f2"), ("qs", "u1", (16,))])

# Q4_1, 20 bytes: 0-1 the scale d; 2-3 the offset m; 4-19 nibbles. weight = d * q + m.
Q4_1_LAYOUT = np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", (16,))])

# Q5_0, 22 bytes: 0-1 the scale d; 2-5 the fifth bits, weight i in bit i of a little-endian word; 6-21 nibbles.
# weight = d * (q - 16).
Q5_0_LAYOUT = np.dtype([("d", "<f2"), ("qh", "u1", (4,)), ("qs", "u1", (16,))])

# Q5_1, 24 bytes: 0-1 the scale d; 2-3 the offset m; 4-7 the fifth bits; 8-23 nibbles. weight = d * q + m.
Q5_1_LAYOUT = np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", (4,)), ("qs", "u1", (16,))])


def _scale(field: npt.NDArray[Any]) -> Floats:
    return field.astype(np.float32)[:, None]


def _codes(blocks: npt.NDArray[Any]) -> Bytes:
    """The unsigned codes `[n, 32]` of a format that keeps them in nibbles, with the fifth bits where it has them."""
    codes = halves(blocks["qs"], 16).reshape(len(blocks), 32)
    if "qh" in (blocks.dtype.names or ()):
        fifth = np.unpackbits(blocks["qh"], axis=1, bitorder="little")
        fifth <<= 4
        codes |= fifth
    return codes


def _decode_q8_0(blocks: npt.NDArray[Any], out: Floats) -> None:
    out[:] = blocks["qs"]
    out *= _scale(blocks["d"])


def _decode_q4_0(blocks: npt.NDArray[Any], out: Floats) -> None:
    out[:] = _codes(blocks)
    out -= 8
    out *= _scale(blocks["d"])


def _decode_q5_0(blocks: npt.NDArray[Any], out: Floats) -> None:
    out[:] = _codes(blocks)
    out -= 16
    out *= _scale(blocks["d"])


def _decode_with_offset(blocks: npt.NDArray[Any], out: Floats) -> None:
    out[:] = _codes(blocks)
    out *= _scale(blocks["d"])
    out += _scale(blocks["m"])


def _encode_q8_0(values: Floats) -> npt.NDArray[Any]:
    # The largest magnitude maps to 127.
    scale = np.abs(values).max(axis=1) / np.float32(127)
    blocks = np.empty(len(values), Q8_0_LAYOUT)
    blocks["d"] = scale
    blocks["qs"] = round_half_away(values * inverse_or_zero(scale)[:, None])
    return blocks


def _store_codes(blocks: npt.NDArray[Any], codes: Bytes) -> None:
    """Fills `qs`, and `qh` where the format has it, with codes `[n, 32]`."""
    blocks["qs"] = join_halves((codes & 0x0F).reshape(len(codes), 1, 2, 16))
    if "qh" in (blocks.dtype.names or ()):
        blocks["qh"] = np.packbits(codes >> 4, axis=1, bitorder="little")


def _pick(values: Floats, index: npt.NDArray[np.intp]) -> Floats:
    """The value `[n]` at one index a row."""
    return np.take_along_axis(values, index[:, None], axis=1)[:, 0]


def _encode_around_zero(values: Floats, layout: np.dtype[Any], n_codes: int) -> npt.NDArray[Any]:
    # The value of largest magnitude, sign included, maps to code 0, which stands for -n_codes / 2.
    extreme = _pick(values, np.abs(values).argmax(axis=1))
    # Adding zero makes a negative zero positive, so that the scale of an empty block always has the same sign.
    scale = (extreme + np.float32(0)) / np.float32(-n_codes / 2)
    codes = (values * inverse_or_zero(scale)[:, None] + np.float32(n_codes / 2 + 0.5)).astype(np.uint8)
    np.minimum(codes, n_codes - 1, out=codes)
    blocks = np.empty(len(values), layout)
    blocks["d"] = scale
    _store_codes(blocks, codes)
    return blocks


def _encode_from_lowest(values: Floats, layout: np.dtype[Any], n_codes: int) -> npt.NDArray[Any]:
    # The lowest value maps to code 0 and the highest to the last code; of equal ones, such as zeros of
    # both signs, the first counts.
    lowest = _pick(values, values.argmin(axis=1))
    scale = (_pick(values, values.argmax(axis=1)) - lowest) / np.float32(n_codes - 1)
    codes = ((values - lowest[:, None]) * inverse_or_zero(scale)[:, None] + np.float32(0.5)).astype(np.uint8)
    np.minimum(codes, n_codes - 1, out=codes)
    blocks = np.empty(len(values), layout)
    blocks["d"] = scale
    blocks["m"] = lowest
    _store_codes(blocks, codes)
    return blocks


def _encode_q4_0(values: Floats) -> npt.NDArray[Any]:
    return _encode_around_zero(values, Q4_0_LAYOUT, 16)


def _encode_q4_1(values: Floats) -> npt.NDArray[Any]:
    return _encode_from_lowest(values, Q4_1_LAYOUT, 16)


def _encode_q5_0(values: Floats) -> npt.NDArray[Any]:
    return _encode_around_zero(values, Q5_0_LAYOUT, 32)


def _encode_q5_1(values: Floats) -> npt.NDArray[Any]:
    return _encode_from_lowest(values, Q5_1_LAYOUT, 32)


Q4_0 = BlockFormat("Q4_0", 2, 32, 18, Q4_0_LAYOUT, _decode_q4_0, _encode_q4_0)
Q4_1 = BlockFormat("Q4_1", 3, 32, 20, Q4_1_LAYOUT, _decode_with_offset, _encode_q4_1)
Q5_0 = BlockFormat("Q5_0", 6, 32, 22, Q5_0_LAYOUT, _decode_q5_0, _encode_q5_0)
Q5_1 = BlockFormat("Q5_1", 7, 32, 24, Q5_1_LAYOUT, _decode_with_offset, _encode_q5_1)
Q8_0 = BlockFormat("Q8_0", 8, 32, 34, Q8_0_LAYOUT, _decode_q8_0, _encode_q8_0)
