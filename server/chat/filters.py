"""The filters a chat template may use, on text that keeps its origin.

They are jinja2's and transformers', less those that no chat template needs and that are random, slow on hostile text,
or made for HTML. Those that make text are written here, so that `Sourced` comes through; the rest are jinja2's own.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any

from jinja2 import Environment, Undefined
from jinja2 import filters as stock
from jinja2.nodes import EvalContext
from jinja2.utils import pass_environment, pass_eval_context

from bloomery.server.chat import budget
from bloomery.server.chat.formatting import percent
from bloomery.server.chat.sourced import as_sourced, client, joined, opaque

_WIDEST_INDENT = 64
_MOST_DIGITS = 18
_LONGEST_NUMBER = 1000


def text_of(value: object) -> str:
    """What a template prints for a value. The text of anything but text and numbers counts as a client's."""
    if isinstance(value, str):
        return value
    if isinstance(value, Undefined):
        return str(value)
    # With escapes, a text in a list can be several times as long.
    cost = budget.survey(value)
    budget.make(3 * cost)
    text = str(value)
    return text if isinstance(value, bool | int | float | None) else client(text)


def concatenated(parts: Iterable[object]) -> str:
    """The values of a `~` expression as one text."""
    return joined(map(text_of, parts))


def turns(values: Iterable[Any]) -> Iterator[Any]:
    """The items of a loop, each a step of the render."""
    for value in values:
        budget.step()
        yield value


