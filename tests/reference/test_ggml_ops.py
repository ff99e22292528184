"""Products in `ggml` numerics: against integer sums by hand, against ggml's own kernels, and alone as in company."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.interface.engine import EngineError
from bloomery.interface.files.quants import by_name, decode, encode
from bloomery.interface.files.quants.activations import ACTIVATION_FORMATS
from bloomery.reference.ggml_ops import GgmlOps, as_multiplied, check_formats
from bloomery.reference.ops import NumpyOps
from tests.reference.stored_weight import stored_weight
from tests.reference.test_ops import assert_rows_stand_alone, normal

Floats = npt.NDArray[np.float32]
OPS = GgmlOps()

# A weight format for each format that activations are rounded to, F32 among them.
ONE_OF_EACH = ["F32", "F16", "BF16", "Q8_0", "Q4_1", "Q5_1", "Q4_K", "Q6_K"]
# Rounding a product's sum once, which float64 sums of so few terms are exact enough for.
ROUNDED_ONCE = 2.0**-24


def dot_of_8_bit_blocks(x: Floats, w: Floats) -> float:
    """One value of a Q8_0 product as ggml defines it: integers added in each block, then scaled by both sides."""
    stored = encode(w[None], "Q8_0").reshape(-1).view(by_name("Q8_0").layout)
    terms = []
    for block, values in zip(stored, x.reshape(-1, 32), strict=True):
        largest = max(abs(v) for v in values)
        inverse = np.float32(127) / largest
        codes = [round(float(v * inverse)) for v in values]
        scale = float(np.float16(largest / np.float32(127)))
        integers = sum(a * int(b) for a, b in zip(codes, block["qs"], strict=True))
        terms.append(scale * float(block["d"]) * integers)
    return math.fsum(terms)


def test_a_product_with_q8_0_is_scaled_integer_sums() -> None:
    x, w = normal(1, 5, 96), normal(2, 7, 96)
    got = OPS.linear(x, stored_weight(w, "Q8_0"))
    expected = [[dot_of_8_bit_blocks(row, weights) for weights in w] for row in x]
    np.testing.assert_allclose(got, expected, rtol=2 * ROUNDED_ONCE)


def test_a_product_with_an_offset_takes_the_sum_that_q8_1_keeps() -> None:
    x, w = normal(3, 4, 64) + np.float32(0.5), normal(4, 6, 64)
    stored = encode(w, "Q4_1").reshape(-1).view(by_name("Q4_1").layout).reshape(6, 2)
    expected = np.zeros((4, 6))
    for t, o, b in np.ndindex(4, 6, 2):
        values, block = x[t, 32 * b : 32 * b + 32], stored[o, b]
        largest = np.abs(values).max()
        codes = np.rint(values * (np.float32(127) / largest)).astype(int)
        nibbles = np.concatenate([block["qs"] & 15, block["qs"] >> 4]).astype(int)
        scale = largest / np.float32(127)
        kept = np.float16(scale * np.float32(codes.sum()))
        integers = int(codes @ nibbles)
        expected[t, o] += float(block["d"]) * float(np.float16(scale)) * integers + float(block["m"]) * float(kept)
    got = OPS.linear(x, stored_weight(w, "Q4_1"))
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("name", "kept_bits"), [("F16", 11), ("BF16", 8)])
def test_half_precision_weights_round_activations_to_their_own_bits(name: str, kept_bits: int) -> None:
    x, w = normal(5, 3, 40), normal(6, 4, 40)
    bits, exponent = np.frexp(x.astype(np.float64))
    rounded = np.ldexp(np.rint(np.ldexp(bits, kept_bits)), exponent - kept_bits)
    weight = stored_weight(w, name)
    expected = rounded @ decode(encode(w, name), by_name(name), w.shape).astype(np.float64).T
    np.testing.assert_allclose(OPS.linear(x, weight), expected, rtol=2 * ROUNDED_ONCE)


def half(x: float) -> float:
    """The nearest half-precision number, by the struct module's own rounding."""
    return float(struct.unpack("<e", struct.pack("<e", x))[0])


