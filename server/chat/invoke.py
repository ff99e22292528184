"""Blocks of calls that name functions and parameters in attributes: `<invoke name="…"><parameter name="…">…`.

Several model families use this shape, each with tags of its own around it. White space between tags is layout.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from bloomery.server.chat.markup import NewId, Tools, WrittenCalls
from bloomery.server.chat.tagged import BrokenCallError, Steps, TaggedReader

_NAME_END = '">'
_TEXT_END, _JSON_END = '" string="true">', '" string="false">'


@dataclass(frozen=True)
class InvokeTags:
    """One family's tags.

    invoke and parameter: the opening tags up to the name.  string_flag: whether a parameter says itself that it is a
    text (`string="true"`) or JSON; otherwise the request's schemas say so.  separator: what stands between content and
    a block, and belongs to the block.
    """

    block: str
    block_close: str
    invoke: str
    invoke_close: str
    parameter: str
    parameter_close: str
    string_flag: bool = False
    separator: str = ""

    def wrote(self, written: WrittenCalls) -> bool:
        """Whether a template wrote its calls in these tags."""
        key_end = _TEXT_END if self.string_flag else _NAME_END
        return written.one_is(
            self.block,
            f"{self.invoke}{written.function}{_NAME_END}",
            f"{self.parameter}{written.argument}{key_end}{written.value}{self.parameter_close}",
            self.invoke_close,
            self.block_close,
        )


class InvokeReader(TaggedReader):
    """Reads content and blocks of calls in one family's tags."""

    def __init__(
        self,
        tags: InvokeTags,
        special: Collection[str],
        tools: Tools,
        new_id: NewId,
    ) -> None:
        self._tags = tags
        openers = (tags.separator + tags.block, tags.block) if tags.separator else (tags.block,)
        super().__init__(openers, tags.block_close, special=special, tools=tools, new_id=new_id)

    def _calls(self) -> Steps[None]:
        invoke = self._tag(self._tags.invoke)
        count = self._count
        while (yield from self._one_of(invoke, self._closer)) == invoke:
            yield from self._invoke()
        if self._count == count:
            raise BrokenCallError(f"is missing: a {self._tags.block} holds none")

    def _invoke(self) -> Steps[None]:
        """One call after its opening tag's beginning."""
        name, tag = yield from self._until(_NAME_END, self._closer)
        if tag == self._closer:
            raise BrokenCallError("has no name")
        schema = self._start_call(name)
        parameter, close = self._tag(self._tags.parameter), self._tag(self._tags.invoke_close)
        value_close = self._tag(self._tags.parameter_close)
        key_ends = (_TEXT_END, _JSON_END) if self._tags.string_flag else (_NAME_END,)
        seen: set[str] = set()
        while (yield from self._one_of(parameter, close)) == parameter:
            key, tag = yield from self._until(*key_ends)
            self._start_member(key, seen)
            if tag == _TEXT_END:
                yield from self._text_value(value_close)
            elif tag == _JSON_END:
                yield from self._json_value(value_close)
            else:
                yield from self._value(schema.member(key), value_close)
        self._end_call()
