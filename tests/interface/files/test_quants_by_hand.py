"""One block of each format, written byte by byte from its layout, and the weights that a reader works out from it.

A case lists stretches of weights with their common value; a later stretch overrides an earlier one. The scales are 1/2
(bytes 00 38) and the minima 1/4 (00 34) where nothing else is said.
"""

from __future__ import annotations

import numpy as np
import pytest

from bloomery.interface.files.quants import FORMATS, by_name, decode

Stretches = list[tuple[int, int, float]]

CASES: dict[str, tuple[str, Stretches]] = {
    "F32": ("0000c0bf", [(0, 1, -1.5)]),
    "F16": ("00be", [(0, 1, -1.5)]),
    "BF16": ("c0bf", [(0, 1, -1.5)]),
    "F64": ("000000000000f8bf", [(0, 1, -1.5)]),
    "Q8_0": ("0038 02fe" + "00" * 29 + "80", [(0, 32, 0), (0, 1, 1), (1, 2, -1), (31, 32, -64)]),
    "Q8_1": ("0038 0040 02fe" + "00" * 29 + "80", [(0, 32, 0), (0, 1, 1), (1, 2, -1), (31, 32, -64)]),
    "Q8_K": (
        "0000003f 02fe" + "00" * 253 + "80" + "00" * 32,
        [(0, 256, 0), (0, 1, 1), (1, 2, -1), (255, 256, -64)],
    ),
    # d = 2: the code 15 stands for 7 and the code 1 for -7.
    "Q4_0": ("0040 1f" + "88" * 15, [(0, 32, 0), (0, 1, 14), (16, 17, -14)]),
    # d = 2, m = -1.
    "Q4_1": ("0040 00bc 1f" + "00" * 15, [(0, 32, -1), (0, 1, 29), (16, 17, 1)]),
    # The fifth bits of weights 0 and 31 are set.
    "Q5_0": ("0040 01000080 1f" + "00" * 15, [(0, 32, -32), (0, 1, 30), (16, 17, -30), (31, 32, 0)]),
    "Q5_1": ("0040 00bc 01000080 1f" + "00" * 15, [(0, 32, -1), (0, 1, 61), (16, 17, 1), (31, 32, 31)]),
    # Sub-blocks have scale 1 and minimum 2, the third 3 and 1. Byte e4 holds the codes 0 to 3 of weights 0, 32, 64, 96.
    "Q2_K": (
        "2121 13" + "21" * 13 + "e4" + "00" * 62 + "c0" + "0038 0034",
        [(0, 256, -0.5), (32, 48, -0.25), (32, 33, 1.25), (64, 65, 0.5), (96, 97, 1), (255, 256, 1)],
    ),
    # All third bits are set but those of weights 0 and 64. Scales: sub-block 0 has 33, 2 has 34, 4 has 31, 15 has 63.
    "Q3_K": (
        "fa" + "ff" * 31 + "e4" + "00" * 62 + "c0" + "01000200 0f0000f0 060002c0" + "0038",
        [(0, 256, 0), (0, 1, -2), (32, 33, 1), (64, 65, 1), (96, 97, -48), (255, 256, 46.5)],
    ),
    # Sub-block 0 has scale 1 and minimum 2; sub-block 7 has 53 = 110101 and 19 = 010011, split into 2 and 4 bits.
    "Q4_K": (
        "0038 0034 010000c0 02000040 00000035 f3" + "00" * 126 + "90",
        [(0, 256, 0), (0, 32, -0.5), (0, 1, 1), (224, 256, -4.75), (255, 256, 233.75)],
    ),
    "Q5_K": (
        "0038 0034 010000c0 02000040 00000035 01" + "00" * 30 + "80 f3" + "00" * 126 + "90",
        [(0, 256, 0), (0, 32, -0.5), (0, 1, 9), (224, 256, -4.75), (255, 256, 657.75)],
    ),
    # Scales: sub-block 0 has 1, sub-block 4 has -2, sub-block 15 has 3. Weights 0, 64 and 255 have codes 47, 49 and 63.
    "Q6_K": (
        "1f" + "00" * 126 + "f0" + "32" + "00" * 62 + "c0" + "01000000 fe000000 00000000 00000003" + "0038",
        [(0, 256, 0), (0, 16, -16), (0, 1, 7.5), (64, 80, 32), (64, 65, -17), (240, 256, -48), (255, 256, 46.5)],
    ),
    # The code 8 stands for 1, the code 15 for 113 and the code 0 for -127.
    "IQ4_NL": ("0038 0f" + "88" * 15, [(0, 32, 0.5), (0, 1, 56.5), (16, 17, -63.5)]),
    # Scales: sub-block 0 has 33, sub-block 7 has 30, all others 32, which stands for zero.
    "IQ4_XS": (
        "0038 aa6a 010000e0 0f" + "88" * 126 + "f8",
        [(0, 256, 0), (0, 32, 0.5), (0, 1, 56.5), (16, 17, -63.5), (224, 256, -1), (255, 256, -113)],
    ),
    # In the IQ2 formats point 0 is eight times 8 and point 1 starts with 43; the last of IQ2_XS and of IQ2_S is eight
    # times 43. Group 0 has scale 3, and of its first eight weights the first and so the eighth are negative.
    "IQ2_XXS": (
        "0038 01000000 01000030" + "00" * 56,
        [(0, 256, 0.5), (0, 32, 3.5), (0, 1, -18.8125), (7, 8, -3.5)],
    ),
    # The last group of 16 has scale 2; its last point is all negative.
    "IQ2_XS": (
        "0038 0102" + "0000" * 30 + "ffff" + "03" + "00" * 6 + "20",
        [(0, 256, 0.5), (0, 16, 3.5), (0, 1, -18.8125), (7, 8, -3.5), (240, 256, 2.5), (248, 256, -13.4375)],
    ),
    "IQ2_S": (
        "0038 01" + "00" * 30 + "ff" + "81" + "00" * 30 + "ff" + "00" * 7 + "c0" + "03" + "00" * 6 + "20",
        [(0, 256, 0.5), (0, 16, 3.5), (0, 1, -18.8125), (7, 8, -3.5), (240, 256, 2.5), (248, 256, -13.4375)],
    ),
    # Point 0 is four times 4, point 1 starts with 20, point 255 is 4, 28, 52, 62. Groups 0 and 7 have scales 3 and 1.
    "IQ3_XXS": (
        "0038 01" + "00" * 62 + "ff" + "01000030" + "00" * 24 + "00000010",
        [
            *[(0, 256, 0.5), (0, 32, 3.5), (0, 1, -17.5), (7, 8, -3.5)],
            *[(224, 256, 1.5), (253, 254, 10.5), (254, 255, 19.5), (255, 256, 23.25)],
        ],
    ),
    # Point 0 is four times 1, point 1 starts with 3, point 511 is 1, 1, 15, 15. Groups 0 and 7 have scales 3 and 2.
    "IQ3_S": (
        "0038 01" + "00" * 62 + "ff" + "00" * 7 + "80" + "81" + "00" * 30 + "80" + "03000020",
        [
            (0, 256, 0.5),
            (0, 32, 3.5),
            (0, 1, -10.5),
            (7, 8, -3.5),
            (224, 256, 2.5),
            (254, 255, 37.5),
            (255, 256, -37.5),
        ],
    ),
    # Point 0 is eight times -1, point 1 starts with 1, point 2047 is eight times 1. Group 0 has scale 3 and moves up;
    # group 7 has scale 2 and moves down; the others have scale 0 and move up.
    "IQ1_S": (
        "0038 01" + "00" * 30 + "ff" + "0030" + "0000" * 6 + "00ae",
        [(0, 256, -0.4375), (0, 32, -3.0625), (0, 1, 3.9375), (224, 256, -2.8125), (248, 256, 2.1875)],
    ),
    # The four quarters of d = 3800 stand in the upper quarters of the last four words. Only the last point moves down.
    "IQ1_M": (
        "01" + "00" * 30 + "ff" + "00" * 15 + "f0" + "0300 0000 0080 0034",
        [(0, 256, -0.4375), (0, 16, -3.0625), (0, 1, 3.9375), (240, 256, -2.1875), (248, 256, 2.1875)],
    ),
    # Byte cd holds the digits 2, 1, 0, 1, 2; byte 80 only ones, byte ff only twos, byte 00 only zeros.
    "TQ1_0": (
        "cd" + "80" * 46 + "ff" + "00" + "80" * 3 + "0038",
        [(0, 256, 0), (0, 1, 0.5), (64, 65, -0.5), (128, 129, 0.5)]
        + [(i, i + 1, 0.5) for i in (175, 191, 207, 223, 239)]
        + [(i, i + 1, -0.5) for i in (240, 244, 248, 252)],
    ),
    "TQ2_0": (
        "e4" + "55" * 62 + "95" + "0038",
        [(0, 256, 0), (0, 1, -0.5), (64, 65, 0.5), (96, 97, 1), (255, 256, 0.5)],
    ),
    "Q1_0": ("0038 01" + "00" * 14 + "80", [(0, 128, -0.5), (0, 1, 0.5), (127, 128, 0.5)]),
    "Q2_0": ("0038 e4" + "55" * 14 + "95", [(0, 64, 0), (0, 1, -0.5), (2, 3, 0.5), (3, 4, 1), (63, 64, 0.5)]),
    # The scale is 2; code 15 stands for -6, code 7 for 6, code 1 for 1/2.
    "MXFP4": ("80 7f" + "00" * 14 + "10", [(0, 32, 0), (0, 1, -12), (16, 17, 12), (31, 32, 1)]),
    # Sub-blocks have the scales 1, 2, 2**-9 (the smallest) and all ones, which counts as zero; code 2 stands for 1.
    "NVFP4": (
        "3840017f 7f" + "22" * 31,
        [(0, 16, 1), (0, 1, -6), (8, 9, 6), (16, 32, 2), (32, 48, 2.0**-9), (48, 64, 0)],
    ),
}


def test_every_format_has_its_block() -> None:
    assert set(CASES) == {block_format.name for block_format in FORMATS.values() if block_format.decodable}


@pytest.mark.parametrize("name", CASES)
def test_a_block_written_by_hand_decodes_to_the_weights_worked_out_by_hand(name: str) -> None:
    text, stretches = CASES[name]
    expected = np.full(by_name(name).block_size, np.nan, np.float32)
    for start, stop, value in stretches:
        expected[start:stop] = value
    block = np.frombuffer(bytes.fromhex(text), np.uint8)
    np.testing.assert_array_equal(decode(block, by_name(name), expected.shape), expected)
