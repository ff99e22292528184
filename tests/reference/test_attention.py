"""Attention of the reference against plain float64 loops; a row's bits depend on its own cells alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.reference.attention import attend

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Case:
    """One call of `attend`."""

    q: Floats
    k: Floats
    v: Floats
    slots: Ints
    cells: Ints
    scale: float
    window: int | None
    sinks: Floats | None
    chosen: Ints | None
    block: int

    def run(self) -> Floats:
        return attend(
            self.q, self.k, self.v, self.slots, self.cells, scale=self.scale, window=self.window, sinks=self.sinks,
            chosen=self.chosen, block=self.block,
        )  # fmt: skip

    def of(self, rows: npt.NDArray[np.intp]) -> Case:
        """The same call of those rows alone."""
        chosen = None if self.chosen is None else self.chosen[rows]
        return replace(self, q=self.q[rows], slots=self.slots[rows], cells=self.cells[rows], chosen=chosen)

    def read(self, t: int, kv_head: int) -> list[int]:
        """The cells that row `t` may read, by the contract's words."""
        stop = int(self.cells[t]) + 1
        causal = range(0 if self.window is None else max(0, stop - self.window), stop)
        if self.chosen is None:
            return list(causal)
        return [c for c in causal if c // self.block in self.chosen[t, kv_head]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    n, n_slots, n_cells = draw(st.integers(0, 6)), 2, draw(st.integers(1, 24))
    n_head_kv, group = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    head_dim, v_dim = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    block = draw(st.sampled_from([1, 1, 2, 5, 8]))

    def normal(*shape: int) -> Floats:
        return rng.standard_normal(shape, dtype=np.float32)

    n_chosen = draw(st.sampled_from([None, 0, 1, 2, 5]))
    return Case(
        q=normal(n, n_head_kv * group, head_dim),
        k=normal(n_slots, n_cells, n_head_kv, head_dim),
        v=normal(n_slots, n_cells, n_head_kv, v_dim),
        slots=rng.integers(0, n_slots, n).astype(np.int32),
        cells=rng.integers(0, n_cells, n).astype(np.int32),
        scale=1 / math.sqrt(head_dim),
        window=draw(st.one_of(st.none(), st.integers(1, 30))),
        sinks=3 * normal(n_head_kv * group) if draw(st.booleans()) else None,
        # Doubles, blocks that begin after the row's own cell or past the cache, and -1 are among them.
        chosen=None
        if n_chosen is None
        else rng.integers(-1, n_cells // block + 2, (n, n_head_kv, n_chosen)).astype(np.int32),
        block=block,
    )


@given(case=cases())
@settings(max_examples=150)
def test_attend_is_the_sum_by_hand(case: Case) -> None:
    got = case.run()
    n, n_head = case.q.shape[:2]
    n_head_kv, v_dim = case.v.shape[2:]
    assert got.dtype == np.float32 and got.shape == (n, n_head, v_dim)
    for t, h in np.ndindex(n, n_head):
        kv = h // (n_head // n_head_kv)
        read = case.read(t, kv)
        query, keys = case.q[t, h].astype(np.float64), case.k[case.slots[t], read, kv].astype(np.float64)
        scores = [case.scale * math.fsum(query * key) for key in keys]
        joined = scores if case.sinks is None else [*scores, float(case.sinks[h])]
        powers = [math.exp(score - max(joined)) for score in joined]
        values = case.v[case.slots[t], read, kv].astype(np.float64)
        shares = [power / math.fsum(powers) for power in powers[: len(read)]]
        expected = [math.fsum(p * value for p, value in zip(shares, column, strict=True)) for column in values.T]
        np.testing.assert_allclose(got[t, h], expected, rtol=1e-4, atol=1e-5)


@given(case=cases(), data=st.data())
@settings(max_examples=100)
def test_rows_stand_alone(case: Case, data: st.DataObject) -> None:
    together, n = case.run(), len(case.q)
    order = np.array(data.draw(st.permutations(range(n))), np.intp)
    np.testing.assert_array_equal(case.of(order).run(), together[order], strict=True)
    for row in range(n):
        np.testing.assert_array_equal(case.of(np.array([row])).run()[0], together[row], strict=True)


@given(case=cases())
@settings(max_examples=100)
def test_cells_that_no_row_may_read_are_not_read(case: Case) -> None:
    n, n_head_kv = len(case.q), case.k.shape[2]
    expected = case.run()
    read = np.zeros(case.k.shape[:3], bool)
    for t, kv in np.ndindex(n, n_head_kv):
        read[case.slots[t], case.read(t, kv), kv] = True
    case.k[~read] = case.v[~read] = np.nan
    np.testing.assert_array_equal(case.run(), expected, strict=True)


@given(case=cases())
@settings(max_examples=50)
def test_all_blocks_chosen_are_as_good_as_no_choice(case: Case) -> None:
    every = np.arange(-(-case.k.shape[1] // case.block), dtype=np.int32)[::-1]
    chosen = np.broadcast_to(every, (len(case.q), case.k.shape[2], len(every)))
    plain = replace(case, chosen=None).run()
    # Gathered heads lie differently in memory, so that the BLAS may add in another order.
    np.testing.assert_allclose(replace(case, chosen=chosen).run(), plain, rtol=1e-4, atol=1e-5)


def _plain(scores: list[float], **more: object) -> Floats:
    """One head of one element that sees one cell a score; the values are 1, 2, 4 and so on."""
    n = len(scores)
    k = np.array(scores, np.float32).reshape(1, n, 1, 1)
    v = (2.0 ** np.arange(n, dtype=np.float32)).reshape(1, n, 1, 1)
    one = np.ones((1, 1, 1), np.float32)
    last = np.array([n - 1], np.int32)
    return attend(one, k, v, np.zeros(1, np.int32), last, scale=1.0, **more)[0, 0]  # type: ignore[arg-type]


def test_a_sink_takes_its_share_unscaled() -> None:
    ln = math.log
    np.testing.assert_allclose(_plain([0, ln(2)], sinks=np.array([0], np.float32)), [5 / 4], rtol=1e-6)
    np.testing.assert_allclose(_plain([0, ln(2)], sinks=np.array([-np.inf], np.float32)), [5 / 3], rtol=1e-6)
    # A sink far above every score leaves nothing, and does so without an overflow.
    np.testing.assert_array_equal(_plain([0, 1], sinks=np.array([1e30], np.float32)), [0])


@pytest.mark.parametrize("sinks", [None, np.array([0.5], np.float32)])
def test_a_row_that_may_read_nothing_is_zeros(sinks: Floats | None) -> None:
    nothing = np.array([[[-1, 3, 700]]], np.int32)
    np.testing.assert_array_equal(_plain([1, 2, 3], chosen=nothing, sinks=sinks), [0])


def test_a_choice_is_a_set_of_blocks_within_the_causal_limit() -> None:
    # Blocks of 2: cells 0 1 | 2 3 | 4. Equal scores, so that the result is the mean of the values read.
    def mean(blocks: list[int], **more: object) -> float:
        return float(_plain([0.0] * 5, chosen=np.array([[blocks]], np.int32), block=2, **more)[0])

    assert mean([1]) == (4 + 8) / 2
    assert mean([2, 0, -1, 2]) == np.float32((1 + 2 + 16) / 3)
    assert mean([0, 2], window=4) == (2 + 16) / 2
