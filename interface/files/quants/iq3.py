"""The formats of 3 to 3.4 bits a weight with a codebook: IQ3_XXS and IQ3_S, points of four magnitudes.

Behaviour: llama.cpp, ggml/src/ggml-quants.c (`dequantize_row_iq3_*`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bloomery.interface.files.quants.block_format import BlockFormat, Floats
from bloomery.interface.files.quants.codebooks import EVEN_SIGN_WORDS, SIGN_WORDS, seven_bit_signs, signed_points
from bloomery.interface.files.quants.unpacking import fill_scaled, neighbours

# IQ3_XXS, 98 bytes, 8 groups of 32 weights: 0-1 d; 2-65 indices of 64 points; 66-97 one word a group with 7 sign bits
# for each 8 weights from the lowest on (the eighth sign makes the negative ones even) and the scale in its upper 4
# bits.
# weight = d * (scale + 1/2) / 2 * sign * magnitude.
IQ3_XXS_LAYOUT = np.dtype([("d", "<f2"), ("qs", "u1", (64,)), ("signs", "<u4", (8,))])

# IQ3_S, 110 bytes, 8 groups of 32 weights: 0-1 d; 2-65 low 8 bits of the indices of 64 points; 66-73 their ninth bits,
# point 8b + i in bit i of byte b; 74-105 signs, bit i of byte b set makes weight 8b + i negative; 106-109 the scales,
# two a byte, the low half first. weight = d * (2 * scale + 1) * sign * magnitude.
IQ3_S_LAYOUT = np.dtype(
    [("d", "<f2"), ("qs", "u1", (64,)), ("qh", "u1", (8,)), ("signs", "u1", (32,)), ("scales", "u1", (4,))]
)


def _decode_iq3_xxs(blocks: npt.NDArray[Any], out: Floats) -> None:
    words = blocks["signs"]
    codes = signed_points("IQ3_XXS", blocks["qs"], EVEN_SIGN_WORDS, seven_bit_signs(words))
    scales = (words >> 28).astype(np.float32)
    scales += np.float32(0.5)
    scales *= blocks["d"].astype(np.float32)[:, None]
    scales *= np.float32(0.5)
    fill_scaled(out, codes, scales, 32)


def _decode_iq3_s(blocks: npt.NDArray[Any], out: Floats) -> None:
    ninth = np.unpackbits(blocks["qh"], axis=1, bitorder="little").astype(np.uint16)
    codes = signed_points("IQ3_S", (ninth << 8) | blocks["qs"], SIGN_WORDS, blocks["signs"])
    scales = (2 * neighbours(blocks["scales"]) + 1).astype(np.float32)
    scales *= blocks["d"].astype(np.float32)[:, None]
    fill_scaled(out, codes, scales, 32)


IQ3_XXS = BlockFormat("IQ3_XXS", 18, 256, 98, IQ3_XXS_LAYOUT, _decode_iq3_xxs)
IQ3_S = BlockFormat("IQ3_S", 21, 256, 110, IQ3_S_LAYOUT, _decode_iq3_s)
