"""How much a chat template may do.

A template comes with a model file from anywhere, and the sandbox of jinja2 bounds what it may reach, not how long it
loops or how much text it makes. So every loop turn, call and filter of a render is a step, and every character or list
item it makes is paid for *before* it is made. Requests run on threads of their own, where no signal could stop them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

STEPS = 4_000_000
UNITS = 256 * 1024 * 1024
SECONDS = 10.0

# What a list item weighs, in characters.
ITEM = 64

# Between two looks at the clock.
_STEPS_A_LOOK = 64
_UNITS_A_LOOK = 4 * 1024 * 1024


class BudgetError(Exception):
    """A template that does not end soon enough, or that makes too much text."""


class Budget:
    """What is left of one render's steps, units (characters made) and seconds of this thread's processor time."""

    def __init__(self, *, steps: int = STEPS, units: int = UNITS, seconds: float = SECONDS) -> None:
        self._steps = steps
        self._units = units
        self._seconds = seconds
        self._began = time.thread_time()
        self._steps_to_look = _STEPS_A_LOOK
        self._units_to_look = _UNITS_A_LOOK

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
