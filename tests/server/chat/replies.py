"""Replies for parser tests: how a model spells them, and how they are read.

A piece is `(text, special)`: ordinary text, or one special token. The speller knows nothing of the parser.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from hypothesis import strategies as st

from bloomery.server.chat.deltas import Reply, collect
from bloomery.server.chat.facts import TemplateFacts
from bloomery.server.chat.parser import ChatParser
from tests.server.chat.templates import HERMES, TAGS, TOOL, facts_of

Piece = tuple[str, bool]

_TAG = re.compile("(" + "|".join(map(re.escape, TAGS)) + ")")


@cache
def hermes(special: bool) -> TemplateFacts:
    """The Hermes template's facts, on a vocabulary whose tags are special tokens, or one where they are text."""
    return facts_of(HERMES, TAGS if special else ())


def spelled(text: str, special: bool) -> list[Piece]:
    """A reply with every tag as the vocabulary has it."""
    if not special:
        return [(text, False)]
    return [(part, part in TAGS) for part in _TAG.split(text) if part]


def cut(pieces: Sequence[Piece], places: Iterable[int]) -> list[Piece]:
    """The same reply with its ordinary text cut at these places, as far as they lie in it."""
    result: list[Piece] = []
    at = 0
    for text, special in pieces:
        edges = [0, *sorted(place - at for place in set(places) if 0 < place - at < len(text)), len(text)]
        if special:
            result.append((text, True))
        else:
            result += [(text[start:end], False) for start, end in itertools.pairwise(edges)]
        at += len(text)
    return result


def parse(
    pieces: Iterable[Piece],
    stop_type: str = "eos",
    *,
    special: bool = True,
    tail: str = "<|im_start|>assistant\n",
    tools: bool = True,
    facts: TemplateFacts | None = None,
    **options: Any,
) -> Reply:
    """The whole answer of a reply that came in these pieces."""
    facts = facts or hermes(special)
    parser = ChatParser(facts, tail, [TOOL] if tools else (), new_id=lambda index: f"call_{index}", **options)
    deltas = [delta for text, is_special in pieces for delta in parser.feed(text, is_special)]
    deltas += parser.finish(stop_type)
    assert all(getattr(delta, "text", "x") for delta in deltas), "no delta is empty"
    return collect(deltas)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)

_awkward = st.sampled_from(
    [*TAGS, "<tool_", "</", "{", '"}', "\\", "\n", "```", "é", "🔥", "\u2028", "name", "arguments"]
)
_names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
_arguments = st.dictionaries(_awkward | st.text(max_size=6), _awkward | json_values, max_size=4)


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, str, Any]:
    """A call's body in a spelling of its own: the text, the name, and the arguments."""
    name, arguments = draw(_names), draw(_arguments)
    dumps_options: dict[str, Any] = {
        "ensure_ascii": draw(st.booleans()),
        "indent": draw(st.sampled_from([None, None, 0, 2])),
        "separators": draw(st.sampled_from([None, (",", ":"), (" , ", " : ")])),
    }

    def space() -> str:
        return draw(st.sampled_from(["", "", " ", "\n", " \t\r\n"]))

    written = json.dumps(arguments, **dumps_options)
    fields = [
        f'"name"{space()}:{space()}{json.dumps(name, ensure_ascii=dumps_options["ensure_ascii"])}',
        f'"arguments"{space()}:{space()}{written}',
    ]
    if draw(st.booleans()):
        fields.reverse()
    return f"{space()}{{{space()}{fields[0]}{space()},{space()}{fields[1]}{space()}}}{space()}", name, written
