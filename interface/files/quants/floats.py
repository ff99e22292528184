"""The formats whose block is one number: F32, F16, BF16 and F64."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bloomery.interface.files.quants.block_format import BlockFormat, Floats


def _decode_cast(blocks: npt.NDArray[Any], out: Floats) -> None:
    # A float64 beyond float32's range becomes an infinity, as a C cast makes it.
    out[:, 0] = blocks


def _decode_f16(blocks: npt.NDArray[Any], out: Floats) -> None:
    # Moved into a float32's place, sign apart, a half reads as itself times 2**-112, subnormal ones too. That is three
    # times as fast as NumPy's conversion, which remains for runs with an infinity or a NaN: they read as 65536 or more.
    halves = out[:, 0]
    words = halves.view(np.int32)
    words[:] = blocks.view("<i2")
    words <<= 13
    words &= np.int32(-0x70002000)
    halves *= np.float32(2.0**112)
    if len(halves) and (halves.max() >= 65536 or halves.min() <= -65536):
        halves[:] = blocks


def _decode_bf16(blocks: npt.NDArray[Any], out: Floats) -> None:
    # A bfloat16 is the upper half of a float32.
    words = out.view(np.uint32)[:, 0]
    words[:] = blocks
    words <<= 16


def _encode_f32(values: Floats) -> npt.NDArray[Any]:
    blocks: npt.NDArray[Any] = values[:, 0].astype("<f4")
    return blocks


def _encode_f16(values: Floats) -> npt.NDArray[Any]:
    # Rounds to nearest, ties to even; a value beyond 65504 becomes an infinity.
    blocks: npt.NDArray[Any] = values[:, 0].astype("<f2")
    return blocks


def _encode_bf16(values: Floats) -> npt.NDArray[Any]:
    # Adding half of the dropped range, less one unless the kept part is odd, rounds to nearest with ties to even. A NaN
    # is kept apart and made quiet: the carry could turn it into an infinity (ggml-impl.h, ggml_compute_fp32_to_bf16).
    words = values[:, 0].view(np.uint32)
    kept = words >> np.uint32(16)
    rounded = (words + (np.uint32(0x7FFF) + (kept & np.uint32(1)))) >> np.uint32(16)
    is_nan = (words & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    blocks: npt.NDArray[Any] = np.where(is_nan, kept | np.uint32(0x40), rounded).astype("<u2")
    return blocks


F32 = BlockFormat("F32", 0, 1, 4, np.dtype("<f4"), _decode_cast, _encode_f32)
F16 = BlockFormat("F16", 1, 1, 2, np.dtype("<f2"), _decode_f16, _encode_f16)
F64 = BlockFormat("F64", 28, 1, 8, np.dtype("<f8"), _decode_cast)
BF16 = BlockFormat("BF16", 30, 1, 2, np.dtype("<u2"), _decode_bf16, _encode_bf16)
