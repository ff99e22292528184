"""Replies in tagged markups for parser tests: what a model may want to call, and how a reader takes it.

The readers get tokens as the parser hands them on; the writers in the tests know nothing of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import strategies as st

from bloomery.server.chat.deltas import ChatDelta, ParseFailure, Reply, collect
from bloomery.server.chat.markup import ContentReader
from bloomery.server.chat.tags import TagReader
from tests.server.chat.replies import Piece, json_values


def spell(text: str, tags: Sequence[str], special: bool) -> list[Piece]:
    """Markup with its tags as the vocabulary has them."""
    if not special:
        return [(text, False)]
    pattern = "(" + "|".join(map(re.escape, sorted(tags, key=len, reverse=True))) + ")"
    return [(part, part in tags) for part in re.split(pattern, text) if part]


def stream(reader: ContentReader, pieces: Iterable[Piece], special: Sequence[str] = ()) -> list[list[ChatDelta]]:
    """What each piece brings, until a failure."""
    tags = TagReader(special)
    steps: list[list[ChatDelta]] = []

    def drain(ended: bool) -> list[ChatDelta]:
        deltas: list[ChatDelta] = []
        while (part := tags.next(reader.wanted(), ended=ended)) is not None:
            more, again = reader.read(part)
            deltas += more
            tags.unread(again)
            if more and isinstance(more[-1], ParseFailure):
                break
        return deltas

    for text, is_special in pieces:
        tags.feed(text, is_special)
        steps.append(drain(False))
        if steps[-1] and isinstance(steps[-1][-1], ParseFailure):
            return steps
    return [*steps, drain(True)]


def read(reader: ContentReader, pieces: Iterable[Piece], special: Sequence[str] = (), *, cut: bool = False) -> Reply:
    """The whole answer of a reply that came in these pieces."""
    deltas = [delta for step in stream(reader, pieces, special) for delta in step]
    if not deltas or not isinstance(deltas[-1], ParseFailure):
        deltas += reader.finish(cut=cut)
    assert all(getattr(delta, "text", "x") for delta in deltas), "no delta is empty"
    assert not any("\ud800" in str(getattr(delta, "text", "")) for delta in deltas)
    return collect(deltas)


def said(reply: Reply) -> tuple[str, list[tuple[str, str, bool]], str | None]:
    """Content, calls and failure."""
    return reply.content, [(call.name, call.arguments, call.closed) for call in reply.calls], reply.failure


def texts(*tags: str) -> st.SearchStrategy[str]:
    """Texts full of tags and their beginnings, quotes, line ends and characters of all planes."""
    parts = [*tags, *(tag[:cut] for tag in tags for cut in (1, len(tag) // 2, len(tag) - 1))]
    awkward = [*parts, '"', "\\", "\n", "\n\n", " ", "\t", "{", "}", "<", ">", "é", "🔥", "\u2028", "5", "true"]
    return st.lists(st.sampled_from(awkward) | st.text(max_size=3), max_size=6).map("".join)


_WORDS = ("note", "mixed", "count", "data", "flag", "free")
names = (
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters='<>"\n'), min_size=1, max_size=8)
    .map(str.strip)
    .filter(bool)
)
_keys = st.text(st.characters(exclude_categories=["Cs"], exclude_characters='<>"/\n'), min_size=1, max_size=6).filter(
    lambda key: key not in _WORDS
)

# An argument: whether it is written bare, what is written, and what the client gets.
Argument = tuple[bool, str, str]
Call = tuple[str, dict[str, Argument]]


@st.composite
def calls(draw: st.DrawFn, text: st.SearchStrategy[str], quoted: st.SearchStrategy[str]) -> Call:
    """A call of `ship`, or of a function that the request does not have.

    `text` is what bare values may say, `quoted` what strings inside JSON may.
    """

    def bare(value: str) -> Argument:
        return True, value, json.dumps(value, ensure_ascii=False)

    def as_json(value: Any) -> Argument:
        separators = draw(st.sampled_from([(",", ":"), None]))
        written = json.dumps(value, ensure_ascii=draw(st.booleans()), separators=separators)
        return False, written, written

    known = draw(st.booleans())
    drawn: dict[str, Argument] = {}
    for key in draw(st.lists(st.sampled_from(_WORDS) | _keys if known else _keys, max_size=4, unique=True)):
        if key in {"note", "mixed"}:
            drawn[key] = bare(draw(text))
        elif key == "count":
            drawn[key] = as_json(draw(st.integers()))
        elif key == "flag":
            drawn[key] = as_json(draw(st.booleans()))
        elif key == "data":
            inner = st.lists(quoted | json_values, max_size=3) | st.dictionaries(quoted, json_values, max_size=3)
            drawn[key] = as_json(draw(inner | st.none() | st.floats(allow_nan=False, allow_infinity=False)))
        else:
            word = draw(st.sampled_from(["plain words", "no json {", "", "True"]))
            drawn[key] = bare(word) if draw(st.booleans()) else as_json(draw(st.integers() | st.booleans()))
    return "ship" if known else draw(names), drawn


def expected(drawn: dict[str, Argument]) -> str:
    """The arguments as the client gets them."""
    return "{" + ",".join(f"{json.dumps(k, ensure_ascii=False)}:{got}" for k, (_, _, got) in drawn.items()) + "}"


def ends_at(text: str, close: str) -> bool:
    """Whether a bare text that a closing tag follows ends there."""
    return (text + close).index(close) == len(text)
