"""Each op of the reference against a few independent float64 lines, and the law that a row's bits never depend on its
company."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.interface.spec import Rope
from bloomery.reference.ops import NumpyOps
from tests.reference.array_weight import ArrayWeight

Floats = npt.NDArray[np.float32]
OPS = NumpyOps()

seeds = st.integers(0, 2**32 - 1)
widths = st.integers(1, 70)
counts = st.integers(1, 17)


def normal(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def assert_rows_stand_alone(compute: Callable[[npt.NDArray[np.intp]], Floats], n_rows: int, seed: int) -> None:
    """`compute(rows)` gives those rows' results; every row must have the same bits alone, in any company and order."""
    together = compute(np.arange(n_rows))
    order = np.random.default_rng(seed).permutation(n_rows)
    np.testing.assert_array_equal(compute(order), together[order], strict=True)
    for row in range(n_rows):
        np.testing.assert_array_equal(compute(np.array([row]))[0], together[row], strict=True)


@given(seed=seeds, n=counts, n_in=widths, n_out=widths)
def test_linear_is_the_product_and_its_rows_stand_alone(seed: int, n: int, n_in: int, n_out: int) -> None:
    x, w, bias = normal(seed, n, n_in), normal(seed + 1, n_out, n_in), normal(seed + 2, n_out)
    got = OPS.linear(x, ArrayWeight(w), ArrayWeight(bias))
    exact = x.astype(np.float64) @ w.astype(np.float64).T + bias
    # n_in products of rounded error 2^-24 each, added: the textbook bound of a float32 dot product.
    room = (n_in + 2) * 2.0**-24 * (np.abs(x).astype(np.float64) @ np.abs(w).T + np.abs(bias))
    assert (np.abs(got - exact) <= room).all()
    assert_rows_stand_alone(lambda rows: OPS.linear(x[rows], ArrayWeight(w)), n, seed)


@pytest.mark.parametrize(("n_out", "n_in"), [(640, 256), (256, 640), (1000, 320), (33, 2048), (4096, 64)])
def test_rows_stand_alone_at_the_sizes_of_models(n_out: int, n_in: int) -> None:
    x, w = normal(1, 19, n_in), ArrayWeight(normal(2, n_out, n_in))
    assert_rows_stand_alone(lambda rows: OPS.linear(x[rows], w), 19, 3)


@given(seed=seeds, n=counts, width=widths, heads=st.integers(0, 3), eps=st.sampled_from([1e-6, 1e-5, 0.1]))
def test_rms_norm(seed: int, n: int, width: int, heads: int, eps: float) -> None:
    shape = (n, heads, width) if heads else (n, width)
    x, w = normal(seed, *shape), normal(seed + 1, width)
    got = OPS.rms_norm(x, ArrayWeight(w), eps=eps)
    for index in np.ndindex(shape[:-1]):
        row = [float(v) for v in x[index]]
        root = math.sqrt(math.fsum(v * v for v in row) / width + eps)
        expected = [v / root * float(g) for v, g in zip(row, w, strict=True)]
        np.testing.assert_allclose(got[index], expected, rtol=2.0**-23)
    assert_rows_stand_alone(lambda rows: OPS.rms_norm(x[rows], ArrayWeight(w), eps=eps), n, seed)


def test_rms_norm_of_zeros_and_nan_stays_in_its_row() -> None:
    x = np.array([[0, 0], [np.nan, 1], [3, 4]], np.float32)
    got = OPS.rms_norm(x, ArrayWeight(np.ones(2, np.float32)), eps=1e-6)
    assert (got[0] == 0).all() and np.isnan(got[1]).all() and np.isfinite(got[2]).all()


ropes = st.builds(
    Rope,
    n_dims=st.sampled_from([2, 4, 8, 16, 64]),
    base=st.sampled_from([1e4, 1e6, 5e5]),
    style=st.sampled_from(["neox", "norm"]),
    freq_scale=st.sampled_from([1.0, 0.25]),
    ext_factor=st.sampled_from([0.0, 1.0]),
    magnitude=st.sampled_from([1.0, 1.1386]),
    n_ctx_orig=st.sampled_from([64, 32768]),
)


