"""The report of the model's own row."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomery.interface.sampling import TokenLogprob, probabilities


def made_row(n, seed, step):
    """Normal logits, in steps if there is one (so with ties), with a tenth of them ruled out."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=n) * 5
    logits = np.round(logits / step) * step if step else logits
    logits[random.random(n) < 0.1] = -np.inf
    logits[random.integers(n)] = step
    return logits.astype(np.float32)


ROWS = st.builds(made_row, st.integers(1, 200), st.integers(0, 2**32), st.sampled_from([0.0, 1.0, 10.0]))


@given(ROWS, st.integers(-2, 300))
def test_it_lists_the_best_first_and_is_the_softmax(row, k):
    report = probabilities(row, k)
    assert len(report) == min(max(k, 0), len(row))
    exact = np.exp(row.astype(np.float64) - row.max())
    exact /= exact.sum()
    ours = np.exp([report.logprob(token) for token in range(len(row))])
    assert np.allclose(ours, exact, rtol=1e-5, atol=1e-37)
    values = [entry.logprob for entry in report]
    assert values == sorted(values, reverse=True)
    assert len({entry.id for entry in report}) == len(report)
    assert [report.logprob(entry.id) for entry in report] == values


@given(ROWS)
def test_the_whole_vocabulary_sums_to_one(row):
    report = probabilities(row, len(row))
    assert sum(np.exp(entry.logprob) for entry in report) == pytest.approx(1, abs=1e-4)


def test_an_impossible_id_has_the_lowest_float_for_a_logarithm():
    """JSON has no infinity; llama-server sends the most negative float32."""
    report = probabilities(np.array([1, -np.inf, 0], np.float32), 1)
    assert report.logprob(1) == float(np.finfo(np.float32).min)


def test_it_is_a_sequence_of_pairs():
    report = probabilities(np.array([0, 2, 1], np.float32), 2)
    assert [token for token, _ in report] == [1, 2]
    assert isinstance(report[0], TokenLogprob)
    assert [entry.id for entry in report[:1]] == [1]


@pytest.mark.parametrize("row", [[np.nan, 0], [np.inf, 0], [-np.inf, -np.inf], []])
def test_a_row_without_a_best_is_refused(row):
    with pytest.raises(ValueError, match="n_probs"):
        probabilities(np.array(row, np.float32), 1)