def looked_up_gelu(x: float) -> float:
    """GELU as ggml's table has it, but for float32's own rounding between the two to half precision."""
    if abs(x) >= 10:
        return x if x > 0 else 0.0
    x = half(x)
    return half(x / (1 + math.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


@given(seed=st.integers(0, 2**32 - 1))
def test_geglu_rounds_argument_and_value_to_half_precision(seed: int) -> None:
    gate, up = 4 * normal(seed, 3, 40), normal(seed + 1, 3, 40)
    got = OPS.geglu(gate, up)
    for index in np.ndindex(gate.shape):
        value = np.float32(looked_up_gelu(float(gate[index])))
        # Float32 puts a value near the middle of two half-precision numbers on the other one, and below -3, where
        # 1 + tanh is nearly 0, a few of them away: 1.5e-7 is a quarter of float32's unit at 1 times the argument.
        near = abs(float(value)) * 2.0**-10 + 1.5e-7
        assert abs(float(got[index]) - float(value * up[index])) <= near * abs(float(up[index]))
    exact = NumpyOps().geglu(gate, up)
    assert not np.array_equal(got, exact)
    assert_rows_stand_alone(lambda rows: OPS.geglu(gate[rows], up[rows]), 3, seed)


def test_geglu_is_nearly_always_the_value_by_hand() -> None:
    gate = np.linspace(-3, 10, 5001, dtype=np.float32)[None]
    got = OPS.geglu(gate, np.ones_like(gate))[0]
    expected = np.array([looked_up_gelu(float(x)) for x in gate[0]], np.float32)
    assert (got == expected).mean() > 0.99


def test_geglu_past_the_ends_of_the_table() -> None:
    below, above = np.nextafter(np.float32(10), np.float32(0)), np.nextafter(np.float32(10), np.float32(11))
    gate = np.array([[-np.inf, -70000, -10, -below, below, 10, above, 10.003, 70000, np.inf]], np.float32)
    got = OPS.geglu(gate, np.ones_like(gate))[0]
    # Inside the table 9.999999 is the half-precision number 10; outside nothing is rounded.
    np.testing.assert_array_equal(got, [0, 0, 0, 0, 10, 10, above, np.float32(10.003), 70000, np.inf])
    assert np.isnan(OPS.geglu(np.array([[np.nan]], np.float32), np.ones((1, 1), np.float32))).all()


@given(seed=st.integers(0, 2**32 - 1), n_heads=st.integers(1, 3))
def test_a_norm_rounds_where_ggmls_does(seed: int, n_heads: int) -> None:
    """Number by number: float32 squares, a float64 sum, and float32 from the mean on."""
    x, w, eps, width = normal(seed, 2, n_heads, 24), normal(seed + 1, 24), 1e-5, 24
    got = OPS.rms_norm(x, stored_weight(w[None], "F32"), eps=eps)
    for row in np.ndindex(2, n_heads):
        total = math.fsum(float(value * value) for value in x[row])
        factor = np.float32(1) / np.sqrt(np.float32(total / width) + np.float32(eps))
        np.testing.assert_array_equal(got[row], [value * factor * gain for value, gain in zip(x[row], w, strict=True)])
    assert_rows_stand_alone(lambda rows: OPS.rms_norm(x[rows], stored_weight(w[None], "F32"), eps=eps), 2, seed)


def test_float32_weights_are_exact_numerics_bit_for_bit() -> None:
    x, weight = normal(7, 9, 50), stored_weight(normal(8, 30, 50), "F32")
    np.testing.assert_array_equal(OPS.linear(x, weight), NumpyOps().linear(x, weight))


@pytest.mark.parametrize("name", ONE_OF_EACH)
@given(seed=st.integers(0, 1000), n=st.integers(1, 17))
@settings(max_examples=5)
def test_rows_of_a_product_stand_alone(name: str, seed: int, n: int) -> None:
    x, weight = normal(seed, n, 512), stored_weight(normal(seed + 1, 40, 512), name)
    assert_rows_stand_alone(lambda rows: OPS.linear(x[rows], weight), n, seed)


@pytest.mark.parametrize("name", ONE_OF_EACH)
@pytest.mark.parametrize("shared", [True, False])
def test_rows_of_experts_are_products_and_stand_alone(name: str, shared: bool) -> None:
    n, n_expert, n_used = 11, 4, 2
    rng = np.random.default_rng(9)
    experts = np.array([rng.permutation(n_expert)[:n_used] for _ in range(n)], np.int32)
    w = normal(10, n_expert, 24, 256)
    x = normal(11, n, 256) if shared else normal(11, n, n_used, 256)
    weight = stored_weight(w, name)
    got = OPS.expert_linear(x, weight, experts)
    for t, i in np.ndindex(n, n_used):
        row = x[t] if shared else x[t, i]
        alone = OPS.linear(row[None], stored_weight(w[experts[t, i]], name))
        np.testing.assert_array_equal(got[t, i], alone[0])
    assert_rows_stand_alone(lambda rows: OPS.expert_linear(x[rows], weight, experts[rows]), n, 12)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_product_of_no_rows_has_none(name: str) -> None:
    weight = stored_weight(normal(12, 5, 256), name)
    assert OPS.linear(np.empty((0, 256), np.float32), weight).shape == (0, 5)


def test_a_bias_is_added_after_the_product_and_is_not_rounded() -> None:
    x, w, bias = normal(13, 3, 32), stored_weight(normal(14, 5, 32), "Q8_0"), normal(15, 5)
    with_bias = OPS.linear(x, w, stored_weight(bias[None], "F32"))
    np.testing.assert_array_equal(with_bias, OPS.linear(x, w) + bias)


@pytest.mark.parametrize("name", ["BF16", "Q8_0", "Q4_1", "Q4_K"])
def test_a_row_of_zeros_gives_zeros_and_nan_stays_in_its_row(name: str) -> None:
    x = normal(16, 3, 256)
    x[0] = 0
    x[1, 3] = np.nan
    got = OPS.linear(x, stored_weight(normal(17, 8, 256), name))
    assert (got[0] == 0).all() and np.isnan(got[1]).all() and np.isfinite(got[2]).all()


def test_what_llama_cpp_cannot_multiply_with_is_refused_by_name() -> None:
    fine = stored_weight(normal(18, 2, 32), "Q8_0")
    odd = stored_weight(normal(19, 2, 32), "Q8_1")
    vector = stored_weight(normal(20, 32), "Q8_1")
    check_formats([fine, vector], "ggml")
    with pytest.raises(EngineError, match=r"numerics ggml-fa.*test \(Q8_1\).*--numerics exact"):
        check_formats([fine, odd], "ggml-fa")


def test_a_field_that_a_format_lacks_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="Q8_0 has no field 'm'"):
        stored_weight(normal(21, 2, 32), "Q8_0").field("m")


class RawWeight:
    """Offers what `StoredWeight` offers of a matrix, from the bytes `[n_out, row_bytes]` of its rows."""

    def __init__(self, raw: npt.NDArray[np.uint8], name: str, n_in: int) -> None:
        self.name, self.format_name, self.shape = "raw", name, (len(raw), n_in)
        self._raw = raw

    def row_blocks(self, _expert: int = 0) -> list[tuple[int, Floats]]:
        return [(0, decode(self._raw, by_name(self.format_name), self.shape))]

    def field(self, name: str, _expert: int = 0) -> Floats:
        fields = self._raw.reshape(-1).view(by_name(self.format_name).layout)
        return fields[name].astype(np.float32).reshape(len(self._raw), -1)


@pytest.mark.oracle
@pytest.mark.parametrize("name", ACTIVATION_FORMATS)
def test_products_are_those_of_ggmls_kernels(name: str) -> None:
    """ggml's own rounding and dot product, beside ours: float32 rounding of sums apart, in all formats."""
    from tests.interface.files.test_quants import blocks_to_decode
    from tests.interface.files.test_quants_oracle import ggml_round, library

    n_in, n_tokens, block_format = 1024, 4, by_name(name)
    if block_format.encodable:
        raw = encode(normal(22, 64, n_in), name)
    else:
        # Random blocks, of which whole rows of ordinary weights are taken.
        raw = blocks_to_decode(block_format)[:10_000].reshape(-1, block_format.row_bytes(n_in))
        values = decode(raw, block_format, (len(raw), n_in))
        raw = raw[(np.abs(values) < 1e4).all(axis=1)][:64]
    assert len(raw) > 0
    x = normal(23, n_tokens, n_in)
    rounded_to = ACTIVATION_FORMATS[name]
    theirs = np.ascontiguousarray(ggml_round(x, rounded_to) if rounded_to[0] == "Q" else encode(x, rounded_to))
    traits = library().ggml_get_type_traits_cpu(block_format.ggml_type).contents
    row, stride = ctypes.c_void_p, ctypes.c_size_t
    dot = ctypes.CFUNCTYPE(None, ctypes.c_int, row, stride, row, stride, row, stride, ctypes.c_int)(traits.vec_dot)
    expected = np.zeros((n_tokens, len(raw)), np.float32)
    for t, o in np.ndindex(expected.shape):
        dot(n_in, expected[t, o:].ctypes.data, 0, raw[o].ctypes.data, 0, theirs[t].ctypes.data, 0, 1)
    weight = RawWeight(raw, name, n_in)
    got = OPS.linear(x, weight)  # type: ignore[arg-type]
    size = np.abs(x if rounded_to == "F32" else as_multiplied(x, rounded_to))
    size = size @ np.abs(weight.row_blocks()[0][1].astype(np.float64)).T
    # Measured 1e-8 to 8e-8 of the sum of magnitudes; what rounding the activations changes is 1e-4 to 2e-3 of it.
    assert (np.abs(got - expected) <= 3e-7 * size).all()


class GgmlInit(ctypes.Structure):
    """`struct ggml_init_params` of ggml.h."""

    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


def of_ggml(
    build: Callable[[Any, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p], int], a: Floats, b: Floats
) -> Floats:
    """What ggml computes of two rows of floats: `build(library, context, a, b)` makes the graph's last node."""
    from tests.interface.files.test_quants_oracle import library

    ggml, pointer, n = library(), ctypes.c_void_p, a.size
    names = ("ggml_init", "ggml_new_tensor_2d", "ggml_get_data", "ggml_new_graph", "ggml_geglu_split", "ggml_rms_norm")
    for name in (*names, "ggml_mul"):
        getattr(ggml, name).restype = pointer
    context = pointer(ggml.ggml_init(GgmlInit(5 * 4 * n + (1 << 20), None, False)))
    operands = []
    for values in (a, b):
        tensor = pointer(ggml.ggml_new_tensor_2d(context, 0, ctypes.c_int64(n), ctypes.c_int64(1)))
        ctypes.memmove(ggml.ggml_get_data(tensor), values.ctypes.data, 4 * n)
        operands.append(tensor)
    result = pointer(build(ggml, context, *operands))
    graph = pointer(ggml.ggml_new_graph(context))
    ggml.ggml_build_forward_expand(graph, result)
    assert ggml.ggml_graph_compute_with_ctx(context, graph, 1) == 0
    out = np.empty(n, np.float32)
    ctypes.memmove(out.ctypes.data, ggml.ggml_get_data(result), 4 * n)
    ggml.ggml_free(context)
    return out


@pytest.mark.oracle
def test_geglu_is_ggmls_bit_for_bit() -> None:
    """Every finite half-precision number, and many between."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    gate = np.concatenate([halves[np.isfinite(halves)], 5 * normal(24, 100_000)])
    for up in (np.ones_like(gate), normal(25, gate.size)):
        theirs = of_ggml(lambda ggml, *operands: ggml.ggml_geglu_split(*operands), gate, up)
        np.testing.assert_array_equal(OPS.geglu(gate, up), theirs)


@pytest.mark.oracle
@pytest.mark.parametrize("width", [64, 640, 2048])
def test_a_norm_is_ggmls_bit_for_bit(width: int) -> None:
    def build(ggml: Any, context: ctypes.c_void_p, x: ctypes.c_void_p, gain: ctypes.c_void_p) -> int:
        normed = ctypes.c_void_p(ggml.ggml_rms_norm(context, x, ctypes.c_float(1e-6)))
        return int(ggml.ggml_mul(context, normed, gain))

    for seed in range(20):
        x, gain = 3 * normal(seed, width), normal(seed + 50, width)
        got = OPS.rms_norm(x[None], stored_weight(gain[None], "F32"), eps=1e-6)[0]
        np.testing.assert_array_equal(got, of_ggml(build, x, gain))
