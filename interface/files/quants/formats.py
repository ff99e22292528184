"""Every block format by ggml type and by name, and the conversions between bytes and float32."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES

from bloomery.interface.files.quants.activation_blocks import Q8_1, Q8_K
from bloomery.interface.files.quants.block_format import BlockFormat, Bytes, Floats, UnsupportedFormat
from bloomery.interface.files.quants.blocks_of_32 import Q4_0, Q4_1, Q5_0, Q5_1, Q8_0
from bloomery.interface.files.quants.few_levels import Q1_0, Q2_0, TQ1_0, TQ2_0
from bloomery.interface.files.quants.floats import BF16, F16, F32, F64
from bloomery.interface.files.quants.four_bit_floats import MXFP4, NVFP4
from bloomery.interface.files.quants.iq1 import IQ1_M, IQ1_S
from bloomery.interface.files.quants.iq2 import IQ2_S, IQ2_XS, IQ2_XXS
from bloomery.interface.files.quants.iq3 import IQ3_S, IQ3_XXS
from bloomery.interface.files.quants.k_quants import Q4_K, Q5_K, Q6_K
from bloomery.interface.files.quants.small_k_quants import Q2_K, Q3_K
from bloomery.interface.files.quants.value_table import IQ4_NL, IQ4_XS

# Blocks are converted in runs of this many weights: enough that a run's cost is its weights, and few enough that what
# it computes on the way stays in the processor's cache.
_RUN_OF_WEIGHTS = 1 << 18

# Beyond every format whose scale is a half: 65504, the largest one, times 128 and 32 in Q6_K.
_LARGEST_WEIGHT = 2.0**29

# fmt: off
_CONVERTIBLE = (
    F32, F16, BF16, F64,
    Q4_0, Q4_1, Q5_0, Q5_1, Q8_0,
    Q2_K, Q3_K, Q4_K, Q5_K, Q6_K,
    IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ4_NL, IQ4_XS,
    TQ1_0, TQ2_0, Q1_0, Q2_0, MXFP4, NVFP4,
    Q8_1, Q8_K,
)
# fmt: on


def _all_formats() -> dict[int, BlockFormat]:
    formats = {
        int(ggml_type): BlockFormat(str(ggml_type.name), int(ggml_type), int(block_size), int(type_size))
        for ggml_type, (block_size, type_size) in GGML_QUANT_SIZES.items()
    }
    for block_format in _CONVERTIBLE:
        formats[block_format.ggml_type] = block_format
    return formats


FORMATS: Mapping[int, BlockFormat] = MappingProxyType(_all_formats())
"""By ggml type number; holds formats that this build knows only by size, too (`decodable` says which)."""

_BY_NAME = {block_format.name: block_format for block_format in FORMATS.values()}


def by_name(name: str) -> BlockFormat:
    """The format called `name` ("Q4_K"); UnsupportedFormat for a name nobody knows."""
    try:
        return _BY_NAME[name]
    except KeyError:
        raise UnsupportedFormat(f"there is no block format called {name!r}; known are {', '.join(_BY_NAME)}") from None


def decode(raw: npt.NDArray[np.uint8], block_format: BlockFormat, shape: Sequence[int]) -> Floats:
    """The weights in `raw` as a new float32 array of `shape`, rows on the last axis: llama.cpp's values bit for bit.

    UnsupportedFormat where this build cannot decode the format, ValueError where the bytes do not fill the shape.
    """
    out = np.empty(tuple(shape), np.float32)
    decode_into(raw, block_format, out)
    return out


def decode_into(raw: npt.NDArray[np.uint8], block_format: BlockFormat, out: Floats) -> None:
    """As `decode`, into the C-contiguous float32 array `out` of at least one axis."""
    if block_format.decode_blocks is None or block_format.layout is None:
        raise UnsupportedFormat(f"weights in {block_format.name} cannot be decoded by this build")
    blocks = _as_blocks(raw, block_format, block_format.layout, out.shape)
    if out.dtype != np.float32 or not out.flags.c_contiguous:
        raise ValueError("decode_into needs a C-contiguous float32 array to fill")
    weights = out.reshape(len(blocks), block_format.block_size)
    step = max(1, _RUN_OF_WEIGHTS // block_format.block_size)
    with np.errstate(all="ignore"):
        for start in range(0, len(blocks), step):
            block_format.decode_blocks(blocks[start : start + step], weights[start : start + step])


def _as_blocks(
    raw: npt.NDArray[np.uint8], block_format: BlockFormat, layout: np.dtype[Any], shape: tuple[int, ...]
) -> npt.NDArray[Any]:
    if raw.dtype != np.uint8:
        raise ValueError(f"weights are decoded from bytes (uint8), not from {raw.dtype}")
    if not shape:
        raise ValueError(f"{block_format.name} weights need a shape of at least one axis")
    expected = math.prod(shape[:-1]) * block_format.row_bytes(shape[-1])
    if raw.size != expected:
        raise ValueError(f"{block_format.name} weights of shape {tuple(shape)} take {expected} bytes, not {raw.size}")
    blocks: npt.NDArray[Any] = np.ascontiguousarray(raw).reshape(-1).view(layout)
    return blocks


def encode(values: npt.NDArray[np.float32], format_name: str) -> Bytes:
    """The bytes `[..., row_bytes]` of float32 `values` `[..., n]`, where n is a whole number of blocks.

    The same values always give the same bytes: those of llama.cpp's reference quantiser without an importance matrix,
    but for the codes of blocks so small that their scale is zero in half precision. UnsupportedFormat where this build
    cannot encode the format. Formats with a scale a block refuse (ValueError) values that are not finite, and blocks
    whose scale (or offset, or sum) would not fit half precision where it is a half.
    """
    block_format = by_name(format_name)
    if block_format.encode_blocks is None or block_format.layout is None:
        raise UnsupportedFormat(f"weights cannot be encoded as {format_name} by this build")
    if values.dtype != np.float32:
        raise ValueError(f"weights are encoded from float32, not from {values.dtype}")
    if values.ndim == 0:
        raise ValueError("weights to encode need at least one axis")
    row_bytes = block_format.row_bytes(values.shape[-1])
    halves = [name for name in block_format.layout.names or () if block_format.layout[name] == np.float16]
    if block_format.block_size > 1:
        _check_range(values, format_name, has_halves=bool(halves))
    rows = np.ascontiguousarray(values).reshape(-1, block_format.block_size)
    out = np.empty((len(rows), block_format.type_size), np.uint8)
    step = max(1, _RUN_OF_WEIGHTS // block_format.block_size)
    with np.errstate(all="ignore"):
        for start in range(0, len(rows), step):
            blocks = block_format.encode_blocks(rows[start : start + step])
            if not all(np.isfinite(blocks[name]).all() for name in halves):
                raise _too_large(format_name)
            out[start : start + step] = blocks.view(np.uint8).reshape(len(blocks), block_format.type_size)
    return out.reshape(*values.shape[:-1], row_bytes)


def _check_range(values: npt.NDArray[np.float32], format_name: str, *, has_halves: bool) -> None:
    """Refuses what no block can hold, before a search whose squares and cubes would overflow."""
    if not np.isfinite(values).all():
        raise ValueError(f"weights to encode as {format_name} must be finite")
    if has_halves and values.size and np.abs(values).max() > _LARGEST_WEIGHT:
        raise _too_large(format_name)


def _too_large(format_name: str) -> ValueError:
    return ValueError(f"weights are too large for {format_name}: the scale of a block exceeds half precision")
