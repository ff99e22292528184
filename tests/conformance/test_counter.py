"""The generator: against SplitMix64 written out in plain integers, and its published outputs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomery.conformance.fixtures import counter

_MASK = (1 << 64) - 1
names = st.text(max_size=8)
seeds = st.integers(0, 1 << 40)


def splitmix64(seed: int, count: int) -> list[int]:
    """The generator as its authors give it, one word after another."""
    state, out = seed, []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        out.append(z ^ (z >> 31))
    return out


def test_the_words_are_the_published_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counter, "stream_key", lambda *_: 1234567)
    assert counter.words(0, "", 3).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(seed=seeds, name=names, count=st.integers(0, 40))
def test_words_equal_the_plain_loop(seed: int, name: str, count: int) -> None:
    assert counter.words(seed, name, count).tolist() == splitmix64(counter.stream_key(seed, name), count)


@given(seed=seeds, name=names, count=st.integers(0, 40), more=st.integers(0, 40))
def test_a_longer_stream_begins_with_the_shorter_one(seed: int, name: str, count: int, more: int) -> None:
    assert (counter.words(seed, name, count + more)[:count] == counter.words(seed, name, count)).all()


@given(seed=seeds, name=names, bound=st.integers(1, 1 << 32))
def test_integers_stay_below_their_bound(seed: int, name: str, bound: int) -> None:
    drawn = counter.integers(seed, name, 50, bound)
    assert drawn.min() >= 0
    assert drawn.max() < bound


@pytest.mark.parametrize("bound", [0, -1, (1 << 32) + 1])
def test_a_bound_out_of_range_is_refused(bound: int) -> None:
    with pytest.raises(ValueError, match="bound"):
        counter.integers(1, "x", 1, bound)


def test_every_integer_comes_about_equally_often() -> None:
    counts = np.bincount(counter.integers(1, "even", 60000, 6), minlength=6)
    assert (abs(counts - 10000) < 400).all()


def test_bell_values_have_the_asked_mean_and_deviation() -> None:
    values = counter.bell(1, "bell", (200, 1000), 0.25).astype(np.float64)
    assert abs(values.mean()) < 0.002
    assert abs(values.std() - 0.25) < 0.001
    assert abs(values).max() < 0.25 * 3.47


def test_streams_of_different_names_have_nothing_in_common() -> None:
    first, second = (counter.bell(1, name, (100000,), 1.0) for name in ("a", "b"))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.02
