"""How llama.cpp's CPU code rounds activations before it multiplies them with weights of a given format.

Behaviour: llama.cpp, ggml/src/ggml-cpu/ggml-cpu.c (the activation format of each weight format) and
ggml-cpu/arch/x86/quants.c (`quantize_row_q8_*`); float16 and bfloat16 round to nearest, ties to even. The kernels that
round four rows at once (ggml-cpu/repack.cpp) give the same values; where the largest magnitude of a Q8_K block appears
with both signs, they may give scale and codes the other sign.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from bloomery.interface.files.quants.activation_blocks import q8_k_codes
from bloomery.interface.files.quants.block_format import Floats, UnsupportedFormat
from bloomery.interface.files.quants.formats import by_name, decode, encode

_WEIGHTS_BY_ACTIVATIONS = {
    "F32": "F32",
    "F16": "F16",
    "BF16": "BF16",
    "Q8_0": "Q4_0 Q5_0 Q8_0 IQ4_NL MXFP4 NVFP4 Q1_0 Q2_0",
    "Q8_1": "Q4_1 Q5_1",
    "Q8_K": "Q2_K Q3_K Q4_K Q5_K Q6_K IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_XS TQ1_0 TQ2_0",
}

ACTIVATION_FORMATS: Mapping[str, str] = MappingProxyType(
    {weights: name for name, group in _WEIGHTS_BY_ACTIVATIONS.items() for weights in group.split()}
)
"""By the name of a weight format, the name of the format that its activations are rounded to; F32 rounds nothing."""


def codes_and_scales(values: Floats, format_name: str) -> tuple[npt.NDArray[np.int8], Floats]:
    """Codes `[..., n]` and scales `[..., n / block]` of float32 `values` `[..., n]` in Q8_0, Q8_1 or Q8_K.

    A block has 32 values in Q8_0 and Q8_1, which differ only in what else they store, and 256 in Q8_K. The scale of a
    value is that of its block, already rounded to half precision in Q8_0 and Q8_1. ValueError where n is not a whole
    number of blocks, UnsupportedFormat for another format.
    """
    if format_name not in {"Q8_0", "Q8_1", "Q8_K"}:
        raise UnsupportedFormat(f"activations are not rounded to codes of {format_name}, only of Q8_0, Q8_1 and Q8_K")
    _check_float32(values)
    block_format = by_name(format_name)
    n_blocks = block_format.row_bytes(values.shape[-1]) // block_format.type_size
    blocks = np.ascontiguousarray(values).reshape(-1, block_format.block_size)
    with np.errstate(all="ignore"):
        codes, scales = q8_k_codes(blocks) if format_name == "Q8_K" else _q8_0_codes(blocks)
    return codes.reshape(values.shape), scales.reshape(*values.shape[:-1], n_blocks)


def _q8_0_codes(blocks: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    # Unlike the quantiser of weights, this divides 127 by the largest magnitude and rounds halves to the even code.
    largest = np.abs(blocks).max(axis=1)
    inverse = np.where(largest != 0, np.float32(127) / largest, np.float32(0))
    scaled = blocks * inverse[:, None]
    # Where the inverse overflows, the conversion to an integer saturates to the lowest code, under a scale of zero.
    codes = np.where(np.isfinite(scaled), np.rint(scaled), np.float32(-128)).astype(np.int8)
    return codes, (largest / np.float32(127)).astype(np.float16).astype(np.float32)


def round_to(values: Floats, format_name: str) -> Floats:
    """Float32 `values` `[..., n]` as they are after rounding to F32, F16, BF16, Q8_0, Q8_1 or Q8_K, as a new array.

    The product of code and scale is rounded to float32 here; ggml multiplies the codes first and the scales afterwards.
    A block with an infinity or a NaN comes back with one. ValueError and UnsupportedFormat as `codes_and_scales`.
    """
    if format_name in {"F32", "F16", "BF16"}:
        _check_float32(values)
        return decode(encode(values, format_name), by_name(format_name), values.shape)
    codes, scales = codes_and_scales(values, format_name)
    rounded = codes.astype(np.float32)
    with np.errstate(all="ignore"):
        rounded *= np.repeat(scales, by_name(format_name).block_size, axis=-1)
    return rounded


def _check_float32(values: npt.NDArray[np.float32]) -> None:
    if values.dtype != np.float32 or values.ndim == 0:
        raise ValueError(f"activations to round are float32 with at least one axis, not {values.dtype} {values.shape}")
