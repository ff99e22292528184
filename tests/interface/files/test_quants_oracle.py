"""Block formats beside the ggml in the oracle's own library, called from Python: its types and its conversions."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bloomery.conformance.parts.ggml_digests import (
    GGML_DECODED,
    GGML_ENCODED,
    GGML_ROUNDED,
    blocks_to_decode,
    decoded_digest,
    rows_to_round,
    weights_to_encode,
)
from bloomery.interface.files.quants import FORMATS, by_name, decode, encode
from bloomery.interface.files.quants.activations import ACTIVATION_FORMATS, codes_and_scales, round_to
from tests.interface.files.test_quants import DECODABLE, ENCODABLE, joined_digest, same_bits

pytestmark = pytest.mark.oracle

CONVERT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
NO_DECODER = {"F32", "F64", "Q8_1"}


class TypeTraits(ctypes.Structure):
    """`struct ggml_type_traits` of ggml.h."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("block_size", ctypes.c_int64),
        ("block_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.c_void_p),
        ("from_float_ref", ctypes.c_void_p),
    )


class CpuTypeTraits(ctypes.Structure):
    """`struct ggml_type_traits_cpu` of ggml-cpu.h."""

    _fields_ = (
        ("from_float", ctypes.c_void_p),
        ("vec_dot", ctypes.c_void_p),
        ("vec_dot_type", ctypes.c_int),
        ("n_rows", ctypes.c_int64),
    )


@functools.cache
def library() -> Any:
    xllamacpp = pytest.importorskip("xllamacpp")
    (path,) = Path(xllamacpp.__file__).parent.glob("xllamacpp*.so")
    ggml = ctypes.CDLL(str(path))
    ggml.ggml_get_type_traits.restype = ctypes.POINTER(TypeTraits)
    ggml.ggml_get_type_traits_cpu.restype = ctypes.POINTER(CpuTypeTraits)
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    ggml.ggml_quantize_chunk.argtypes = [
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_void_p,
        *[ctypes.c_int64] * 3,
        ctypes.c_void_p,
    ]
    ggml.ggml_cpu_init()
    return ggml


def exported(name: str) -> Any:
    """The conversion of a row that the library exports as `name`."""
    return CONVERT((name, library()))


