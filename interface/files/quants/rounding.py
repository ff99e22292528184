"""How ggml's quantisers scale float32 values to integers: the inverse of a scale, and two ways to round."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bloomery.interface.files.quants.block_format import Floats


def inverse_or_zero(scale: Floats) -> Floats:
    """1 / scale, and 0 where the scale is 0 or so small that its inverse overflows."""
    inverse = np.float32(1) / scale
    return np.where(np.isfinite(inverse), inverse, np.float32(0))


def round_half_away(values: Floats) -> Floats:
    """The nearest whole number, a half away from zero: C's `roundf`, which NumPy's own rounding is not."""
    magnitude = np.abs(values)
    whole = np.floor(magnitude)
    whole += np.floor(2 * (magnitude - whole))
    return np.copysign(whole, values)


def nearest_int(values: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """The nearest integer to float32 `values`, a half to the even one, for magnitudes below 2**22; ggml's own beyond.

    Adding 1.5 * 2**23 leaves the integer in the low bits of the float's significand (ggml-quants.c, `nearest_int`).
    """
    bits = (values + np.float32(12582912)).view(np.int32)
    return (bits & 0x007FFFFF) - 0x00400000
