"""The sorts: recorded ties are in test_recordings; here is what holds for every row."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bloomery.interface.sampling import order


def made_row(n, seed, step):
    """Normal logits, in steps if there is one (so with ties), with a tenth of them ruled out."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=n) * 5
    logits = np.round(logits / step) * step if step else logits
    logits[random.random(n) < 0.1] = -np.inf
    logits[random.integers(n)] = step
    return logits.astype(np.float32)


ROWS = st.builds(made_row, st.integers(1, 400), st.integers(0, 2**32), st.sampled_from([0.0, 0.01, 1.0, 20.0]))
DISTINCT = st.lists(st.floats(-12, 12, width=32), min_size=1, max_size=60, unique_by=lambda value: value + 0.0)


@given(ROWS, st.data())
def test_a_partial_sort_permutes_and_puts_the_best_in_front(row, data):
    k = data.draw(st.integers(1, len(row)))
    positions = order.partial_sort(row, k)
    assert sorted(positions.tolist()) == list(range(len(row)))
    assert np.array_equal(row[positions[:k]], np.sort(row)[::-1][:k])


@given(ROWS)
def test_a_sort_permutes_and_falls(row):
    positions = order.introsort(row)
    assert sorted(positions.tolist()) == list(range(len(row)))
    assert np.array_equal(row[positions], np.sort(row)[::-1])


@given(DISTINCT, st.data())
def test_without_ties_every_way_gives_the_one_order(values, data):
    row = np.array(values, np.float32)
    k = data.draw(st.integers(1, len(row)))
    expected = np.argsort(-row, kind="stable")[:k].tolist()
    assert order.best_first(row, k).tolist() == expected
    assert order.partial_sort(row, k)[:k].tolist() == expected
    assert order.bucket_sort(row, k, k).tolist() == expected
    assert order.introsort(row)[:k].tolist() == expected


@given(ROWS, st.data())
def test_what_is_wanted_of_the_buckets_is_the_front_of_the_whole(row, data):
    k = data.draw(st.integers(1, len(row)))
    wanted = data.draw(st.integers(1, k))
    assert np.array_equal(order.bucket_best_first(row, k, wanted), order.bucket_sort(row, k, k)[:wanted])


@given(ROWS)
def test_a_short_row_of_ties_stays_as_it_is(row):
    """libstdc++ sorts up to 16 entries by insertion alone, which is stable."""
    short = row[:16]
    assert np.array_equal(order.introsort(short), np.argsort(-short, kind="stable"))


def test_a_heap_orders_ties_as_libstdcxx_does():
    """Expected from a program that calls std::partial_sort (g++ 12.2)."""
    assert order.partial_sort(np.full(4, 7, np.float32), 4).tolist() == [1, 3, 0, 2]
    assert order.partial_sort(np.full(5, 7, np.float32), 5).tolist() == [3, 4, 1, 0, 2]
    assert order.partial_sort(np.array([2, 1, 2, 2, 1], np.float32), 2).tolist() == [2, 0, 1, 3, 4]
