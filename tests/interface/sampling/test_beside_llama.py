"""Any row, any settings, beside llama.cpp's own samplers: the same ids, drawn by the same probabilities."""

from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as runs
from hypothesis import strategies as st

from bloomery.interface.sampling import Sampler, SamplingParams

pytestmark = pytest.mark.oracle

EOG_ID = 2


def made_row(n, seed, step):
    """Normal logits, in steps if there is one (so with ties), with a tenth of them ruled out."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=n) * 4
    logits = np.round(logits / step) * step if step else logits
    logits[random.random(n) < 0.1] = -np.inf
    logits[random.integers(n, size=3)] = 1
    return logits.astype(np.float32)


def rows(n):
    return st.lists(
        st.builds(made_row, st.just(n), st.integers(0, 2**32), st.sampled_from([0.0, 1 / 64, 0.5, 3.0])), max_size=5
    )


unit = st.sampled_from([0.0, 0.05, 0.5, 0.95, 1.0]) | st.floats(0, 1)
penalty = st.just(0.0) | st.floats(-3, 3)
settings = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32 - 2),
        "temperature": st.sampled_from([0.0, -1.0, 0.8, 1e30]) | st.floats(0.01, 50),
        "top_k": st.sampled_from([-1, 0, 1, 40, 128, 129, 10000]) | st.integers(1, 300),
        "top_p": unit,
        "min_p": unit,
        "min_keep": st.sampled_from([0, 0, 1]) | st.integers(0, 300),
        "repeat_penalty": st.just(1.0) | st.floats(0.3, 3),
        "repeat_last_n": st.sampled_from([0, 1, 64]) | st.integers(0, 64),
        "presence_penalty": penalty,
        "frequency_penalty": penalty,
        "ignore_eos": st.booleans(),
        "logit_bias": st.just({}) | st.dictionaries(st.integers(0, 19), st.floats(-100, 100) | st.none(), max_size=5),
    }
)
sizes = st.sampled_from([20, 64, 128, 129, 1024, 1025, 1500])


@pytest.fixture(scope="module")
def real() -> ModuleType:
    pytest.importorskip("xllamacpp", reason="pip install 'bloomery[oracle]'")
    from tools import record_sampling

    return record_sampling


@runs(max_examples=1000)
@given(data=st.data(), asked=settings, n=sizes, prompt=st.lists(st.integers(0, 19), max_size=80))
def test_rows_of_logits(real, data, asked, n, prompt):
    bias = {token: -np.inf if value is None else value for token, value in asked["logit_bias"].items()}
    sampler = Sampler(SamplingParams(**asked | {"logit_bias": bias}), n_vocab=n, eog_ids=[EOG_ID])
    sampler.accept_all(prompt)
    chain = real.request_chain(asked | {"logit_bias": list(bias.items())}, n, asked["seed"])
    for token in prompt:
        chain.accept(token)
    for row in data.draw(rows(n)):
        left, header = chain.apply(row)
        if not np.isfinite(left["logit"].max()):
            # Nothing that can be drawn is left, and the real sampler's answer means nothing.
            with pytest.raises(ValueError, match="no id is left"):
                sampler.draw(row)
            return
        drawn = sampler.draw(row)
        assert drawn.token == left["id"][header.selected]
        assert drawn.probability == left["p"][header.selected]
        possible = left[left["p"] > 0]
        assert dict(drawn.best(n)) == dict(zip(possible["id"].tolist(), possible["p"].tolist(), strict=True))
        chain.accept(drawn.token)
        sampler.accept(drawn.token)
