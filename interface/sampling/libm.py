"""float32 exponentials and logarithms with the bits of the C library's ``expf`` and ``logf``.

A softmax in llama-server is a run of ``expf`` calls, so the last bit of each one decides where a cumulative sum crosses
top_p and which id a draw falls on. NumPy's own float32 functions differ from the C library in the last bit (``exp`` for
up to 4 arguments in 10), and differently so from one CPU to another.

Both follow the methods of glibc and of Arm's optimized routines (``sysdeps/ieee754/flt-32/e_expf.c``, ``e_logf.c``): a
table takes the argument near a point where a short polynomial is accurate, all in float64, and the result is rounded
once. Where the C library fuses a multiplication and a subtraction that cancels, one factor is split in two here, so
that the products are exact and no rounding is added. ``expf`` was found equal to glibc's for every float32 from -110 to
0, ``logf`` for every positive one.
"""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
import numpy.typing as npt

FloatRow = npt.NDArray[np.float32]
DoubleRow = npt.NDArray[np.float64]

_STEPS = 32
_UNDERFLOW = np.float32(-103.97208)  # Below it the result rounds to 0.


def _powers() -> DoubleRow:
    """``2**(i/32)`` for i = 0..31, correctly rounded whatever the platform's own power function does."""
    with localcontext() as context:
        context.prec = 40
        return np.array([float(Decimal(2) ** (Decimal(i) / _STEPS)) for i in range(_STEPS)])


def _logarithms(reciprocals: DoubleRow) -> DoubleRow:
    """``-log(x)``, correctly rounded."""
    with localcontext() as context:
        context.prec = 40
        return np.array([float(-Decimal(x).ln()) for x in reciprocals.tolist()])


def _halves(value: DoubleRow) -> tuple[DoubleRow, DoubleRow]:
    """Two addends, each short enough for its product with a float32 to be exact in float64."""
    high = value.astype(np.float32).astype(np.float64)
    return high, value - high


_POWERS = _powers()
_STEPS_PER_LN2 = float.fromhex("0x1.71547652b82fep+0") * _STEPS
_STEPS_HIGH, _STEPS_LOW = _halves(np.array(_STEPS_PER_LN2))
# glibc's minimax coefficients of 2**r on [-1/64, 1/64], scaled to r in steps.
_EXP_CUBIC = float.fromhex("0x1.c6af84b912394p-5") / _STEPS**3
_EXP_SQUARE = float.fromhex("0x1.ebfce50fac4f3p-3") / _STEPS**2
_EXP_LINEAR = float.fromhex("0x1.62e42ff0c52d6p-1") / _STEPS

# glibc's reciprocals of points in the 16 parts of [0.699, 1.398), chosen there so that their logarithms round well.
_RECIPROCALS = np.array(
    [
        float.fromhex(digits)
        for digits in (
            "0x1.661ec79f8f3bep+0", "0x1.571ed4aaf883dp+0", "0x1.49539f0f010bp+0", "0x1.3c995b0b80385p+0",
            "0x1.30d190c8864a5p+0", "0x1.25e227b0b8eap+0", "0x1.1bb4a4a1a343fp+0", "0x1.12358f08ae5bap+0",
            "0x1.0953f419900a7p+0", "0x1p+0", "0x1.e608cfd9a47acp-1", "0x1.ca4b31f026aap-1",
            "0x1.b2036576afce6p-1", "0x1.9c2d163a1aa2dp-1", "0x1.886e6037841edp-1", "0x1.767dcf5534862p-1",
        )
    ]
)  # fmt: skip
_RECIPROCALS_HIGH, _RECIPROCALS_LOW = _halves(_RECIPROCALS)
_LOGARITHMS = _logarithms(_RECIPROCALS)
_LN2 = float.fromhex("0x1.62e42fefa39efp-1")
_FIRST_PART = 0x3F330000  # The bits of 0.699, where the first part starts.
# glibc's minimax coefficients of log(1 + r) - r on the parts' width.
_LOG_QUARTIC = float.fromhex("-0x1.00ea348b88334p-2")
_LOG_CUBIC = float.fromhex("0x1.5575b0be00b6ap-2")
_LOG_SQUARE = float.fromhex("-0x1.ffffef20a4123p-2")


def expf(x: FloatRow) -> FloatRow:
    """``e**x`` of every entry, which must be at most 0 and not NaN; -inf gives 0.

    With ``x = (k + r) ln2 / 32``, ``k`` an integer and ``|r| <= 1/2``, it is ``2**(k/32)`` times a cubic for
    ``2**(r/32)``.
    """
    # Entries that underflow are computed at the limit and then cleared, so that -inf makes no NaN on the way.
    wide = np.maximum(x, _UNDERFLOW).astype(np.float64)
    steps = np.rint(wide * _STEPS_PER_LN2)
    r = (wide * _STEPS_HIGH - steps) + wide * _STEPS_LOW
    polynomial = (_EXP_CUBIC * r + _EXP_SQUARE) * (r * r) + (_EXP_LINEAR * r + 1)
    whole = steps.astype(np.int32)
    result = np.ldexp(polynomial * _POWERS[whole % _STEPS], whole // _STEPS).astype(np.float32)
    result[x < _UNDERFLOW] = 0
    return result


def logf(x: FloatRow) -> FloatRow:
    """Natural logarithm of every entry, which must be positive and finite.

    With ``x = z * 2**k`` and ``c`` the point of z's part, it is ``k ln2 + log(c)`` plus a quartic for ``log(z / c)``.
    """
    tiny = x < np.finfo(np.float32).tiny
    bits = (x * np.where(tiny, np.float32(2**23), np.float32(1))).view(np.int32)
    offset = bits - np.int32(_FIRST_PART)
    exponent = (offset >> 23) - 23 * tiny
    part = (offset >> 19) & 15
    z = (bits - (offset & np.int32(-(2**23)))).view(np.float32).astype(np.float64)
    r = (z * _RECIPROCALS_HIGH[part] - 1) + z * _RECIPROCALS_LOW[part]
    polynomial = _LOG_QUARTIC * (r * r) + (_LOG_CUBIC * r + _LOG_SQUARE)
    result: DoubleRow = polynomial * (r * r) + ((_LOGARITHMS[part] + exponent * _LN2) + r)
    return result.astype(np.float32)
