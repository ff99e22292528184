"""The NumPy op set in `ggml` numerics: what llama.cpp's CPU code makes of the same file.

llama.cpp rounds the activations of a product to a format that suits the weights: half precision for half-precision
weights, blocks of 8-bit codes under one scale for quantised ones. That rounding is most of the distance between a
llama-server and `exact`, so this op set makes it, value by value the same
(`bloomery.interface.files.quants.activations`). GELU comes from llama.cpp's table and a norm has llama.cpp's roundings,
because both decide codes. Everything else is `exact`: keys, values and all that no product with a rounding format
reads stay float32. Its counterpart is therefore a llama-server with flash attention off and a float32 cache.

The sums of a product with rounded activations are taken in float64 and rounded once. llama.cpp adds integers within a
block exactly and blocks in float32, in an order that depends on the kernel, the batch and the machine; the float64
sum is nearest to all of those at once, and depends on none of them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from bloomery.interface.engine import EngineError
from bloomery.interface.files.quants.activations import ACTIVATION_FORMATS, codes_and_scales, round_to
from bloomery.reference.matmul import rows_times_matrix
from bloomery.reference.ops import Floats, NumpyOps
from bloomery.reference.weights import StoredWeight

Doubles = npt.NDArray[np.float64]
_Number = TypeVar("_Number", bound=np.generic)

# From here on ggml takes GELU for 0 or for its argument; between, it looks it up.
_GELU_TABLE_ENDS = 10.0


class GgmlOps(NumpyOps):
    """`NumpyOps` with activations rounded, GELU looked up and norms scaled as llama.cpp does it."""

    numerics = "ggml"

    def rms_norm(self, x: Floats, weight: StoredWeight, *, eps: float) -> Floats:
        """Squares in float32 under a sum in float64; then a root, its inverse and two products, all in float32.

        These roundings show where a code hangs on one of them, so they are ggml's own (ggml-cpu/ops.cpp,
        `ggml_compute_forward_rms_norm_f32`).
        """
        with np.errstate(over="ignore", invalid="ignore"):
            mean = ((x * x).sum(axis=-1, keepdims=True, dtype=np.float64) / x.shape[-1]).astype(np.float32)
            factor = np.float32(1) / np.sqrt(mean + np.float32(eps))
            normed: Floats = x * factor * weight.values()
        return normed

    def geglu(self, gate: Floats, up: Floats) -> Floats:
        with np.errstate(over="ignore"):
            bent = gelu_table()[gate.astype(np.float16).view(np.uint16)]
        bent = np.where(gate <= -_GELU_TABLE_ENDS, np.float32(0), bent)
        return np.where(gate >= _GELU_TABLE_ENDS, gate, bent) * up

    def _product(self, x: Floats, weight: StoredWeight, expert: int = 0) -> Floats:
        rounded_to = ACTIVATION_FORMATS[weight.format_name]
        if rounded_to == "F32":
            return super()._product(x, weight, expert)
        values, blocks = as_multiplied(x, rounded_to), weight.row_blocks(expert)
        if rounded_to == "Q8_1":
            # One more column a block: the weights' offset, times what rounding the activations' sum lost.
            values = np.concatenate([values, lost_sums(x)], axis=1)
            blocks = _with_columns(blocks, weight.field("m", expert))
        return rows_times_matrix(values, blocks, weight.shape[-2])


@functools.cache
def gelu_table() -> Floats:
    """GELU of every half-precision number by its 16 bits, [65536]: computed in float32, then rounded to half precision.

    The float32 arithmetic shows where 1 + tanh is nearly 0, so it is ggml's own (ggml-cpu/vec.h, `ggml_gelu_f32`), its
    inner sum fused as the compiler of a machine with fused multiply-adds does it.
    """
    one, half = np.float32(1), np.float32(0.5)
    with np.errstate(all="ignore"):
        x = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
        # The product of two float32 numbers is exact in float64, so that the sum is rounded as a fused one.
        inner = ((np.float32(0.044715) * x).astype(np.float64) * x + 1.0).astype(np.float32)
        slope = np.tanh((np.float32(math.sqrt(2.0 / math.pi)) * x * inner).astype(np.float64)).astype(np.float32)
        return (half * x * (one + slope)).astype(np.float16).astype(np.float32)


def as_multiplied(x: Floats, format_name: str) -> Doubles:
    """Activations `[tokens, n_in]` as a product in F16, BF16, Q8_0, Q8_1 or Q8_K reads them, unrounded afterwards.

    A code times its scale has up to 31 significant bits. llama.cpp multiplies the codes of both sides first, so it
    never rounds that product, and float64 does not either.
    """
    if format_name in {"F16", "BF16"}:
        return round_to(x, format_name).astype(np.float64)
    codes, scales = codes_and_scales(x, format_name)
    with np.errstate(invalid="ignore"):
        values = _by_block(codes.astype(np.float64), scales) * scales[..., None]
    return values.reshape(x.shape)


def lost_sums(x: Floats) -> Doubles:
    """How far the sum that Q8_1 keeps of each block is from the sum of its values: [tokens, n_in] to [tokens, blocks].

    Weights with an offset (Q4_1, Q5_1) multiply it with that sum, which is kept in half precision: the codes' sum
    times the scale as it was before the scale's own rounding (llama.cpp, ggml-cpu/arch/x86/quants.c,
    `quantize_row_q8_1`).
    """
    codes, scales = codes_and_scales(x, "Q8_1")
    of_codes = _by_block(codes, scales).sum(axis=-1, dtype=np.int32).astype(np.float32)
    with np.errstate(all="ignore"):
        unrounded = np.abs(_by_block(x, scales)).max(axis=-1) / np.float32(127)
        kept = (unrounded * of_codes).astype(np.float16)
        lost: Doubles = kept.astype(np.float64) - scales.astype(np.float64) * of_codes
    return lost


def _by_block(values: npt.NDArray[_Number], scales: Floats) -> npt.NDArray[_Number]:
    """Values `[tokens, n_in]`, which may be no tokens, as `[tokens, blocks, values a block]`."""
    return values.reshape(*scales.shape, values.shape[1] // scales.shape[1])


def _with_columns(blocks: Iterable[tuple[int, Floats]], columns: Floats) -> Iterator[tuple[int, Floats]]:
    """Blocks of rows, each row with its further columns behind it."""
    for start, rows in blocks:
        yield start, np.concatenate([rows, columns[start : start + len(rows)]], axis=1)


def check_formats(weights: Iterable[StoredWeight], numerics: str) -> None:
    """EngineError of that numerics, naming the matrices that llama.cpp has no product with: nothing is to follow."""
    unknown = [
        f"{weight.name} ({weight.format_name})"
        for weight in weights
        if len(weight.shape) > 1 and weight.format_name not in ACTIVATION_FORMATS
    ]
    if unknown:
        raise EngineError(
            f"--numerics {numerics}: llama.cpp multiplies with no weights of the format of {', '.join(unknown)}; "
            "--numerics exact does"
        )
