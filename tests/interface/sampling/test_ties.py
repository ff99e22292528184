"""Equal logits on both sides of every boundary. Expected values are those of llama.cpp's samplers, b11549."""

import numpy as np
import pytest

from bloomery.interface.sampling import Sampler, SamplingParams, chain
from bloomery.interface.sampling.candidates import Candidates

JUST_ABOVE = {p: float(np.nextafter(np.float32(p), np.float32(1))) for p in (0.25, 0.5)}


def candidates(*logits):
    return Candidates.of_row(np.array(logits, np.float32))


def row_with(best, n=100):
    row = np.zeros(n, np.float32)
    row[list(best)] = 5
    return row


def greedy(row, **settings):
    return Sampler(SamplingParams(temperature=0, **settings), n_vocab=len(row)).sample(row)


NO_SORT = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


@pytest.mark.parametrize(
    ("best", "chosen"),
    [((3, 7), 7), ((10, 90), 90), ((50, 60), 60), ((41, 42), 42), ((0, 1), 0), ((0, 99), 99), ((39, 40), 39)],
)
def test_a_greedy_tie_is_decided_by_the_heap_of_top_k(best, chosen):
    assert greedy(row_with(best)) == chosen
    assert greedy(row_with(best), top_k=1) == min(best)
    assert greedy(row_with(best), **NO_SORT) == min(best)


@pytest.mark.parametrize(("n", "chosen"), [(2, 0), (3, 0), (4, 1), (5, 3), (10, 8), (64, 38)])
def test_a_greedy_tie_of_a_whole_row(n, chosen):
    row = np.full(n, 7, np.float32)
    assert greedy(row) == chosen
    assert greedy(row, top_k=1) == greedy(row, **NO_SORT) == 0


def test_the_best_alone_is_greedy_whatever_ties_behind_it():
    row = row_with((3, 7))
    row[7] = np.nextafter(row[7], np.float32(9))
    for settings in ({}, {"top_k": 1}, {"top_k": 2}, NO_SORT):
        assert greedy(row, **settings) == 7


def test_a_tie_at_the_cut_of_top_k():
    kept = [chain.top_k(candidates(2, 1, 2, 2, 1), k).ids.tolist() for k in range(1, 6)]
    assert kept == [[0], [2, 0], [3, 0, 2], [0, 3, 2, 1], [0, 3, 2, 1, 4]]


def test_a_tie_at_the_cut_of_top_k_is_decided_by_buckets_past_128():
    row = Candidates.of_row(np.where(np.isin(np.arange(200), [5, 60, 150, 190]), 3, 0).astype(np.float32))
    assert chain.top_k(row, 2).ids.tolist() == [60, 5]
    assert chain.top_k(row, 129).ids[:6].tolist() == [5, 60, 150, 190, 80, 96]
    assert chain.top_k(row, 200).ids[:6].tolist() == [5, 60, 150, 190, 161, 194]


@pytest.mark.parametrize("sorted_before", [False, True])
@pytest.mark.parametrize(
    ("p", "kept"), [(0.25, [1]), (JUST_ABOVE[0.25], [1, 3]), (0.5, [1, 3]), (JUST_ABOVE[0.5], [1, 3, 0])]
)
def test_a_sum_that_just_reaches_top_p_is_enough(p, kept, sorted_before):
    four = candidates(1, 1, 1, 1)
    assert chain.top_p(chain.top_k(four, 4) if sorted_before else four, p).ids.tolist() == kept


def test_a_logit_at_the_floor_of_min_p_stays():
    floor = np.log(np.float32(0.5))
    for logit, in_order, as_sorted in ((floor, [0, 1], [1, 0]), (np.nextafter(floor, np.float32(-9)), [1], [1])):
        assert chain.min_p(candidates(logit, 0), 0.5).ids.tolist() == in_order
        assert chain.min_p(chain.top_k(candidates(logit, 0), 2), 0.5).ids.tolist() == as_sorted
    assert chain.min_p(candidates(3, 1, 3, 3, 0), 1.0).ids.tolist() == [0, 2, 3]
    assert chain.min_p(chain.top_k(candidates(3, 1, 3, 3, 0), 5), 1.0).ids.tolist() == [0, 3, 2]


@pytest.mark.parametrize("params", [SamplingParams(temperature=0), SamplingParams(top_k=2)])
def test_the_best_of_a_row_leave_a_tie_to_the_row(params):
    """An engine lists the lower id first among equals, which says nothing of where the sorts leave it."""
    row, last = row_with((3, 7)), row_with((3,))
    last[7] = 4
    assert Sampler(params, n_vocab=100).sample_best(np.array([3, 7, 0, 1]), row[[3, 7, 0, 1]]) is None
    # A tie of what is not drawn from hides nothing.
    cut = last + np.where(np.arange(100) == 9, 1, 0).astype(np.float32)
    assert Sampler(params, n_vocab=100).sample_best(np.array([3, 7, 9, 0, 1]), cut[[3, 7, 9, 0, 1]]) in (3, 7)
