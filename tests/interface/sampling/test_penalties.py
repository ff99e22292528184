"""The penalty window against llama.cpp's formula, worked out id by id."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bloomery.interface.sampling import SamplingParams
from bloomery.interface.sampling.penalties import PenaltyWindow

N_VOCAB = 12
tokens = st.lists(st.integers(0, N_VOCAB - 1), max_size=30)
settings = st.builds(
    SamplingParams,
    repeat_penalty=st.floats(0.5, 2, width=32),
    presence_penalty=st.floats(-2, 2, width=32),
    frequency_penalty=st.floats(-2, 2, width=32),
    repeat_last_n=st.integers(0, 12),
)
rows = st.lists(st.floats(-20, 20, width=32), min_size=N_VOCAB, max_size=N_VOCAB)


def penalised(row, seen, params):
    """One id at a time, in float32, from the list of what was seen."""
    last = seen[-params.repeat_last_n :] if params.repeat_last_n else []
    repeat, presence = np.float32(params.repeat_penalty), np.float32(params.presence_penalty)
    frequency = np.float32(params.frequency_penalty)
    expected = []
    for token, value in enumerate(row):
        logit = value
        count = np.float32(last.count(token))
        if count:
            logit = value / repeat if value > 0 else value * repeat
            logit -= count * frequency + presence
        expected.append(logit)
    return np.array(expected, np.float32)


@given(settings, tokens, rows)
def test_a_row_is_penalised_by_what_is_in_the_window(params, seen, values):
    row = np.array(values, np.float32)
    window = PenaltyWindow(params)
    window.accept_all(seen)
    untouched = row.copy()
    assert np.array_equal(window.apply(row), penalised(row, seen, params) if params.has_penalties else row)
    assert np.array_equal(row, untouched)


@given(settings, tokens, tokens, tokens)
def test_a_copy_goes_on_apart(params, before, here, there):
    window = PenaltyWindow(params)
    window.accept_all(before)
    twin = window.copy()
    window.accept_all(here)
    twin.accept_all(there)
    for changed, after in ((window, here), (twin, there)):
        fresh = PenaltyWindow(params)
        fresh.accept_all(before + after)
        row = np.linspace(-3, 3, N_VOCAB, dtype=np.float32)
        assert np.array_equal(changed.apply(row), fresh.apply(row))
