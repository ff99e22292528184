"""`ssm_scan` and `causal_conv` of the NumPy op set beside equations that know no recurrence."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.reference.ops import NumpyOps
from tests.reference.array_weight import ArrayWeight

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

OPS = NumpyOps()
N_HEAD, HEAD_DIM, N_GROUP, D_STATE = 4, 3, 2, 5


def draw(rng: np.random.Generator, *shape: int) -> Floats:
    return rng.normal(size=shape).astype(np.float32)


class Scan:
    """A scan's weights, drawn, and the inputs of `n` rows of one sequence."""

    def __init__(self, n: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.x, self.dt = draw(rng, n, N_HEAD, HEAD_DIM), draw(rng, n, N_HEAD)
        self.b, self.c = draw(rng, n, N_GROUP, D_STATE), draw(rng, n, N_GROUP, D_STATE)
        self.dt_bias, self.a, self.d = draw(rng, N_HEAD), -np.exp(draw(rng, N_HEAD, 1)), draw(rng, N_HEAD, 1)

    def weights(self) -> tuple[ArrayWeight, ArrayWeight, ArrayWeight]:
        return ArrayWeight(self.dt_bias), ArrayWeight(self.a), ArrayWeight(self.d)

    def unrolled(self) -> Doubles:
        """y[t] as a sum over the rows up to t, each with all it has decayed by since: no state is carried."""
        step = np.logaddexp(0, self.dt.astype(np.float64) + self.dt_bias)
        y = np.empty(self.x.shape)
        for t in range(len(y)):
            for head in range(N_HEAD):
                group = head * N_GROUP // N_HEAD
                y[t, head] = self.d[head] * self.x[t, head].astype(np.float64)
                for s in range(t + 1):
                    kept = np.exp(step[s + 1 : t + 1, head].sum() * self.a[head, 0])
                    seen = np.dot(self.c[t, group].astype(np.float64), self.b[s, group])
                    y[t, head] += kept * seen * step[s, head] * self.x[s, head]
        return y


def places(slots: list[int], read: list[int], write: list[int]) -> tuple[npt.NDArray[np.int32], ...]:
    return tuple(np.array(each, np.int32) for each in (slots, read, write))


def new_state(n_slots: int = 1, n_lanes: int = 2) -> Floats:
    return np.zeros((n_slots, n_lanes, N_HEAD, HEAD_DIM, D_STATE), np.float32)


@given(n=st.integers(1, 24), seed=st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_a_scan_is_the_sum_over_all_rows_before(n: int, seed: int) -> None:
    scan = Scan(n, seed)
    lanes = places([0] * n, [0] * n, [0] * n)
    y = OPS.ssm_scan(scan.x, scan.b, scan.c, scan.dt, *scan.weights(), new_state(), *lanes)
    want = scan.unrolled()
    np.testing.assert_allclose(y, want, rtol=0, atol=3e-6 * max(1.0, np.abs(want).max()))


def test_a_step_above_20_is_its_argument() -> None:
    scan = Scan(1)
    scan.dt[:] = 40
    scan.dt_bias[:] = 0
    state = new_state()
    OPS.ssm_scan(scan.x, scan.b, scan.c, scan.dt, *scan.weights(), state, *places([0], [0], [1]))
    want = 40 * scan.x[0, :, :, None] * np.repeat(scan.b[0], 2, axis=0)[:, None]
    np.testing.assert_allclose(state[0, 1], want, rtol=1e-6)
    assert not state[0, 0].any(), "the lane that was read is as it was"


@given(n=st.integers(1, 12), trial=st.integers(0, 4), seed=st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_each_lane_of_a_trial_holds_the_state_of_its_row(n: int, trial: int, seed: int) -> None:
    """Row by row in lanes of their own, and all in one lane: the same states, to the bit."""
    scan, trial = Scan(n, seed), min(trial, n)
    moves = np.cumsum([0, *(at == 0 or at >= n - trial for at in range(n))])
    state = new_state(n_lanes=int(moves[-1]) + 1)
    lanes = places([0] * n, moves[:-1].tolist(), moves[1:].tolist())
    OPS.ssm_scan(scan.x, scan.b, scan.c, scan.dt, *scan.weights(), state, *lanes)
    for kept in range(trial + 1):
        m = n - trial + kept
        short = new_state()
        rows = (each[:m] for each in (scan.x, scan.b, scan.c, scan.dt))
        OPS.ssm_scan(*rows, *scan.weights(), short, *places([0] * m, [0] * m, [0] * m))
        if m:
            np.testing.assert_array_equal(state[0, moves[m]], short[0, 0])


@given(order=st.permutations([0, 0, 0, 1, 1, 1, 1, 2]), seed=st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_sequences_in_one_call_do_not_see_each_other(order: list[int], seed: int) -> None:
    """Rows of three sequences in any order among each other: each row's bits are those it has alone."""
    scan = Scan(len(order), seed)
    state = new_state(n_slots=3)
    zeros = [0] * len(order)
    y = OPS.ssm_scan(scan.x, scan.b, scan.c, scan.dt, *scan.weights(), state, *places(order, zeros, zeros))
    for slot in range(3):
        own = [t for t, of in enumerate(order) if of == slot]
        alone = new_state()
        rows = (each[own] for each in (scan.x, scan.b, scan.c, scan.dt))
        lanes = places([0] * len(own), [0] * len(own), [0] * len(own))
        np.testing.assert_array_equal(OPS.ssm_scan(*rows, *scan.weights(), alone, *lanes), y[own])
        np.testing.assert_array_equal(alone[0, 0], state[slot, 0])


@pytest.mark.parametrize("taps", [2, 3, 4])
def test_a_convolution_is_a_dot_product_with_the_last_inputs(taps: int) -> None:
    rng = np.random.default_rng(taps)
    n, width = 9, 5
    x, weight, bias = draw(rng, n, width), draw(rng, width, taps), draw(rng, width)
    state = np.zeros((1, 1, taps - 1, width), np.float32)
    zeros = places([0] * n, [0] * n, [0] * n)
    y = OPS.causal_conv(x, ArrayWeight(weight), ArrayWeight(bias), state, *zeros)
    for channel in range(width):
        # NumPy's convolution turns one side around, so the newest tap is its first.
        full = np.convolve(x[:, channel].astype(np.float64), weight[channel, ::-1].astype(np.float64))[:n]
        z = full + bias[channel]
        np.testing.assert_allclose(y[:, channel], z / (1 + np.exp(-z)), rtol=0, atol=1e-6)
    np.testing.assert_array_equal(state[0, 0], x[n - taps + 1 :])
