"""Block formats: decoding beside the gguf package bit for bit, encoding beside bytes that ggml itself made."""

from __future__ import annotations

import ctypes
import hashlib
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from gguf.constants import GGML_QUANT_SIZES
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.interface.files.quants import FORMATS, UnsupportedFormat, by_name, decode, decode_into, encode

DECODABLE = [name for name in (block_format.name for block_format in FORMATS.values()) if by_name(name).decodable]
ENCODABLE = [name for name in DECODABLE if by_name(name).encodable]
BLOCKED_ENCODABLE = [name for name in ENCODABLE if by_name(name).block_size > 1]


def uniform(seed: int, *shape: int) -> npt.NDArray[np.float32]:
    """Numbers in [-1, 1) from a counter put through the splitmix64 finaliser: the same on every machine and version."""
    count = int(np.prod(shape))
    words = (np.arange(count, dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    steps = (words >> np.uint64(40)).astype(np.int64) - (1 << 23)
    return (steps.astype(np.float32) * np.float32(2.0**-23)).reshape(shape)


def weights_to_encode() -> dict[str, npt.NDArray[np.float32]]:
    """Rows of 1024 of every kind that an encoder treats apart; no value or scale is subnormal."""
    bell = uniform(1, 16, 1024) + uniform(2, 16, 1024) + uniform(3, 16, 1024)
    sparse = np.where(uniform(4, 16, 1024) > 0.9, bell, np.float32(0))
    stepped = np.repeat(np.rint(uniform(5, 16, 32) * 3), 32, axis=1).astype(np.float32)
    return {
        "bell": bell,
        "small": bell * np.float32(2.0**-8),
        "cubed": bell * bell * bell,
        "positive": np.abs(bell) + np.float32(0.5),
        "negative": -np.abs(bell) - np.float32(0.5),
        "sparse": sparse,
        "integers": np.rint(bell * 2),
        "constant runs": stepped,
        "zeros": np.zeros((2, 1024), np.float32),
    }


# sha256 of what ggml_quantize_chunk of llama.cpp b11549 gives for all of `weights_to_encode`, joined.
GGML_DIGESTS = {
    "F32": "fa9cf3cc4c4280e78b05544f571e29fedd1d88228e9c73127324712331788c8b",
    "F16": "00288c7f86d6cd95ae0db7bd0fa125ad73a0677e95f7763a493c0b14f585d864",
    "Q4_0": "500cb19ae8ede3c32ff62f9924f3e77fc96d68d011f0dd5d26ebe66512e0479d",
    "Q8_0": "ad0d118cf51eb9ce848a312bdc74a2d4a7c5fdd0e4786998d066ac2f7ccd3521",
    "Q4_K": "4942a5241bedd4a4e11d8c6bc7893708f576715e4a5120c758dea87fae24dfb0",
    "Q5_K": "7f1cac9d1caa02bef14807059f5de636788db1c877c374d942f618ceb7adf0ec",
    "Q6_K": "d448006b0a663738a42004b127777bf767ffb19b3ed34ee98e57bb1aba185bb5",
    "BF16": "9ae53e5b77af438b65e77ab5cecc81fec4a813831be7027dd1344a9fa5758aef",
}


def joined_digest(parts: list[bytes]) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()


def same_bits(ours: npt.NDArray[np.float32], theirs: npt.NDArray[np.float32]) -> bool:
    """Equal bit for bit, but for which not-a-number it is."""
    both_nan = np.isnan(ours) & np.isnan(theirs)
    return bool(((ours.view(np.uint32) == theirs.view(np.uint32)) | both_nan).all())


def gguf_dequantize(raw: npt.NDArray[np.uint8], name: str) -> npt.NDArray[np.float32]:
    with np.errstate(all="ignore"):
        return np.asarray(gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name]), np.float32)


def test_every_type_of_the_gguf_package_is_known_with_its_sizes() -> None:
    assert {
        ggml_type: (block_format.name, block_format.block_size, block_format.type_size)
        for ggml_type, block_format in FORMATS.items()
    } == {int(ggml_type): (ggml_type.name, *sizes) for ggml_type, sizes in GGML_QUANT_SIZES.items()}


