"""A key's limits: its bucket of requests, and its places for those that are being answered."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomery.server.errors import ApiError
from bloomery.server.key_fields import KeyFields, Rate
from bloomery.server.key_limits import KeyLimits, Place

SECOND = 1_000_000_000


class Clock:
    """A clock that stands still until it is told."""

    def __init__(self) -> None:
        self.now = 12_345

    def __call__(self) -> int:
        return self.now


def limited(limits: KeyLimits) -> int:
    """Seconds after which a refused request may come again."""
    with pytest.raises(ApiError) as caught:
        limits.enter()
    assert (caught.value.code, caught.value.type) == (429, "rate_limit_error")
    assert caught.value.retry_after is not None
    return caught.value.retry_after


@pytest.mark.parametrize(
    ("rate", "seconds"),
    [
        (Rate(n=1, seconds=1, burst=3), 1),
        (Rate(n=7, seconds=60, burst=2), 9),
        (Rate(n=30, seconds=60, burst=5), 2),
        (Rate(n=1, seconds=60, burst=1), 60),
        (Rate(n=1000, seconds=1, burst=4), 1),
    ],
)
def test_a_bucket_empties_and_says_when_it_has_one_more(rate: Rate, seconds: int) -> None:
    clock = Clock()
    limits = KeyLimits(KeyFields(rate=rate), clock)
    for _ in range(rate.burst):
        limits.enter()
    assert limited(limits) == seconds
    # Being refused costs nothing: after exactly that long there is one.
    clock.now += seconds * SECOND
    limits.enter()


@given(
    n=st.integers(1, 50),
    seconds=st.sampled_from([1, 60]),
    burst=st.integers(1, 20),
    waits=st.lists(st.integers(0, 5 * SECOND), max_size=60),
)
def test_never_more_than_the_burst_and_what_flowed_in(n: int, seconds: int, burst: int, waits: list[int]) -> None:
    clock = Clock()
    limits = KeyLimits(KeyFields(rate=Rate(n=n, seconds=seconds, burst=burst)), clock)
    level = Fraction(burst)
    for wait in waits:
        clock.now += wait
        level = min(Fraction(burst), level + Fraction(wait * n, seconds * SECOND))
        if level >= 1:
            limits.enter()
            level -= 1
        else:
            retry = limited(limits)
            assert level + Fraction(retry * n, seconds) >= 1 > level + Fraction((retry - 1) * n, seconds)


def test_places_are_given_back_and_taken_again() -> None:
    limits = KeyLimits(KeyFields(inflight=2), Clock())
    first, _second = limits.enter(), limits.enter()
    assert limited(limits) >= 1
    first.release()
    limits.enter()
    assert limited(limits) >= 1


def test_a_request_without_a_place_counts_for_no_rate() -> None:
    limits = KeyLimits(KeyFields(inflight=1, rate=Rate(n=1, seconds=60, burst=2)), Clock())
    first = limits.enter()
    for _ in range(5):
        assert limited(limits) == 1
    first.release()
    limits.enter().release()
    assert limited(limits) == 60


def test_a_place_is_free_when_its_last_holder_lets_go() -> None:
    freed: list[bool] = []
    place = Place(lambda: freed.append(True))
    place.hold()
    place.hold()
    for _ in range(2):
        place.release()
        assert not freed
    place.release()
    assert freed == [True]
