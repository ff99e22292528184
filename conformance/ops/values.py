"""What op cases are drawn from: numbers with their edges, layouts, and weights in every block format.

Large arrays come from a drawn kind and a seed, so that a case is a few choices and shrinks fast: to few elements, of
the simplest kind that still fails. What is to be shrunk towards is listed first, which is how hypothesis reads a list.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from bloomery.conformance.ops.case import Layout, Stored
from bloomery.interface.files.quants import FORMATS, by_name, decode, encode

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Draw = Callable[[st.SearchStrategy[Any]], Any]

# No file holds weights in these: activations are rounded to them.
_OF_ACTIVATIONS = {"Q8_1", "Q8_K"}
WEIGHT_FORMATS = tuple(f.name for f in FORMATS.values() if f.decodable and f.name not in _OF_ACTIVATIONS)
"""Every format that a matrix of a model may be stored in and this build can decode."""

# Squares and sums of so many of these stay below float32's largest number, so every step of an op does.
LARGEST = 2.0**40
# Weights that are drawn as random blocks: larger ones are legal, but no model's.
_LARGEST_WEIGHT = 64.0

_SIMPLE = (0.0, 1.0, 2.0, -1.0, 0.5, -3.0)
_EDGES = (-0.0, 2.0**-126, 2.0**-149, -(2.0**-130), 1.0 + 2.0**-23, 1.0 - 2.0**-24, 1e-20, 3e4, -3e4)
_NOT_FINITE = (np.inf, -np.inf, np.nan)

_KINDS: Mapping[str, Callable[[np.random.Generator, tuple[int, ...], float], Array]] = {
    "ones": lambda rng, shape, most: np.ones(shape),
    "whole": lambda rng, shape, most: rng.integers(-3, 4, shape),
    "normal": lambda rng, shape, most: rng.standard_normal(shape),
    "zeros": lambda rng, shape, most: np.zeros(shape),
    "equal": lambda rng, shape, most: np.full(shape, rng.standard_normal()),
    "nearly equal": lambda rng, shape, most: 1.0 + rng.integers(0, 3, shape) * 2.0**-23,
    "tens": lambda rng, shape, most: 30 * rng.standard_normal(shape),
    "one stands out": lambda rng, shape, most: rng.standard_normal(shape) * np.where(rng.random(shape) < 0.1, 1e3, 1.0),
    "sizes of all kinds": lambda rng, shape, most: rng.standard_normal(shape) * 2.0 ** rng.uniform(-40, 12, shape),
    "small": lambda rng, shape, most: rng.standard_normal(shape) * 2.0**-60,
    "subnormal": lambda rng, shape, most: rng.integers(-9, 10, shape) * 2.0**-149,
    "large": lambda rng, shape, most: rng.standard_normal(shape) * most / 8,
}

# Drawn more often: where all numbers are zero, equal or tiny, many a fault does not show.
_MOST_TELLING = ("normal",) * 6 + ("whole",) * 2


@st.composite
def floats(draw: Draw, *shape: int, most: float = LARGEST, any_bits: bool = False) -> Floats:
    """Float32 numbers of magnitude up to `most`, or of any bits at all where nothing is computed from them."""
    size = int(np.prod(shape))
    if size <= 12 and draw(st.booleans()):
        pool = [v for v in (*_SIMPLE, *_EDGES, *(_NOT_FINITE if any_bits else ())) if not abs(v) > most or any_bits]
        chosen = draw(st.lists(st.sampled_from(pool), min_size=size, max_size=size))
        return np.array(chosen, np.float32).reshape(shape)
    kinds = (*_KINDS, *_MOST_TELLING, *(("any bits",) if any_bits else ()))
    kind, rng = draw(st.sampled_from(kinds)), np.random.default_rng(draw(st.integers(0, 999)))
    if kind == "any bits":
        return rng.integers(0, 2**32, shape, np.uint32).view(np.float32)
    return np.clip(_KINDS[kind](rng, shape, most), -most, most).astype(np.float32)


def tokens(least: int = 1) -> st.SearchStrategy[int]:
    """How many rows a pass has; kernels change at powers of two."""
    return rarely(st.sampled_from([n for n in (1, 2, 3, 4, 0, 8, 9, 17) if n >= least]), 33, 67)


def rarely(usual: st.SearchStrategy[int], *large: int) -> st.SearchStrategy[int]:
    """The usual sizes, and one time in eight one past where kernels cut their work: in tiles, chunks and splits."""
    return st.integers(0, 7).flatmap(lambda die: st.sampled_from(large) if die == 7 else usual)


def widths() -> st.SearchStrategy[int]:
    """How wide a row is: odd, one, and around what vectors of a machine hold."""
    return rarely(st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 32, 33, 64, 70]), 257, 1031)


def layouts(*names: str) -> st.SearchStrategy[dict[str, Layout]]:
    """How the arrays of these names lie in memory; most lie in C order."""
    kinds: list[Layout] = ["rows", "columns", "every second", "backwards"]
    return st.fixed_dictionaries({name: st.sampled_from(kinds) for name in names}).map(
        lambda chosen: {name: layout for name, layout in chosen.items() if layout != "rows"}
    )


def ints(values: Any) -> Ints:
    """Ids, slots, cells, lanes or positions as ops get them."""
    return np.array(values, np.int32)


def f32_weight(values: Floats) -> Stored:
    """A weight that lies in the file as it is."""
    matrix = np.ascontiguousarray(values, np.float32).reshape(-1, values.shape[-1])
    return Stored("F32", values.shape, encode(matrix, "F32"))


@st.composite
def small_weights(draw: Draw, *shape: int, most: float = 30.0) -> Stored:
    """A norm, a bias, taps, sinks: F32, as files have them."""
    return f32_weight(draw(floats(*shape, most=most)))


def row_lengths(format_name: str) -> st.SearchStrategy[int]:
    """How many weights a row may have in a format: whole blocks."""
    size = by_name(format_name).block_size
    return widths() if size == 1 else st.integers(1, max(2, 96 // size)).map(lambda blocks: blocks * size)


@st.composite
def matrices(draw: Draw, format_name: str, *shape: int) -> Stored:
    """Weights of a format: values that were encoded, or blocks of random bytes whose weights are finite and no larger
    than 64, which reach every code and every scale."""
    block_format = by_name(format_name)
    raw_shape = (int(np.prod(shape[:-1])), block_format.row_bytes(shape[-1]))
    if block_format.encodable and not draw(st.booleans()):
        values = draw(floats(*shape, most=1e3)).reshape(-1, shape[-1])
        return Stored(format_name, shape, encode(values, format_name).reshape(raw_shape))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    n_blocks = raw_shape[0] * raw_shape[1] // block_format.type_size
    pool = random_blocks(format_name)
    return Stored(format_name, shape, pool[rng.integers(0, len(pool), n_blocks)].reshape(raw_shape))


@functools.cache
def random_blocks(format_name: str) -> npt.NDArray[np.uint8]:
    """Some blocks of random bytes, [n, type_size], none of which holds a weight that is not finite or above 64."""
    block_format = by_name(format_name)
    rng = np.random.default_rng(5)
    raw = rng.integers(0, 256, (4096, block_format.type_size), np.uint8)
    if block_format.name == "F64":
        # Random exponents would hardly ever give a float32 number.
        raw = rng.standard_normal((4096, 1)).view(np.uint8)
    with np.errstate(all="ignore"):
        weights = decode(raw, block_format, (len(raw), block_format.block_size))
        fine = (np.abs(weights) <= _LARGEST_WEIGHT).all(axis=1)
    return raw[fine][:256]
