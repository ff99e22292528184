"""The codebooks of the IQ formats: lists of points, eight or four small integers each, picked by a block's indices.

A codebook is a table of numbers that belongs to the format. It is taken from the installed gguf package, which carries
all of them, when a format first needs it, and is used only if it is bit for bit the one that llama.cpp decodes with.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any, NamedTuple

import gguf.quants
import numpy as np
import numpy.typing as npt

from bloomery.interface.files.quants.block_format import UnsupportedFormat
from bloomery.interface.files.quants.unpacking import SignedBytes


class _Expected(NamedTuple):
    """What a codebook must be: its shape, and the SHA-256 of its points as signed bytes."""

    shape: tuple[int, int]
    sha256: str


_EXPECTED = {
    "IQ1_S": _Expected((2048, 8), "07540ffc1aeaf6ad4d97e96b0fcc765aae39671d4ae4a27bbd0e796fde167c6a"),
    "IQ2_XXS": _Expected((256, 8), "05826b5d3e472a3a78f196be62ac78acf81df0f909626e12ab9fa2a5d490dd54"),
    "IQ2_XS": _Expected((512, 8), "06e47aaca60b4dc1d9b5a3f34540437058a6b142b4d7a59d5ded769b4d1bf1de"),
    "IQ2_S": _Expected((1024, 8), "e1aa1473412b0552c2174c30ef22ab4073f6a181b85a17056e8249bd2932fd88"),
    "IQ3_XXS": _Expected((256, 4), "46e35f5a997efdee6c99ce57854c8a0d4f0ff8ca57e5e8a60c0793ea580acf5d"),
    "IQ3_S": _Expected((512, 4), "bd1af4945a1717c65610b0284e4628b9a1ba3b306fae3a06f6e5f597356e349f"),
}


@functools.cache
def codebook(name: str) -> SignedBytes:
    """The points `[points, 8 or 4]` of the format called `name`; IQ1_M shares those of IQ1_S.

    UnsupportedFormat where the installed gguf package has no such table, or another one.
    """
    expected = _EXPECTED[name]
    try:
        owner = getattr(gguf.quants, name)
        owner.init_grid()
        points = np.ascontiguousarray(owner.grid.reshape(expected.shape).astype(np.int8))
    except (AttributeError, ValueError):
        raise _missing(name) from None
    if hashlib.sha256(points.tobytes()).hexdigest() != expected.sha256:
        raise _missing(name)
    points.flags.writeable = False
    return points


def _missing(name: str) -> UnsupportedFormat:
    return UnsupportedFormat(
        f"the installed gguf package does not have the codebook of {name}; install one that does, such as gguf 0.17"
    )


def as_words(points: SignedBytes) -> npt.NDArray[Any]:
    """`points` `[n, 8 or 4]` as one unsigned integer each, `[n]`, which is gathered faster."""
    words: npt.NDArray[Any] = np.ascontiguousarray(points).view(f"<u{points.shape[1]}")[:, 0]
    return words


def _signs() -> SignedBytes:
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return np.int8(1) - 2 * bits.view(np.int8)


def _even_signs() -> SignedBytes:
    signs = _signs()[:128].copy()
    signs[:, 7] = signs[:, :7].prod(axis=1, dtype=np.int8)
    return signs


# Eight signs by byte: bit i set makes weight i negative.
SIGN_WORDS = as_words(_signs())

# Eight signs by seven bits: the eighth sign makes the number of negative ones even.
EVEN_SIGN_WORDS = as_words(_even_signs())

_SEVEN_BITS = np.array([0, 7, 14, 21], np.uint32)


def seven_bit_signs(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """The four sign indices `[n, groups, 4]` in each of `words` `[n, groups]`, the lowest bits first."""
    return (words[:, :, None] >> _SEVEN_BITS) & np.uint32(0x7F)


@functools.cache
def _words(name: str) -> npt.NDArray[Any]:
    return as_words(codebook(name))


def signed_points(
    name: str, indices: npt.NDArray[Any], sign_words: npt.NDArray[Any], signs: npt.NDArray[Any]
) -> SignedBytes:
    """The points of a codebook at `indices` `[n, ...]` under the `sign_words` at `signs` `[n, ...]`: `[n, 256]`."""
    codes = np.take(_words(name), indices).view(np.int8).reshape(len(indices), 256)
    codes *= np.take(sign_words, signs).view(np.int8).reshape(len(indices), 256)
    return codes
