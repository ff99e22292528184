"""The filters a chat template may use, on text that keeps its origin.

They are jinja2's and transformers', less those that no chat template needs and that are random, slow on hostile text,
or made for HTML. Those that make text are written here, so that `Sourced` comes through; the rest are jinja2's own.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jinja2 import Undefined
from jinja2 import filters as stock
from jinja2.nodes import EvalContext
from jinja2.utils import pass_eval_context

from bloomery.server.chat import budget
from bloomery.server.chat.formatting import percent
from bloomery.server.chat.sourced import as_sourced, client, joined, opaque

_WIDEST_INDENT = 64
_MOST_DIGITS = 18


def text_of(value: object) -> str:
    """What a template prints for a value. The text of anything but text and numbers counts as a client's."""
    if isinstance(value, str):
        return value
    if isinstance(value, Undefined):
        return str(value)
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
    return as_sourced(text_of(value)).respelled(stock.do_title)


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
    if isinstance(value, str):
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

    def write(item: Any, line_break: str) -> None:
        budget.step()
        inner = line_break + indent if indent is not None else ""
        if isinstance(item, str):
            parts.append(opaque(json.dumps(item, ensure_ascii=ensure_ascii), item))
        elif isinstance(item, Mapping):
            pairs = sorted(item.items()) if sort_keys else item.items()
            parts.append("{")
            for at, (key, held) in enumerate(pairs):
                name = json.dumps(key if isinstance(key, str) else json.dumps(key), ensure_ascii=ensure_ascii)
                parts.extend((between if at else "", inner, opaque(name, key), colon))
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


def _metered(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` as a step of the render, with a list in place of a generator.

    A chain of lazy generators would do its work where no step counts it, and could be nested without end.
    """

    @functools.wraps(function)
    def filtered(*args: Any, **kwargs: Any) -> Any:
        budget.step()
        result = function(*args, **kwargs)
        if inspect.isgenerator(result):
            result = list(result)
        if isinstance(result, list):
            budget.make(len(result) * budget.ITEM)
        return result

    return filtered


_STOCK = frozenset(
    (
        *(
            "abs",
            "batch",
            "count",
            "d",
            "default",
            "dictsort",
            "first",
            "float",
            "int",
            "items",
            "last",
            "length",
            "map",
        ),
        *(
            "max",
            "min",
            "reject",
            "rejectattr",
            "reverse",
            "select",
            "selectattr",
            "slice",
            "sort",
            "truncate",
            "unique",
        ),
        "wordcount",
    )
)

_OWN: dict[str, Callable[..., Any]] = {
    "capitalize": _capitalize,
    "e": _escape,
    "escape": _escape,
    "format": _format,
    "indent": _indent,
    "join": _join,
    "list": _list,
    "lower": _lower,
    "replace": _replace,
    "round": _round,
    "safe": text_of,
    "string": text_of,
    "sum": _sum,
    "title": _title,
    "tojson": tojson,
    "trim": _trim,
    "upper": _upper,
}

FILTERS: dict[str, Callable[..., Any]] = {
    name: _metered(function) for name, function in {**{name: stock.FILTERS[name] for name in _STOCK}, **_OWN}.items()
}
