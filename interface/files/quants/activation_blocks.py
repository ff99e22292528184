"""The formats that llama.cpp rounds activations to before a product of quantised weights: Q8_1 and Q8_K.

No weights are stored in them. Behaviour: llama.cpp, ggml/src/ggml-quants.c (`quantize_row_q8_1_ref`,
`quantize_row_q8_K_ref`, `dequantize_row_q8_K`); what a processor's own code does differently is in `activations`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bloomery.interface.files.quants.block_format import BlockFormat, Floats
from bloomery.interface.files.quants.rounding import inverse_or_zero, nearest_int, round_half_away
from bloomery.interface.files.quants.unpacking import fill_scaled

# Q8_1, 36 bytes, 32 values: 0-1 the scale d; 2-3 s, which is d times the sum of the codes; 4-35 signed bytes.
# value = d * q. (The gguf package counts 40 bytes, from a time when d and s were single precision.)
Q8_1_LAYOUT = np.dtype([("d", "<f2"), ("s", "<f2"), ("qs", "i1", (32,))])

# Q8_K, 292 bytes, 256 values: 0-3 the scale d in single precision; 4-259 signed bytes; 260-291 the sums of the codes of
# each 16 values. value = d * q.
Q8_K_LAYOUT = np.dtype([("d", "<f4"), ("qs", "i1", (256,)), ("bsums", "<i2", (16,))])


def _decode_q8_1(blocks: npt.NDArray[Any], out: Floats) -> None:
    fill_scaled(out, blocks["qs"], blocks["d"].astype(np.float32), 32)


def _decode_q8_k(blocks: npt.NDArray[Any], out: Floats) -> None:
    fill_scaled(out, blocks["qs"], blocks["d"], 256)


def _encode_q8_1(values: Floats) -> npt.NDArray[Any]:
    # The largest magnitude maps to 127.
    scale = np.abs(values).max(axis=1) / np.float32(127)
    codes = round_half_away(values * inverse_or_zero(scale)[:, None])
    blocks = np.empty(len(values), Q8_1_LAYOUT)
    blocks["d"] = scale
    blocks["s"] = codes.sum(axis=1) * scale
    blocks["qs"] = codes
    return blocks


def _encode_q8_k(values: Floats) -> npt.NDArray[Any]:
    codes, scales = q8_k_codes(values)
    blocks = np.empty(len(values), Q8_K_LAYOUT)
    blocks["d"] = scales
    blocks["qs"] = codes
    # ggml leaves the sums of an all-zero block as they were; here they are zero.
    blocks["bsums"] = codes.reshape(len(values), 16, 16).sum(axis=2, dtype=np.int16)
    return blocks


def q8_k_codes(values: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """Codes `[n, 256]` and scales `[n]` in which Q8_K holds finite `values` `[n, 256]`.

    The value of largest magnitude, sign included, maps to -127.
    """
    extreme = np.take_along_axis(values, np.abs(values).argmax(axis=1)[:, None], axis=1)[:, 0]
    is_empty = extreme == 0
    inverse = np.float32(-127) / np.where(is_empty, np.float32(1), extreme)
    codes = np.minimum(nearest_int(inverse[:, None] * values), 127).astype(np.int8)
    codes[is_empty] = 0
    return codes, np.where(is_empty, np.float32(0), np.float32(1) / inverse)


Q8_1 = BlockFormat("Q8_1", 9, 32, 36, Q8_1_LAYOUT, _decode_q8_1, _encode_q8_1)
Q8_K = BlockFormat("Q8_K", 15, 256, 292, Q8_K_LAYOUT, _decode_q8_k, _encode_q8_k)
