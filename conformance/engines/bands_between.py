"""How far two engines on one file may be from one another, and an engine from itself.

`bands` has the distances to a llama-server. Two engines of this project's interface are nearer to one another than that
when their numerics are the same, because then only the order of sums differs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bloomery.conformance.bands import OUTLIER, WITH_GELU, Band, band_of
from bloomery.conformance.compare import Profile, outside
from bloomery.interface.engine import Engine
from bloomery.interface.files.gguf import GgufFile
from bloomery.interface.spec import Dense, ModelDescription

# Op sets whose every row has the same bits whatever its company, on the engine that defines them.
_BITWISE = frozenset({("reference", "exact"), ("reference", "ggml")})


def weights_of(file: GgufFile, description: ModelDescription) -> str:
    """What `bands` calls the file's weights: by the widest rounding of activations that its matrices ask for."""
    matrices = (ref.tensor for ref in description.weights.values() if len(ref.shape) > 1)
    formats = {file.tensors[tensor].format.name for tensor in matrices}
    if formats <= {"F32"}:
        name = "F32"
    elif formats <= {"F32", "F16"}:
        name = "F16"
    elif formats <= {"F32", "F16", "BF16"}:
        name = "BF16"
    else:
        name = "Q8_0" if formats <= {"F32", "F16", "BF16", "Q8_0"} else "Q4_K mix"
    gelu = any(isinstance(layer.ffn, Dense) and layer.ffn.activation == "gelu" for layer in description.spec.layers)
    return name + WITH_GELU if gelu else name


def band_between(weights: str, first: str, second: str) -> Band:
    """The band between two engines of these numerics on one file.

    Two of `exact` decode the same weights to the same numbers and round no activation, so whatever the weights they
    differ as two orders of float32 sums do. Two of `ggml` round activations at the same places, and one of each is
    where `exact` is from a llama-server. An op set of another name is held to `exact`, which is the definition.
    """
    if "ggml" not in (first, second):
        return band_of("F32", "strict", "exact")
    return band_of(weights, "strict", "ggml" if first == second else "exact")


def outside_on_a_file(measured: Profile, band: Band) -> list[str]:
    """A sentence for each bound that the rows of any file are held to.

    Those for every row are; percentiles were derived for sets of a hundred rows of tiny models, and where a band has
    nothing else, the share of rows that are units away is what is left, beside the choices that are sure.
    """
    if band.most is not None:
        return list(outside(measured, band))
    if measured.outliers <= max(band.outliers, 1 / measured.rows):
        return []
    return [f"{measured.outliers:.3g} of the rows are {OUTLIER:g} or more away, the band ends at {band.outliers:.3g}"]


@dataclass(frozen=True, kw_only=True)
class Alone:
    """How near a row must be to the same row computed in another company, another cut, or again.

    bits: not a bit may differ.  most: else the largest difference of log-probability over the vocabulary.  sure: a best
    id with at least this lead must be the same.  renamings: a difference counts only when the same steps show one
    on this many sets of ids. That is where a rounding edge or a pair of nearly equal experts sets a row apart now
    and then; a fault of state does it whatever the ids are.  why: where the numbers come from.
    """

    bits: bool
    most: float
    sure: float
    renamings: int
    why: str


def alone(engine: Engine, weights: str) -> Alone:
    """What an engine is held to beside itself, on a file with these weights."""
    numerics = engine.options.numerics
    if (engine.name, numerics) in _BITWISE:
        return Alone(bits=True, most=0.0, sure=0.0, renamings=1, why=f"a row of {numerics} depends on no company")
    band = band_between(weights, numerics, numerics)
    most = band.most if band.most is not None else band.p99 if band.p99 is not None else math.inf
    statistical = band.most is None
    return Alone(bits=False, most=most, sure=band.sure, renamings=4 if statistical else 1, why=band.why)
