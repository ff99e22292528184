"""One JSON value that arrives in pieces.

The reader says where the value ends and refuses what RFC 8259 does not allow, in time linear in the text however it is
cut. It keeps nothing of the value, so the text can be passed on in the spelling it came in.
"""

from __future__ import annotations

import re
from collections.abc import Callable

WHITE_SPACE = " \t\n\r"

_PLAIN_CHARACTERS = re.compile(r'[^"\\\x00-\x1f]*')
_NUMBER_CHARACTERS = re.compile(r"[-+.0-9eE]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_SPACES = re.compile(r"[ \t\n\r]*")
_LITERALS = {"t": "true", "f": "false", "n": "null"}
_KINDS = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}


class JsonError(ValueError):
    """Text that no JSON value goes on with; `at` is the place of the first character that does not belong."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.at = at


def past(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Where a pattern that matches anywhere, if only the empty text, ends."""
    match = pattern.match(text, at)
    return at if match is None else match.end()


def past_spaces(text: str, at: int) -> int:
    """The first place from `at` on that holds no white space of JSON's."""
    return past(_SPACES, text, at)


class JsonReader:
    """Reads one value; white space before it is skipped, none after it is read."""

    def __init__(self) -> None:
        self.ended = False
        # What comes next: each step reads from a place where there is text, and returns how far it came.
        self._step: Callable[[str, int], int] = self._value
        # The closing brackets of the open objects and arrays, the innermost last.
        self._open: list[str] = []
        self._in_key = False
        self._literal_rest = ""
        self._hex_left = 0
        self._number_pieces: list[str] = []

    def read(self, text: str, at: int = 0) -> int:
        """Read on from `text[at:]`; returns where the value ended, or the length of the text. Raises JsonError."""
        while at < len(text) and not self.ended:
            at = self._step(text, at)
        return at

    def _value(self, text: str, at: int) -> int:
        at = past_spaces(text, at)
        if at == len(text):
            return at
        first = text[at]
        if first == '"':
            self._in_key = False
            self._step = self._string
        elif first == "{":
            self._open.append("}")
            self._step = self._first_key
        elif first == "[":
            self._open.append("]")
            self._step = self._first_item
        elif first in _LITERALS:
            self._literal_rest = _LITERALS[first][1:]
            self._step = self._literal
        elif first in "-0123456789":
            self._number_pieces.clear()
            self._step = self._number
            return at
        else:
            raise JsonError(f"no value begins with {first!r}", at)
        return at + 1

    def _first_item(self, text: str, at: int) -> int:
        at = past_spaces(text, at)
        if at == len(text):
            return at
        if text[at] == "]":
            return self._close(at)
        self._step = self._value
        return at

    def _first_key(self, text: str, at: int) -> int:
        at = past_spaces(text, at)
        if at == len(text):
            return at
        if text[at] == "}":
            return self._close(at)
        self._step = self._key
        return at

    def _key(self, text: str, at: int) -> int:
        at = past_spaces(text, at)
        if at == len(text):
            return at
        if text[at] != '"':
            raise JsonError(f"no key begins with {text[at]!r}", at)
        self._in_key = True
        self._step = self._string
        return at + 1

    def _colon(self, text: str, at: int) -> int:
        at = past_spaces(text, at)
        if at == len(text):
            return at
        if text[at] != ":":
            raise JsonError(f"{text[at]!r} stands where the colon after a key belongs", at)
        self._step = self._value
        return at + 1

    def _more(self, text: str, at: int) -> int:
        at = past_spaces(text, at)
        if at == len(text):
            return at
        if text[at] == self._open[-1]:
            return self._close(at)
        if text[at] != ",":
            raise JsonError(f"{text[at]!r} stands where a comma or {self._open[-1]!r} belongs", at)
        self._step = self._key if self._open[-1] == "}" else self._value
        return at + 1

    def _string(self, text: str, at: int) -> int:
        at = past(_PLAIN_CHARACTERS, text, at)
        if at == len(text):
            return at
        if text[at] == "\\":
            self._step = self._escape
        elif text[at] != '"':
            raise JsonError(f"a string holds the bare control character {text[at]!r}", at)
        elif self._in_key:
            self._step = self._colon
        else:
            self._after_value()
        return at + 1

    def _escape(self, text: str, at: int) -> int:
        if text[at] == "u":
            self._hex_left = 4
            self._step = self._hex
        elif text[at] in '"\\/bfnrt':
            self._step = self._string
        else:
            raise JsonError(f"there is no escape \\{text[at]}", at)
        return at + 1

    def _hex(self, text: str, at: int) -> int:
        if text[at] not in "0123456789abcdefABCDEF":
            raise JsonError(f"a \\u escape holds {text[at]!r}", at)
        self._hex_left -= 1
        if not self._hex_left:
            self._step = self._string
        return at + 1

    def _literal(self, text: str, at: int) -> int:
        if text[at] != self._literal_rest[0]:
            raise JsonError(f"{text[at]!r} stands inside true, false or null", at)
        self._literal_rest = self._literal_rest[1:]
        if not self._literal_rest:
            self._after_value()
        return at + 1

    def _number(self, text: str, at: int) -> int:
        end = past(_NUMBER_CHARACTERS, text, at)
        self._number_pieces.append(text[at:end])
        if end < len(text):
            number = "".join(self._number_pieces)
            if not _NUMBER.fullmatch(number):
                raise JsonError(f"{number[:40]!r} is no number", end)
            self._after_value()
        return end

    def _close(self, at: int) -> int:
        self._open.pop()
        self._after_value()
        return at + 1

    def _after_value(self) -> None:
        if self._open:
            self._step = self._more
        else:
            self.ended = True


def kind_of(text: str) -> str | None:
    """The kind of JSON value that a text is, by JSON Schema's name; None if it is not one value and nothing else."""
    reader = JsonReader()
    try:
        # A number has no end of its own.
        end = reader.read(text + " ")
    except JsonError:
        return None
    if not reader.ended or end != len(text) or text[0] in WHITE_SPACE:
        return None
    return _KINDS.get(text[0], "number")