def ggml_decode(raw: npt.NDArray[np.uint8], name: str) -> npt.NDArray[np.float32]:
    block_format = by_name(name)
    traits = library().ggml_get_type_traits(block_format.ggml_type).contents
    convert = exported("dequantize_row_q8_K") if name == "Q8_K" else CONVERT(traits.to_float)
    out = np.empty((len(raw), raw.shape[1] // block_format.type_size * block_format.block_size), np.float32)
    convert(raw.ctypes.data, out.ctypes.data, out.size)
    return out


def ggml_encode(values: npt.NDArray[np.float32], name: str) -> npt.NDArray[np.uint8]:
    out = np.zeros((len(values), by_name(name).row_bytes(values.shape[1])), np.uint8)
    if name in {"Q8_1", "Q8_K"}:
        exported(f"quantize_row_{name.lower().replace('k', 'K')}_ref")(values.ctypes.data, out.ctypes.data, values.size)
    else:
        shape = values.shape
        library().ggml_quantize_chunk(by_name(name).ggml_type, values.ctypes.data, out.ctypes.data, 0, *shape, None)
    return out


def ggml_round(values: npt.NDArray[np.float32], name: str) -> npt.NDArray[np.uint8]:
    """The blocks that ggml's CPU code makes of activations."""
    convert = CONVERT(library().ggml_get_type_traits_cpu(by_name(name).ggml_type).contents.from_float)
    out = np.zeros((len(values), by_name(name).row_bytes(values.shape[1])), np.uint8)
    convert(values.ctypes.data, out.ctypes.data, values.size)
    return out


def test_every_type_of_ggml_is_known_with_its_sizes() -> None:
    xllamacpp = pytest.importorskip("xllamacpp")
    theirs = {}
    for ggml_type in range(int(xllamacpp.ggml_type.GGML_TYPE_COUNT)):
        traits = library().ggml_get_type_traits(ggml_type).contents
        # Removed types have no size.
        if traits.block_size:
            theirs[ggml_type] = (traits.type_name.decode().upper(), traits.block_size, traits.type_size)
    ours = {i: (known.name, known.block_size, known.type_size) for i, known in FORMATS.items()}
    assert ours == theirs


def test_activations_are_rounded_to_the_format_that_ggml_rounds_them_to() -> None:
    theirs = {}
    for name in DECODABLE:
        traits = library().ggml_get_type_traits_cpu(by_name(name).ggml_type).contents
        if traits.vec_dot:
            theirs[name] = FORMATS[traits.vec_dot_type].name
    assert dict(ACTIVATION_FORMATS) == theirs


@pytest.mark.parametrize("name", [name for name in DECODABLE if name not in NO_DECODER])
def test_decoding_gives_the_installed_ggmls_bits(name: str) -> None:
    raw = blocks_to_decode(by_name(name))
    theirs = ggml_decode(raw, name)
    assert same_bits(decode(raw, by_name(name), theirs.shape), theirs)
    assert decoded_digest(theirs) == GGML_DECODED[name]


@pytest.mark.parametrize("name", [name for name in ENCODABLE if name not in NO_DECODER])
def test_what_is_encoded_decodes_to_the_installed_ggmls_bits(name: str) -> None:
    for values in weights_to_encode().values():
        raw = encode(values, name)
        assert same_bits(decode(raw, by_name(name), values.shape), ggml_decode(raw, name))


@pytest.mark.parametrize("name", ENCODABLE)
def test_encoding_gives_the_installed_ggmls_bytes(name: str) -> None:
    parts = []
    for values in weights_to_encode().values():
        theirs = ggml_encode(values, name)
        assert (encode(values, name) == theirs).all()
        parts.append(theirs.tobytes())
    assert joined_digest(parts) == GGML_ENCODED[name]


@pytest.mark.parametrize("name", ["Q8_0", "Q8_1", "Q8_K"])
def test_codes_and_scales_of_activations_are_the_installed_ggmls(name: str) -> None:
    values = rows_to_round()
    blocks = ggml_round(values, name).view(by_name(name).layout)
    codes, scales = codes_and_scales(values, name)
    assert (codes == blocks["qs"].reshape(values.shape)).all()
    assert same_bits(scales, blocks["d"].astype(np.float32))


@pytest.mark.parametrize("name", GGML_ROUNDED)
def test_rounded_activations_are_the_installed_ggmls(name: str) -> None:
    values = rows_to_round()
    theirs = decode(ggml_round(values, name), by_name(name), values.shape)
    assert same_bits(round_to(values, name), theirs)
    assert decoded_digest(theirs) == GGML_ROUNDED[name]


@pytest.mark.parametrize("name", ["Q8_0", "Q8_K"])
def test_rounding_four_rows_at_once_gives_the_same_values(name: str) -> None:
    block_format = by_name(name)
    values = rows_to_round()
    values = values[: len(values) // 4 * 4]
    # The blocks of four rows stand together: first their scales, then eight codes of each in turn.
    interleaved = np.dtype([("d", block_format.layout["d"], (4,)), ("qs", "i1", (block_format.block_size // 8, 4, 8))])
    for start in range(0, len(values), 4):
        rows = np.ascontiguousarray(values[start : start + 4])
        buffer = np.zeros(4 * block_format.row_bytes(rows.shape[1]), np.uint8)
        exported(f"ggml_quantize_mat_{name.lower().replace('k', 'K')}_4x8")(
            rows.ctypes.data, buffer.ctypes.data, rows.shape[1]
        )
        n_blocks = rows.shape[1] // block_format.block_size
        step = len(buffer) // n_blocks
        heads = buffer.reshape(n_blocks, step)[:, : interleaved.itemsize]
        blocks = np.ascontiguousarray(heads).reshape(-1).view(interleaved)
        codes = blocks["qs"].transpose(2, 0, 1, 3).reshape(4, n_blocks, block_format.block_size)
        theirs = codes.astype(np.float32) * blocks["d"].T.astype(np.float32)[:, :, None]
        # Compared as numbers, since the zeros of a block may have the other sign with its scale.
        assert np.array_equal(round_to(rows, name), theirs.reshape(rows.shape))
