"""Products of rows and matrices, and the threads that share them: no bit depends on company, blocks or threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
import threadpoolctl
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.reference.matmul import PIECE_WEIGHTS, rows_times_matrix
from bloomery.reference.threads import SMALL_MODEL, share_out, use_threads

Floats = npt.NDArray[np.float32]


@pytest.fixture(autouse=True)
def one_thread_again() -> Iterator[None]:
    yield
    use_threads(1, 0)


def normal(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def test_a_product_of_no_rows_reads_no_weight() -> None:
    def never() -> Iterator[tuple[int, Floats]]:
        raise AssertionError("a block was asked for")
        yield

    assert rows_times_matrix(np.empty((0, 4), np.float32), never(), 7).shape == (0, 7)


@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 9),
    n_in=st.one_of(st.integers(1, 70), st.integers(8000, 9000)),
    n_out=st.integers(1, 70),
    wide=st.booleans(),
    cut=st.integers(1, 70),
)
@settings(max_examples=60)
def test_the_product_is_within_the_textbook_bound(
    seed: int, n: int, n_in: int, n_out: int, wide: bool, cut: int
) -> None:
    x, w = normal(seed, n, n_in).astype(np.float64 if wide else np.float32), normal(seed + 1, n_out, n_in)
    got = rows_times_matrix(x, [(at, w[at : at + cut]) for at in range(0, n_out, cut)], n_out)
    exact = x.astype(np.float64) @ w.astype(np.float64).T
    # n_in products of rounded error 2^-24 each, added; in float64 only the last rounding shows.
    room = (1.01 if wide else n_in + 2) * 2.0**-24 * (np.abs(x).astype(np.float64) @ np.abs(w).T)
    assert got.dtype == np.float32 and (np.abs(got - exact) <= room).all()


@pytest.mark.parametrize(("n_out", "n_in"), [(640, 640), (1000, 257), (33, 2048), (3, PIECE_WEIGHTS // 8), (1, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_row_is_the_same_alone_and_wherever_it_lies(n_out: int, n_in: int, dtype: type[np.floating]) -> None:
    x, w = normal(1, 19, n_in).astype(dtype), [(0, normal(2, n_out, n_in))]
    together = rows_times_matrix(x, w, n_out)
    backwards = np.asfortranarray(x[::-1])
    np.testing.assert_array_equal(rows_times_matrix(backwards, w, n_out)[::-1], together, strict=True)
    for row in range(len(x)):
        np.testing.assert_array_equal(rows_times_matrix(x[row : row + 1], w, n_out)[0], together[row], strict=True)


@pytest.mark.parametrize(("n_out", "n_in"), [(640, 640), (1000, 257), (9, PIECE_WEIGHTS // 3)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_number_is_the_same_whatever_the_weights_lie_with(n_out: int, n_in: int, dtype: type[np.floating]) -> None:
    x, w = normal(1, 5, n_in).astype(dtype), normal(2, n_out, n_in)
    whole = rows_times_matrix(x, [(0, w)], n_out)
    cut = rows_times_matrix(x, [(at, w[at : at + 7]) for at in range(0, n_out, 7)], n_out)
    np.testing.assert_array_equal(cut, whole, strict=True)
    for row in range(0, n_out, 97):
        np.testing.assert_array_equal(rows_times_matrix(x, [(0, w[row : row + 1])], 1)[:, 0], whole[:, row])


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_what_is_no_number_stays_in_its_row_and_its_column(broken: float) -> None:
    x, w = normal(1, 20, 64), normal(2, 50, 64)
    clean = rows_times_matrix(x, [(0, w)], 50)
    x[7, 3] = w[11, 5] = broken
    with np.errstate(invalid="ignore"):
        got = rows_times_matrix(x, [(0, w)], 50)
    hit = np.zeros((20, 50), bool)
    hit[7] = hit[:, 11] = True
    assert not np.isfinite(got[hit]).any()
    np.testing.assert_array_equal(got[~hit], clean[~hit])


@pytest.mark.parametrize(("n_out", "n_in"), [(2048, 1024), (1024, 3072), (4001, 257)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_number_of_threads_changes_no_bit(n_out: int, n_in: int, dtype: type[np.floating]) -> None:
    x, w = normal(1, 11, n_in).astype(dtype), normal(2, n_out, n_in)
    products = []
    for threads in (1, 2, 3):
        assert use_threads(threads, 0) == threads
        products.append(rows_times_matrix(x, [(0, w[:1500]), (1500, w[1500:])] if n_out > 1500 else [(0, w)], n_out))
    np.testing.assert_array_equal(products[1], products[0])
    np.testing.assert_array_equal(products[2], products[0])


def test_threads_by_themselves_are_one_for_a_small_model_and_the_blas_has_one() -> None:
    assert use_threads(None, SMALL_MODEL - 1) == 1
    assert use_threads(None, SMALL_MODEL) >= 1
    assert {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"} == {1}


@pytest.mark.parametrize("n_items", [0, 1, 40])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_item_is_worked_on_once(n_items: int, threads: int) -> None:
    use_threads(threads, 0)
    done: list[int] = []

    def items() -> Iterator[int]:
        # Sleeping lets other threads in, and a generator fails when two are inside it.
        for item in range(n_items):
            time.sleep(0.001)
            yield item

    share_out(done.append, items())
    assert sorted(done) == list(range(n_items))


def test_others_join_in_unless_told_to_stay_away() -> None:
    use_threads(2, 0)
    both = threading.Barrier(2, timeout=60)
    share_out(lambda _item: both.wait(), range(2))
    seen: set[int] = set()
    share_out(lambda _item: seen.add(threading.get_ident()), range(1000), alone=True)
    assert seen == {threading.get_ident()}


@pytest.mark.parametrize("threads", [1, 3])
def test_what_fails_on_any_thread_fails_here(threads: int) -> None:
    use_threads(threads, 0)

    def act(item: int) -> None:
        if item == 5:
            raise ValueError(item)

    with pytest.raises(ValueError, match="5"):
        share_out(act, range(10))

    def items() -> Iterator[int]:
        yield 1
        raise OSError("the file is gone")

    with pytest.raises(OSError, match="gone"):
        share_out(act, items())
