"""Block formats: decoding and encoding beside what ggml itself made, and beside the gguf package, bit for bit."""

from __future__ import annotations

import hashlib

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from gguf.constants import GGML_QUANT_SIZES
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.conformance.parts.ggml_digests import (
    EXTREME_HALVES,
    GGML_DECODED,
    GGML_ENCODED,
    blocks_to_decode,
    decoded_digest,
    half_fields,
    uniform,
    weights_to_encode,
)
from bloomery.interface.files.quants import (
    FORMATS,
    UnsupportedFormat,
    by_name,
    codebooks,
    decode,
    decode_into,
    encode,
)

DECODABLE = [name for name in (block_format.name for block_format in FORMATS.values()) if by_name(name).decodable]
ENCODABLE = [name for name in DECODABLE if by_name(name).encodable]
BLOCKED_ENCODABLE = [name for name in ENCODABLE if by_name(name).block_size > 1]

# The installed gguf package has a class for each format that it decodes, but for the two that NumPy has too.
DECODED_BY_GGUF = [name for name in DECODABLE if name in {"F32", "F16"} or hasattr(gguf.quants, name)]


HALF_SCALED = [name for name in BLOCKED_ENCODABLE if half_fields(name)]


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
    ours = {
        ggml_type: (block_format.name, block_format.block_size, block_format.type_size)
        for ggml_type, block_format in FORMATS.items()
    }
    theirs = {int(ggml_type): (ggml_type.name, *sizes) for ggml_type, sizes in GGML_QUANT_SIZES.items()}
    # The package counts the two scales of Q8_1 as single precision, which they were before they became halves.
    assert theirs.pop(9) == ("Q8_1", 32, 40)
    assert ours.pop(9) == ("Q8_1", 32, 36)
    assert theirs.items() <= ours.items()


def test_all_formats_of_weights_are_decoded() -> None:
    undecodable = {block_format.name for block_format in FORMATS.values() if not block_format.decodable}
    # Tensors of integers are positions and tables, not weights.
    assert undecodable == {"I8", "I16", "I32", "I64"}


@pytest.mark.parametrize("name", GGML_DECODED)
def test_decoding_gives_ggmls_bits(name: str) -> None:
    raw = blocks_to_decode(by_name(name))
    assert decoded_digest(decode(raw, by_name(name), (len(raw), by_name(name).block_size))) == GGML_DECODED[name]


@pytest.mark.parametrize("name", DECODED_BY_GGUF)
def test_random_blocks_decode_as_in_the_gguf_package(name: str) -> None:
    # Random bytes hold scales of every kind: ordinary, subnormal, infinite, not a number, both zeros.
    row_bytes = by_name(name).row_bytes(1024)
    raw = np.random.default_rng(7).integers(0, 256, (600, row_bytes), np.uint8)
    assert same_bits(decode(raw, by_name(name), (600, 1024)), gguf_dequantize(raw, name).reshape(600, 1024))


@pytest.mark.parametrize("name", [name for name in ENCODABLE if name in DECODED_BY_GGUF])
def test_encoded_weights_decode_as_in_the_gguf_package(name: str) -> None:
    for values in weights_to_encode().values():
        raw = encode(values, name)
        assert same_bits(decode(raw, by_name(name), values.shape), gguf_dequantize(raw, name).reshape(values.shape))


@pytest.mark.parametrize("name", [name for name in DECODED_BY_GGUF if half_fields(name)])
@pytest.mark.parametrize("scale", EXTREME_HALVES)
def test_extreme_scales_decode_as_in_the_gguf_package(name: str, scale: int) -> None:
    block_format = by_name(name)
    raw = np.random.default_rng(scale).integers(0, 256, (64, block_format.type_size), np.uint8)
    raw.reshape(-1).view(block_format.layout)["d"] = np.uint16(scale).view(np.float16)
    shape = (64, block_format.block_size)
    assert same_bits(decode(raw, block_format, shape), gguf_dequantize(raw, name).reshape(shape))


def test_every_half_becomes_its_float() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16)
    finite = halves[np.isfinite(halves.view(np.float16))]
    # A run with an infinity or a NaN is converted in another way than a run without.
    for bits in (halves, finite):
        expected = bits.view(np.float16).astype(np.float32)
        assert same_bits(decode(bits.view(np.uint8), by_name("F16"), bits.shape), expected)


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


@given(name=st.sampled_from(DECODABLE), experts=st.integers(1, 4), rows=st.integers(1, 6), data=st.data())
@settings(max_examples=60, deadline=None)
def test_single_experts_and_ranges_of_rows_decode_as_in_the_whole_tensor(
    name: str, experts: int, rows: int, data: st.DataObject
) -> None:
    block_format = by_name(name)
    columns = 2 * block_format.block_size
    seed = data.draw(st.integers(0, 999))
    raw = np.random.default_rng(seed).integers(0, 256, (experts, rows, block_format.row_bytes(columns)), np.uint8)
    whole = decode(raw, block_format, (experts, rows, columns))
    expert = data.draw(st.integers(0, experts - 1))
    start = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(start, rows))
    assert decode(raw[expert], block_format, (rows, columns)).tobytes() == whole[expert].tobytes()
    part = decode(raw[expert, start:stop], block_format, (stop - start, columns))
    assert part.tobytes() == whole[expert, start:stop].tobytes()


