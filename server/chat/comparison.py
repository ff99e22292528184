"""Comparing and looking up values in templates, at a bounded cost.

Python compares and hashes nested lists and tuples in one uninterruptible operation that visits what they share again
and again, and tuples can be made to collide as keys. So operands are surveyed first, and no list or tuple is a key.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from jinja2.tests import TESTS as STOCK

from bloomery.server.chat import budget
from bloomery.server.chat.filters import text_of

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
}


def compared(left: Any, name: str, right: Any) -> Any:
    """`left` and `right` under one of jinja2's comparison operators."""
    budget.step()
    if name in {"in", "notin"}:
        return is_in(left, right) is (name == "in")
    _pay_for_comparing(left, right)
    return _OPERATORS[name](left, right)


def is_in(value: Any, held: Any) -> bool:
    """`value in held`."""
    if isinstance(held, Mapping):
        check_key(value)
    elif isinstance(held, str):
        budget.read(value, held)
    else:
        pay_for_search(value, held)
    return value in held


def pay_for_search(value: Any, held: Any) -> None:
    """Pay for comparing `value` with each of the items of `held`."""
    each = len(value) // budget.CHARACTERS_A_UNIT + 1 if isinstance(value, str) else budget.survey(value)
    budget.make(each * (len(held) + 1 if hasattr(held, "__len__") else 1))


def _pay_for_comparing(left: Any, right: Any) -> None:
    budget.read(left, right)
    # Where only one side is a list they differ at once.
    if not isinstance(left, str | int | float | None) and not isinstance(right, str | int | float | None):
        budget.survey(left)
        budget.survey(right)


def check_key(value: Any) -> Any:
    """`value`, if it may be a key.  Raises TypeError."""
    if isinstance(value, tuple | frozenset):
        raise TypeError("a tuple is no key in a chat template")
    if isinstance(value, int | float) and abs(value) > budget.LARGEST_KEY:
        raise TypeError(f"a number of more than {budget.LARGEST_KEY} is no key in a chat template")
    budget.read(value)
    return value


def checked_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    """`dict(...)`, its keys checked and its items paid for."""
    made: dict[Any, Any] = {}
    for source in (*args, kwargs):
        pairs: Iterable[Any] = source.items() if isinstance(source, Mapping) else source
        for key, value in pairs:
            budget.step()
            budget.make(2 * budget.ITEM)
            made[check_key(key)] = value
    return made


def _metered(test: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(test)
    def stepped(*args: Any) -> Any:
        budget.step()
        budget.read(*args)
        return test(*args)

    return stepped


def _operator_test(name: str) -> Callable[[Any, Any], Any]:
    return lambda left, right: compared(left, name, right)


_SPELLINGS = {
    "eq": ("==", "eq", "equalto"),
    "ne": ("!=", "ne"),
    "gt": (">", "gt", "greaterthan"),
    "gteq": (">=", "ge"),
    "lt": ("<", "lt", "lessthan"),
    "lteq": ("<=", "le"),
    "in": ("in",),
}
_PLAIN = (
    *("odd", "even", "divisibleby", "defined", "undefined", "none", "boolean", "false", "true", "integer", "float"),
    *("string", "mapping", "number", "sequence", "iterable", "callable", "sameas"),
)

TESTS: dict[str, Callable[..., Any]] = {
    **{name: _metered(cast("Callable[..., Any]", STOCK[name])) for name in _PLAIN},
    **{spelling: _operator_test(name) for name, spellings in _SPELLINGS.items() for spelling in spellings},
    "lower": _metered(lambda value: text_of(value).islower()),
    "upper": _metered(lambda value: text_of(value).isupper()),
}
