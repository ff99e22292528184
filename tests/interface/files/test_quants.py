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

from bloomery.interface.files.quants import (
    FORMATS,
    BlockFormat,
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


def half_fields(name: str) -> list[str]:
    """The half-precision fields of a block."""
    layout = by_name(name).layout
    return [field for field in layout.names or () if layout[field] == np.float16]


HALF_SCALED = [name for name in BLOCKED_ENCODABLE if half_fields(name)]


def random_words(seed: int, count: int) -> npt.NDArray[np.uint64]:
    """A counter put through the splitmix64 finaliser: the same on every machine and version."""
    words = (np.arange(count, dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


def uniform(seed: int, *shape: int) -> npt.NDArray[np.float32]:
    """Numbers in [-1, 1)."""
    steps = (random_words(seed, int(np.prod(shape))) >> np.uint64(40)).astype(np.int64) - (1 << 23)
    return (steps.astype(np.float32) * np.float32(2.0**-23)).reshape(shape)


# Zero of both signs, subnormal, the largest, infinite of both signs, not a number.
EXTREME_HALVES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0x7C00, 0xFC00, 0x7E01]


def blocks_to_decode(block_format: BlockFormat) -> npt.NDArray[np.uint8]:
    """10,000 random blocks, then 64 more for every extreme value in all of their half-precision fields, 00s and FFs."""
    count = 10_000 + 64 * len(EXTREME_HALVES) + 2
    words = random_words(23, -(-count * block_format.type_size // 8))
    raw = words.astype("<u8").view(np.uint8)[: count * block_format.type_size].reshape(count, -1).copy()
    blocks = raw[10_000:-2].reshape(-1).view(block_format.layout)
    for field in half_fields(block_format.name):
        blocks[field] = np.repeat(np.array(EXTREME_HALVES, np.uint16), 64).view(np.float16)
    raw[-2:] = [[0x00], [0xFF]]
    return raw


def decoded_digest(weights: npt.NDArray[np.float32]) -> str:
    """sha256 of the bits, with every not-a-number written the same way."""
    bits = np.where(np.isnan(weights), np.uint32(0x7FC00000), weights.view(np.uint32))
    return hashlib.sha256(bits.astype("<u4").tobytes()).hexdigest()


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


# `decoded_digest` of what llama.cpp b11549 decodes `blocks_to_decode` to; it has no decoder for F32, F64 and Q8_1.
GGML_DECODED = {
    "F16": "5010e011cfca82be4d692587c11f36f8a9ce33382419ed210a44745731049766",
    "Q4_0": "93955dd5e309675395566d1ee9d3e7c6b13452c7f754f327920994ee30d917a2",
    "Q4_1": "69aa63001c640efeb2c4b894d400fd2a12c799f7cfbc9fc663ed692bdcc2f093",
    "Q5_0": "4fd1eed4cbd0d5c29018d00c4294a8cb2dbfaa8333d9694366308a85c0a7d493",
    "Q5_1": "c51412df5ea151a66c419845fe454ddeebd51de0195278601ead128823306c4a",
    "Q8_0": "f0e45f31cd66b84203de476c194f7b4dd1045ec3bc64b27c1a76f77210c56d61",
    "Q2_K": "7b896a56f92f28741a38bb5a9eda762e774b6028dac22ca60d78e1945fedc7b3",
    "Q3_K": "b4b1047790b2d761fafcee7fccd39d2711163cdfdd58bad83934d664b5564c05",
    "Q4_K": "f0c831874827ccf45364e3c1c3f11d0d7efcbce5c78c04dc372ae884a0ba54d9",
    "Q5_K": "7a55efc2ab04a09086a84e63e3be6e114870b2dbbaa9fda309e6852f43ed3e41",
    "Q6_K": "b928b84225678a14a5a079ae3ac56e6c257a45d7f7bc797083d393311b707ae4",
    "Q8_K": "e2307257c637abb0912422a4c580956bf3a8026c3c9e248cd5d0e27747d85831",
    "IQ2_XXS": "07b36135c7b4f1cca451e8d5edc2e34c577636382297201f5cefa82f6bf30801",
    "IQ2_XS": "3db98319012774eb6a90c502dcf5a6dc9bfe178b8652c774078ddeb9b17c7bb7",
    "IQ3_XXS": "217273a3256bfd55b11653472fc4038b1d4ec441a1fe61f33d95a56451818b44",
    "IQ1_S": "a22113915796f270bef4e67f36df4d99f0dfe8a613e14be40f18559d756e84e9",
    "IQ4_NL": "50938753f263f2c52914f8be4bf5d9aafd87dd97b93ee391902312308f254769",
    "IQ3_S": "9b76db355200005b99f1417bc0b59747699c4f942f752b135f0e8a35a974d223",
    "IQ2_S": "5e7d33386c3799729134a52322b778ed39fb5ac85bffafd31d368fef2928aa09",
    "IQ4_XS": "6f3c09446c25272ee3c8094ac35891a98327dc250779079f8f0569406dda61ec",
    "IQ1_M": "132173e06acc49be0828748d42b7c6e9266f17203a3d41fdfc3ad410422a8127",
    "BF16": "55b5a340da92c6580f934efb5aef60aa522fae6c68fd13d849dfce3d43f4729c",
    "TQ1_0": "1630389198ca4b4f48078737c001ac7a3711e03fb31fb04a2f01d65bbb15904d",
    "TQ2_0": "d018bf2309754599502fa6ed6395f79047a1c52900bbb700ca389a80cd526944",
    "MXFP4": "bad7e5414b36c24b73b7732445c4f42b0a506a7905a5b369d0f21550758b8e63",
    "NVFP4": "ed1d57cecba48f032f5be64518dc0f4bb7e551f4c63962ab9387dc67182ae2a6",
    "Q1_0": "522cb85f4149707ae4b70cca17a2f4ec383b561dcfd136d92b442c45a427816f",
    "Q2_0": "8c18abe8cbf438691c594396c938a0a287313d04117beb8907e8149dbd0a88a7",
}

# sha256 of what ggml_quantize_chunk of llama.cpp b11549 gives for all of `weights_to_encode`, joined; for Q8_1 and
# Q8_K, of what quantize_row_q8_1_ref and quantize_row_q8_K_ref give.
GGML_DIGESTS = {
    "F32": "fa9cf3cc4c4280e78b05544f571e29fedd1d88228e9c73127324712331788c8b",
    "F16": "00288c7f86d6cd95ae0db7bd0fa125ad73a0677e95f7763a493c0b14f585d864",
    "Q4_0": "500cb19ae8ede3c32ff62f9924f3e77fc96d68d011f0dd5d26ebe66512e0479d",
    "Q4_1": "3cdb83c5f540a8f109908a2626c7b4103d8786afd842c0cfee19be4e5d71b2aa",
    "Q5_0": "a22b103166f6d3de56b6fde5f49efc1213994127ad51d88c3243dab6b2bbb6d8",
    "Q5_1": "0b4ea627d6aeb3bbecc125a4b16206089bfe4c7fe6c40e4a73727adac0218ad5",
    "Q8_0": "ad0d118cf51eb9ce848a312bdc74a2d4a7c5fdd0e4786998d066ac2f7ccd3521",
    "Q8_1": "2287ef2bd0c965dfd7e64092897821d908eb6c2e680ff3c45a2a057a7e19720a",
    "Q2_K": "0c63798835fceae1b462eb3b132b9cc21a542d227264a8f7bc47f3432558933b",
    "Q3_K": "3b059381a1a6de91991efae37331a5c9b3481a9705d138c7169d435e3961f201",
    "Q4_K": "4942a5241bedd4a4e11d8c6bc7893708f576715e4a5120c758dea87fae24dfb0",
    "Q5_K": "7f1cac9d1caa02bef14807059f5de636788db1c877c374d942f618ceb7adf0ec",
    "Q6_K": "d448006b0a663738a42004b127777bf767ffb19b3ed34ee98e57bb1aba185bb5",
    "Q8_K": "bf53dd880cb08bab0de7667bdd9304b05155d98f007192e85e18e5a378dc5837",
    "IQ4_NL": "eab3d02d9e13568dddc6d1f7e361e14dc37b2bf1804afe34d3aabe5a83626795",
    "IQ4_XS": "a7be6467287093472a13f18d6e0f8b4dbb6458878172cc5d26dec6f570884776",
    "BF16": "9ae53e5b77af438b65e77ab5cecc81fec4a813831be7027dd1344a9fa5758aef",
    "TQ1_0": "cc56b1e8145ca2801d24bae416fe956e97eb01bf8a331c41254e0c00d566ec7a",
    "TQ2_0": "aa91df19f8c40610712738788e1ea461f2ff7b4b558c1f1234cd7a3c6463a6ca",
    "MXFP4": "e744c7e2cf82cd9d25a04ceb53727def71cb46231338e10dc80e26fae4746c78",
    "NVFP4": "605abbe9e5ffc3efdbce394fb2782a002654ac7439b274e14b22e6f91523a471",
    "Q1_0": "94634000bdeafc6c8bb18057cf23698e0c88becd6e0c743ca7c9d901f8a5f39e",
    "Q2_0": "cadb174395978e98cbb11836ee44a9339c62444000722792049cc861171c70f0",
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
    assert joined_digest(parts) == GGML_DIGESTS[name]


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
