"""DeepSeek's tool calls (DSML), in the spellings of V3.2, V4 and V4.1.

V4.1 writes a space after the token in every tag, and `calls` for `tool_calls`. Its files carry V4's template all the
same, which is respelled for them: the tools header then teaches the tags that the model writes.

Markup that is no call is content in its own words. Only a stream cannot take a call back whose name went out: there it
is a fault.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import partial

from bloomery.server.chat.deltas import CallStart, ChatDelta, ContentDelta
from bloomery.server.chat.invoke import InvokeReader, InvokeTags
from bloomery.server.chat.markup import CallMarkup, NewId, Tools, WrittenCalls
from bloomery.server.chat.tagged import Steps

_MARKUP = "｜DSML｜"
SPECIAL = (_MARKUP,)

# The token in a template's source, spelled out or as a variable that a string is appended to, and a tag's name.
_TAG_NAME = re.compile(rf"({_MARKUP}|\w*dsml\w*\s*[+~]\s*['\"])(tool_calls(?=>)|invoke\b|parameter\b)", re.IGNORECASE)


def _spelling(block: str, space: str = "") -> InvokeTags:
    return InvokeTags(
        block=f"<{_MARKUP}{space}{block}>",
        block_close=f"</{_MARKUP}{space}{block}>",
        invoke=f'<{_MARKUP}{space}invoke name="',
        invoke_close=f"</{_MARKUP}{space}invoke>",
        parameter=f'<{_MARKUP}{space}parameter name="',
        parameter_close=f"</{_MARKUP}{space}parameter>",
        string_flag=True,
        separator="\n\n",
    )


SPELLINGS = (_spelling("tool_calls"), _spelling("calls", space=" "), _spelling("function_calls"))


def recognise_dsml(written: WrittenCalls) -> CallMarkup | None:
    """DSML in one of its spellings, if that is how the calls are written."""
    spelling = next((spelling for spelling in SPELLINGS if spelling.wrote(written)), None)
    if spelling is None:
        return None
    return CallMarkup(
        name=f"dsml {spelling.block}",
        tags=SPECIAL,
        make_reader=partial(DsmlReader, spelling),
        make_whole_reader=partial(DsmlReader, spelling, whole=True),
    )


class DsmlReader(InvokeReader):
    """Reads content and calls in one spelling.

    With `whole`, as for an answer that is not streamed, a call goes out only when it has closed.
    """

    def __init__(
        self,
        spelling: InvokeTags,
        special: Collection[str],
        tools: Tools,
        new_id: NewId,
        *,
        whole: bool = False,
    ) -> None:
        super().__init__(spelling, special, tools, new_id)
        self._keeps_text = whole

    def finish(self, *, cut: bool) -> list[ChatDelta]:
        """A call that the token limit cut stands as far as it came; one that the model left open is an error."""
        deltas = super().finish(cut=cut)
        return deltas + self._take_all()

    def _take(self) -> list[ChatDelta]:
        return [] if self._keeps_text and self._name is not None else self._take_all()

    def _broken(self, fault: str) -> Steps[None]:
        if self._name is not None and not self._keeps_text:
            yield from super()._broken(fault)
        if self._name is not None:
            self._fragments.clear()
            while not isinstance(self._deltas.pop(), CallStart):
                pass
            self._name = None
        if text := "".join(self._raw):
            self._add(ContentDelta(text))


def respelled(source: str) -> str:
    """A template's source with V4's tags spelled as V4.1's; a source without V4's tags is returned as it is."""
    return _TAG_NAME.sub(lambda match: f"{match[1]} {match[2].removeprefix('tool_')}", source)
