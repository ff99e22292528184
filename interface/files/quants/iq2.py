"""The formats of 2 to 2.6 bits a weight with a codebook: IQ2_XXS, IQ2_XS and IQ2_S, points of eight magnitudes.

Behaviour: llama.cpp, ggml/src/ggml-quants.c (`dequantize_row_iq2_*`). The magnitudes are 8, 25 and 43, and in all three
weight = d * (scale + 1/2) / 4 * sign * magnitude.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bloomery.interface.files.quants.block_format import BlockFormat, Floats
from bloomery.interface.files.quants.codebooks import EVEN_SIGN_WORDS, SIGN_WORDS, seven_bit_signs, signed_points
from bloomery.interface.files.quants.unpacking import fill_scaled, neighbours

# IQ2_XXS, 66 bytes: 0-1 d; then 8 groups of 32 weights, 8 bytes each: 4 indices of points, and a word with 7 sign bits
# a point from the lowest on (the eighth sign makes the negative ones even) and the scale in its upper 4 bits.
IQ2_XXS_LAYOUT = np.dtype([("d", "<f2"), ("groups", [("qs", "u1", (4,)), ("signs", "<u4")], (8,))])

# IQ2_XS, 74 bytes: 0-1 d; 2-65 one word a point: bits 0-8 its index, bits 9-15 its signs (the eighth makes the negative
# ones even); 66-73 the scales of 16 groups of 16 weights, two a byte, the low half first.
IQ2_XS_LAYOUT = np.dtype([("d", "<f2"), ("qs", "<u2", (32,)), ("scales", "u1", (8,))])

# IQ2_S, 82 bytes: 0-1 d; 2-33 low 8 bits of the indices of 32 points; 34-65 their signs, bit i set makes weight i
# negative; 66-73 upper 2 bits of the indices, the lowest bits first; 74-81 the scales as in IQ2_XS.
IQ2_S_LAYOUT = np.dtype(
    [("d", "<f2"), ("qs", "u1", (32,)), ("signs", "u1", (32,)), ("qh", "u1", (8,)), ("scales", "u1", (8,))]
)

_TWO_BITS = np.array([0, 2, 4, 6], np.uint8)


def _scales(integer_scales: npt.NDArray[Any], d: npt.NDArray[Any]) -> Floats:
    scales = integer_scales.astype(np.float32)
    scales += np.float32(0.5)
    scales *= d.astype(np.float32)[:, None]
    scales *= np.float32(0.25)
    return scales


def _decode_iq2_xxs(blocks: npt.NDArray[Any], out: Floats) -> None:
    words = blocks["groups"]["signs"]
    codes = signed_points("IQ2_XXS", blocks["groups"]["qs"], EVEN_SIGN_WORDS, seven_bit_signs(words))
    fill_scaled(out, codes, _scales(words >> 28, blocks["d"]), 32)


def _decode_iq2_xs(blocks: npt.NDArray[Any], out: Floats) -> None:
    words = blocks["qs"]
    codes = signed_points("IQ2_XS", words & 0x1FF, EVEN_SIGN_WORDS, words >> 9)
    fill_scaled(out, codes, _scales(neighbours(blocks["scales"]), blocks["d"]), 16)


def _decode_iq2_s(blocks: npt.NDArray[Any], out: Floats) -> None:
    upper = ((blocks["qh"][:, :, None] >> _TWO_BITS) & 0x03).reshape(len(blocks), 32)
    indices = (upper.astype(np.uint16) << 8) | blocks["qs"]
    codes = signed_points("IQ2_S", indices, SIGN_WORDS, blocks["signs"])
    fill_scaled(out, codes, _scales(neighbours(blocks["scales"]), blocks["d"]), 16)


IQ2_XXS = BlockFormat("IQ2_XXS", 16, 256, 66, IQ2_XXS_LAYOUT, _decode_iq2_xxs)
IQ2_XS = BlockFormat("IQ2_XS", 17, 256, 74, IQ2_XS_LAYOUT, _decode_iq2_xs)
IQ2_S = BlockFormat("IQ2_S", 22, 256, 82, IQ2_S_LAYOUT, _decode_iq2_s)