@pytest.mark.parametrize("name", ["F16", "Q4_K", "IQ2_S", "TQ1_0"])
def test_decoding_more_than_one_run_of_blocks_joins_them(name: str) -> None:
    block_format = by_name(name)
    raw = np.random.default_rng(9).integers(0, 256, (600, block_format.row_bytes(1024)), np.uint8)
    parts = [
        decode(raw[start : start + 7], block_format, (len(raw[start : start + 7]), 1024)) for start in range(0, 600, 7)
    ]
    assert same_bits(decode(raw, block_format, (600, 1024)), np.concatenate(parts))


@pytest.mark.parametrize("name", ENCODABLE)
def test_encoding_gives_ggmls_bytes(name: str) -> None:
    parts = [encode(values, name).tobytes() for values in weights_to_encode().values()]
    assert joined_digest(parts) == GGML_ENCODED[name]


@pytest.mark.parametrize("name", ["Q8_0", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "TQ1_0", "TQ2_0"])
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
# to half precision; Q4_0 and Q5_0 also clip at the last but one step; a K format rounds its scales too and trades one
# weight for the others. The values of IQ4_NL and MXFP4 are up to 1/5 and 1/3 of the range apart.
@pytest.mark.parametrize(
    ("name", "largest_error"),
    {
        **{"Q8_0": 0.5 / 127 + 2**-11, "Q8_1": 0.5 / 127 + 2**-11, "Q8_K": 0.5 / 127 + 2**-20},
        **{"Q4_0": 1.01 / 8, "Q4_1": 1.01 / 15, "Q5_0": 1.01 / 16, "Q5_1": 1.01 / 31},
        **{"Q2_K": 2 / 3, "Q3_K": 2 / 4, "Q4_K": 2 / 15, "Q5_K": 2 / 31, "Q6_K": 1.5 / 32},
        **{"IQ4_NL": 0.2, "IQ4_XS": 0.2, "MXFP4": 0.34, "NVFP4": 0.2, "TQ1_0": 0.51, "TQ2_0": 0.51},
    }.items(),
)
def test_what_is_encoded_decodes_near_the_weights(name: str, largest_error: float) -> None:
    values = uniform(13, 64, 1024)
    back = decode(encode(values, name), by_name(name), values.shape)
    assert np.abs(back - values).max() <= largest_error


@pytest.mark.parametrize("name", HALF_SCALED)
def test_values_too_small_for_a_scale_become_zero(name: str) -> None:
    tiny = uniform(15, 2, 512) * np.float32(2.0**-140)
    assert not np.nan_to_num(decode(encode(tiny, name), by_name(name), tiny.shape), nan=1.0).any()


def test_refusals_name_the_format_and_the_numbers() -> None:
    with pytest.raises(UnsupportedFormat, match="no block format called 'Q9_9'"):
        by_name("Q9_9")
    with pytest.raises(UnsupportedFormat, match="weights in I32 cannot be decoded"):
        decode(np.zeros(4, np.uint8), by_name("I32"), (1,))
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


@pytest.mark.parametrize("name", HALF_SCALED)
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


@pytest.mark.parametrize("name", ["MXFP4", "NVFP4", "Q8_K"])
def test_formats_without_a_half_take_weights_of_any_size(name: str) -> None:
    values = uniform(17, 2, 256) * np.float32(3e38)
    back = decode(encode(values, name), by_name(name), values.shape)
    assert np.isfinite(back).all()
    assert (np.abs(back) <= np.float32(3.4e38)).all()


def test_offsets_and_sums_that_exceed_half_precision_are_refused_too() -> None:
    with pytest.raises(ValueError, match="too large for Q4_1"):
        encode(uniform(19, 1, 32) + np.float32(70000), "Q4_1")
    with pytest.raises(ValueError, match="too large for Q8_1"):
        encode(np.full((1, 32), 3000, np.float32), "Q8_1")


@pytest.mark.parametrize("harm", ["gone", "changed", "misshapen"])
def test_a_codebook_that_is_not_ggmls_is_refused_with_the_remedy(harm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    codebooks.codebook.cache_clear()
    owner = gguf.quants.IQ3_S
    owner.init_grid()
    if harm == "gone":
        monkeypatch.delattr(gguf.quants, "IQ3_S")
    elif harm == "changed":
        monkeypatch.setattr(owner, "grid", owner.grid + np.float32(1))
    else:
        monkeypatch.setattr(owner, "grid", owner.grid[:, :, :5])
    with pytest.raises(UnsupportedFormat, match="codebook of IQ3_S; install"):
        codebooks.codebook("IQ3_S")
    monkeypatch.undo()
    assert codebooks.codebook("IQ3_S").shape == (512, 4)
