"""Exponential and logarithm against glibc's own, and against correct rounding."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bloomery.interface.sampling.libm import expf, logf

# Bit patterns of x and of glibc 2.36's expf(x). The first ones are arguments for which it rounds the wrong way.
GLIBC = (
    (0xBBA03154, 0x3F7EC066),
    (0xBEE09644, 0x3F2518BE),
    (0xBFCE2B74, 0x3E4C8A9E),
    (0x80000000, 0x3F800000),
    (0x8DA24260, 0x3F800000),
    (0xBF000000, 0x3F1B4598),
    (0xBF800000, 0x3EBC5AB2),
    (0xC1200000, 0x383E6BCE),
    (0xC2AE0000, 0x00B33687),
    (0xC2B10000, 0x0027FCE2),
    (0xC2CE0000, 0x00000001),
    (0xC2CFF1B4, 0x00000001),
    (0xC2CFF5C3, 0x00000000),
    (0xF149F2CA, 0x00000000),
)


# The same of logf.
GLIBC_LOG = (
    (0x3981AA6C, 0xC104E09C),
    (0x3AEB9848, 0xC0CA48D1),
    (0x3B2451E3, 0xC0BFA21F),
    (0x3E193008, 0xBFF32CEB),
    (0x3F212817, 0xBEECF43C),
    (0x3F4A123E, 0xBE723C02),
    (0x3F6BEF73, 0xBDA72831),
    (0x3F800000, 0x00000000),
    (0x3D4CCCCD, 0xC03FBA14),
    (0x3F000000, 0xBF317218),
    (0x3F733333, 0xBD5218EE),
    (0x00000001, 0xC2CE8ED0),
    (0x000AE398, 0xC2B39A05),
    (0x00800000, 0xC2AEAC50),
    (0x40000000, 0x3F317218),
    (0x7F7FC99E, 0x42B171AB),
    (0x3F7FF972, 0xB8D1C2AF),
)


def test_it_has_the_bits_of_glibc():
    x, expected = np.array(GLIBC, np.uint32).T.copy()
    assert np.array_equal(expf(x.view(np.float32)).view(np.uint32), expected)


def test_minus_infinity_gives_zero():
    assert expf(np.array([-np.inf, 0], np.float32)).tolist() == [0, 1]


@given(st.lists(st.floats(-110, 0, width=32), min_size=1, max_size=40))
def test_it_is_within_one_last_place_of_the_exact_value_and_never_falls(values):
    x = np.sort(np.array(values, np.float32))
    y = expf(x)
    assert np.all(np.diff(y) >= 0)
    exact = np.array([math.exp(value) for value in x.tolist()]).astype(np.float32)
    assert np.all(np.abs(y.view(np.int32) - exact.view(np.int32)) <= 1)


def test_the_logarithm_has_the_bits_of_glibc():
    x, expected = np.array(GLIBC_LOG, np.uint32).T.copy()
    assert np.array_equal(logf(x.view(np.float32)).view(np.uint32), expected)


@given(st.lists(st.floats(0, 2.0**100, width=32, exclude_min=True), min_size=1, max_size=40))
def test_the_logarithm_is_within_one_last_place_of_the_exact_value(values):
    x = np.array(values, np.float32)
    exact = np.array([math.log(value) for value in x.tolist()]).astype(np.float32)
    assert np.all(np.abs(logf(x).view(np.int32) - exact.view(np.int32)) <= 1)
