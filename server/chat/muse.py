"""Muse's replies: a turn of several messages, each to a recipient, and tool calls (ATEM) in messages to a tool.

A message is ` to=RECIPIENT<|message|>TEXT`. One to `self` is reasoning; one to `user`, to `commentary` or to nobody is
content; one to `developer` is not for the client. Any other recipient is a tool, and the text a block of calls. The
next message follows `<|eom|><|start|>assistant`, or the latter alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from bloomery.server.chat.deltas import ContentDelta, ReasoningDelta
from bloomery.server.chat.invoke import InvokeReader, InvokeTags
from bloomery.server.chat.markup import CallMarkup, NewId, Tools, WrittenCalls
from bloomery.server.chat.tagged import BrokenCallError, Steps, unmarked
from bloomery.server.chat.think import SPACES

TAGS = InvokeTags(
    block="<atem:function_calls>",
    block_close="</atem:function_calls>",
    invoke='<atem:invoke name="',
    invoke_close="</atem:invoke>",
    parameter='<atem:parameter name="',
    parameter_close="</atem:parameter>",
)

_MESSAGE, _END, _START = "<|message|>", "<|eom|>", "<|start|>"
SPECIAL = (
    _MESSAGE, _END, _START, TAGS.block, TAGS.block_close, TAGS.invoke_close, TAGS.parameter_close,
)  # fmt: skip

# A header as far as it has come, with the beginning of its end if the reply stops there.
_HEADER_BEGINNING = re.compile(r"\s*(?:t|to|to=[^\s<]*)?\s*(?:<\|?[mesag]*\|?)?")
_MAX_HEADER = 256
_CONTENT = frozenset({"", "user", "commentary"})


def recognise_muse(written: WrittenCalls) -> CallMarkup | None:
    """Muse's markup, if that is how the calls are written: each in a message to its tool."""
    if f" to={written.function}{_MESSAGE}{TAGS.block}" not in written.one or not TAGS.wrote(written):
        return None
    return CallMarkup(name="muse", tags=SPECIAL, make_reader=MuseReader, frames_content=True)


class MuseReader(InvokeReader):
    """Reads a turn after its `<|start|>assistant`."""

    def __init__(self, special: Collection[str], tools: Tools, new_id: NewId) -> None:
        self._has_tools = bool(tools)
        super().__init__(TAGS, special, tools, new_id)

    def _reply(self) -> Steps[None]:
        message, end, start = self._tag(_MESSAGE), self._tag(_END), self._tag(f"{_START}assistant")
        while True:
            header, tag = yield from self._header(message, end, start)
            recipient = header.strip(SPACES).removeprefix("to=")
            if tag != message:
                # Text without a header is for the user.
                self._say(ContentDelta, header)
                tag = tag or (yield from self._text_of("user", end, start))
            elif recipient in _CONTENT | {"self", "developer"}:
                tag = yield from self._text_of(recipient, end, start)
            elif not self._has_tools:
                self._say(ContentDelta, f"{header}{_MESSAGE}")
                tag = yield from self._text_of("user", end, start)
            else:
                yield from self._message_to_tool(header)
                tag = yield from self._text_of("developer", end, start)
            if tag == end:
                yield from self._text_of("developer", start)

    def _header(self, *ends: str) -> Steps[tuple[str, str]]:
        """What stands before a message's text, and the tag that ends it: none as soon as it is no header."""
        header = ""
        while isinstance(part := (yield ends), str):
            header += unmarked(part)
            if len(header) > _MAX_HEADER or not _HEADER_BEGINNING.fullmatch(header):
                return header, ""
        return header, part.text

    def _text_of(self, recipient: str, *ends: str) -> Steps[str]:
        """Text up to one of the tags, which is returned."""
        while isinstance(part := (yield ends), str):
            if recipient == "self":
                self._say(ReasoningDelta, unmarked(part))
            elif recipient in _CONTENT:
                self._say(ContentDelta, unmarked(part))
        return part.text

    def _say(self, kind: type[ReasoningDelta | ContentDelta], text: str) -> None:
        if text:
            self._add(kind(text))

    def _message_to_tool(self, header: str) -> Steps[None]:
        self._in_markup, self._closed = True, False
        self._raw = [f"{header}{_MESSAGE}"]
        try:
            yield from self._one_of(self._tag(TAGS.block))
            yield from self._calls()
        except BrokenCallError as fault:
            yield from self._broken(str(fault))
        self._in_markup = False
