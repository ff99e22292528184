"""What the cases of ops that read or change state are drawn from: caches of cells, and lanes of recurrences."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from bloomery.conformance.ops.case import Array, OpCase
from bloomery.conformance.ops.values import Draw, Floats, Ints, floats, ints, layouts, rarely, small_weights, tokens

# In cells that no row may read: finite, as a kernel that masks multiplies them by zero, and too large to be overlooked.
_UNREAD = 2.0**60

# Recurrences multiply what they keep again and again; numbers of a model's size stay finite.
_MOST = 64.0


@st.composite
def append(draw: Draw, _format_name: str) -> OpCase:
    n_slots, n_cells = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    entry = draw(st.sampled_from([(1,), (3,), (2, 3), (1, 2, 2)]))
    places = draw(st.lists(st.integers(0, n_slots * n_cells - 1), min_size=1, max_size=6, unique=True))
    arrays = {
        "cache": draw(floats(n_slots, n_cells, *entry, any_bits=True)),
        "rows": draw(floats(len(places), *entry, any_bits=True)),
        "slots": ints([place // n_cells for place in places]),
        "cells": ints([place % n_cells for place in places]),
    }
    return OpCase("append", arrays, layouts=draw(layouts("rows")))


def _poisoned(cache: Floats, slots: Ints, cells: Ints, window: int | None) -> Floats:
    """The cache with every cell that no row may read made `_UNREAD`."""
    at = np.arange(cache.shape[1])
    read = np.zeros(cache.shape[:2], bool)
    for slot, cell in zip(slots, cells, strict=True):
        read[slot] |= (at <= cell) & (window is None or cell - at < window)
    cache[~read] = _UNREAD
    return cache


def _cells(n: int, n_cells: int) -> st.SearchStrategy[Array]:
    """The own cells of `n` rows, the last one as likely as all others."""
    one = st.one_of(st.integers(0, n_cells - 1), st.just(n_cells - 1))
    return st.lists(one, min_size=n, max_size=n).map(ints)


@st.composite
def attention(draw: Draw, _format_name: str) -> OpCase:
    n, n_head_kv, group = draw(st.integers(1, 5)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    head_dim, value_dim = draw(st.sampled_from([1, 2, 5, 8, 33, 64])), draw(st.sampled_from([1, 2, 5, 16, 33]))
    n_slots, n_cells = draw(st.integers(1, 2)), draw(rarely(st.sampled_from([1, 2, 5, 9, 17, 40]), 70, 270))
    slots = ints(draw(st.lists(st.integers(0, n_slots - 1), min_size=n, max_size=n)))
    cells = draw(_cells(n, n_cells))
    window = draw(st.one_of(st.none(), st.integers(1, n_cells + 1)))
    caches = {
        name: _poisoned(draw(floats(n_slots, n_cells, n_head_kv, width, most=1e3)), slots, cells, window)
        for name, width in (("k_cache", head_dim), ("v_cache", value_dim))
    }
    q = draw(floats(n, n_head_kv * group, head_dim, most=1e3))
    arrays: dict[str, Array] = {"q": q, **caches, "slots": slots, "cells": cells}
    # A scale of 1 / sqrt(head_dim) as models have it, and one whose product rounds.
    params: dict[str, Any] = {"scale": draw(st.sampled_from([1.0, head_dim**-0.5, 0.1])), "window": window}
    weights = {"sinks": draw(small_weights(n_head_kv * group))} if draw(st.integers(0, 2)) == 2 else {}
    if draw(st.integers(0, 2)) == 2:
        block = params["block"] = draw(st.sampled_from([1, 2, 4]))
        arrays["chosen"] = _chosen_blocks(draw(st.integers(0, 99)), cells, n_head_kv, block)
    return OpCase("attention", arrays, weights, params, draw(layouts("q")))


def _chosen_blocks(seed: int, cells: Ints, n_head_kv: int, block: int) -> Ints:
    """For each row and KV head some blocks up to its own, its own among them, ascending, and -1 behind the last."""
    rng, n_chosen = np.random.default_rng(seed), 4
    chosen = np.full((len(cells), n_head_kv, n_chosen), -1, np.int32)
    for t, head in np.ndindex(chosen.shape[:2]):
        own = int(cells[t]) // block
        others = rng.permutation(own)[: rng.integers(0, n_chosen)]
        chosen[t, head, : len(others) + 1] = sorted([*others.tolist(), own])
    return chosen


@st.composite
def select_blocks(draw: Draw, _format_name: str) -> OpCase:
    n, heads, head_dim = draw(st.integers(1, 5)), draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 5, 16]))
    n_slots, block = draw(st.integers(1, 2)), draw(st.integers(1, 4))
    n_cells = draw(rarely(st.sampled_from([1, 3, 8, 17]), 70))
    n_chosen = draw(st.integers(1, 5))
    slots = ints(draw(st.lists(st.integers(0, n_slots - 1), min_size=n, max_size=n)))
    cells = draw(_cells(n, n_cells))
    arrays = {
        "q": draw(floats(n, heads, head_dim, most=1e3)),
        "k_cache": _poisoned(draw(floats(n_slots, n_cells, head_dim, most=1e3)), slots, cells, None),
        "slots": slots,
        "cells": cells,
    }
    params = {"block": block, "n_chosen": n_chosen, "n_local": draw(st.integers(1, n_chosen))}
    return OpCase("select_blocks", arrays, params=params, layouts=draw(layouts("q")))


@st.composite
def _lanes(draw: Draw) -> tuple[int, int, dict[str, Array]]:
    """Slots, lanes, and the rows of a pass: sequences beside each other, the rows of each in order.

    A row reads the lane that the row before it wrote, its first one any lane; rows of one sequence are behind one
    another, as a pass has them. Either each row leaves a lane of its own, or all of a sequence leave the same.
    """
    n_slots, n_lanes = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    slots: list[int] = []
    read: list[int] = []
    write: list[int] = []
    for slot in draw(st.permutations(range(n_slots))):
        lane = draw(st.integers(0, n_lanes - 1))
        step = draw(st.integers(0, 1))
        for _ in range(draw(rarely(st.integers(0 if slots else 1, 4), 19, 70))):
            slots.append(slot)
            read.append(lane)
            lane = (lane + step) % n_lanes
            write.append(lane)
    return n_slots, n_lanes, {"slots": ints(slots), "read_lanes": ints(read), "write_lanes": ints(write)}


@st.composite
def causal_conv(draw: Draw, _format_name: str) -> OpCase:
    n_slots, n_lanes, at = draw(_lanes())
    channels, n = draw(st.sampled_from([1, 2, 5, 33])), draw(st.integers(2, 5))
    arrays = {
        "x": draw(floats(len(at["slots"]), channels, most=_MOST)),
        "state": draw(floats(n_slots, n_lanes, n - 1, channels, most=_MOST)),
        **at,
    }
    weights = {"weight": draw(small_weights(channels, n))}
    if draw(st.booleans()):
        weights["bias"] = draw(small_weights(channels))
    params = {} if "bias" in weights else {"bias": None}
    return OpCase("causal_conv", arrays, weights, params, draw(layouts("x")))


@st.composite
def log_decay(draw: Draw, _format_name: str) -> OpCase:
    heads = draw(st.integers(1, 9))
    weights = {name: draw(small_weights(heads)) for name in ("bias", "a")}
    return OpCase(
        "log_decay", {"x": draw(floats(draw(tokens()), heads, most=1e3))}, weights, layouts=draw(layouts("x"))
    )


@st.composite
def delta_rule(draw: Draw, _format_name: str) -> OpCase:
    n_slots, n_lanes, at = draw(_lanes())
    n, n_head_k = len(at["slots"]), draw(st.integers(1, 3))
    n_head_v = n_head_k * draw(st.integers(1, 3))
    key_dim, value_dim = draw(st.sampled_from([1, 2, 5, 16])), draw(st.sampled_from([1, 2, 5, 16]))
    arrays = {
        "q": draw(floats(n, n_head_k, key_dim, most=4.0)),
        "k": draw(floats(n, n_head_k, key_dim, most=4.0)),
        "v": draw(floats(n, n_head_v, value_dim, most=_MOST)),
        # A decay is a power of at most 0.
        "log_decay": -np.abs(draw(floats(n, n_head_v, most=30.0))),
        "strength": draw(floats(n, n_head_v, most=_MOST)),
        "state": draw(floats(n_slots, n_lanes, n_head_v, value_dim, key_dim, most=_MOST)),
        **at,
    }
    scale = draw(st.sampled_from([1.0, key_dim**-0.5]))
    return OpCase("delta_rule", arrays, params={"scale": scale}, layouts=draw(layouts("q", "k", "v")))


@st.composite
def ssm_scan(draw: Draw, _format_name: str) -> OpCase:
    n_slots, n_lanes, at = draw(_lanes())
    n, groups = len(at["slots"]), draw(st.integers(1, 3))
    heads = groups * draw(st.integers(1, 3))
    head_dim, d_state = draw(st.sampled_from([1, 2, 5])), draw(st.sampled_from([1, 2, 5, 16]))
    arrays = {
        "x": draw(floats(n, heads, head_dim, most=_MOST)),
        "b": draw(floats(n, groups, d_state, most=_MOST)),
        "c": draw(floats(n, groups, d_state, most=_MOST)),
        "dt": draw(floats(n, heads, most=_MOST)),
        "state": draw(floats(n_slots, n_lanes, heads, head_dim, d_state, most=_MOST)),
        **at,
    }
    weights = {"dt_bias": draw(small_weights(heads)), "a": draw(_decays(heads)), "d": draw(small_weights(heads, 1))}
    return OpCase("ssm_scan", arrays, weights, layouts=draw(layouts("x", "b", "c")))


@st.composite
def _decays(draw: Draw, heads: int) -> Any:
    """A of Mamba-2, [heads, 1]: below 0, so that the state fades."""
    from bloomery.conformance.ops.values import f32_weight

    return f32_weight(-np.abs(draw(floats(heads, 1, most=16.0))))


@st.composite
def previous(draw: Draw, _format_name: str) -> OpCase:
    n_slots, n_lanes, at = draw(_lanes())
    width = draw(st.integers(1, 9))
    arrays = {
        "x": draw(floats(len(at["slots"]), width, any_bits=True)),
        "state": draw(floats(n_slots, n_lanes, width, any_bits=True)),
        **at,
    }
    return OpCase("previous", arrays, layouts=draw(layouts("x")))


@st.composite
def read_state(draw: Draw, _format_name: str) -> OpCase:
    n_slots, n_lanes = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    n, shape = draw(st.integers(1, 5)), draw(st.sampled_from([(3,), (2, 2), (2, 1, 3)]))
    arrays = {
        "state": draw(floats(n_slots, n_lanes, *shape, any_bits=True)),
        "slots": ints(draw(st.lists(st.integers(0, n_slots - 1), min_size=n, max_size=n))),
        "lanes": ints(draw(st.lists(st.integers(0, n_lanes - 1), min_size=n, max_size=n))),
    }
    return OpCase("read_state", arrays)
