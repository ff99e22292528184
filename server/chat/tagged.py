"""Reading calls that are written in tags: what the tagged markups have in common.

Each markup is written down as its grammar: a generator that yields the tags that count next and is sent the next part,
text or one of those tags. So a reader holds back no more than what could still become a tag, wherever a reply is cut.

A tag may be one special token, ordinary characters, or both after one another. To see them all alike, a special token
is put into the text behind a mark, and the grammar's tags carry the same mark: a lone surrogate, which no decoded text
holds.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Sequence
from typing import TypeAlias, TypeVar

from bloomery.server.chat.deltas import CallArguments, CallEnd, CallStart, ChatDelta, ContentDelta, ParseFailure
from bloomery.server.chat.json_reader import WHITE_SPACE, JsonError, JsonReader, kind_of
from bloomery.server.chat.markup import NewId, Tools
from bloomery.server.chat.tags import Tag, TagReader
from bloomery.server.chat.think import SPACES
from bloomery.server.chat.value_schema import ValueSchema, argument_schemas

_MARK = "\ud800"
_NO_NAME = re.compile(r'[<>"\n]')

_T = TypeVar("_T")
Steps: TypeAlias = Generator[tuple[str, ...], "str | Tag", _T]


class BrokenCallError(ValueError):
    """Markup that is no call; the message is the end of a sentence about the call."""


class TaggedReader(ABC):
    """A reply of content and calls, each call or block of calls between one of `openers` and `closer`.

    A fault after a call's name went out ends the reply at once. Any other fault waits for `closer`: a call that the
    token limit cuts is no error.
    """

    def __init__(
        self,
        openers: Sequence[str],
        closer: str,
        *,
        special: Collection[str],
        tools: Tools,
        new_id: NewId,
    ) -> None:
        """`special`: the tags that are special tokens.  `tools`: the request's.  `new_id`: the id of a call."""
        self._special = tuple(special)
        self._spelling = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or r"(?!)")
        self._openers = tuple(map(self._tag, openers))
        self._closer = self._tag(closer)
        self._schemas = argument_schemas(tools)
        self._new_id = new_id
        self._text = TagReader(())
        self._deltas: list[ChatDelta] = []
        self._fragments: list[str] = []
        self._count = 0
        # Inside of markup: the open call's name once it is whole, its text until then, whether the closer came last.
        self._in_markup = False
        self._name: str | None = None
        self._raw: list[str] = []
        # Whether the text is kept to the call's end, as a reader does that may have to take a call back.
        self._keeps_text = False
        self._closed = False
        self._fault = ""
        self._grammar = self._reply()
        self._wanted = next(self._grammar)

    def wanted(self) -> tuple[str, ...]:
        """Every tag that is a special token; the others are found here."""
        return self._special

    def read(self, part: str | Tag) -> tuple[list[ChatDelta], str]:
        """Read on."""
        self._text.feed(part if isinstance(part, str) else _MARK + part.text, False)
        self._advance(ended=False)
        return self._take(), ""

    def finish(self, *, cut: bool) -> list[ChatDelta]:
        """A call that the token limit cut stands as far as it came; one that the model left open is an error."""
        if not self._in_markup:
            self._advance(ended=True)
        elif not cut:
            self._fail(self._fault or f"is not closed: the reply ended without its {unmarked(self._closer)}")
        elif self._name is None and (text := "".join(self._raw)).strip(SPACES):
            rest = self._text.next((), ended=True)
            self._add(ContentDelta(text + (unmarked(rest) if isinstance(rest, str) else "")))
        return self._take()

    @abstractmethod
    def _calls(self) -> Steps[None]:
        """What follows an opener, with the closer. Raises BrokenCallError."""

    def _advance(self, *, ended: bool) -> None:
        while (part := self._text.next(self._wanted, ended=ended)) is not None:
            self._wanted = self._grammar.send(part)

    def _reply(self) -> Steps[None]:
        after_call = False
        while True:
            yield from self._content(after_call)
            self._in_markup = True
            try:
                yield from self._calls()
                after_call = True
            except BrokenCallError as fault:
                yield from self._broken(str(fault))
                after_call = False
            self._in_markup = False

    def _content(self, after_call: bool) -> Steps[None]:
        """Text up to an opener. White space after a call is layout unless text follows."""
        waiting: list[str] | None = [] if after_call else None
        while isinstance(part := (yield self._openers), str):
            if waiting is not None:
                waiting.append(part)
                if not part.strip(SPACES):
                    continue
                part = "".join(waiting)
                waiting = None
            self._add(ContentDelta(unmarked(part)))
        self._raw = [unmarked(part.text)]
        self._closed = False

    def _broken(self, fault: str) -> Steps[None]:
        """Markup that is no call ends the reply; until the call's name went out, at its closer."""
        self._fault = fault
        if self._name is None and not self._closed:
            yield from self._until(self._closer)
        self._fail(fault)
        while True:
            yield ()

    # Parts of grammars.

    def _tag(self, spelling: str) -> str:
        """A tag as it stands in the marked text."""
        return self._spelling.sub(lambda match: _MARK + match[0], spelling)

    def _next(self, *wanted: str) -> Steps[str | Tag]:
        """The next part; until a call's name is whole, its text is kept."""
        part = yield wanted
        if self._name is None or self._keeps_text:
            self._raw.append(unmarked(part if isinstance(part, str) else part.text))
        self._closed = isinstance(part, Tag) and part.text == self._closer
        return part

    def _unread(self, text: str) -> None:
        """Put back the end of the last part."""
        self._text.unread(text)
        if self._raw:
            self._raw[-1] = self._raw[-1].removesuffix(unmarked(text))

    def _one_of(self, *wanted: str) -> Steps[str]:
        """The next tag, with white space before it."""
        while isinstance(part := (yield from self._next(*wanted)), str):
            if stray := part.lstrip(SPACES):
                self._unread(stray)
                raise BrokenCallError(f"has {unmarked(stray)[0]!r} where {unmarked(' or '.join(wanted))} belongs")
        return part.text

    def _until(self, *wanted: str) -> Steps[tuple[str, str]]:
        """The text before the next tag, and the tag."""
        pieces: list[str] = []
        while isinstance(part := (yield from self._next(*wanted)), str):
            pieces.append(unmarked(part))
        return "".join(pieces), part.text

    def _value(self, schema: ValueSchema, close: str) -> Steps[None]:
        """A value of the schema's kind, up to its closing tag."""
        if schema.is_text:
            yield from self._text_value(close)
        elif schema.is_unknown:
            yield from self._unknown_value(close)
        else:
            yield from self._json_value(close)

    def _text_value(self, close: str) -> Steps[None]:
        """A bare text: passed on as it comes."""
        self._write('"')
        while isinstance(part := (yield from self._next(close)), str):
            self._write(json.dumps(unmarked(part), ensure_ascii=False)[1:-1])
        self._write('"')

    def _unknown_value(self, close: str, before: str = "") -> Steps[None]:
        """JSON if it is JSON, otherwise a text."""
        text, _ = yield from self._until(close)
        value = (before + text).strip(WHITE_SPACE)
        self._write(value if kind_of(value) else json.dumps(before + text, ensure_ascii=False))

    def _json_value(self, close: str) -> Steps[None]:
        """JSON, which may hold the closing tag's characters in a string: passed on when it is complete."""
        reader, pieces = JsonReader(), list[str]()
        wanted = (close,) if _MARK in close else ()
        closed = False
        while not reader.ended and not closed:
            part = yield from self._next(*wanted)
            closed = isinstance(part, Tag)
            # A number has no end of its own.
            text, mark, rest = (part if isinstance(part, str) else " ").partition(_MARK)
            try:
                end = reader.read(text)
            except JsonError as fault:
                if not closed:
                    self._unread(text[fault.at :] + mark + rest)
                raise BrokenCallError(f"has a value that is not JSON: {fault}") from None
            pieces.append(text[:end])
            if not closed:
                self._unread(text[end:] + mark + rest if reader.ended else rest)
        if not reader.ended:
            raise BrokenCallError("has a value that is not JSON: it ends early")
        self._write("".join(pieces).strip(WHITE_SPACE))
        if not closed:
            yield from self._one_of(close)

    # What a grammar has to say.

    def _start_call(self, name: str) -> ValueSchema:
        """A call's name is whole; returns the schema of its arguments."""
        if not name:
            raise BrokenCallError("has no name")
        if bad := _NO_NAME.search(name):
            raise BrokenCallError(f"has a name with {bad[0]!r} in it")
        self._name = name
        self._add(CallStart(self._count, self._new_id(self._count), name))
        self._write("{")
        return self._schemas.get(name, ValueSchema())

    def _start_member(self, key: str, seen: set[str]) -> None:
        """An object's next key; `seen` holds those before it."""
        if key in seen:
            raise BrokenCallError(f"has {key[:40]!r} twice")
        self._write(("," if seen else "") + json.dumps(key, ensure_ascii=False) + ":")
        seen.add(key)

    def _end_call(self) -> None:
        self._end_arguments()
        self._close_call()

    def _end_arguments(self) -> None:
        self._write("}")

    def _close_call(self) -> None:
        self._add(CallEnd(self._count))
        self._count += 1
        self._name = None
        self._raw.clear()

    def _write(self, text: str) -> None:
        """More of the arguments."""
        self._fragments.append(text)

    def _add(self, delta: ChatDelta) -> None:
        if arguments := "".join(self._fragments):
            self._deltas.append(CallArguments(self._count, arguments))
        self._fragments.clear()
        self._deltas.append(delta)

    def _take(self) -> list[ChatDelta]:
        """What goes out now."""
        return self._take_all()

    def _take_all(self) -> list[ChatDelta]:
        if arguments := "".join(self._fragments):
            self._deltas.append(CallArguments(self._count, arguments))
        self._fragments.clear()
        deltas, self._deltas = self._deltas, []
        return deltas

    def _fail(self, fault: str) -> None:
        named = "" if self._name is None else f' ("{self._name}")'
        self._add(ParseFailure(f"tool call {self._count}{named} of the model's reply {fault}"))


def unmarked(text: str) -> str:
    """Text as the client sees it: without the marks of special tokens."""
    return text.replace(_MARK, "")