@given(seed=seeds, rope=ropes, positions=st.lists(st.integers(0, 100_000), min_size=1, max_size=5))
def test_rope_turns_complex_numbers(seed: int, rope: Rope, positions: list[int]) -> None:
    head_dim = rope.n_dims + 3
    x = normal(seed, len(positions), 2, head_dim)
    got = OPS.rope(x, np.array(positions, np.int32), rope)

    def correction(beta: float) -> float:
        return rope.n_dims * math.log(rope.n_ctx_orig / (beta * 2 * math.pi)) / (2 * math.log(rope.base))

    low = max(0, math.floor(correction(rope.beta_fast)))
    high = min(rope.n_dims - 1, math.ceil(correction(rope.beta_slow)))
    for t, position in enumerate(positions):
        for j in range(rope.n_dims // 2):
            u, v = (j, j + rope.n_dims // 2) if rope.style == "neox" else (2 * j, 2 * j + 1)
            free = position / rope.base ** (2 * j / rope.n_dims)
            share = 1 - min(1.0, max(0.0, (j - low) / max(0.001, high - low))) if rope.ext_factor else 0.0
            angle = free * rope.freq_scale * (1 - share) + free * share
            for h in range(2):
                z = complex(x[t, h, u], x[t, h, v]) * rope.magnitude * cmath.exp(1j * angle)
                assert abs(complex(got[t, h, u], got[t, h, v]) - z) <= 1e-6 * max(1.0, abs(z))
    np.testing.assert_array_equal(got[..., rope.n_dims :], x[..., rope.n_dims :])


@given(
    seed=seeds,
    n=st.integers(1, 6),
    n_head_kv=st.integers(1, 3),
    group=st.integers(1, 3),
    head_dim=widths,
    window=st.one_of(st.none(), st.integers(1, 12)),
)
@settings(max_examples=60)
def test_attention(seed: int, n: int, n_head_kv: int, group: int, head_dim: int, window: int | None) -> None:
    rng = np.random.default_rng(seed)
    n_cells = 9
    k_cache, v_cache = normal(seed, 2, n_cells, n_head_kv, head_dim), normal(seed + 1, 2, n_cells, n_head_kv, head_dim)
    q = normal(seed + 2, n, n_head_kv * group, head_dim)
    slots = rng.integers(0, 2, n).astype(np.int32)
    cells = rng.integers(0, n_cells, n).astype(np.int32)
    scale = 1 / math.sqrt(head_dim)
    got = OPS.attention(q, k_cache, v_cache, slots, cells, scale=scale, window=window)
    for t in range(n):
        seen = [c for c in range(n_cells) if c <= cells[t] and (window is None or cells[t] - c < window)]
        for h in range(n_head_kv * group):
            kv = h // group
            scores = [
                scale * math.fsum(float(a) * float(b) for a, b in zip(q[t, h], k_cache[slots[t], c, kv], strict=True))
                for c in seen
            ]
            powers = [math.exp(s - max(scores)) for s in scores]
            expected = sum(
                p / math.fsum(powers) * v_cache[slots[t], c, kv].astype(np.float64)
                for c, p in zip(seen, powers, strict=True)
            )
            np.testing.assert_allclose(got[t, h], expected, rtol=1e-4, atol=1e-5)
    assert_rows_stand_alone(
        lambda rows: OPS.attention(q[rows], k_cache, v_cache, slots[rows], cells[rows], scale=scale, window=window),
        n,
        seed,
    )


@pytest.mark.parametrize("window", [1, 2, 5, 6, 1000])
def test_a_window_reads_no_cell_before_it_and_one_as_long_as_the_context_is_none(window: int) -> None:
    k_cache, v_cache, q = normal(1, 1, 6, 2, 8), normal(2, 1, 6, 2, 8), normal(3, 1, 4, 8)
    slots, cells = np.zeros(1, np.int32), np.array([5], np.int32)
    got = OPS.attention(q, k_cache, v_cache, slots, cells, scale=0.3, window=window)
    lost = max(0, 6 - window)
    k_cache[:, :lost] = v_cache[:, :lost] = np.nan
    np.testing.assert_array_equal(
        OPS.attention(q, k_cache, v_cache, slots, cells, scale=0.3, window=window), got, strict=True
    )
    if lost == 0:
        np.testing.assert_array_equal(OPS.attention(q, k_cache, v_cache, slots, cells, scale=0.3), got, strict=True)


def test_append_writes_each_row_to_its_place() -> None:
    cache, rows = np.zeros((2, 3, 1, 2), np.float32), normal(0, 2, 1, 2)
    OPS.append(cache, rows, np.array([1, 0], np.int32), np.array([2, 0], np.int32))
    np.testing.assert_array_equal(cache[1, 2], rows[0])
    np.testing.assert_array_equal(cache[0, 0], rows[1])
    assert np.count_nonzero(cache) == 4


@given(seed=seeds, n=counts, width=widths)
def test_swiglu(seed: int, n: int, width: int) -> None:
    gate, up = 30 * normal(seed, n, width), normal(seed + 1, n, width)
    got = OPS.swiglu(gate, up)
    expected = [
        [float(g) / (1 + math.exp(-float(g))) * float(u) for g, u in zip(gs, us, strict=True)]
        for gs, us in zip(gate, up, strict=True)
    ]
    np.testing.assert_allclose(got, expected, rtol=2.0**-23, atol=1e-30)
    assert_rows_stand_alone(lambda rows: OPS.swiglu(gate[rows], up[rows]), n, seed)


def test_swiglu_far_from_zero_overflows_nowhere() -> None:
    gate = np.array([[-1e30, -200, 200, 1e30]], np.float32)
    np.testing.assert_array_equal(OPS.swiglu(gate, np.ones((1, 4), np.float32)), [[0, 0, 200, np.float32(1e30)]])


@given(seed=seeds, n=counts, width=widths)
def test_geglu(seed: int, n: int, width: int) -> None:
    gate, up = 3 * normal(seed, n, width), normal(seed + 1, n, width)
    got = OPS.geglu(gate, up)
    for index in np.ndindex(gate.shape):
        x, u = float(gate[index]), float(up[index])
        # x / 2 (1 + tanh z) is x / (1 + exp(-2 z)), which loses no digits where tanh is near -1.
        expected = x / (1 + math.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) * u
        # The definition's own form does: half a unit of float64's 1, times the argument.
        assert abs(got[index] - expected) <= 2.0**-23 * abs(expected) + 2.0**-52 * abs(x * u)
    assert_rows_stand_alone(lambda rows: OPS.geglu(gate[rows], up[rows]), n, seed)


def test_geglu_far_from_zero_overflows_nowhere() -> None:
    gate = np.array([[-1e30, -200, -0.0, 200, 1e30]], np.float32)
    np.testing.assert_array_equal(OPS.geglu(gate, np.ones((1, 5), np.float32)), [[0, 0, 0, 200, np.float32(1e30)]])


@given(seed=seeds, n=counts, width=widths, factor=st.floats(2.0**-10, 2.0**10))
def test_scale_rounds_the_factor_then_the_product(seed: int, n: int, width: int, factor: float) -> None:
    x = normal(seed, n, width)
    # The product of two float32 numbers is exact in float64.
    expected = (x.astype(np.float64) * float(np.float32(factor))).astype(np.float32)
    np.testing.assert_array_equal(OPS.scale(x, factor), expected, strict=True)
    assert_rows_stand_alone(lambda rows: OPS.scale(x[rows], factor), n, seed)


@given(seed=seeds, n=counts, n_expert=st.integers(1, 20), data=st.data())
def test_route(seed: int, n: int, n_expert: int, data: st.DataObject) -> None:
    n_used = data.draw(st.integers(1, n_expert))
    # Few distinct values, so that ties happen.
    logits = np.random.default_rng(seed).integers(-3, 4, (n, n_expert)).astype(np.float32)
    experts, shares = OPS.route(logits, n_used=n_used)
    for t in range(n):
        ranked = sorted(range(n_expert), key=lambda e: (-logits[t, e], e))[:n_used]
        assert experts[t].tolist() == ranked
        powers = [math.exp(logits[t, e]) for e in ranked]
        np.testing.assert_allclose(shares[t], [p / math.fsum(powers) for p in powers], rtol=1e-6)
    assert experts.dtype == np.int32 and shares.dtype == np.float32


@given(seed=seeds, n=counts, n_expert=st.integers(1, 5), n_in=widths, n_out=widths, shared=st.booleans())
@settings(max_examples=50)
def test_expert_linear(seed: int, n: int, n_expert: int, n_in: int, n_out: int, shared: bool) -> None:
    rng = np.random.default_rng(seed)
    n_used = int(rng.integers(1, n_expert + 1))
    experts = np.array([rng.permutation(n_expert)[:n_used] for _ in range(n)], np.int32)
    w = normal(seed, n_expert, n_out, n_in)
    x = normal(seed + 1, n, n_in) if shared else normal(seed + 1, n, n_used, n_in)
    got = OPS.expert_linear(x, ArrayWeight(w), experts)
    for t, i in np.ndindex(n, n_used):
        row = (x[t] if shared else x[t, i]).astype(np.float64)
        np.testing.assert_allclose(got[t, i], w[experts[t, i]] @ row, rtol=1e-4, atol=1e-4)
    assert_rows_stand_alone(lambda rows: OPS.expert_linear(x[rows], ArrayWeight(w), experts[rows]), n, seed)


@given(seed=seeds, n=counts, n_used=st.integers(1, 4), width=widths)
def test_combine_experts_adds_in_order(seed: int, n: int, n_used: int, width: int) -> None:
    y, shares = normal(seed, n, n_used, width), normal(seed + 1, n, n_used)
    got = OPS.combine_experts(y, shares)
    expected = np.zeros((n, width), np.float32)
    for i in range(n_used):
        term = shares[:, i, None] * y[:, i]
        expected = term if i == 0 else expected + term
    np.testing.assert_array_equal(got, expected)


def test_embed_and_take_rows() -> None:
    table = normal(0, 5, 3)
    ids = np.array([4, 0, 4], np.int32)
    np.testing.assert_array_equal(OPS.embed(ArrayWeight(table), ids), table[[4, 0, 4]])
    np.testing.assert_array_equal(OPS.take_rows(table, ids), table[[4, 0, 4]])
