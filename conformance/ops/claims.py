"""What an op set says of its own arithmetic; the bands it is held to follow from it, and from nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

# Half of the relative step of each type: what rounding to it changes at most, relative to the value.
FLOAT32 = 2.0**-24
FLOAT64 = 2.0**-53
HALF = 2.0**-11

# Where half precision ends, and what rounding to it changes at most near zero.
LARGEST_HALF = 65504.0
HALF_SUBNORMAL_STEP = 2.0**-25

# What rounding changes at most where numbers are so small that their step no longer shrinks with them, and where they
# are taken for zero.
_SUBNORMAL_STEP = 2.0**-149
_SMALLEST_NORMAL = 2.0**-126


class ClaimError(ValueError):
    """An op set claims something that has no meaning here; the message says what it may claim."""


@dataclass(frozen=True, kw_only=True)
class Claims:
    """Attributes of an op set, by these names; one that it lacks has the default.

    numerics: "ggml" rounds the activations of every product to the format that suits the weights, to the codes and
    scales that `bloomery.interface.files.quants.activations` gives, looks GELU up, and may scale RMS norms in float32
    as llama.cpp does; "exact" does none of that.
    decides_in: the type that norms, softmaxes, routers, angles, gates and recurrences are computed in; products of
    matrices may add in float32, in any order, either way.  rows_stand_alone: a row has the same bits whatever rows
    share its call.  flushes_subnormals: numbers below 2^-126 may be taken for zero, as arguments and as results.
    cache: what `append` rounds entries to.  attends_in: what attention rounds queries to and keeps its running sum of
    values in.
    """

    numerics: Literal["exact", "ggml"] = "exact"
    decides_in: Literal["float32", "float64"] = "float32"
    rows_stand_alone: bool = False
    flushes_subnormals: bool = False
    cache: Literal["float32", "float16"] = "float32"
    attends_in: Literal["float32", "float16"] = "float32"

    @property
    def inner(self) -> float:
        """Half of the relative step of the type that decisions are computed in."""
        return FLOAT64 if self.decides_in == "float64" else FLOAT32

    @property
    def tiny(self) -> float:
        """What one rounding changes at most of a number near zero."""
        return _SMALLEST_NORMAL if self.flushes_subnormals else _SUBNORMAL_STEP

    @property
    def lost_power(self) -> float:
        """Below this a power of e may be taken for zero."""
        return 2.0**-1022 if self.decides_in == "float64" else _SMALLEST_NORMAL


def claims_of(ops: Any) -> Claims:
    """The claims of an op set.  Raises ClaimError for a value that means nothing."""
    values = {name: getattr(ops, name) for name in Claims.__dataclass_fields__ if hasattr(ops, name)}
    allowed: dict[str, tuple[object, ...]] = {
        "numerics": ("exact", "ggml"),
        "decides_in": ("float32", "float64"),
        "rows_stand_alone": (False, True),
        "flushes_subnormals": (False, True),
        "cache": ("float32", "float16"),
        "attends_in": ("float32", "float16"),
    }
    for name, value in values.items():
        if value not in allowed[name]:
            raise ClaimError(f"an op set's {name} is one of {', '.join(map(repr, allowed[name]))}, not {value!r}")
    return Claims(**values)
