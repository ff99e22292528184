"""The twister against the C++ standard and against a second derivation of libstdc++'s uniform double."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomery.interface.sampling.rng import MersenneTwister

seeds = st.integers(0, 2**32 - 1)


def test_the_ten_thousandth_word_is_the_one_the_standard_names():
    """[rand.predef]: the 10000th word of a default-seeded mt19937 (seed 5489) is 4123659995."""
    twister = MersenneTwister(5489)
    for _ in range(4999):
        twister.uniform()
    assert int(twister.uniform() * 2**32) == 4123659995


def first_words(seed, count):
    """mt19937 written out: the seeding of Matsumoto and Nishimura's 2002 reference, one twist, the tempering."""
    key = [seed]
    for place in range(1, 624):
        key.append((1812433253 * (key[-1] ^ (key[-1] >> 30)) + place) & 0xFFFFFFFF)
    words = []
    for place in range(count):
        mixed = (key[place] & 0x80000000) | (key[place + 1] & 0x7FFFFFFF)
        word = key[place + 397] ^ (mixed >> 1) ^ (0x9908B0DF if mixed & 1 else 0)
        word ^= word >> 11
        word ^= (word << 7) & 0x9D2C5680
        word ^= (word << 15) & 0xEFC60000
        words.append(word ^ (word >> 18))
    return words


@given(seeds)
def test_two_words_make_one_double_low_word_first(seed):
    low, high, low2, high2 = first_words(seed, 4)
    twister = MersenneTwister(seed)
    for expected in (Fraction(low + (high << 32), 2**64), Fraction(low2 + (high2 << 32), 2**64)):
        assert twister.uniform() == float(expected)


def test_a_number_is_below_one_even_if_both_words_are_full(monkeypatch):
    twister = MersenneTwister(0)
    twister._words = type("Full", (), {"bytes": lambda self, n: b"\xff" * n})()
    assert twister.uniform() == math.nextafter(1.0, 0.0)


@given(seeds, st.integers(0, 20), st.integers(0, 20))
def test_a_copy_goes_on_alike_and_apart(seed, before, after):
    twister, whole = MersenneTwister(seed), MersenneTwister(seed)
    expected = [whole.uniform() for _ in range(before + after)]
    for _ in range(before):
        twister.uniform()
    twin = twister.copy()
    assert [twin.uniform() for _ in range(after)] == expected[before:]
    assert [twister.uniform() for _ in range(after)] == expected[before:]


@pytest.mark.parametrize("seed", [0, 1, 42, 2**32 - 1])
def test_the_numbers_are_even(seed):
    twister = MersenneTwister(seed)
    counts = np.histogram([twister.uniform() for _ in range(4000)], bins=10, range=(0, 1))[0]
    assert np.sum((counts - 400) ** 2 / 400) < 40
