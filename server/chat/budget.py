"""How much a chat template may do.

A template comes with a model file from anywhere, and the sandbox of jinja2 bounds what it may reach, not how long it
loops or how much text it makes. So every loop turn, call, filter and printed piece of a render is a step, and every
character or list item it makes is paid for *before* it is made. Requests run on threads of their own, where no signal
could stop them, and one operator of Python on nested lists can take forever: such operands are surveyed first.
"""

from __future__ import annotations

import time
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar

from jinja2.utils import Namespace

STEPS = 1_000_000
UNITS = 32 * 1024 * 1024
SECONDS = 5.0

# What all renders together may do by which the server learns about a template when it starts.
_PROBE_STEPS = 200_000
_PROBE_UNITS = 8 * 1024 * 1024
_PROBE_SECONDS = 3.0

# What a list item weighs, in characters.
ITEM = 64

# What it costs to visit an item, and how deep items may be nested where all of them are visited.
VISIT = 16
_DEEPEST = 100

# Beyond it, numbers that differ can have one hash: Python hashes numbers modulo one more.
LARGEST_KEY = 2**61 - 2

# An operation that only reads a text is paid for too, at so many of its characters a unit.
CHARACTERS_A_UNIT = 16

# Between two looks at the clock.
_STEPS_A_LOOK = 64
_UNITS_A_LOOK = 4 * 1024 * 1024


class BudgetError(Exception):
    """A template that does not end soon enough, that makes too much text, or that nests lists too deep."""


class Budget:
    """What is left of steps, units (characters made) and seconds of processor time, for one render after another."""

    def __init__(self, *, steps: int = STEPS, units: int = UNITS, seconds: float = SECONDS) -> None:
        self._steps = steps
        self._units = units
        self._seconds = seconds
        self._began = time.thread_time()
        self._steps_to_look = _STEPS_A_LOOK
        self._units_to_look = _UNITS_A_LOOK

    @classmethod
    def of_probes(cls) -> Budget:
        """One for all the renders of a start."""
        return cls(steps=_PROBE_STEPS, units=_PROBE_UNITS, seconds=_PROBE_SECONDS)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """The seconds run inside only, on the thread that is inside."""
        self._began = time.thread_time()
        try:
            yield
        finally:
            self._seconds -= time.thread_time() - self._began

    def step(self) -> None:
        """Pay for a loop turn, a call or a filter."""
        self._steps -= 1
        if self._steps < 0:
            raise BudgetError("takes too many steps")
        self._steps_to_look -= 1
        if self._steps_to_look <= 0:
            self._steps_to_look = _STEPS_A_LOOK
            self._look()

    def make(self, units: int) -> None:
        """Pay for `units` characters that are about to be made."""
        self._units -= units
        if self._units < 0:
            raise BudgetError("makes too much text")
        self._units_to_look -= units
        if self._units_to_look <= 0:
            self._units_to_look = _UNITS_A_LOOK
            self._look()

    def _look(self) -> None:
        if time.thread_time() - self._began > self._seconds:
            raise BudgetError("takes too long")


_CURRENT: ContextVar[Budget | None] = ContextVar("render_budget", default=None)


@contextmanager
def spending(budget: Budget) -> Iterator[Budget]:
    """Everything a template does inside, on this thread, is paid from `budget`."""
    token = _CURRENT.set(budget)
    try:
        with budget.timed():
            yield budget
    finally:
        _CURRENT.reset(token)


def step() -> None:
    """A step of the running render; free outside of one."""
    budget = _CURRENT.get()
    if budget is not None:
        budget.step()


def make(units: int) -> None:
    """`units` characters of the running render; free outside of one."""
    budget = _CURRENT.get()
    if budget is not None:
        budget.make(units)


def read(*texts: object) -> None:
    """Pay for looking through texts; whatever else is among the arguments is free."""
    make(sum(len(text) for text in texts if isinstance(text, str)) // CHARACTERS_A_UNIT)


def survey(value: object) -> int:
    """Pay for visiting all that is in `value`, and return what it cost.

    What several lists share counts each time it is met, as the operators of Python meet it. Raises BudgetError.
    """
    total = 0
    levels: list[Iterator[object]] = [iter((value,))]
    while levels:
        for item in levels[-1]:
            cost = VISIT + (len(item) if isinstance(item, str) else 0)
            make(cost)
            total += cost
            held = _items_of(item)
            if held is not None:
                if len(levels) > _DEEPEST:
                    raise BudgetError(f"nests too deep (more than {_DEEPEST} lists or objects in each other)")
                levels.append(held)
                break
        else:
            levels.pop()
    return total


def _items_of(value: object) -> Iterator[object] | None:
    if isinstance(value, list):
        # A probe that wants to know whether a template looks into its list is not told of a survey.
        return list.__iter__(value)
    if isinstance(value, tuple | KeysView | ValuesView | ItemsView):
        return iter(value)
    if isinstance(value, Namespace):
        value = object.__getattribute__(value, "_Namespace__attrs")
    if isinstance(value, Mapping):
        return (item for pair in value.items() for item in pair)
    return None
