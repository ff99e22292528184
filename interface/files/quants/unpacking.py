"""The steps that the decoders of many formats share: fields out of bytes, values out of tables, codes times scales."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bloomery.interface.files.quants.block_format import Bytes, Floats

SignedBytes: TypeAlias = npt.NDArray[np.int8]


def halves(field: Bytes, run: int) -> Bytes:
    """Codes `[n, groups, 2, run]` from the nibbles `[n, groups * run]`: of each run, first the low, then the high."""
    pairs = field.reshape(len(field), field.shape[1] // run, run)
    codes = np.empty((*pairs.shape[:2], 2, run), np.uint8)
    np.bitwise_and(pairs, 0x0F, out=codes[:, :, 0])
    np.right_shift(pairs, 4, out=codes[:, :, 1])
    return codes


def join_halves(codes: npt.NDArray[Any]) -> Bytes:
    """The nibbles `[n, groups * run]` that `halves` takes apart; `codes` is `[n, groups, 2, run]` in 0..15."""
    codes = codes.astype(np.uint8)
    joined: Bytes = codes[:, :, 0] | (codes[:, :, 1] << 4)
    return joined.reshape(len(codes), codes.shape[1] * codes.shape[3])


def neighbours(field: Bytes) -> Bytes:
    """Nibbles `[n, 2 * size]` of `field` `[n, size]` in order: the low half of a byte, then its high half."""
    return np.stack([field & 0x0F, field >> 4], axis=-1).reshape(len(field), 2 * field.shape[1])


def spread_bits(field: Bytes, shifts: tuple[int, ...], mask: int) -> Bytes:
    """Copies of `field` `[n, 32]`, each moved left by one shift (right if negative) and masked: `[n, shifts, 32]`.

    Eight bytes are moved at once. What crosses from a byte into its neighbour never lands under the mask, because a
    shift moves the wanted bits to where they stay in their own byte.
    """
    words = np.ascontiguousarray(field).view(np.uint64)
    moved = np.empty((len(words), len(shifts), words.shape[1]), np.uint64)
    for index, shift in enumerate(shifts):
        move = np.left_shift if shift >= 0 else np.right_shift
        move(words, np.uint64(abs(shift)), out=moved[:, index])
    moved &= np.uint64(mask * 0x0101010101010101)
    return moved.view(np.uint8)


def look_up(codes: Bytes, table: bytes) -> SignedBytes:
    """The signed byte of a 256-byte `table` for each code, in the shape of `codes`.

    The translation of a Python bytes object needs no index array, which makes it faster than NumPy's own gathering.
    """
    return np.frombuffer(codes.tobytes().translate(table), np.int8).reshape(codes.shape)


def half_table(values: tuple[int, ...]) -> bytes:
    """The table for `look_up` of 16 signed values by nibble."""
    return np.array(values, np.int8).tobytes().ljust(256, b"\0")


def fill_scaled(out: Floats, codes: npt.NDArray[Any], scales: Floats, run: int) -> None:
    """Fills `out` with `scale * code`; each of `scales`, in the order of the weights, serves a run of codes.

    A run is too short for NumPy to broadcast over quickly; repeating the scales first is faster.
    """
    weights = out.reshape(-1)
    weights[:] = codes.reshape(-1)
    weights *= np.repeat(scales.reshape(-1), run)