def test_this_stretch_decodes_what_it_promises() -> None:
    assert {"F32", "F16", "BF16", "F64", "Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K"} <= set(DECODABLE)
    assert {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K"} <= set(ENCODABLE)


@pytest.mark.parametrize("name", [name for name in DECODABLE if name != "F64"])
def test_random_blocks_decode_as_in_the_gguf_package(name: str) -> None:
    # Random bytes hold scales of every kind: ordinary, subnormal, infinite, not a number, both zeros.
    row_bytes = by_name(name).row_bytes(1024)
    raw = np.random.default_rng(7).integers(0, 256, (600, row_bytes), np.uint8)
    assert same_bits(decode(raw, by_name(name), (600, 1024)), gguf_dequantize(raw, name).reshape(600, 1024))


@pytest.mark.parametrize("name", [name for name in DECODABLE if "d" in (by_name(name).layout.names or ())])
@pytest.mark.parametrize("scale", [0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0x7C00, 0xFC00, 0x7E01])
def test_extreme_scales_decode_as_in_the_gguf_package(name: str, scale: int) -> None:
    block_format = by_name(name)
    raw = np.random.default_rng(scale).integers(0, 256, (64, block_format.type_size), np.uint8)
    raw.reshape(-1).view(block_format.layout)["d"] = np.uint16(scale).view(np.float16)
    shape = (64, block_format.block_size)
    assert same_bits(decode(raw, block_format, shape), gguf_dequantize(raw, name).reshape(shape))


def test_f64_rounds_to_float32() -> None:
    values = np.array([0.1, -1e300, 1e-320, np.inf, np.nan, 2.0**-149, 16777217.0])
    with np.errstate(over="ignore"):
        expected = values.astype(np.float32)
    assert same_bits(decode(values.view(np.uint8), by_name("F64"), (7,)), expected)


@given(name=st.sampled_from(DECODABLE), rows=st.integers(1, 5), blocks=st.integers(1, 4), seed=st.integers(0, 999))
@settings(max_examples=60, deadline=None)
def test_a_row_decodes_alike_alone_and_among_others_and_from_any_address(
    name: str, rows: int, blocks: int, seed: int
) -> None:
    block_format = by_name(name)
    columns = blocks * block_format.block_size
    raw = np.random.default_rng(seed).integers(0, 256, (rows, block_format.row_bytes(columns)), np.uint8)
    together = decode(raw, block_format, (rows, columns))
    for row in range(rows):
        unaligned = np.empty(raw.shape[1] + 1, np.uint8)[1:]
        unaligned[:] = raw[row]
        assert together[row].tobytes() == decode(unaligned, block_format, (columns,)).tobytes()


def test_decoding_more_than_one_run_of_blocks_joins_them() -> None:
    raw = encode(uniform(9, 300, 1024), "Q4_K")
    parts = [
        decode(raw[start : start + 7], by_name("Q4_K"), (len(raw[start : start + 7]), 1024))
        for start in range(0, 300, 7)
    ]
    assert decode(raw, by_name("Q4_K"), (300, 1024)).tobytes() == np.concatenate(parts).tobytes()


@pytest.mark.parametrize("name", ENCODABLE)
def test_encoding_gives_ggmls_bytes(name: str) -> None:
    parts = [encode(values, name).tobytes() for values in weights_to_encode().values()]
    assert joined_digest(parts) == GGML_DIGESTS[name]


@pytest.mark.parametrize("name", ["Q8_0", "BF16", "Q4_0"])
def test_encoding_agrees_with_the_gguf_package(name: str) -> None:
    values = uniform(11, 8, 1024)
    assert (encode(values, name) == gguf.quants.quantize(values, gguf.GGMLQuantizationType[name]).reshape(8, -1)).all()


def test_plain_floats_encode_by_rounding_to_nearest_even() -> None:
    edges = np.array(
        [1.0, 1 + 2**-11, 1 + 3 * 2**-11, 65504.0, 65520.0, 2.0**-25, 3 * 2.0**-25, -0.0, np.inf], np.float32
    )
    halves = [0x3C00, 0x3C00, 0x3C02, 0x7BFF, 0x7C00, 0x0000, 0x0002, 0x8000, 0x7C00]
    assert encode(edges, "F16").view("<u2").tolist() == halves
    edges = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, -0.0, np.inf], np.float32)
    assert encode(edges, "BF16").view("<u2").tolist() == [0x3F80, 0x3F80, 0x3F82, 0x7F80, 0x8000, 0x7F80]
    nan = np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(decode(encode(nan, "BF16"), by_name("BF16"), (2,))).all()
    assert np.isnan(decode(encode(nan, "F16"), by_name("F16"), (2,))).all()


@given(name=st.sampled_from(BLOCKED_ENCODABLE), seed=st.integers(0, 999), scale=st.integers(-20, 10))
@settings(max_examples=40, deadline=None)
def test_blocks_encode_alike_alone_and_among_others(name: str, seed: int, scale: int) -> None:
    values = uniform(seed, 3, 512) * np.float32(2.0**scale)
    together = encode(values, name)
    assert all((encode(row, name) == encoded).all() for row, encoded in zip(values, together, strict=True))


