"""Content and Hermes tool calls: a JSON object between two tags (`<tool_call>{…}</tool_call>`), any number of times.

White space between and after calls is layout; any other text is content, also after a call. This differs from
llama-server on purpose, which refuses text after a call, and takes a call without line ends for content.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from enum import Enum, auto

from bloomery.server.chat.deltas import CallEnd, ChatDelta, ContentDelta, ParseFailure
from bloomery.server.chat.hermes_call import CallError, HermesCall
from bloomery.server.chat.markup import CallMarkup, WrittenCalls
from bloomery.server.chat.tags import FIRST_TAG, LAST_TAG, Tag
from bloomery.server.chat.think import SPACES


def recognise_hermes(written: WrittenCalls) -> CallMarkup | None:
    """Each of two calls between the same tags, as a JSON object of a name and arguments, and nothing else between."""
    found: list[tuple[str, str]] = []
    decoder = json.JSONDecoder()
    at = 0
    while (at := written.two.find("{", at)) >= 0:
        try:
            call, end = decoder.raw_decode(written.two, at)
        except (ValueError, RecursionError):
            return None
        opened, closed = LAST_TAG.search(written.two[:at]), FIRST_TAG.search(written.two[end:])
        if opened is None or closed is None:
            return None
        if set(call) != {"name", "arguments"} or call["name"] != written.function:
            return None
        found.append((opened[1], closed[2]))
        if len(found) > 2:
            return None
        at = end
    if len(found) != 2 or found[0] != found[1] or found[0][0] == found[0][1]:
        return None
    return hermes_markup(*found[0])


def hermes_markup(opener: str, closer: str) -> CallMarkup:
    """Hermes calls between these tags."""
    return CallMarkup(
        name="hermes",
        tags=(opener, closer),
        make_reader=lambda special, tools, new_id: HermesContent(opener, closer, special=special, new_id=new_id),
    )


class _Place(Enum):
    CONTENT = auto()
    CALL = auto()
    BROKEN_CALL = auto()
    AFTER_CALL = auto()


class HermesContent:
    """A reply in which `opener` begins a tool call and `closer` ends it.

    A fault in the arguments after the call's name went out ends the reply at once, for a stream cannot take it back.
    Any other fault waits for the call's end: a call that the token limit cuts is no error.
    """

    def __init__(self, opener: str, closer: str, *, special: Collection[str], new_id: Callable[[int], str]) -> None:
        """`special`: the tags that are special tokens.  `new_id`: the id of the call with an index."""
        self._opener = opener
        self._closer = closer
        self._closer_is_special = closer in special
        self._new_id = new_id
        self._place = _Place.CONTENT
        self._count = 0
        self._call = HermesCall(0, "")
        # The call's own text, until its name is whole.
        self._text: list[str] = []
        self._fault = ""
        # White space after a call, which is content only if text follows.
        self._spaces: list[str] = []

    def wanted(self) -> tuple[str, ...]:
        """The opener outside of a call; inside, the closer, but for JSON text that may hold the same characters."""
        if self._place in {_Place.CONTENT, _Place.AFTER_CALL}:
            return (self._opener,)
        if self._place is _Place.CALL and not self._call.ended and not self._closer_is_special:
            return ()
        return (self._closer,)

    def read(self, part: str | Tag) -> tuple[list[ChatDelta], str]:
        """Read on."""
        if self._place in {_Place.CONTENT, _Place.AFTER_CALL}:
            return self._read_outside(part), ""
        if isinstance(part, Tag):
            return self._close(), ""
        if self._place is _Place.BROKEN_CALL:
            self._text.append(part)
            return [], ""
        return self._read_body(part)

    def _read_outside(self, part: str | Tag) -> list[ChatDelta]:
        if isinstance(part, Tag):
            self._spaces.clear()
            self._text = [part.text]
            self._call = HermesCall(self._count, self._new_id(self._count))
            self._place = _Place.CALL
            return []
        if self._place is _Place.CONTENT:
            return [ContentDelta(part)]
        self._spaces.append(part)
        if not part.strip(SPACES):
            return []
        self._place = _Place.CONTENT
        text = "".join(self._spaces)
        self._spaces.clear()
        return [ContentDelta(text)]

    def _read_body(self, text: str) -> tuple[list[ChatDelta], str]:
        if self._call.ended:
            if text.strip(SPACES):
                self._fault = "has text after its JSON object"
                self._place = _Place.BROKEN_CALL
            return [], ""
        try:
            deltas, rest = self._call.read(text)
        except CallError as fault:
            # What came before the fault is the call's, and what follows may close it, wherever the text was cut.
            self._text.append(text[: fault.at])
            return [*self._call.take(), *self._broken(str(fault))], text[fault.at :]
        if self._call.name is not None:
            self._text.clear()
        else:
            self._text.append(text[: len(text) - len(rest)])
        return deltas, rest

    def _broken(self, fault: str) -> list[ChatDelta]:
        if self._call.name is not None:
            return [self._failure(fault)]
        self._fault = fault
        self._place = _Place.BROKEN_CALL
        return []

    def _close(self) -> list[ChatDelta]:
        if self._place is _Place.BROKEN_CALL:
            return [self._failure(self._fault)]
        if not self._call.ended:
            return [self._failure("ends before its JSON object does")]
        self._place = _Place.AFTER_CALL
        self._count += 1
        return [CallEnd(self._count - 1)]

    def finish(self, *, cut: bool) -> list[ChatDelta]:
        """A call that the token limit cut stands as far as it came; one that the model left open is an error."""
        if self._place in {_Place.CONTENT, _Place.AFTER_CALL}:
            return []
        if not cut:
            fault = self._fault if not self._call.ended else ""
            return [self._failure(fault or f"is not closed: the reply ended without its {self._closer}")]
        return [ContentDelta("".join(self._text))] if self._call.name is None else []

    def _failure(self, fault: str) -> ParseFailure:
        named = "" if self._call.name is None else f' ("{self._call.name}")'
        return ParseFailure(f"tool call {self._count}{named} of the model's reply {fault}")
