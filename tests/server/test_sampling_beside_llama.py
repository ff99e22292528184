"""Requests for drawn ids, as this server reads them, beside a real llama-server: the same ids and probabilities.

The model is a table of successors, so both sample from the same logits, and many of those are equal.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import settings as runs
from hypothesis import strategies as st

from bloomery.conformance.oracle import Oracle
from bloomery.interface.sampling import Sampler, probabilities
from bloomery.server.field_types import SAMPLER_LETTERS, Limits
from bloomery.server.fields import Options, Route, read

pytestmark = pytest.mark.oracle

N_VOCAB = 256
EOG_ID = 2
LIMITS = Limits(n_vocab=N_VOCAB, n_parallel=1, max_choices=1)
ORDER = list(SAMPLER_LETTERS)


def _table() -> npt.NDArray[np.float32]:
    """Logits after each id, exact through the model's product by 16; every fourth row is coarse."""
    table = np.round(np.random.default_rng(5).normal(size=(N_VOCAB, N_VOCAB)) * 48) / 16
    table[::4] = np.round(table[::4])
    return table.astype(np.float32)


TABLE = _table()

unit = st.sampled_from([0, 0.5, 0.95, 1.0]) | st.floats(-0.5, 1.5)
penalty = st.just(0) | st.floats(-3, 3)
# A field left out counts as much as one that is there.
bodies = st.fixed_dictionaries(
    {
        "seed": st.integers(-(2**31), 2**33).filter(lambda seed: seed % 2**32 != 2**32 - 1),
        "n_predict": st.integers(1, 40),
        "prompt": st.lists(st.integers(3, N_VOCAB - 1), min_size=1, max_size=80),
    },
    optional={
        "temperature": st.sampled_from([0, -1, 0.3, 1e30]) | st.floats(0.05, 20),
        "top_k": st.sampled_from([-1, 0, 1, 128, 129, 100000]) | st.integers(1, 255),
        "top_p": unit,
        "min_p": unit,
        "min_keep": st.integers(0, 200),
        "repeat_penalty": st.floats(0.3, 3),
        "repeat_last_n": st.integers(0, 100),
        "presence_penalty": penalty,
        "frequency_penalty": penalty,
        "ignore_eos": st.booleans(),
        "logit_bias": st.dictionaries(
            st.integers(0, N_VOCAB - 1).map(str), st.integers(-100, 100) | st.floats(-5, 5), max_size=6
        ),
        "samplers": st.sets(st.sampled_from(ORDER)).map(lambda names: sorted(names, key=ORDER.index)),
        "n_probs": st.sampled_from([1, 5, 300]),
        "post_sampling_probs": st.booleans(),
    },
)


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    pytest.importorskip("xllamacpp", reason="pip install 'bloomery[oracle]'")
    from tools.record_sampling import table_server

    with table_server(TABLE) as server:
        yield server


def generated(options: Options, prompt: list[int]) -> Iterator[tuple[int, list[Any]]]:
    """Each id with its report: its own value, and the best ids with theirs."""
    sampler = Sampler(options.sampling, n_vocab=N_VOCAB, eog_ids=[EOG_ID])
    sampler.accept_all(prompt)
    last = prompt[-1]
    for _ in range(options.n_predict):
        drawn = sampler.draw(TABLE[last])
        last = drawn.token
        sampler.accept(last)
        if options.post_sampling_probs:
            yield last, [drawn.probability, *map(tuple, drawn.best(options.n_probs))]
        else:
            model = probabilities(TABLE[prompt[-1]], options.n_probs)
            yield last, [model.logprob(last), *map(tuple, model)]
        if last == EOG_ID:
            return
        prompt = [*prompt, last]


@runs(max_examples=300)
@given(body=bodies)
def test_ids_and_probabilities(oracle: Oracle, body: dict[str, Any]) -> None:
    options = read(json.loads(json.dumps(body)), Route.COMPLETION, LIMITS)
    answer = oracle.post("/completion", body | {"cache_prompt": False, "return_tokens": True})
    ours = list(generated(options, body["prompt"]))
    assert [token for token, _ in ours] == answer["tokens"]
    value = "prob" if options.post_sampling_probs else "logprob"
    reported = [
        [entry[value], *((top["id"], top[value]) for top in entry[f"top_{value}s"])]
        for entry in answer.get("completion_probabilities", [])
    ]
    assert reported == ([report for _, report in ours] if options.n_probs else [])
