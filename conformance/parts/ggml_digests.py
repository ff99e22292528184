"""What ggml made of fixed blocks and weights, as digests: the bits that every format's two conversions are held to.

The inputs come from a counter and a hash, so they are the same on every machine and version.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from bloomery.interface.files.quants import BlockFormat, by_name


def half_fields(name: str) -> list[str]:
    """The half-precision fields of a block."""
    layout = by_name(name).layout
    names = () if layout is None else layout.names or ()
    return [field for field in names if layout is not None and layout[field] == np.float16]


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
    if block_format.layout is None:
        raise ValueError(f"{block_format.name} is known by its size alone")
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


def rows_to_round() -> npt.NDArray[np.float32]:
    """Rows of 512 of every kind: bell-shaped, of many sizes, on the edges of rounding, sparse, zero, nearly zero."""
    bell = uniform(31, 200, 512) + uniform(32, 200, 512) + uniform(33, 200, 512)
    sizes = np.exp2(np.rint(uniform(34, 200, 16) * 20)).astype(np.float32).repeat(32, axis=1)
    # The largest magnitude 127 makes the scale a power of two, so that the halves between codes are exact.
    halves = np.rint(uniform(35, 40, 512) * 126) + np.float32(0.5)
    halves[:, ::32] = 127
    signs = np.where(uniform(36, 40, 512) < 0, np.float32(-1), np.float32(1))
    return np.concatenate(
        [
            bell,
            bell * sizes,
            halves * np.float32(2.0**-9),
            signs * np.float32(0.7),
            np.rint(bell * 2),
            np.where(bell > 2, bell, np.float32(0)),
            np.zeros((2, 512), np.float32),
            bell[:8] * np.float32(2.0**-126),
        ]
    ).astype(np.float32)


# `decoded_digest` of what llama.cpp b11549 decodes `blocks_to_decode` to; it has no decoder for F32, F64 and Q8_1.
GGML_DECODED: Mapping[str, str] = {
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
GGML_ENCODED: Mapping[str, str] = {
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

# `decoded_digest` of what llama.cpp b11549 on an x86 processor with AVX2 makes of `rows_to_round`.
GGML_ROUNDED: Mapping[str, str] = {
    "F16": "a8fe7b8f8e7df1da728b001c2945504d8d5b34d858f039e8963a34ceef81fb3e",
    "BF16": "2c702ef2c7b015bd4baeb07da1c8a310afe137127dc54cbf215ea0273b3e5541",
    "Q8_0": "56715acc0b40cdf2fd65ac261cd808dff2e245bca690e2a4167df055564646ed",
    "Q8_1": "56715acc0b40cdf2fd65ac261cd808dff2e245bca690e2a4167df055564646ed",
    "Q8_K": "0c014e1f231f0fda19540860895202de9c8d098ee2ab5716bac2372bacd345fa",
}
