"""The expressions of `-k`: words joined by `and`, `or`, `not` and parentheses, held against a check's name.

A word is true where it stands anywhere in the name, whatever its case. One with spaces, or one that is `and`, `or` or
`not`, is written in quotes.

    expression: conjunction ("or" conjunction)*
    conjunction: negation ("and" negation)*
    negation: "not" negation | "(" expression ")" | WORD
"""

from __future__ import annotations

import re
from collections.abc import Callable

_TOKEN = re.compile(r"""\s*(?:(?P<sign>[()])|"(?P<double>[^"]*)"|'(?P<single>[^']*)'|(?P<word>[^\s()"']+))""")
# Deeper than anyone writes, and far from the interpreter's own limit.
_MAX_DEPTH = 50

Matcher = Callable[[str], bool]


class SelectionError(ValueError):
    """An expression that says nothing; the message names the place and what is expected there."""


def selection(expression: str) -> Matcher:
    """What decides whether a name is selected.  Raises SelectionError."""
    reader = _Reader(expression)
    matcher = reader.expression()
    reader.expect_end()
    return matcher


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        self._depth = 0
        end = len(text.rstrip())
        at = 0
        while at < end:
            found = _TOKEN.match(text, at)
            if found is None:
                raise SelectionError(f"a quote at {text[at:]!r} has no end")
            kind = str(found.lastgroup)
            value = found[kind]
            self._tokens.append(("operator" if kind == "sign" or value in {"and", "or", "not"} else "word", value))
            if kind in {"double", "single"}:
                self._tokens[-1] = ("word", value)
            at = found.end()

    def expression(self) -> Matcher:
        parts = [self._conjunction()]
        while self._take("or"):
            parts.append(self._conjunction())
        return parts[0] if len(parts) == 1 else lambda name: any(part(name) for part in parts)

    def _conjunction(self) -> Matcher:
        parts = [self._negation()]
        while self._take("and"):
            parts.append(self._negation())
        return parts[0] if len(parts) == 1 else lambda name: all(part(name) for part in parts)

    def _negation(self) -> Matcher:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise SelectionError(f"more than {_MAX_DEPTH} levels of `not` and parentheses")
        try:
            if self._take("not"):
                inner = self._negation()
                return lambda name: not inner(name)
            if self._take("("):
                inner = self.expression()
                if not self._take(")"):
                    raise SelectionError(f"a ')' is missing {self._place()}")
                return inner
            if not self._tokens or self._tokens[0][0] != "word":
                raise SelectionError(f"a word, 'not' or '(' is missing {self._place()}")
            word = self._tokens.pop(0)[1].lower()
            return lambda name: word in name.lower()
        finally:
            self._depth -= 1

    def _take(self, operator: str) -> bool:
        if self._tokens[:1] == [("operator", operator)]:
            del self._tokens[0]
            return True
        return False

    def _place(self) -> str:
        return f"before {self._tokens[0][1]!r}" if self._tokens else "at the end"

    def expect_end(self) -> None:
        """Raises SelectionError when something is left."""
        if self._tokens:
            raise SelectionError(f"'and' or 'or' is missing {self._place()}")
