"""What the cases of each op are drawn from, but for the ops that keep state (`op_state_draws`).

A strategy `(format_name) -> OpCase` an op. `format_name` is what its matrix is stored as, "" for an op without one.
"""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from bloomery.conformance.ops.case import OpCase
from bloomery.conformance.ops.values import (
    LARGEST,
    Draw,
    floats,
    ints,
    layouts,
    matrices,
    rarely,
    row_lengths,
    small_weights,
    tokens,
    widths,
)
from bloomery.interface.spec import Rope

EPSILONS = st.sampled_from([1e-6, 1e-5, 0.1, 1.0])

# Half precision ends at 65504, and ggml numerics round activations to it.
_MOST_ACTIVATION = 2.0**12

# A matrix of half a million weights: (n_in, n_out).
_WIDE = (1024, 515)


@st.composite
def from_host(draw: Draw, _format_name: str) -> OpCase:
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    values = draw(floats(*shape, any_bits=True))
    if draw(st.booleans()):
        values = values.view(np.int32)
    return OpCase("from_host", {"values": values}, layouts=draw(layouts("values")))


@st.composite
def to_host(draw: Draw, _format_name: str) -> OpCase:
    x = draw(floats(draw(tokens()), draw(widths()), any_bits=True))
    return OpCase("to_host", {"x": x})


@st.composite
def embed(draw: Draw, format_name: str) -> OpCase:
    n_vocab = draw(st.integers(1, 9))
    table = draw(matrices(format_name, n_vocab, draw(row_lengths(format_name))))
    ids = ints(draw(st.lists(st.integers(0, n_vocab - 1), min_size=1, max_size=12)))
    return OpCase("embed", {"ids": ids}, {"table": table}, layouts=draw(layouts("ids")), format_name=format_name)


@st.composite
def take_rows(draw: Draw, _format_name: str) -> OpCase:
    n = draw(tokens())
    rows = ints(draw(st.lists(st.integers(0, n - 1), max_size=6)))
    arrays = {"x": draw(floats(n, draw(widths()), any_bits=True)), "rows": rows}
    return OpCase("take_rows", arrays, layouts=draw(layouts("x")))


@st.composite
def add(draw: Draw, _format_name: str) -> OpCase:
    shape = (draw(tokens()), draw(widths()))
    arrays = {name: draw(floats(*shape, any_bits=True)) for name in ("a", "b")}
    return OpCase("add", arrays, layouts=draw(layouts("a", "b")))


@st.composite
def scale(draw: Draw, _format_name: str) -> OpCase:
    x = draw(floats(draw(tokens(0)), draw(widths()), any_bits=True))
    # A tenth is no float32 number: the factor is rounded before it multiplies.
    factor = draw(st.sampled_from([1.0, 2.0, 0.5, 0.1, -1.5, 1 / 3, 0.0, math.sqrt(2560)]))
    return OpCase("scale", {"x": x}, params={"factor": factor}, layouts=draw(layouts("x")))


@st.composite
def rms_norm(draw: Draw, _format_name: str) -> OpCase:
    n, heads, width = draw(tokens(0)), draw(st.sampled_from([None, 1, 3])), draw(widths())
    shape = (n, width) if heads is None else (n, heads, width)
    x = draw(floats(*shape))
    if n and draw(st.integers(0, 9)) == 9:
        x[draw(st.integers(0, n - 1))] = np.nan
    of_heads = heads is not None and draw(st.booleans())
    weight = draw(small_weights(heads, width) if of_heads else small_weights(width))
    return OpCase("rms_norm", {"x": x}, {"weight": weight}, {"eps": draw(EPSILONS)}, draw(layouts("x")))


@st.composite
def l2_norm(draw: Draw, _format_name: str) -> OpCase:
    x = draw(floats(draw(tokens()), draw(st.integers(1, 3)), draw(widths())))
    return OpCase("l2_norm", {"x": x}, params={"eps": draw(EPSILONS)}, layouts=draw(layouts("x")))


@st.composite
def linear(draw: Draw, format_name: str) -> OpCase:
    n_in, n_out = draw(row_lengths(format_name)), draw(st.integers(1, 5))
    if format_name == "F32" and draw(st.integers(0, 7)) == 7:
        # Larger than what is multiplied in one piece by whoever does it in pieces.
        n_in, n_out = _WIDE
    weights = {"weight": draw(matrices(format_name, n_out, n_in))}
    if draw(st.booleans()):
        weights["bias"] = draw(small_weights(n_out))
    most = LARGEST if format_name == "F32" else _MOST_ACTIVATION
    x = draw(floats(draw(tokens(0)), n_in, most=most))
    return OpCase("linear", {"x": x}, weights, layouts=draw(layouts("x")), format_name=format_name)


@st.composite
def expert_linear(draw: Draw, format_name: str) -> OpCase:
    n_expert, n, n_in = draw(rarely(st.integers(1, 4), 19)), draw(tokens()), draw(row_lengths(format_name))
    n_used = draw(st.integers(1, min(n_expert, 4)))
    weight = draw(matrices(format_name, n_expert, draw(st.integers(1, 4)), n_in))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    experts = ints([rng.permutation(n_expert)[:n_used] for _ in range(n)])
    shape = (n, n_in) if draw(st.booleans()) else (n, n_used, n_in)
    most = LARGEST if format_name == "F32" else _MOST_ACTIVATION
    arrays = {"x": draw(floats(*shape, most=most)), "experts": experts}
    return OpCase("expert_linear", arrays, {"weight": weight}, layouts=draw(layouts("x")), format_name=format_name)


