"""The formats of about 1.6 bits a weight: IQ1_S and IQ1_M, whose codebook holds points of eight weights in -1, 0, 1.

Every point of a group is moved by 1/8, up or down. Behaviour: llama.cpp, ggml/src/ggml-quants.c
(`dequantize_row_iq1_*`).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from bloomery.interface.files.quants.block_format import BlockFormat, Floats
from bloomery.interface.files.quants.codebooks import as_words, codebook
from bloomery.interface.files.quants.unpacking import fill_scaled, neighbours

# IQ1_S, 50 bytes, 8 groups of 32 weights:
#     0-1   d, the scale of the group scales
#     2-33  low 8 bits of the indices of the points, 4 a group
#     34-49 one word a group: bits 3k to 3k + 2 are the upper bits of the index of point k, bits 12-14 the scale, bit 15
#           the direction of the move, set for down
# weight = d * (2 * scale + 1) * (point +- 1/8).
IQ1_S_LAYOUT = np.dtype([("d", "<f2"), ("qs", "u1", (32,)), ("qh", "<u2", (8,))])

# IQ1_M, 56 bytes, 16 groups of 16 weights:
#     0-31  low 8 bits of the indices of the points, 2 a group
#     32-47 half a byte a point: bits 0-2 are the upper bits of its index, bit 3 the direction of its move
#     48-55 four words: bits 3k to 3k + 2 of word w are the scale of group 4w + k, and the four upper bits of the words,
#           the first word's lowest, are the scale d
# weight = d * (2 * scale + 1) * (point +- 1/8).
IQ1_M_LAYOUT = np.dtype([("qs", "u1", (32,)), ("qh", "u1", (16,)), ("scales", "<u2", (4,))])

_THREE_BITS = np.array([0, 3, 6, 9], np.uint16)


@functools.cache
def _moved_points() -> npt.NDArray[Any]:
    """Eight times the moved points as words `[4096]`: bit 11 of an index is the direction, so that they are whole."""
    points = codebook("IQ1_S") * np.int8(8)
    return as_words(np.concatenate([points + np.int8(1), points - np.int8(1)]))


def _fill(out: Floats, indices: npt.NDArray[Any], d: Floats, integer_scales: npt.NDArray[Any], run: int) -> None:
    scales = (2 * integer_scales + 1).astype(np.float32)
    scales *= d[:, None]
    # Every factor is exact, so the eighth may as well be taken of the scale.
    scales *= np.float32(0.125)
    fill_scaled(out, np.take(_moved_points(), indices).view(np.int8), scales, run)


def _decode_iq1_s(blocks: npt.NDArray[Any], out: Floats) -> None:
    words = blocks["qh"]
    upper = (words[:, :, None] >> _THREE_BITS) & 0x07
    upper |= (words >> 12)[:, :, None] & 0x08
    indices = (upper << 8).reshape(len(blocks), 32) | blocks["qs"]
    _fill(out, indices, blocks["d"].astype(np.float32), (words >> 12) & 0x07, 32)


def _decode_iq1_m(blocks: npt.NDArray[Any], out: Floats) -> None:
    words = blocks["scales"]
    d = np.bitwise_or.reduce((words & 0xF000) >> np.array([12, 8, 4, 0], np.uint16), axis=1).view(np.float16)
    indices = (neighbours(blocks["qh"]).astype(np.uint16) << 8) | blocks["qs"]
    scales = ((words[:, :, None] >> _THREE_BITS) & 0x07).reshape(len(blocks), 16)
    _fill(out, indices, d.astype(np.float32), scales, 16)


IQ1_S = BlockFormat("IQ1_S", 19, 256, 50, IQ1_S_LAYOUT, _decode_iq1_s)
IQ1_M = BlockFormat("IQ1_M", 29, 256, 56, IQ1_M_LAYOUT, _decode_iq1_m)