# The largest error a format may make on a block in [-1, 1]. A plain scale rounds to half a step, and is itself rounded
# to half precision; Q4_0 also clips at +7 of 8 steps; a K format rounds its scales to 6 or 8 bits too and trades one
# weight for the others.
@pytest.mark.parametrize(
    ("name", "largest_error"),
    [("Q8_0", 0.5 / 127 + 2**-11), ("Q4_0", 1.01 / 8), ("Q4_K", 2 / 15), ("Q5_K", 2 / 31), ("Q6_K", 1.5 / 32)],
)
def test_what_is_encoded_decodes_near_the_weights(name: str, largest_error: float) -> None:
    values = uniform(13, 64, 1024)
    back = decode(encode(values, name), by_name(name), values.shape)
    assert np.abs(back - values).max() <= largest_error


@pytest.mark.parametrize("name", BLOCKED_ENCODABLE)
def test_values_too_small_for_a_scale_become_zero(name: str) -> None:
    tiny = uniform(15, 2, 512) * np.float32(2.0**-140)
    assert not np.nan_to_num(decode(encode(tiny, name), by_name(name), tiny.shape), nan=1.0).any()


def test_refusals_name_the_format_and_the_numbers() -> None:
    with pytest.raises(UnsupportedFormat, match="no block format called 'Q9_9'"):
        by_name("Q9_9")
    with pytest.raises(UnsupportedFormat, match="weights in IQ1_S cannot be decoded"):
        decode(np.zeros(50, np.uint8), by_name("IQ1_S"), (256,))
    with pytest.raises(UnsupportedFormat, match="cannot be encoded as IQ1_S"):
        encode(np.zeros(256, np.float32), "IQ1_S")
    with pytest.raises(ValueError, match="255 weights a row are not whole Q4_K blocks of 256"):
        encode(np.zeros(255, np.float32), "Q4_K")
    with pytest.raises(ValueError, match=r"Q4_K weights of shape \(2, 256\) take 288 bytes, not 144"):
        decode(np.zeros(144, np.uint8), by_name("Q4_K"), (2, 256))
    with pytest.raises(ValueError, match="not from int8"):
        decode(np.zeros(144, np.int8), by_name("Q4_K"), (256,))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="from float32, not from float64"):
        encode(np.zeros(256), "Q4_K")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one axis"):
        encode(np.float32(1).reshape(()), "F16")
    with pytest.raises(ValueError, match="at least one axis"):
        decode(np.zeros(4, np.uint8), by_name("F32"), ())
    with pytest.raises(ValueError, match="C-contiguous float32"):
        decode_into(np.zeros(8, np.uint8), by_name("F32"), np.empty((2, 2), np.float32)[:, 0])


@pytest.mark.parametrize("name", BLOCKED_ENCODABLE)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_not_encoded_in_blocks(name: str, value: float) -> None:
    values = np.ones((2, 256), np.float32)
    values[1, 77] = value
    with pytest.raises(ValueError, match=f"encode as {name} must be finite"):
        encode(values, name)


@pytest.mark.parametrize("name", BLOCKED_ENCODABLE)
@pytest.mark.parametrize("size", [1e9, 3e38])
def test_weights_too_large_for_a_half_precision_scale_are_refused(name: str, size: float) -> None:
    values = uniform(17, 2, 256) * np.float32(size)
    with pytest.raises(ValueError, match=f"too large for {name}"):
        encode(values, name)


@pytest.mark.parametrize("name", DECODABLE)
def test_nothing_decodes_to_nothing(name: str) -> None:
    assert decode(np.zeros(0, np.uint8), by_name(name), (0, by_name(name).block_size)).shape == (
        0,
        by_name(name).block_size,
    )


@pytest.mark.oracle
@pytest.mark.parametrize("name", ENCODABLE)
def test_encoding_gives_the_installed_ggmls_bytes(name: str) -> None:
    xllamacpp = pytest.importorskip("xllamacpp")
    (library,) = Path(xllamacpp.__file__).parent.glob("xllamacpp*.so")
    quantize = ctypes.CDLL(str(library)).ggml_quantize_chunk
    quantize.restype = ctypes.c_size_t
    quantize.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    parts = []
    for values in weights_to_encode().values():
        theirs = np.empty((len(values), by_name(name).row_bytes(1024)), np.uint8)
        quantize(by_name(name).ggml_type, values.ctypes.data, theirs.ctypes.data, 0, *values.shape, None)
        assert (encode(values, name) == theirs).all()
        parts.append(theirs.tobytes())
    assert joined_digest(parts) == GGML_DIGESTS[name]
