"""The delta rule's ops against plain float64 loops and ggml's own kernels, however their rows are cut and mixed; and
the turning of positions with components, which its models have."""

from __future__ import annotations

import cmath
import ctypes
import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.interface.spec import Rope
from bloomery.reference.ops import NumpyOps
from tests.reference.array_weight import ArrayWeight
from tests.reference.ggml_graph import computed
from tests.reference.test_ops import assert_rows_stand_alone, normal

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
OPS = NumpyOps()

seeds = st.integers(0, 2**32 - 1)
Step = Callable[[npt.NDArray[np.intp], Floats, Ints, Ints, Ints], Floats]
"""`(rows, state, slots, read_lanes, write_lanes)` -> what the op answers for those rows."""

N_SLOTS, N_LANES = 3, 4


@st.composite
def schedules(draw: st.DrawFn) -> list[list[int]]:
    """Calls of an op, each a list of slots: the rows of a slot are its sequence's next ones."""
    calls = st.lists(st.integers(0, N_SLOTS - 1), min_size=1, max_size=6)
    return draw(st.lists(calls, min_size=1, max_size=5))


def assert_only_the_order_within_a_sequence_matters(
    step: Step, entry: tuple[int, ...], calls: Sequence[Sequence[int]]
) -> None:
    """Rows of three sequences, cut and mixed as `calls` has them, each in a lane of its own: every row and every state
    has the bits of a call a row, a sequence at a time; and no other lane is written."""
    order = [slot for call in calls for slot in call]
    rng = np.random.default_rng(0)
    start = rng.standard_normal((N_SLOTS, N_LANES, *entry)).astype(np.float32)
    alone, mixed = start.copy(), start.copy()
    zeros = np.zeros(N_SLOTS, np.int32)
    expected: dict[int, Floats] = {}
    for slot in range(N_SLOTS):
        for row in (at for at, one in enumerate(order) if one == slot):
            here = np.array([slot], np.int32)
            expected[row] = step(np.array([row]), alone, here, zeros[:1], zeros[:1])[0]
    lane, first = zeros.copy(), 0
    written = np.zeros((N_SLOTS, N_LANES), bool)
    for call in calls:
        slots, reads, writes = np.array(call, np.int32), [], []
        for slot in call:
            reads.append(lane[slot])
            lane[slot] = (lane[slot] + 1) % N_LANES
            writes.append(lane[slot])
            written[slot, lane[slot]] = True
        rows = np.arange(first, first + len(call))
        got = step(rows, mixed, slots, np.array(reads, np.int32), np.array(writes, np.int32))
        for row, answer in zip(rows, got, strict=True):
            np.testing.assert_array_equal(answer, expected[row], strict=True)
        first += len(call)
    for slot in range(N_SLOTS):
        np.testing.assert_array_equal(mixed[slot, lane[slot]], alone[slot, 0])
    np.testing.assert_array_equal(mixed[~written], start[~written])


