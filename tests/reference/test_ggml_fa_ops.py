"""Attention as llama.cpp's flash attention rounds it: against a loop by hand, and alone as in company."""

from __future__ import annotations

import math
import struct

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.conformance.fixtures import fixture
from bloomery.reference.attention import Mix, mix
from bloomery.reference.ggml_fa_ops import GgmlFaOps, GgmlFaRowsOps, in_half_precision, mix_cell_by_cell
from bloomery.reference.ggml_ops import GgmlOps
from tests.reference.array_weight import ArrayWeight
from tests.reference.test_ops import assert_rows_stand_alone, normal

Floats = npt.NDArray[np.float32]

N_HEAD, N_HEAD_KV, HEAD_DIM = 4, 2, 64


def half(x: float) -> float:
    """The nearest half-precision number, by the struct module's own rounding."""
    return float(struct.unpack("<e", struct.pack("<e", x))[0])


def single(x: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", x))[0])


def head_by_hand(
    q: list[float], k: list[list[float]], v: list[list[float]], scale: float, sink: float | None
) -> Floats:
    """One head's attention, number by number, as llama.cpp's loop over cells rounds."""
    top, total, sums = -math.inf, 0.0, [0.0] * len(v[0])
    for key, values in zip(k, v, strict=True):
        score = single(single(math.fsum(half(a) * b for a, b in zip(q, key, strict=True))) * scale)
        higher = max(top, score)
        old, share = single(math.exp(top - higher)), single(math.exp(single(score - higher)))
        sums = [half(single(share * b + half(single(a * old)))) for a, b in zip(sums, values, strict=True)]
        top, total = higher, single(single(total * old) + share)
    if sink is not None:
        higher = max(top, sink)
        old, share = single(math.exp(single(top - higher))), single(math.exp(single(sink - higher)))
        sums, total = [single(a * old) for a in sums], single(single(total * old) + share)
    inverse = single(1 / total)
    return np.array([single(a * inverse) for a in sums], np.float32)


@pytest.mark.parametrize("with_sinks", [False, True])
def test_attention_of_rows_is_the_loop_over_cells(with_sinks: bool) -> None:
    n, n_cells, v_dim = 3, 20, 16
    q = 2 * normal(1, n, N_HEAD, HEAD_DIM)
    k, v = (
        in_half_precision(normal(2, 1, n_cells, N_HEAD_KV, HEAD_DIM)),
        in_half_precision(normal(3, 1, n_cells, N_HEAD_KV, v_dim)),
    )
    sinks = normal(4, N_HEAD) if with_sinks else None
    slots, cells = np.zeros(n, np.int32), np.array([0, 11, 19], np.int32)
    weight = None if sinks is None else ArrayWeight(sinks)
    got = GgmlFaRowsOps().attention(q, k, v, slots, cells, scale=0.125, window=12, sinks=weight)  # type: ignore[arg-type]
    for t, head in np.ndindex(n, N_HEAD):
        seen = slice(max(0, cells[t] - 11), cells[t] + 1)
        keys, values = k[0, seen, head // 2].tolist(), v[0, seen, head // 2].tolist()
        sink = None if sinks is None else float(sinks[head])
        expected = head_by_hand(q[t, head].tolist(), keys, values, 0.125, sink)
        np.testing.assert_array_equal(got[t, head], expected)


def test_it_is_attention_but_for_half_precision() -> None:
    """A thousand cells of shares near one another: each rounds the sums by at most 2**-11 of them."""
    q, k, v = normal(5, N_HEAD_KV, 2, 8), normal(6, 1000, N_HEAD_KV, 8) / 8, normal(7, 1000, N_HEAD_KV, 8)
    got, expected = mix_cell_by_cell(q, k, v, 1.0, None), mix(q, k, v, 1.0, None)
    assert 1e-4 < np.abs(got - expected).max() < 1000 * 2.0**-11 * np.abs(v).mean()


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 5))
@settings(max_examples=20)
def test_rows_stand_alone(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    q, k, v = normal(seed, n, 4, 8), normal(seed + 1, 2, 12, 2, 8), normal(seed + 2, 2, 12, 2, 8)
    slots, cells = rng.integers(0, 2, n).astype(np.int32), rng.integers(0, 12, n).astype(np.int32)
    attention = GgmlFaRowsOps().attention
    assert_rows_stand_alone(lambda rows: attention(q[rows], k, v, slots[rows], cells[rows], scale=0.3), n, seed)


def test_a_row_that_may_read_nothing_is_zeros() -> None:
    q, nothing = normal(8, 2, 2, 8), np.zeros((0, 2, 8), np.float32)
    np.testing.assert_array_equal(mix_cell_by_cell(q, nothing, nothing, 1.0, None), np.zeros((2, 2, 8)))
    sink = np.zeros((2, 2, 1))
    np.testing.assert_array_equal(mix_cell_by_cell(q, nothing, nothing, 1.0, sink), np.zeros((2, 2, 8)))


def test_nan_stays_in_its_head() -> None:
    q, k, v = normal(9, 2, 2, 8), normal(10, 5, 2, 8), normal(11, 5, 2, 8)
    q[0, 1, 3] = np.nan
    got = mix_cell_by_cell(q, k, v, 1.0, None)
    assert np.isnan(got[0, 1]).all() and np.isfinite(got[0, 0]).all() and np.isfinite(got[1]).all()


@pytest.mark.parametrize("ops", [GgmlFaOps(), GgmlFaRowsOps()])
def test_the_cache_holds_half_precision(ops: GgmlFaOps) -> None:
    cache, rows = np.zeros((2, 4, 1, 3), np.float32), np.array([[[1 + 2.0**-11, 70000, -1e-9]]], np.float32)
    ops.append(cache, rows, np.array([1]), np.array([2]))
    # A tie goes to the even one, what is too large to infinity, what is too small to zero.
    np.testing.assert_array_equal(cache[1, 2, 0], [1, np.inf, 0])
    assert not cache[0].any() and not cache[1, [0, 1, 3]].any()


def test_a_large_pass_has_the_attention_of_ggml() -> None:
    assert GgmlFaOps.attention is GgmlOps.attention


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("n_ids", "mix_row", "near", "apart"), [(40, mix_cell_by_cell, 0.97, 2.0**-8), (100, mix, 0.97, 1e-5)]
)
def test_attention_is_llama_cpps_on_its_own_queries(n_ids: int, mix_row: Mix, near: float, apart: float) -> None:
    """A pass of 40 and one of 100, from llama.cpp's own queries, keys and values to what it made of them.

    Both are float32's noise apart; in the loop over cells it now and then turns a rounding to half precision into
    another, which is one step or two of values below 4. The other code has no such steps.
    """
    from tools.bench.oracle_taps import TappedOracle

    oracle = TappedOracle(fixture("qwen3-a-f32"), n_ctx=256, n_vocab=365, configuration="default")
    _, taps = oracle.run([(7 * at + 3) % 352 for at in range(n_ids)])
    oracle.close()
    q, expected = taps["Qcur-0"][-1][0], taps["kqv_out-0"][-1].reshape(n_ids, N_HEAD, HEAD_DIM)
    k = in_half_precision(taps["Kcur-0"][-1][0])
    v = in_half_precision(taps["Vcur-0"][0].reshape(n_ids, N_HEAD_KV, HEAD_DIM))
    got = np.empty_like(expected)
    for t in range(n_ids):
        grouped = q[t].reshape(N_HEAD_KV, 2, HEAD_DIM)
        got[t] = mix_row(grouped, k[: t + 1], v[: t + 1], HEAD_DIM**-0.5, None).reshape(N_HEAD, HEAD_DIM)
    assert (np.abs(got - expected) <= 1e-6).mean() >= near
    assert np.abs(got - expected).max() <= apart
