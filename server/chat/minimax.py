"""MiniMax's tool calls.

M2 writes `<minimax:tool_call>` blocks of invocations whose parameters are bare texts or JSON. M3 puts a namespace
token before every tag, names each tag after its parameter, and writes objects and arrays out in tags of their own:
`<key>` for a member, `<item>` for an item. Below, `N` stands for that token.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from bloomery.server.chat.invoke import InvokeReader, InvokeTags
from bloomery.server.chat.markup import CallMarkup, NewId, Tools, WrittenCalls
from bloomery.server.chat.tagged import BrokenCallError, Steps, TaggedReader
from bloomery.server.chat.think import SPACES
from bloomery.server.chat.value_schema import ValueSchema

M2_TAGS = InvokeTags(
    block="<minimax:tool_call>",
    block_close="</minimax:tool_call>",
    invoke='<invoke name="',
    invoke_close="</invoke>",
    parameter='<parameter name="',
    parameter_close="</parameter>",
)
# Those that may be special tokens of a vocabulary.
M2_SPECIAL = (M2_TAGS.block, M2_TAGS.block_close)

_N = "]<]minimax[>["
_OPEN, _CLOSE = f"{_N}<tool_call>", f"{_N}</tool_call>"
M3_SPECIAL = (_N, "<tool_call>", "</tool_call>")

_MAX_DEPTH = 64


def recognise_minimax(written: WrittenCalls) -> CallMarkup | None:
    """M2's or M3's markup, if that is how the calls are written."""
    if M2_TAGS.wrote(written):
        return CallMarkup(name="minimax-m2", tags=M2_SPECIAL, make_reader=partial(InvokeReader, M2_TAGS))
    invoke, member = f'{_N}<invoke name="{written.function}">', f"<{written.argument}>{written.value}"
    if not written.one_is(_OPEN, invoke, f"{_N}{member}{_N}</{written.argument}>", f"{_N}</invoke>", _CLOSE):
        return None
    return CallMarkup(name="minimax-m3", tags=M3_SPECIAL, make_reader=MiniMaxM3Reader)


class MiniMaxM3Reader(TaggedReader):
    """Reads content and M3's calls."""

    def __init__(self, special: Collection[str], tools: Tools, new_id: NewId) -> None:
        super().__init__((_OPEN,), _CLOSE, special=special, tools=tools, new_id=new_id)

    def _calls(self) -> Steps[None]:
        invoke = self._tag(f'{_N}<invoke name="')
        count = self._count
        while (yield from self._one_of(invoke, self._closer)) == invoke:
            name, tag = yield from self._until('">', self._closer)
            if tag == self._closer:
                raise BrokenCallError("has no name")
            schema = self._start_call(name)
            yield from self._members(schema, "invoke", (yield from self._tag_name()), 0)
            self._end_call()
        if self._count == count:
            raise BrokenCallError("is missing: a tool call block holds none")

    def _tag_name(self) -> Steps[str]:
        """What the next tag holds, with white space before the tag."""
        yield from self._one_of(self._tag(f"{_N}<"))
        name, _ = yield from self._until(">")
        return name

    def _members(self, schema: ValueSchema, parent: str, tag: str, depth: int) -> Steps[None]:
        """An object's members from their first tag, which has been read, to its own closing tag."""
        seen: set[str] = set()
        while tag != f"/{parent}":
            if not tag or tag.startswith("/"):
                raise BrokenCallError(f"has the tag <{tag[:40]}> where a member or </{parent[:40]}> belongs")
            self._start_member(tag, seen)
            yield from self._value_of(schema.member(tag), tag, depth)
            tag = yield from self._tag_name()

    def _items(self, schema: ValueSchema, parent: str, tag: str, depth: int) -> Steps[None]:
        """An array's items, likewise."""
        first = True
        while tag != f"/{parent}":
            if tag != "item":
                raise BrokenCallError(f"has the tag <{tag[:40]}> where an item or </{parent[:40]}> belongs")
            self._write("" if first else ",")
            first = False
            yield from self._value_of(schema, "item", depth)
            tag = yield from self._tag_name()

    def _value_of(self, schema: ValueSchema, name: str, depth: int) -> Steps[None]:
        """A value after its tag, of the name `name`, up to its closing tag."""
        close = self._tag(f"{_N}</{name}>")
        if schema.is_text:
            yield from self._text_value(close)
            return
        before, is_tag = yield from self._space_before_tag()
        if not is_tag and schema.is_unknown:
            yield from self._unknown_value(close, before)
        elif not is_tag:
            yield from self._json_value(close)
        else:
            yield from self._tags_value(schema, name, depth + 1)

    def _space_before_tag(self) -> Steps[tuple[str, bool]]:
        """White space, and whether a tag follows: its beginning has then been read."""
        spaces: list[str] = []
        while isinstance(part := (yield from self._next(self._tag(f"{_N}<"))), str):
            text = part.lstrip(SPACES)
            spaces.append(part[: len(part) - len(text)])
            if text:
                self._unread(text)
                return "".join(spaces), False
        return "".join(spaces), True

    def _tags_value(self, schema: ValueSchema, name: str, depth: int) -> Steps[None]:
        """A value that is written out in tags, or is empty."""
        tag, _ = yield from self._until(">")
        if depth > _MAX_DEPTH:
            raise BrokenCallError(f"is nested deeper than {_MAX_DEPTH} levels")
        kinds, unknown = schema.kinds, schema.is_unknown
        if unknown and tag == f"/{name}":
            self._write('""')
        elif (unknown and tag == "item") or ("array" in kinds and (tag == "item" or "object" not in kinds)):
            self._write("[")
            yield from self._items(schema.items, name, tag, depth)
            self._write("]")
        elif unknown or "object" in kinds:
            self._write("{")
            yield from self._members(schema, name, tag, depth)
            self._write("}")
        else:
            raise BrokenCallError(f"has the tag <{tag[:40]}> where the value of {name[:40]!r} belongs")