@given(seed=seeds, n=st.integers(1, 9), n_k=st.integers(1, 3), ratio=st.integers(1, 3), key=st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_the_delta_rule_is_the_sum_by_hand(seed: int, n: int, n_k: int, ratio: int, key: int) -> None:
    value = key % 4 + 1
    q, k, v = normal(seed, n, n_k, key), normal(seed + 1, n, n_k, key), normal(seed + 2, n, n_k * ratio, value)
    decay, strength = -np.abs(normal(seed + 3, n, n_k * ratio)), 3 * normal(seed + 4, n, n_k * ratio)
    state = normal(seed + 5, 1, 1, n_k * ratio, value, key)
    # Without its strength's error, the rule would only ever add; keys of length 1 keep it from growing.
    k /= np.sqrt((k * k).sum(axis=-1, keepdims=True)) + np.float32(1e-3)
    memories = state[0, 0].astype(np.float64)
    lanes = np.zeros(n, np.int32)
    got = OPS.delta_rule(q, k, v, decay, strength, state, lanes, lanes, lanes, scale=0.3)
    for t in range(n):
        for h in range(n_k * ratio):
            memory, kh = memories[h], h % n_k
            for i in range(value):
                for j in range(key):
                    memory[i, j] *= math.exp(decay[t, h])
            error = [
                (float(v[t, h, i]) - math.fsum(memory[i, j] * float(k[t, kh, j]) for j in range(key)))
                / (1 + math.exp(-float(strength[t, h])))
                for i in range(value)
            ]
            for i in range(value):
                for j in range(key):
                    memory[i, j] += error[i] * float(k[t, kh, j])
                expected = 0.3 * math.fsum(memory[i, j] * float(q[t, kh, j]) for j in range(key))
                assert abs(got[t, h, i] - expected) < 1e-5 * (1 + abs(expected))
    np.testing.assert_allclose(state[0, 0], memories, rtol=1e-5, atol=1e-5)


@given(seed=seeds, calls=schedules())
@settings(max_examples=40, deadline=None)
def test_rows_of_the_delta_rule_depend_on_their_own_past_alone(seed: int, calls: list[list[int]]) -> None:
    n = sum(map(len, calls))
    q, k, v = normal(seed, n, 2, 8), normal(seed + 1, n, 2, 8) / 3, normal(seed + 2, n, 4, 8)
    decay, strength = -np.abs(normal(seed + 3, n, 4)), normal(seed + 4, n, 4)

    def step(rows: npt.NDArray[np.intp], state: Floats, slots: Ints, reads: Ints, writes: Ints) -> Floats:
        parts = (part[rows] for part in (q, k, v, decay, strength))
        return OPS.delta_rule(*parts, state, slots, reads, writes, scale=0.3)

    assert_only_the_order_within_a_sequence_matters(step, (4, 8, 8), calls)


@given(seed=seeds, calls=schedules(), taps=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_rows_of_the_convolution_depend_on_their_own_past_alone(seed: int, calls: list[list[int]], taps: int) -> None:
    n = sum(map(len, calls))
    x, weight = normal(seed, n, 5), ArrayWeight(normal(seed + 1, 5, taps))

    def step(rows: npt.NDArray[np.intp], state: Floats, slots: Ints, reads: Ints, writes: Ints) -> Floats:
        return OPS.causal_conv(x[rows], weight, None, state, slots, reads, writes)

    assert_only_the_order_within_a_sequence_matters(step, (taps - 1, 5), calls)


@given(seed=seeds, calls=schedules())
@settings(max_examples=40, deadline=None)
def test_previous_moves_each_sequence_on_by_one(seed: int, calls: list[list[int]]) -> None:
    x = normal(seed, sum(map(len, calls)), 3)

    def step(rows: npt.NDArray[np.intp], state: Floats, slots: Ints, reads: Ints, writes: Ints) -> Floats:
        return OPS.previous(x[rows], state, slots, reads, writes)

    assert_only_the_order_within_a_sequence_matters(step, (3,), calls)


def test_previous_gives_the_row_before() -> None:
    x, state, lanes = normal(0, 3, 2), normal(1, 1, 1, 2), np.zeros(3, np.int32)
    first = state[0, 0].copy()
    got = OPS.previous(x, state, lanes, lanes, lanes)
    np.testing.assert_array_equal(got, [first, x[0], x[1]])
    np.testing.assert_array_equal(state[0, 0], x[2])
    np.testing.assert_array_equal(OPS.read_state(state, lanes[:2], lanes[:2]), [x[2], x[2]])


@given(seed=seeds, n=st.integers(1, 8), channels=st.integers(1, 6), taps=st.integers(1, 5), biased=st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_convolution_is_the_sum_by_hand(seed: int, n: int, channels: int, taps: int, biased: bool) -> None:
    x, weight, held = normal(seed, n, channels), normal(seed + 1, channels, taps), normal(seed + 2, taps - 1, channels)
    bias = normal(seed + 3, channels)
    state, lanes = held[None, None].copy(), np.zeros(n, np.int32)
    got = OPS.causal_conv(x, ArrayWeight(weight), ArrayWeight(bias) if biased else None, state, lanes, lanes, lanes)
    past = np.concatenate([held, x]).astype(np.float64)
    for t, c in np.ndindex(n, channels):
        z = math.fsum(float(weight[c, i]) * past[t + i, c] for i in range(taps)) + biased * float(bias[c])
        assert abs(got[t, c] - z / (1 + math.exp(-z))) < 1e-6 * (1 + abs(z))
    np.testing.assert_array_equal(state[0, 0], past[n:])


@given(seed=seeds, n=st.integers(1, 8), heads=st.integers(1, 5))
def test_log_decay(seed: int, n: int, heads: int) -> None:
    x, bias, a = 15 * normal(seed, n, heads), normal(seed + 1, heads), -np.abs(normal(seed + 2, heads))
    got = OPS.log_decay(x, ArrayWeight(bias), ArrayWeight(a))
    for t, h in np.ndindex(n, heads):
        z = float(x[t, h]) + float(bias[h])
        softplus = z if z > 20 else math.log1p(math.exp(z))
        assert abs(got[t, h] - softplus * float(a[h])) <= 2.0**-23 * abs(softplus * float(a[h])) + 1e-38
    assert_rows_stand_alone(lambda rows: OPS.log_decay(x[rows], ArrayWeight(bias), ArrayWeight(a)), n, seed)


def test_log_decay_far_from_zero_overflows_nowhere() -> None:
    one = ArrayWeight(np.ones(4, np.float32))
    got = OPS.log_decay(np.array([[-1e30, -200, 200, 1e30]], np.float32), ArrayWeight(np.zeros(4, np.float32)), one)
    np.testing.assert_array_equal(got, np.array([[0, 0, 200, 1e30]], np.float32))


@given(
    seed=seeds, n=st.integers(1, 8), heads=st.integers(1, 3), width=st.integers(1, 20), eps=st.sampled_from([1e-6, 0.1])
)
def test_l2_norm(seed: int, n: int, heads: int, width: int, eps: float) -> None:
    x = normal(seed, n, heads, width)
    got = OPS.l2_norm(x, eps=eps)
    for index in np.ndindex(n, heads):
        root = math.sqrt(math.fsum(float(one) ** 2 for one in x[index]) + eps)
        np.testing.assert_allclose(got[index], [float(one) / root for one in x[index]], rtol=2.0**-23)
    assert_rows_stand_alone(lambda rows: OPS.l2_norm(x[rows], eps=eps), n, seed)
    assert (OPS.l2_norm(np.zeros((1, 1, 3), np.float32), eps=eps) == 0).all()


@given(seed=seeds, n=st.integers(1, 8), heads=st.integers(1, 3), width=st.integers(1, 20), narrow=st.booleans())
def test_sigmoid_gate(seed: int, n: int, heads: int, width: int, narrow: bool) -> None:
    x, gate = normal(seed, n, heads, width), 30 * normal(seed + 1, n, heads, 1 if narrow else width)
    got = OPS.sigmoid_gate(x, gate)
    for index in np.ndindex(x.shape):
        by = float(gate[index[:2]][0 if narrow else index[2]])
        expected = float(x[index]) / (1 + math.exp(-by))
        assert abs(got[index] - expected) <= 2.0**-23 * abs(expected) + 1e-38
    assert_rows_stand_alone(lambda rows: OPS.sigmoid_gate(x[rows], gate[rows]), n, seed)


def shared_out(sections: tuple[int, int, int, int], pair: int) -> int:
    """The component that turns a pair, by the words of `Rope`."""
    pair %= sum(sections)
    for turn in range(3):
        if pair % 3 == turn and pair < 3 * sections[turn]:
            return turn
    return 3


all_sections = st.tuples(*[st.integers(0, 6)] * 4).filter(lambda sections: sum(sections[:3]) > 0)


@given(seed=seeds, sections=all_sections, n_pairs=st.integers(1, 20), data=st.data())
@settings(max_examples=80, deadline=None)
def test_rope_turns_each_pair_by_its_own_component(
    seed: int, sections: tuple[int, int, int, int], n_pairs: int, data: st.DataObject
) -> None:
    component = st.integers(0, 4000)
    positions = data.draw(st.lists(st.tuples(*[component] * 4), min_size=1, max_size=4))
    rope = Rope(n_dims=2 * n_pairs, base=1e7, style="neox", sections=sections)
    x = normal(seed, len(positions), 2, 2 * n_pairs + 3)
    got = OPS.rope(x, np.array(positions, np.int32), rope)
    for t, h, j in np.ndindex(len(positions), 2, n_pairs):
        angle = positions[t][shared_out(sections, j)] / 1e7 ** (j / n_pairs)
        z = complex(x[t, h, j], x[t, h, j + n_pairs]) * cmath.exp(1j * angle)
        assert abs(complex(got[t, h, j], got[t, h, j + n_pairs]) - z) < 1e-6 * max(1.0, abs(z))
    np.testing.assert_array_equal(got[..., 2 * n_pairs :], x[..., 2 * n_pairs :])


@given(seed=seeds, positions=st.lists(st.integers(0, 100_000), min_size=1, max_size=5))
def test_one_number_stands_for_four_equal_components(seed: int, positions: list[int]) -> None:
    rope = Rope(n_dims=32, base=1e6, style="neox", sections=(6, 5, 5, 0))
    x, place = normal(seed, len(positions), 2, 40), np.array(positions, np.int32)
    np.testing.assert_array_equal(OPS.rope(x, place, rope), OPS.rope(x, np.stack([place] * 4, axis=1), rope))


@pytest.mark.oracle
@pytest.mark.parametrize("sections", [(11, 11, 10, 0), (6, 5, 5, 0), (4, 4, 4, 0), (3, 3, 2, 0), (5, 0, 2, 3)])
def test_rope_of_components_is_ggmls(sections: tuple[int, int, int, int]) -> None:
    n_tokens, n_pairs = 7, sum(sections)
    positions = np.random.default_rng(1).integers(0, 300, (n_tokens, 4)).astype(np.int32)
    x = normal(2, n_tokens, 3, 2 * n_pairs + 8)

    def build(ggml: ctypes.CDLL, context: ctypes.c_void_p, operands: Sequence[ctypes.c_void_p]) -> int:
        # No frequency factors; mode 40 is the interleaved one; then base, and no scaling.
        floats = [ctypes.c_float(value) for value in (1e7, 1, 0, 1, 32, 1)]
        of_four = (ctypes.c_int * 4)(*sections)
        return int(ggml.ggml_rope_multi(context, *operands, None, 2 * n_pairs, of_four, 40, 0, *floats))

    # ggml has the components one after the other, each for all tokens.
    expected = computed("ggml_rope_multi", build, [x, positions.T.reshape(-1)], x.shape)
    rope = Rope(n_dims=2 * n_pairs, base=1e7, style="neox", sections=sections)
    # Its angles are float32, up to 300 and multiplied on from pair to pair.
    np.testing.assert_allclose(OPS.rope(x, positions, rope), expected, atol=2e-4)


@pytest.mark.oracle
@pytest.mark.parametrize(("n_k", "n_v", "width"), [(2, 4, 64), (1, 4, 64), (3, 3, 32), (2, 6, 32), (4, 8, 128)])
def test_the_delta_rule_is_ggmls(n_k: int, n_v: int, width: int) -> None:
    n = 11
    q, k, v = normal(1, n, n_k, width), normal(2, n, n_k, width), normal(3, n, n_v, width)
    k /= np.sqrt((k * k).sum(axis=-1, keepdims=True))
    decay, strength, state = -np.abs(normal(4, n, n_v)), normal(5, n, n_v), normal(6, 1, 1, n_v, width, width)

    def build(ggml: ctypes.CDLL, context: ctypes.c_void_p, operands: Sequence[ctypes.c_void_p]) -> int:
        return int(ggml.ggml_gated_delta_net(context, *operands, ctypes.c_int64(1)))

    gates = 1 / (1 + np.exp(-strength.astype(np.float64)))
    operands = [q[None], k[None], v[None], decay[None, ..., None], gates.astype(np.float32)[None, ..., None], state[0]]
    both = computed("ggml_gated_delta_net", build, operands, (n + width, n_v, width))
    lanes = np.zeros(n, np.int32)
    got = OPS.delta_rule(q, k, v, decay, strength, state, lanes, lanes, lanes, scale=1 / math.sqrt(width))
    np.testing.assert_allclose(got, both[:n], atol=3e-6)
    np.testing.assert_allclose(state[0, 0].reshape(-1), both[n:].reshape(-1), atol=1e-5)
