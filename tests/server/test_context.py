"""How many positions a slot gets: the model's limit, what half the memory holds, or what was asked, never cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomery.server.context import Context, ContextError, StateBytes, choose_context, count_slots

CELL = 1000


def choose(
    asked: int | None = None, *, slots: int = 1, limit: int = 40960, cells: int = 10**6, once: int = 0, cell: int = CELL
) -> Context:
    """Memory for `cells` positions of CELL bytes. A position takes `cell` bytes, and a slot `once` of CELL besides."""
    state = StateBytes(per_cell=cell, per_sequence=once * CELL)
    return choose_context(asked, n_parallel=slots, n_ctx_train=limit, state=state, available=cells * CELL)


@pytest.mark.parametrize(
    ("slots", "limit", "cells", "rule", "per_slot"),
    [
        (1, 40960, 10**6, "target", 40960),
        (1, 40960, 2 * 40960, "target", 40960),
        (1, 40960, 2 * 40960 - 1, "fitted", 39 * 1024),
        (4, 40960, 2 * 40960, "fitted", 10 * 1024),
        (1, 40960, 2 * 4096, "fitted", 4096),
        (1, 500, 1000, "target", 500),
    ],
)
def test_unset_is_the_limit_or_the_largest_multiple_that_fits_half_the_memory(
    slots: int, limit: int, cells: int, rule: str, per_slot: int
) -> None:
    found = choose(slots=slots, limit=limit, cells=cells)
    assert (found.rule, found.per_slot) == (rule, per_slot)


@pytest.mark.parametrize(("slots", "limit", "cells"), [(1, 40960, 8191), (10, 40960, 81_919), (1, 500, 999)])
def test_less_than_the_least_context_is_refused_with_both_sizes(slots: int, limit: int, cells: int) -> None:
    with pytest.raises(ContextError, match=r"bytes.*--ctx-size.*--parallel"):
        choose(slots=slots, limit=limit, cells=cells)


def test_a_set_total_is_split_and_its_line_says_so() -> None:
    found = choose(8192, slots=3)
    assert found.per_slot == 2730
    assert found.line() == "ctx rule=set ctx=2730 slots=3 total=8190 limit=40960"


@pytest.mark.parametrize(
    ("asked", "slots", "cells", "words"),
    [
        (2, 3, 10**6, "3 slots cannot share 2 positions"),
        (40961, 1, 10**6, "the most is 40960"),
        (100_000, 2, 10**6, "the most is 81920"),
        (5000, 1, 4999, "the most that fits is 4999"),
    ],
)
def test_a_set_total_that_does_not_fit_is_refused_with_the_most_that_does(
    asked: int, slots: int, cells: int, words: str
) -> None:
    with pytest.raises(ContextError, match=words) as caught:
        choose(asked, slots=slots, cells=cells)
    assert f'--ctx-size "{asked}"' in str(caught.value)


@pytest.mark.parametrize(
    ("slots", "cells", "once", "rule", "per_slot"),
    [
        (1, 2 * 41000, 40, "target", 40960),
        (1, 2 * 41000, 41, "fitted", 39 * 1024),
        (2, 4 * 41000, 41, "fitted", 39 * 1024),
        (3, 6 * 5000, 904, "fitted", 4096),
    ],
)
def test_what_a_slot_takes_whatever_its_length_is_counted_for_each(
    slots: int, cells: int, once: int, rule: str, per_slot: int
) -> None:
    found = choose(slots=slots, cells=cells, once=once)
    assert (found.rule, found.per_slot) == (rule, per_slot)


def test_slots_that_do_not_fit_beside_what_they_take_once_are_refused() -> None:
    with pytest.raises(ContextError, match=f"takes {3 * (4096 + 905) * CELL} bytes"):
        choose(slots=3, cells=6 * 5000, once=905)
    assert choose(4000, slots=2, cells=5000, once=500).per_slot == 2000
    with pytest.raises(ContextError, match=f"takes {5002 * CELL} bytes.*the most that fits is 3998"):
        choose(4000, slots=2, cells=5000, once=501)
    with pytest.raises(ContextError, match="not one position fits: name fewer slots with --parallel"):
        choose(4000, slots=2, cells=5000, once=2500)


def test_a_model_whose_state_does_not_grow_is_served_at_its_limit_or_not() -> None:
    assert choose(cell=0, once=2, cells=4).per_slot == 40960
    assert choose(8192, cell=0, once=4, cells=4).per_slot == 8192
    with pytest.raises(ContextError, match="more than half"):
        choose(cell=0, once=3, cells=4)


@given(slots=st.integers(1, 64), limit=st.integers(1, 10**6), cells=st.integers(0, 10**7), once=st.integers(0, 10**5))
def test_whatever_is_chosen_fits(slots: int, limit: int, cells: int, once: int) -> None:
    try:
        found = choose(slots=slots, limit=limit, cells=cells, once=once)
    except ContextError:
        assert cells < 2 * slots * (min(limit, 4096) + once + 1)
    else:
        assert 0 < found.per_slot <= limit
        assert 2 * slots * (found.per_slot + once) <= cells


def test_what_each_slot_shall_have_is_not_split_and_never_cut() -> None:
    state = StateBytes(per_cell=CELL, per_sequence=0)

    def each(slot_ctx: int, n_parallel: int, cells: int) -> Context:
        return choose_context(
            None, slot_ctx=slot_ctx, n_parallel=n_parallel, n_ctx_train=40960, state=state, available=cells * CELL
        )

    assert each(4096, 3, 3 * 4096).line() == "ctx rule=set ctx=4096 slots=3 total=12288 limit=40960"
    with pytest.raises(ContextError, match=r'--slot-ctx "4096" on each of 3 slots .* the most that fits is 4095, or'):
        each(4096, 3, 3 * 4096 - 1)
    with pytest.raises(ContextError, match='--slot-ctx "40961": the model is trained for 40960'):
        each(40961, 1, 10**6)


@given(
    slot_ctx=st.none() | st.integers(1, 5000),
    limit=st.integers(5000, 10**5),
    cells=st.integers(0, 10**6),
    once=st.integers(0, 10**4),
)
def test_auto_takes_the_most_slots_that_a_start_would_give_that_context(
    slot_ctx: int | None, limit: int, cells: int, once: int
) -> None:
    state = StateBytes(per_cell=CELL, per_sequence=once * CELL)
    available = cells * CELL

    def holds(n_parallel: int) -> bool:
        try:
            found = choose_context(
                None, slot_ctx=slot_ctx, n_parallel=n_parallel, n_ctx_train=limit, state=state, available=available
            )
        except ContextError:
            return False
        return found.per_slot == (slot_ctx or limit)

    counted = count_slots(slot_ctx, n_ctx_train=limit, state=state, available=available, most=8)
    assert counted == max([1, *(n for n in range(1, 9) if holds(n))])