@pass_eval_context
def _join(context: EvalContext, values: Iterable[Any], d: object = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        values = map(stock.make_attrgetter(context.environment, attribute), values)
    return as_sourced(text_of(d)).join(map(text_of, values))


def _replace(value: object, old: object, new: object, count: int | None = None) -> str:
    return as_sourced(text_of(value)).replace(text_of(old), text_of(new), -1 if count is None else count)


def _upper(value: object) -> str:
    return as_sourced(text_of(value)).upper()


def _lower(value: object) -> str:
    return as_sourced(text_of(value)).lower()


def _capitalize(value: object) -> str:
    return as_sourced(text_of(value)).capitalize()


def _title(value: object) -> str:
    text = as_sourced(text_of(value))
    # The stock filter makes a list of words and gaps.
    budget.make(len(text) * budget.ITEM // 2)
    return text.respelled(stock.do_title)


def _wordcount(value: object) -> int:
    text = text_of(value)
    budget.make(len(text) * budget.ITEM // 2)
    return stock.do_wordcount(text)


def _reversed(value: Any) -> Any:
    return as_sourced(value)[::-1] if isinstance(value, str) else stock.do_reverse(value)


def _batch(value: Iterable[Any], linecount: int, fill_with: Any = None) -> Iterable[Any]:
    if fill_with is not None:
        budget.make(max(0, linecount) * budget.ITEM)
    return stock.do_batch(value, linecount, fill_with)


def _slice(value: Iterable[Any], slices: int, fill_with: Any = None) -> Iterable[Any]:
    budget.make(max(0, slices) * budget.ITEM)
    return stock.sync_do_slice(list(value), slices, fill_with)


@pass_environment
def _unique(
    environment: Environment, value: Iterable[Any], case_sensitive: bool = False, attribute: str | int | None = None
) -> Iterable[Any]:
    # What is compared are keys: see comparison.py on why a tuple is none.
    key_of = stock.make_attrgetter(environment, attribute, None if case_sensitive else stock.ignore_case)
    seen: set[Any] = set()
    for item in value:
        budget.survey(item)
        key = key_of(item)
        if isinstance(key, tuple) or (isinstance(key, int | float) and abs(key) > budget.LARGEST_KEY):
            raise TypeError("the unique filter compares texts and numbers of less than 2**61 - 1")
        if key not in seen:
            seen.add(key)
            yield item


def _integer(value: Any, default: int = 0, base: int = 10) -> int:
    budget.read(value)
    if isinstance(value, str) and len(value) > _LONGEST_NUMBER:
        return default
    return stock.do_int(value, default, base)


def _ordered(function: Callable[..., Any]) -> Callable[..., Any]:
    """A stock filter that compares items with each other, after paying for that many comparisons."""

    @functools.wraps(function)
    def ordered(environment: Environment, value: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(value, str):
            value = list(as_sourced(value))
        if hasattr(value, "__len__"):
            budget.make(budget.survey(value) * len(value).bit_length())
        return function(environment, value, *args, **kwargs)

    return ordered


def _dictsort(value: Mapping[Any, Any], case_sensitive: bool = False, by: str = "key", reverse: bool = False) -> Any:
    budget.make(budget.survey(value) * len(value).bit_length())
    return stock.do_dictsort(value, case_sensitive, by, reverse)  # type: ignore[arg-type]  # it checks `by` itself


def _trim(value: object, chars: str | None = None) -> str:
    return as_sourced(text_of(value)).strip(chars)


def _escape(value: object) -> str:
    text = text_of(value)
    for character, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("'", "&#39;"), ('"', "&#34;")):
        text = as_sourced(text).replace(character, name)
    return text


def _indent(value: object, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    if isinstance(width, int):
        width = " " * _narrow("indent", width)
    # As in jinja2, a line end at the very end counts as the beginning of one more, empty, line.
    lines = joined((text_of(value), "\n")).splitlines()
    indented = [line if at == 0 or not (line or blank) else joined((width, line)) for at, line in enumerate(lines)]
    text = as_sourced("\n").join(indented)
    return joined((width, text)) if first else text


def _format(value: object, *args: Any, **kwargs: Any) -> str:
    if args and kwargs:
        raise TypeError("the format filter takes positional or keyword arguments, not both")
    return percent(text_of(value), kwargs or args, text_of)


def _list(value: Iterable[Any]) -> list[Any]:
    if isinstance(value, Sized):
        budget.make(len(value) * budget.ITEM)
    return list(value)


def _sum(values: Iterable[Any], start: float = 0) -> float:
    total = start
    for value in values:
        if not isinstance(value, int | float):
            raise TypeError(f"the sum filter adds numbers, not {type(value).__name__}")
        total += value
    return total


def _round(value: float, precision: int = 0, method: str = "common") -> float:
    if abs(precision) > _MOST_DIGITS:
        raise ValueError(f"the round filter keeps at most {_MOST_DIGITS} digits, not {precision}")
    scale = 10.0**precision
    if method == "common":
        return round(value, precision)
    if method not in {"ceil", "floor"}:
        raise ValueError("the round filter's method must be common, ceil or floor")
    return (math.ceil(value * scale) if method == "ceil" else math.floor(value * scale)) / scale


def _narrow(filter_name: str, width: int) -> int:
    if width > _WIDEST_INDENT:
        raise ValueError(f"the {filter_name} filter indents by at most {_WIDEST_INDENT} characters, not {width}")
    return width


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers' filter writes it (`json.dumps` without escapes for HTML or for non-ASCII text)."""
    if isinstance(indent, int):
        indent = " " * _narrow("tojson", indent)
    between, colon = separators or ("," if indent is not None else ", ", ": ")
    parts: list[str] = []

    def spelled(text: str) -> str:
        # With escapes, a text can be several times as long.
        budget.make(4 * len(text))
        return opaque(json.dumps(text, ensure_ascii=ensure_ascii), text)

    def write(item: Any, line_break: str) -> None:
        budget.step()
        inner = line_break + indent if indent is not None else ""
        budget.make((len(between) + len(colon) + len(inner) + 1) * (len(item) if hasattr(item, "__len__") else 1))
        if isinstance(item, str):
            parts.append(spelled(item))
        elif isinstance(item, Mapping):
            pairs = sorted(item.items()) if sort_keys else item.items()
            parts.append("{")
            for at, (key, held) in enumerate(pairs):
                name = spelled(key if isinstance(key, str) else json.dumps(key))
                parts.extend((between if at else "", inner, name, colon))
                write(held, inner)
            parts.append(line_break + "}" if item else "}")
        elif isinstance(item, list | tuple):
            parts.append("[")
            for at, held in enumerate(item):
                parts.extend((between if at else "", inner))
                write(held, inner)
            parts.append(line_break + "]" if item else "]")
        else:
            parts.append(json.dumps(item))

    write(value, "\n" if indent is not None else "")
    return joined(parts)


def _paid(item: Any) -> Any:
    """An item of a list that is being made."""
    budget.step()
    budget.make(budget.ITEM + (len(item) * budget.ITEM if isinstance(item, list) else 0))
    return item


def _metered(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` as a step of the render, with a list in place of a generator.

    A chain of lazy generators would do its work where no step counts it, and could be nested without end.
    """

    @functools.wraps(function)
    def filtered(*args: Any, **kwargs: Any) -> Any:
        budget.step()
        budget.read(*args)
        result = function(*args, **kwargs)
        if inspect.isgenerator(result):
            result = [_paid(item) for item in result]
        elif isinstance(result, list):
            budget.make(len(result) * budget.ITEM)
        return result

    return filtered


_STOCK = frozenset(
    (
        *(
            "abs",
            "count",
            "d",
            "default",
            "first",
            "float",
            "items",
            "last",
            "length",
            "map",
        ),
        *(
            "reject",
            "rejectattr",
            "select",
            "selectattr",
            "truncate",
        ),
    )
)

_OWN: dict[str, Callable[..., Any]] = {
    "batch": _batch,
    "capitalize": _capitalize,
    "dictsort": _dictsort,
    "e": _escape,
    "escape": _escape,
    "format": _format,
    "indent": _indent,
    "int": _integer,
    "join": _join,
    "list": _list,
    "lower": _lower,
    "max": _ordered(stock.do_max),
    "min": _ordered(stock.do_min),
    "replace": _replace,
    "reverse": _reversed,
    "round": _round,
    "safe": text_of,
    "slice": _slice,
    "sort": _ordered(stock.do_sort),
    "string": text_of,
    "sum": _sum,
    "title": _title,
    "tojson": tojson,
    "trim": _trim,
    "unique": _unique,
    "upper": _upper,
    "wordcount": _wordcount,
}

FILTERS: dict[str, Callable[..., Any]] = {
    name: _metered(function) for name, function in {**{name: stock.FILTERS[name] for name in _STOCK}, **_OWN}.items()
}
