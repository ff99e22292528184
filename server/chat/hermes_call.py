"""The body of a Hermes tool call: `{"name": …, "arguments": {…}}`, its keys in either order.

The arguments are passed on as they come, in the model's own spelling. A string that holds an object is taken for the
object, as some templates render earlier calls that way.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from bloomery.server.chat.deltas import CallArguments, CallStart, ChatDelta
from bloomery.server.chat.json_reader import WHITE_SPACE, JsonError, JsonReader, kind_of, past_spaces


class CallError(ValueError):
    """A body that is no call; the message is the end of a sentence about it.

    `at` is the place in the text of the first character that cannot belong to a call.
    """

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.at = at


class HermesCall:
    """Reads one body in pieces."""

    def __init__(self, index: int, call_id: str) -> None:
        self.ended = False
        self.name: str | None = None
        self._index = index
        self._id = call_id
        self._deltas: list[ChatDelta] = []
        self._step: Callable[[str, int], int] = self._opening
        self._seen: set[str] = set()
        self._key = ""
        self._value = JsonReader()
        # The pieces of a string that is read whole: a key, the name, or arguments in a string.
        self._pieces: list[str] = []
        # Arguments that came before the name.
        self._early: list[str] = []

    def read(self, text: str) -> tuple[list[ChatDelta], str]:
        """Read on; returns what is new of the call, and the text after the body's end.

        Raises CallError; `take` then has what was new before the fault.
        """
        at = 0
        try:
            while at < len(text) and not self.ended:
                at = self._step(text, at)
        except JsonError as fault:
            raise CallError(f"is not one JSON object: {fault}", fault.at) from None
        return self.take(), text[at:]

    def take(self) -> list[ChatDelta]:
        """What is new since it was last asked for."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def _opening(self, text: str, at: int) -> int:
        at = past_spaces(text, at)
        if at == len(text):
            return at
        if text[at] != "{":
            raise CallError(f"is not one JSON object: it begins with {text[at]!r}", at)
        self._step = self._first_key
        return at + 1

    def _first_key(self, text: str, at: int) -> int:
        at = past_spaces(text, at)
        if at < len(text) and text[at] == "}":
            raise CallError('has no "name"', at)
        self._step = self._next_key
        return at

    def _next_key(self, text: str, at: int) -> int:
        at = past_spaces(text, at)
        if at == len(text):
            return at
        if text[at] != '"':
            raise CallError(f"is not one JSON object: no key begins with {text[at]!r}", at)
        self._begin_string(self._in_key)
        return at

    def _in_key(self, text: str, at: int) -> int:
        at, key = self._whole_string(text, at)
        if key is None:
            return at
        if key not in {"name", "arguments"}:
            raise CallError(f'has the key {key[:40]!r} besides "name" and "arguments"', at)
        if key in self._seen:
            raise CallError(f'has "{key}" twice', at)
        self._seen.add(key)
        self._key = key
        self._step = self._colon
        return at

    def _colon(self, text: str, at: int) -> int:
        at = past_spaces(text, at)
        if at == len(text):
            return at
        if text[at] != ":":
            raise CallError(f"is not one JSON object: {text[at]!r} stands where the colon after a key belongs", at)
        self._step = self._first_of_value
        return at + 1

    def _first_of_value(self, text: str, at: int) -> int:
        at = past_spaces(text, at)
        if at == len(text):
            return at
        if text[at] == '"':
            self._begin_string(self._in_name if self._key == "name" else self._in_quoted_arguments)
        elif self._key == "arguments" and text[at] == "{":
            self._value = JsonReader()
            self._step = self._in_arguments
        else:
            raise CallError(f'has a "{self._key}" that is no {"string" if self._key == "name" else "object"}', at)
        return at

    def _in_name(self, text: str, at: int) -> int:
        at, name = self._whole_string(text, at)
        if name is None:
            return at
        if not name:
            raise CallError('has an empty "name"', at)
        self.name = name
        self._deltas.append(CallStart(self._index, self._id, name))
        self._add_arguments("".join(self._early))
        self._step = self._more
        return at

    def _in_arguments(self, text: str, at: int) -> int:
        try:
            end = self._value.read(text, at)
        except JsonError as fault:
            # What came before it has to be passed on, wherever the text was cut into pieces.
            self._add_arguments(text[at : fault.at])
            raise
        self._add_arguments(text[at:end])
        if self._value.ended:
            self._step = self._more
        return end

    def _in_quoted_arguments(self, text: str, at: int) -> int:
        at, arguments = self._whole_string(text, at)
        if arguments is None:
            return at
        arguments = arguments.strip(WHITE_SPACE)
        if kind_of(arguments) != "object":
            raise CallError('has "arguments" in a string that holds no JSON object', at)
        self._add_arguments(arguments)
        self._step = self._more
        return at

    def _more(self, text: str, at: int) -> int:
        at = past_spaces(text, at)
        if at == len(text):
            return at
        if text[at] == ",":
            self._step = self._next_key
        elif text[at] != "}":
            raise CallError(f"is not one JSON object: {text[at]!r} stands where a comma or '}}' belongs", at)
        elif missing := {"name", "arguments"} - self._seen:
            raise CallError(f'has no "{missing.pop()}"', at)
        else:
            self.ended = True
        return at + 1

    def _begin_string(self, step: Callable[[str, int], int]) -> None:
        self._value = JsonReader()
        self._pieces.clear()
        self._step = step

    def _whole_string(self, text: str, at: int) -> tuple[int, str | None]:
        """Read on in a string; its value once it is whole."""
        end = self._value.read(text, at)
        self._pieces.append(text[at:end])
        if not self._value.ended:
            return end, None
        value: str = json.loads("".join(self._pieces))
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise CallError("has an escape for half a surrogate pair", end)
        return end, value

    def _add_arguments(self, text: str) -> None:
        if self.name is None:
            self._early.append(text)
        elif text:
            self._deltas.append(CallArguments(self._index, text))
