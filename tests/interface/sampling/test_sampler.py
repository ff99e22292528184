"""What holds for every request and row."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomery.interface.sampling import Sampler, SamplingParams, chain, random_seed
from bloomery.interface.sampling.candidates import Candidates

N_VOCAB = 60


def made_row(seed, step):
    """Normal logits, in steps if there is one, so with ties."""
    logits = np.random.default_rng(seed).normal(size=N_VOCAB) * 5
    return (np.round(logits / step) * step if step else logits).astype(np.float32)


rows = st.builds(made_row, st.integers(0, 2**32), st.sampled_from([0.0, 0.5, 4.0, 100.0]))
seeds = st.integers(0, 2**32 - 1)
unit = st.sampled_from([0.0, 0.05, 0.5, 0.95, 1.0])
settings = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.1, 0.8, 1.0, 7.0]),
    top_k=st.sampled_from([0, 1, 5, 40, 1000]),
    top_p=unit,
    min_p=unit,
    min_keep=st.sampled_from([0, 1, 8, 100]),
    repeat_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, -0.25]),
    repeat_last_n=st.sampled_from([0, 3, 64]),
)


def continue_with(sampler, some_rows):
    drawn = []
    for row in some_rows:
        drawn.append(sampler.sample(row))
        sampler.accept(drawn[-1])
    return drawn


@given(settings, seeds, st.lists(rows, min_size=1, max_size=6))
def test_the_same_seed_gives_the_same_ids(params, seed, some_rows):
    first = continue_with(Sampler(params, n_vocab=N_VOCAB, seed=seed), some_rows)
    second = continue_with(Sampler(params, n_vocab=N_VOCAB, seed=seed), some_rows)
    assert first == second
    assert all(0 <= token < N_VOCAB for token in first)


@given(settings, seeds, st.lists(rows, min_size=2, max_size=6), st.integers(0, 5))
def test_a_copy_continues_identically(params, seed, some_rows, at):
    whole = continue_with(Sampler(params, n_vocab=N_VOCAB, seed=seed), some_rows)
    sampler = Sampler(params, n_vocab=N_VOCAB, seed=seed)
    continue_with(sampler, some_rows[:at])
    twin = sampler.copy()
    assert continue_with(sampler, some_rows[at:]) == whole[at:]
    assert continue_with(twin, some_rows[at:]) == whole[at:]


@given(rows, seeds, st.sampled_from([0.0, 0.8, 5.0]))
def test_one_candidate_is_the_greedy_id_where_the_best_is_alone(row, seed, temperature):
    row[np.argmax(row)] += 1
    for params in (SamplingParams(top_k=1, temperature=temperature), SamplingParams(temperature=0, top_k=0)):
        assert Sampler(params, n_vocab=N_VOCAB, seed=seed).sample(row) == np.argmax(row)


@given(rows, settings, seeds)
def test_a_greedy_id_has_the_largest_logit(row, params, seed):
    greedy = SamplingParams(temperature=0, top_k=params.top_k, top_p=params.top_p, min_p=params.min_p)
    assert row[Sampler(greedy, n_vocab=N_VOCAB, seed=seed).sample(row)] == row.max()


@given(rows, settings, st.sets(st.integers(0, N_VOCAB - 1), max_size=N_VOCAB - 1), seeds)
def test_a_banned_id_is_never_drawn(row, params, banned, seed):
    biased = SamplingParams(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        min_keep=params.min_keep,
        logit_bias=dict.fromkeys(banned, -np.inf),
    )
    assert not banned & set(continue_with(Sampler(biased, n_vocab=N_VOCAB, seed=seed), [row] * 4))


@given(rows, seeds)
def test_ignore_eos_outweighs_a_bias(row, seed):
    params = SamplingParams(ignore_eos=True, logit_bias={7: 100.0}, temperature=0)
    assert Sampler(params, n_vocab=N_VOCAB, eog_ids=[7, 9], seed=seed).sample(row) not in (7, 9)


lowering = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.8, 7.0]),
    top_k=st.sampled_from([1, 5, 20, 40]),
    top_p=unit,
    min_p=unit,
    repeat_penalty=st.sampled_from([1.0, 1.3, 50.0]),
    presence_penalty=st.sampled_from([0.0, 0.5, 100.0]),
    frequency_penalty=st.sampled_from([0.0, 0.25]),
    repeat_last_n=st.sampled_from([0, 3, 64]),
    logit_bias=st.dictionaries(st.integers(0, N_VOCAB - 1), st.sampled_from([-np.inf, -20.0, -0.5, 0.0]), max_size=5),
    ignore_eos=st.booleans(),
)


def best_of(row, k):
    """The k best as an engine has them: the lower id first among equals."""
    ids = np.lexsort((np.arange(len(row)), -row))[:k].astype(np.int32)
    return ids, row[ids]


@given(st.lists(rows, min_size=1, max_size=4), settings | lowering, seeds, st.lists(st.integers(0, N_VOCAB - 1)))
def test_the_best_of_a_row_give_the_draw_of_the_row_or_none(some_rows, params, seed, prompt):
    sampler = Sampler(params, n_vocab=N_VOCAB, eog_ids=[7, 9], seed=seed)
    sampler.accept_all(prompt)
    for row in some_rows:
        k = sampler.best_k
        if k is None:
            return
        on_row = sampler.copy()
        drawn = sampler.sample_best(*best_of(row, k))
        expected = on_row.sample(row)
        if drawn is None:
            assert len(set(row.tolist())) < N_VOCAB or params.has_penalties or params.logit_bias
            drawn = sampler.sample(row)
        assert drawn == expected
        assert sampler.sample(row) == on_row.sample(row)
        sampler.accept(drawn)


@given(st.integers(0, 2**32), lowering, seeds, st.lists(st.integers(0, N_VOCAB - 1), max_size=10))
def test_the_64_best_give_the_draw_where_fewer_are_enough(row_seed, params, seed, prompt):
    row = np.random.default_rng(row_seed).normal(size=300).astype(np.float32)
    sampler = Sampler(params, n_vocab=300, eog_ids=[7, 9], seed=seed)
    sampler.accept_all(prompt)
    assert sampler.best_k <= 64
    drawn = sampler.copy().sample_best(*best_of(row, 64))
    assert drawn == sampler.copy().sample_best(*best_of(row, sampler.best_k))
    assert drawn in (None, sampler.sample(row))


def test_how_many_of_the_best_are_enough_grows_with_what_is_lowered():
    sampler = Sampler(SamplingParams(repeat_penalty=1.1, logit_bias={3: -1.0}), n_vocab=N_VOCAB)
    assert sampler.best_k == 41 + 1
    sampler.accept_all([3, 4, 4, 5])
    assert sampler.best_k == 41 + 3
    greedy = SamplingParams(temperature=0, ignore_eos=True)
    assert Sampler(greedy, n_vocab=N_VOCAB, eog_ids=[7, 9]).best_k == 2 + 2


@pytest.mark.parametrize(
    "raising",
    [{"repeat_penalty": 0.9}, {"presence_penalty": -0.1}, {"frequency_penalty": -0.1}, {"logit_bias": {1: 0.5}}],
)
def test_an_id_that_may_rise_takes_the_whole_row(raising):
    assert Sampler(SamplingParams(temperature=0, **raising), n_vocab=N_VOCAB).best_k is None


@given(rows, settings, st.floats(0, 1, exclude_max=True))
def test_what_is_drawn_by_sums_to_one(row, params, uniform):
    candidates = chain.narrow(Candidates.of_row(row), params)
    chosen, drawn_by = chain.draw(candidates, uniform)
    assert drawn_by.astype(np.float64).sum() == pytest.approx(1, abs=1e-5)
    assert drawn_by[chosen] > 0


@given(rows, settings, seeds, st.integers(0, N_VOCAB + 5))
def test_what_a_draw_reports_is_what_it_was_drawn_from(row, params, seed, k):
    drawn = Sampler(params, n_vocab=N_VOCAB, seed=seed).draw(row)
    every = drawn.best(N_VOCAB)
    assert drawn.best(k) == every[:k]
    assert (drawn.token, drawn.probability) in every
    values = [entry.probability for entry in every]
    assert values == sorted(values, reverse=True)
    assert values[-1] > 0
    assert sum(values) == pytest.approx(1, abs=1e-5)
    assert len({entry.id for entry in every}) == len(every)


def test_settings_count_as_the_float32_they_become():
    """llama-server keeps them as float32: a temperature below its range is 0, a top_p next to 1 is off."""
    row = np.array([0, 1, 2], np.float32)
    assert SamplingParams(temperature=1e-50).is_greedy
    assert Sampler(SamplingParams(temperature=1e-50), n_vocab=3).sample(row) == 2
    assert len(chain.top_p(Candidates.of_row(row), 1 - 1e-12)) == 3
    assert len(chain.min_p(Candidates.of_row(row), 1e-50)) == 3


def test_a_draw_of_zero_passes_over_what_is_ruled_out():
    row = np.array([-np.inf, -np.inf, 0, 1], np.float32)
    assert chain.draw(Candidates.of_row(row), 0.0)[0] == 2


def test_shares_of_many_draws_are_the_probabilities():
    row = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    sampler = Sampler(SamplingParams(temperature=1, top_k=0, top_p=1, min_p=0), n_vocab=3, seed=11)
    counts = np.bincount([sampler.sample(row) for _ in range(4000)], minlength=3)
    assert np.allclose(counts / 4000, [0.5, 0.3, 0.2], atol=0.03)


@pytest.mark.parametrize(
    ("row", "params"),
    [
        (np.full(N_VOCAB, -np.inf), {}),
        (np.full(N_VOCAB, np.nan), {}),
        (np.where(np.arange(N_VOCAB) == 5, np.nan, 0), {}),
        (np.where(np.arange(N_VOCAB) == 5, np.inf, 0), {"temperature": 0}),
        (np.full(N_VOCAB, 3e38), {"logit_bias": {1: 3e38}}),
        (np.arange(N_VOCAB), {"temperature": 1e-38}),
    ],
)
def test_a_row_that_leaves_no_choice_is_refused(row, params):
    sampler = Sampler(SamplingParams(**params), n_vocab=N_VOCAB, seed=1)
    with pytest.raises(ValueError, match=r"sampling|temperature"):
        sampler.sample(row.astype(np.float32))


def test_a_row_of_another_form_is_refused():
    sampler = Sampler(SamplingParams(), n_vocab=N_VOCAB)
    for row in (np.zeros(N_VOCAB - 1, np.float32), np.zeros(N_VOCAB), np.zeros((1, N_VOCAB), np.float32)):
        with pytest.raises(ValueError, match="float32"):
            sampler.sample(row)


def test_foreign_ids_are_refused():
    with pytest.raises(ValueError, match=r"^logit_bias: 60 is not a token id"):
        Sampler(SamplingParams(logit_bias={60: 1.0}), n_vocab=N_VOCAB)
    with pytest.raises(ValueError, match=r"^eog_ids: 99 is not a token id"):
        Sampler(SamplingParams(), n_vocab=N_VOCAB, eog_ids=[99])
    with pytest.raises(ValueError, match="60 is not a token id"):
        Sampler(SamplingParams(), n_vocab=N_VOCAB).accept(60)


@pytest.mark.parametrize("params", [{}, {"top_k": 0}, {"repeat_penalty": 0.5}, {"logit_bias": {1: 1.0}}])
def test_too_few_of_the_best_are_refused(params):
    sampler = Sampler(SamplingParams(**params), n_vocab=N_VOCAB)
    with pytest.raises(ValueError, match="do not decide"):
        sampler.sample_best(np.arange(40), -np.arange(40, dtype=np.float32))


def test_the_seed_is_the_argument_then_the_requests_then_chance(monkeypatch):
    assert Sampler(SamplingParams(seed=5), n_vocab=2, seed=2**32 + 6).seed == 6
    assert Sampler(SamplingParams(seed=5), n_vocab=2).seed == 5
    monkeypatch.setattr("bloomery.interface.sampling.sampler.random_seed", lambda: 99)
    assert Sampler(SamplingParams(seed=-1), n_vocab=2).seed == 99
    assert Sampler(SamplingParams(), n_vocab=2).seed == 99


def test_a_random_seed_is_never_the_one_that_asks_for_one():
    assert all(0 <= random_seed() < 4294967295 for _ in range(20))


def test_settings_of_one_sampler_do_not_reach_another():
    biased = SamplingParams(logit_bias={3: 50.0}, ignore_eos=True, temperature=0)
    row = np.zeros(N_VOCAB, np.float32)
    row[0] = 1
    assert Sampler(biased, n_vocab=N_VOCAB, eog_ids=[0]).sample(row) == 3
    assert Sampler(SamplingParams(temperature=0), n_vocab=N_VOCAB, eog_ids=[0]).sample(row) == 0
    assert biased.logit_bias == {3: 50.0}
    assert row[3] == 0