@st.composite
def split_heads(draw: Draw, _format_name: str) -> OpCase:
    n_head = draw(st.integers(1, 7))
    x = draw(floats(draw(tokens()), n_head * draw(st.integers(1, 8)), any_bits=True))
    return OpCase("split_heads", {"x": x}, params={"n_head": n_head}, layouts=draw(layouts("x")))


@st.composite
def merge_heads(draw: Draw, _format_name: str) -> OpCase:
    x = draw(floats(draw(tokens()), draw(st.integers(1, 7)), draw(st.integers(1, 8)), any_bits=True))
    return OpCase("merge_heads", {"x": x}, layouts=draw(layouts("x")))


@st.composite
def split(draw: Draw, _format_name: str) -> OpCase:
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    heads = draw(st.sampled_from([(), (1,), (3,)]))
    x = draw(floats(draw(tokens()), *heads, sum(sizes), any_bits=True))
    return OpCase("split", {"x": x}, params={"sizes": sizes}, layouts=draw(layouts("x")))


@st.composite
def concat(draw: Draw, _format_name: str) -> OpCase:
    n = draw(tokens())
    arrays = {name: draw(floats(n, draw(widths()), any_bits=True)) for name in ("a", "b")}
    return OpCase("concat", arrays, layouts=draw(layouts("a", "b")))


@st.composite
def rope(draw: Draw, _format_name: str) -> OpCase:
    n_dims = draw(st.sampled_from([2, 4, 8, 16, 64]))
    extended = draw(st.booleans())
    # Of the pairs that take turns, t has the first of every three.
    sections = draw(st.sampled_from([None, None, (1, 1, 1, 0), (3, 2, 2, 0), (11, 11, 10, 0)]))
    turn = Rope(
        n_dims=n_dims,
        base=draw(st.sampled_from([1e4, 1e6, 5e5])),
        style=draw(st.sampled_from(["neox", "norm"])),
        freq_scale=draw(st.sampled_from([1.0, 0.25])),
        ext_factor=1.0 if extended else 0.0,
        magnitude=draw(st.sampled_from([1.0, 1.1386])) if extended else 1.0,
        n_ctx_orig=draw(st.sampled_from([64, 32768])) if extended else 0,
        sections=sections,
    )
    n = draw(tokens())
    at = st.one_of(st.integers(0, 9), st.integers(0, 100_000))
    components = 4 if sections is not None and draw(st.booleans()) else 1
    positions = ints(draw(st.lists(at, min_size=n * components, max_size=n * components)))
    positions = positions.reshape(n, 4) if components == 4 else positions
    n_head = draw(rarely(st.integers(1, 3), 35))
    x = draw(floats(n, n_head, n_dims + draw(st.sampled_from([0, 1, 3])), most=2.0**20))
    return OpCase("rope", {"x": x, "positions": positions}, params={"rope": turn}, layouts=draw(layouts("x")))


@st.composite
def sigmoid_gate(draw: Draw, _format_name: str) -> OpCase:
    n, heads, width = draw(tokens()), draw(st.sampled_from([(), (1,), (3,)])), draw(widths())
    x = draw(floats(n, *heads, width))
    gate = draw(floats(n, *heads, draw(st.sampled_from([width, 1]))))
    return OpCase("sigmoid_gate", {"x": x, "gate": gate}, layouts=draw(layouts("x", "gate")))


def _of_two(op: str) -> st.SearchStrategy[OpCase]:
    @st.composite
    def drawn(draw: Draw) -> OpCase:
        shape = (draw(tokens()), *draw(st.sampled_from([(), (2,)])), draw(widths()))
        arrays = {"gate": draw(floats(*shape)), "up": draw(floats(*shape))}
        return OpCase(op, arrays, layouts=draw(layouts("gate", "up")))

    return drawn()


def swiglu(_format_name: str) -> st.SearchStrategy[OpCase]:
    return _of_two("swiglu")


def geglu(_format_name: str) -> st.SearchStrategy[OpCase]:
    return _of_two("geglu")


def swiglu_oai(_format_name: str) -> st.SearchStrategy[OpCase]:
    return _of_two("swiglu_oai")


@st.composite
def squared_relu(draw: Draw, _format_name: str) -> OpCase:
    x = draw(floats(draw(tokens()), draw(widths())))
    return OpCase("squared_relu", {"x": x}, layouts=draw(layouts("x")))


@st.composite
def route(draw: Draw, _format_name: str) -> OpCase:
    n_expert = draw(rarely(st.integers(1, 20), 67, 259))
    logits = draw(floats(draw(tokens()), n_expert, most=1e4))
    params = {
        "n_used": draw(st.integers(1, n_expert)),
        "score": draw(st.sampled_from(["softmax", "sigmoid"])),
        "normalised": draw(st.sampled_from([True, False])),
        "scale": draw(st.sampled_from([1.0, 2.5])),
    }
    weights = {"bias": draw(small_weights(n_expert, most=4.0))} if draw(st.booleans()) else {}
    return OpCase("route", {"logits": logits}, weights, params, draw(layouts("logits")))


@st.composite
def combine_experts(draw: Draw, _format_name: str) -> OpCase:
    n, n_used = draw(tokens()), draw(st.integers(1, 4))
    arrays = {"y": draw(floats(n, n_used, draw(widths()))), "weights": draw(floats(n, n_used, most=4.0))}
    return OpCase("combine_experts", arrays, layouts=draw(layouts("y", "weights")))
