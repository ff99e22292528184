"""`%` and `str.format` for templates: the pieces of text keep their origin, and no width makes text without end."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2.sandbox import SandboxedEnvironment, SandboxedFormatter

from bloomery.server.chat import budget
from bloomery.server.chat.sourced import client, is_clients, joined, opaque, plain

_CONVERSION = re.compile(
    r"%(?:\((?P<key>[^()]*)\))?(?P<spec>[-#0 +]*(?:\*|\d*)(?:\.(?:\*|\d*))?)[hlL]?(?P<kind>.?)", re.DOTALL
)
_WIDE = re.compile(r"\d{4}|\*")
_WIDEST = 999

# How many times longer a text can be with escapes.
_ESCAPED = 4


def percent(template: str, values: Any, text_of: Callable[[object], str]) -> str:
    """`template % values`. Text put in by a bare `%s` keeps its origin; all else is followed as a whole."""
    literal = client if is_clients(template) else plain
    positional = iter(values if isinstance(values, tuple) else (values,))
    left = len(values) if isinstance(values, tuple) else 1
    parts: list[str] = []
    at = 0
    for match in _CONVERSION.finditer(plain(template)):
        parts.append(literal(template[at : match.start()]))
        at = match.end()
        budget.step()
        key, spec, kind = match["key"], match["spec"], match["kind"]
        if kind == "%":
            parts.append("%")
            continue
        _refuse_wide(spec)
        if key is not None:
            if not isinstance(values, Mapping):
                raise TypeError("format requires a mapping")
            value = values[key]
        elif left:
            value = next(positional)
            left -= 1
        else:
            raise TypeError("not enough arguments for format string")
        if kind == "s" and not spec:
            parts.append(text_of(value))
            continue
        _pay_for(value)
        parts.append(opaque(f"%{spec}{kind}" % (value,), value))
    if isinstance(values, tuple) and left:
        raise TypeError("not all arguments converted during string formatting")
    return joined((*parts, literal(template[at:])))


def _pay_for(value: object) -> None:
    """Pay for the text of a value in a field of at most three digits' width."""
    budget.make(_WIDEST)
    for _ in range(_ESCAPED):
        budget.survey(value)


def _refuse_wide(spec: str) -> None:
    if _WIDE.search(spec):
        raise ValueError(f"a format's width and precision have at most three digits: {spec[:20]!r}")


class SourcedFormatter(SandboxedFormatter):
    """`str.format` with the sandbox's rules of what a field may reach."""

    def __init__(self, environment: SandboxedEnvironment, text_of: Callable[[object], str]) -> None:
        super().__init__(environment)
        self._text_of = text_of

    def formatted(self, template: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """`template.format(*args, **kwargs)`. Text put in by a bare field keeps its origin."""
        source = client if is_clients(template) else plain
        parts: list[str] = []
        unnamed = 0
        for literal, field, spec, conversion in self.parse(plain(template)):
            budget.step()
            parts.append(source(literal))
            if field is None:
                continue
            if not field or field[0] in ".[":
                field = f"{unnamed}{field}"  # noqa: PLW2901  A field without a name takes the next number.
                unnamed += 1
            if spec and "{" in spec:
                raise ValueError("a format's width and precision are numbers, not fields")
            _refuse_wide(spec or "")
            value, _ = self.get_field(field, args, kwargs)
            if not spec and conversion in {None, "s"}:
                parts.append(self._text_of(value))
            else:
                _pay_for(value)
                shown = format(self.convert_field(value, conversion), spec or "")
                parts.append(client(shown) if is_clients(value) else shown)
        return joined(parts)
