"""Calls in tags that hold the names, `<function=NAME><parameter=KEY>VALUE</parameter></function>`, between call tags.

Two framings: with a value on lines of its own, whose line ends are framing, and bare, where every byte between the tags
is the value's. White space between tags is layout in both; text outside of calls is content, also after them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection

from bloomery.server.chat.json_reader import WHITE_SPACE, kind_of
from bloomery.server.chat.markup import CallMarkup, NewId, Tools, WrittenCalls
from bloomery.server.chat.tagged import BrokenCallError, Steps, TaggedReader
from bloomery.server.chat.value_schema import ValueSchema

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_CLOSE = "<function=", "</function>"
_PARAMETER, _PARAMETER_CLOSE = "<parameter=", "</parameter>"

_NO_KEY = re.compile(r"[<\n]")
# Some templates render an earlier call's constants as Python's, and so teach the model to write them.
_PYTHON_CONSTANTS = {"True": "true", "False": "false", "None": "null"}


class FunctionReader(TaggedReader):
    """Reads content and calls in one framing."""

    def __init__(self, special: Collection[str], tools: Tools, new_id: NewId, *, lines: bool) -> None:
        """`lines`: whether a value stands on lines of its own."""
        self._lines = lines
        self._value_close = f"\n{_PARAMETER_CLOSE}\n" if lines else _PARAMETER_CLOSE
        super().__init__((_OPEN,), _CLOSE, special=special, tools=tools, new_id=new_id)

    def _calls(self) -> Steps[None]:
        yield from self._one_of(_FUNCTION)
        name, tag = yield from self._until(">", self._closer)
        if tag == self._closer:
            raise BrokenCallError("has no name")
        schema = self._start_call(name)
        seen: set[str] = set()
        while (yield from self._one_of(_PARAMETER, _FUNCTION_CLOSE)) == _PARAMETER:
            key, _ = yield from self._until(">")
            if not key or _NO_KEY.search(key):
                raise BrokenCallError(f"has {key[:40]!r} where the name of a parameter belongs")
            if self._lines and isinstance(part := (yield from self._next("\n")), str):
                self._unread(part)
                raise BrokenCallError(f"has no line end after the tag of {key[:40]!r}")
            self._start_member(key, seen)
            yield from self._value(schema.member(key), self._value_close)
        self._end_arguments()
        yield from self._one_of(self._closer)
        self._close_call()

    def _value(self, schema: ValueSchema, close: str) -> Steps[None]:
        """A value, typed as llama-server's parsers type it in either framing (common/parsers/qwen3-coder.cpp)."""
        if schema.is_text and not (self._lines and schema.kinds - {"string"}):
            yield from self._text_value(close)
        elif not self._lines and schema.kinds & {"object", "array"}:
            # Only here may JSON hold the closing tag's characters: no string in JSON has a bare line end.
            yield from self._json_value(close)
        else:
            text, _ = yield from self._until(close)
            self._write(_typed(text, schema))


def _typed(text: str, schema: ValueSchema) -> str:
    """A whole value as JSON: what it reads as if the schema allows that, otherwise a text."""
    if schema.is_text or schema.is_unknown:
        kind = kind_of(text)
        allowed = {"number" if each == "integer" else each for each in schema.kinds}
        as_json = kind not in {None, "string"} and (schema.is_unknown or kind in allowed)
        return text if as_json else json.dumps(text, ensure_ascii=False)
    word = text.strip(WHITE_SPACE)
    word = _PYTHON_CONSTANTS.get(word, word)
    if kind_of(word) is None:
        raise BrokenCallError(f"has a value that is not JSON: {word[:40]!r}")
    return word


LINES = CallMarkup(
    name="function tags, values on lines",
    tags=(_OPEN, _CLOSE),
    make_reader=lambda special, tools, new_id: FunctionReader(special, tools, new_id, lines=True),
    ends_thought=(_OPEN,),
    space_is_layout=True,
)
BARE = CallMarkup(
    name="function tags, values bare",
    tags=(_OPEN, _CLOSE),
    make_reader=lambda special, tools, new_id: FunctionReader(special, tools, new_id, lines=False),
)


def recognise_functions(written: WrittenCalls) -> CallMarkup | None:
    """A call in these tags, in the framing that its value shows."""
    name, key, value = map(re.escape, (written.function, written.argument, written.value))
    parts = (
        _OPEN,
        rf"{_FUNCTION}{name}>",
        rf"{_PARAMETER}{key}>(\n?){value}\1{_PARAMETER_CLOSE}",
        _FUNCTION_CLOSE,
        _CLOSE,
    )
    found = re.search(r"\s*".join(parts), written.one)
    if found is None:
        return None
    return LINES if found[1] else BARE
