"""GLM's tool calls: `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>…</tool_call>`.

Values are bare texts or JSON, as the request's schemas say. White space between tags is layout; any text outside of
calls is content, also between and after them.
"""

from __future__ import annotations

from collections.abc import Collection

from bloomery.server.chat.markup import CallMarkup, NewId, Tools, WrittenCalls
from bloomery.server.chat.tagged import Steps, TaggedReader
from bloomery.server.chat.think import SPACES

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_KEY, _KEY_CLOSE = "<arg_key>", "</arg_key>"
_VALUE, _VALUE_CLOSE = "<arg_value>", "</arg_value>"

TAGS = (_OPEN, _CLOSE, _KEY, _KEY_CLOSE, _VALUE, _VALUE_CLOSE)


def recognise_glm(written: WrittenCalls) -> CallMarkup | None:
    """GLM's markup, if that is how the calls are written."""
    key, value = f"{_KEY}{written.argument}{_KEY_CLOSE}", f"{_VALUE}{written.value}{_VALUE_CLOSE}"
    if not written.one_is(_OPEN, written.function, key, value, _CLOSE):
        return None
    return CallMarkup(name="glm", tags=TAGS, make_reader=GlmReader)


class GlmReader(TaggedReader):
    """Reads content and GLM's calls."""

    def __init__(self, special: Collection[str], tools: Tools, new_id: NewId) -> None:
        super().__init__((_OPEN,), _CLOSE, special=special, tools=tools, new_id=new_id)

    def _calls(self) -> Steps[None]:
        key_tag = self._tag(_KEY)
        name, tag = yield from self._until(key_tag, self._closer)
        schema = self._start_call(name.strip(SPACES))
        seen: set[str] = set()
        while tag == key_tag:
            key, _ = yield from self._until(self._tag(_KEY_CLOSE))
            self._start_member(key, seen)
            yield from self._one_of(self._tag(_VALUE))
            yield from self._value(schema.member(key), self._tag(_VALUE_CLOSE))
            tag = yield from self._one_of(key_tag, self._closer)
        self._end_call()
