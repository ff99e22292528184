"""Choosing blocks and what is read of them: the definition by hand, ties by number, and rows that stand alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.reference.ops import NumpyOps

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
OPS = NumpyOps()


@dataclass(frozen=True)
class Case:
    """One call of `select_blocks`. Queries and keys are whole numbers, so that scores are exact and often equal."""

    q: Floats
    k: Floats
    slots: Ints
    cells: Ints
    block: int
    n_chosen: int
    n_local: int

    def run(self, rows: npt.NDArray[np.intp] | None = None) -> Ints:
        at = np.arange(len(self.q)) if rows is None else rows
        chosen: Ints = OPS.select_blocks(
            self.q[at], self.k, self.slots[at], self.cells[at], block=self.block, n_chosen=self.n_chosen,
            n_local=self.n_local,
        )  # fmt: skip
        return chosen

    def by_hand(self, t: int, head: int) -> list[int]:
        """The ascending choice of a row's head: the last blocks, then by score, the lower number first."""
        keys = self.k[self.slots[t], : self.cells[t] + 1].astype(np.int64)
        products = (keys @ self.q[t, head].astype(np.int64)).tolist()
        scores = [max(products[at : at + self.block]) for at in range(0, len(products), self.block)]
        order = sorted(range(len(scores)), key=lambda b: (len(scores) - b > self.n_local, -scores[b], b))
        return sorted(order[: self.n_chosen])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    n, n_slots, n_cells = draw(st.integers(0, 6)), 2, draw(st.integers(1, 40))
    n_chosen = draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    most = draw(st.sampled_from([1, 2, 50]))
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 9)))
    return Case(
        q=rng.integers(-most, most + 1, (n, *shape)).astype(np.float32),
        k=rng.integers(-most, most + 1, (n_slots, n_cells, shape[1])).astype(np.float32),
        slots=rng.integers(0, n_slots, n).astype(np.int32),
        cells=rng.integers(0, n_cells, n).astype(np.int32),
        block=draw(st.sampled_from([1, 2, 3, 8, 64])),
        n_chosen=n_chosen,
        n_local=draw(st.integers(1, n_chosen)),
    )


@given(case=cases())
@settings(max_examples=150, deadline=None)
def test_the_choice_is_the_one_by_hand(case: Case) -> None:
    got = case.run()
    assert got.dtype == np.int32 and got.shape == (*case.q.shape[:2], case.n_chosen)
    for t, head in np.ndindex(got.shape[:2]):
        expected = case.by_hand(t, head)
        assert got[t, head].tolist() == expected + [-1] * (case.n_chosen - len(expected))


@given(case=cases(), data=st.data())
@settings(max_examples=60, deadline=None)
def test_rows_stand_alone(case: Case, data: st.DataObject) -> None:
    together = case.run()
    order = np.array(data.draw(st.permutations(range(len(case.q)))), np.intp)
    np.testing.assert_array_equal(case.run(order), together[order], strict=True)
    for row in range(len(case.q)):
        np.testing.assert_array_equal(case.run(np.array([row]))[0], together[row], strict=True)


@given(case=cases())
@settings(max_examples=60, deadline=None)
def test_cells_behind_a_row_are_not_read(case: Case) -> None:
    expected = case.run()
    for slot in range(len(case.k)):
        case.k[slot, 1 + max(case.cells[case.slots == slot], default=-1) :] = np.nan
    np.testing.assert_array_equal(case.run(), expected, strict=True)


@pytest.mark.parametrize(
    ("scores", "n_local", "expected"),
    [
        # Blocks of two cells; the own one is the last.
        ([5, 0, 0, 5, 9, 0, 0], 1, [0, 2, 3]),
        ([0, 5, 5, 0, 5, 0, 0], 1, [0, 1, 3]),
        ([9, 0, 8, 0, 7, 0, 0], 2, [0, 2, 3]),
        ([9, 0, 8, 0, 7, 0, 0], 3, [1, 2, 3]),
        # The own block is taken though every score in it is the least, and what is not there is -1.
        ([9, 0, -5], 1, [0, 1, -1]),
        ([-5], 1, [0, -1, -1]),
    ],
)
def test_equals_go_by_number_and_the_last_blocks_go_first(scores: list[int], n_local: int, expected: list[int]) -> None:
    k = np.array(scores, np.float32).reshape(1, -1, 1)
    own = np.array([len(scores) - 1], np.int32)
    got = OPS.select_blocks(
        np.ones((1, 1, 1), np.float32), k, np.zeros(1, np.int32), own, block=2, n_chosen=3, n_local=n_local
    )
    assert got[0, 0].tolist() == expected


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 40))
def test_the_activation_with_limits(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    gate, up = ((rng.choice([1e-3, 1, 5, 1e4], n) * rng.standard_normal(n)).astype(np.float32) for _ in range(2))
    got = OPS.swiglu_oai(gate, up)
    for g, u, y in zip(gate.tolist(), up.tolist(), got.tolist(), strict=True):
        low = min(g, 7.0)
        # A gate far below 0 is 0 without an overflow.
        share = 1 / (1 + np.exp(min(-1.702 * low, 700.0)))
        assert y == pytest.approx(low * share * (min(max(u, -7.0), 7.0) + 1), rel=2.0**-23, abs=1e-37)


def test_the_limits_by_hand() -> None:
    gate, up = np.array([7, 8, -8, 1, 1], np.float32), np.array([0, 0, 0, -9, 9], np.float32)
    share = 1 / (1 + np.exp(-1.702 * np.array([7, 7, -8, 1, 1])))
    expected = np.array([7, 7, -8, -6, 8]) * share
    np.testing.assert_allclose(OPS.swiglu_oai(gate, up), expected, rtol=1e-6)
