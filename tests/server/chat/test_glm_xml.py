"""GLM's calls: what a model writes is what the client gets, wherever the reply is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.server.chat.deltas import CallArguments, CallEnd, CallStart, ContentDelta, Reply
from bloomery.server.chat.glm_xml import TAGS, GlmReader
from tests.server.chat.replies import Piece, cut
from tests.server.chat.tagged_replies import (
    Argument,
    Call,
    calls,
    ends_at,
    expected,
    read,
    said,
    spell,
    stream,
    texts,
)
from tests.server.chat.templates import TOOL, facts_of


def _read(pieces: list[Piece], special: bool, **options: Any) -> Reply:
    tags = TAGS if special else ()
    return read(GlmReader(tags, [TOOL], lambda index: f"id{index}"), pieces, tags, **options)


def _written(name: str, drawn: dict[str, Argument], space: str, special: bool) -> list[Piece]:
    """A call as a model writes it; values are ordinary tokens whatever they spell."""
    pieces: list[Piece] = [("<tool_call>", special), (name + space, False)]
    for key, (_, value, _) in drawn.items():
        pieces += [("<arg_key>", special), (key, False), ("</arg_key>", special), (space, False)]
        pieces += [("<arg_value>", special), (value, False), ("</arg_value>", special), (space, False)]
    pieces.append(("</tool_call>", special))
    return [piece for piece in pieces if piece[0]]


_texts = texts(*TAGS, "</tool", "</arg_value")


def _calls(special: bool) -> st.SearchStrategy[list[Call]]:
    # Among ordinary tokens, a bare value cannot hold its own closing tag.
    text = _texts if special else _texts.filter(lambda text: ends_at(text, "</arg_value>"))
    return st.lists(calls(text, _texts), min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    space=st.sampled_from(["", "\n"]),
    between=st.sampled_from(["", "\n", " and "]),
    before=st.sampled_from(["", "Look.\n"]),
    special=st.booleans(),
    places=st.lists(st.integers(1, 400), max_size=12),
)
def test_calls_are_what_was_written(
    data: st.DataObject, space: str, between: str, before: str, special: bool, places: list[int]
) -> None:
    drawn = data.draw(_calls(special))
    pieces: list[Piece] = [(before, False)] if before else []
    for index, (name, values) in enumerate(drawn):
        pieces += ([(between, False)] if index and between else []) + _written(name, values, space, special)
    reply = _read(cut(pieces, places), special)
    content = before + between * (len(drawn) - 1) if between.strip() else before
    assert said(reply) == (content, [(name, expected(values), True) for name, values in drawn], None)
    for call in reply.calls:
        assert isinstance(json.loads(call.arguments), dict)
    everywhere = range(sum(len(text) for text, _ in pieces))
    assert _read(cut(pieces, everywhere), special) == reply


_words = st.sampled_from(
    [*TAGS, "<tool_", "</arg", "ship", "note", "count", "data", "5", "{", "}", '"', "a", "<", " ", "\n", "é"]
)


@settings(max_examples=150, deadline=None)
@given(
    tokens=st.lists(_words, max_size=16),
    opened=st.booleans(),
    special=st.booleans(),
    at_limit=st.booleans(),
    places=st.lists(st.integers(1, 99)),
)
def test_no_cut_changes_a_reply(
    tokens: list[str], opened: bool, special: bool, at_limit: bool, places: list[int]
) -> None:
    tokens = ["<tool_call>", "ship", "<arg_key>", "note", "</arg_key>", *tokens] if opened else tokens
    pieces = [(token, special and token in TAGS) for token in tokens]
    whole = _read(pieces if special else [("".join(tokens), False)], special, cut=at_limit)
    assert _read(cut(pieces, places), special, cut=at_limit) == whole
    assert _read(cut(pieces, range(200)), special, cut=at_limit) == whole


_CALL = (
    '<tool_call>ship<arg_key>note</arg_key><arg_value>a <b> "c"</arg_value>'
    "<arg_key>data</arg_key><arg_value>[1, 2]</arg_value></tool_call>"
)
_ARGUMENTS = '{"note":"a <b> \\"c\\"","data":[1, 2]}'


@pytest.mark.parametrize("special", [True, False], ids=["tokens", "text"])
def test_where_the_token_limit_may_cut(special: bool) -> None:
    """Before the name is whole the call is content; after it, the call stands as far as it came."""
    assert said(_read(spell(_CALL, TAGS, special), special)) == ("", [("ship", _ARGUMENTS, True)], None)
    named_at = _CALL.index("<arg_key>") + len("<arg_key>")
    seen = ""
    for length in range(1, len(_CALL)):
        pieces = spell(_CALL[:length], TAGS, special)
        if special and any(_CALL[:length].endswith(tag[:n]) for tag in TAGS for n in range(1, len(tag))):
            continue
        reply = _read(pieces, special, cut=True)
        if length < named_at:
            assert said(reply) == (_CALL[:length], [], None)
        else:
            ((name, got, closed),) = said(reply)[1]
            assert (reply.content, name, closed, reply.failure) == ("", "ship", False, None)
            assert _ARGUMENTS.startswith(got) and got.startswith(seen)
            seen = got
        if length >= len("<tool_call>"):
            assert "is not closed" in str(_read(pieces, special).failure)
    assert seen == _ARGUMENTS[:-1]


@settings(max_examples=60, deadline=None)
@given(text=st.lists(_words, max_size=14).map("".join))
def test_tags_in_ordinary_tokens_are_text_where_they_are_special(text: str) -> None:
    assert said(_read([(text, False)] if text else [], True)) == (text, [], None)


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("", "has no name"),
        ("  \n", "has no name"),
        ("a<b", "has a name with '<' in it"),
        ("ship<arg_key>note</arg_key>x<arg_value>y</arg_value>", "has 'x' where <arg_value> belongs"),
        ("ship<arg_key>note</arg_key><arg_value>y</arg_value>x", "has 'x' where <arg_key> or </tool_call> belongs"),
        ("ship<arg_key>note</arg_key>", "where <arg_value> belongs"),
        ("ship<arg_key>count</arg_key><arg_value>five</arg_value>", "has a value that is not JSON"),
        ("ship<arg_key>count</arg_key><arg_value></arg_value>", "has a value that is not JSON"),
        ("ship<arg_key>count</arg_key><arg_value>1 2</arg_value>", "has '2' where </arg_value> belongs"),
        ("ship<arg_key>data</arg_key><arg_value>[1</arg_value>", "has a value that is not JSON"),
        ("ship<arg_key>note</arg_key><arg_value>y</arg_value><arg_key>note</arg_key>", "has 'note' twice"),
    ],
)
@pytest.mark.parametrize("special", [True, False], ids=["tokens", "text"])
def test_a_fault_is_named(body: str, fault: str, special: bool) -> None:
    pieces = [*spell(_CALL, TAGS, special), *spell(f"<tool_call>{body}</tool_call>", TAGS, special)]
    failure = _read(pieces, special).failure
    assert failure is not None and failure.startswith("tool call 1")
    assert fault in failure


def test_a_call_opened_by_a_token_needs_the_closing_token() -> None:
    pieces = [*spell(_CALL.removesuffix("</tool_call>"), TAGS, True), ("</tool_call>", False)]
    assert "where <arg_key> or </tool_call> belongs" in str(_read(pieces, True).failure)
    assert said(_read(pieces[:-1], True, cut=True))[1] == [("ship", _ARGUMENTS[:-1], False)]


def test_a_stream_releases_what_is_decided() -> None:
    reader = GlmReader((), [TOOL], lambda index: f"id{index}")
    pieces = ["Hi<to", "ol_call>sh", "ip<arg_key>note</arg_key><arg_value>a", 'b"', "</arg", "_value", "s</arg_value>",
              "<arg_key>count</arg_key><arg_value>4", "2", "</arg_value></tool_call>"]  # fmt: skip
    assert stream(reader, [(piece, False) for piece in pieces])[:-1] == [
        [ContentDelta("Hi")], [], [CallStart(0, "id0", "ship"), CallArguments(0, '{"note":"a')],
        [CallArguments(0, 'b\\"')], [], [], [CallArguments(0, '</arg_values"')], [CallArguments(0, ',"count":')], [],
        [CallArguments(0, "42}"), CallEnd(0)],
    ]  # fmt: skip


def test_a_very_long_argument_passes_through() -> None:
    value = 'x\n<é"</arg_' * 10_000
    text = f"<tool_call>ship<arg_key>note</arg_key><arg_value>{value}</arg_value></tool_call>"
    pieces = [(text[start : start + 8], False) for start in range(0, len(text), 8)]
    assert json.loads(_read(pieces, False).calls[0].arguments) == {"note": value}


@pytest.mark.parametrize("special", [True, False], ids=["tokens", "text"])
def test_json_may_hold_its_closing_tag(special: bool) -> None:
    values = {"data": (False, '["</arg_value>"]', '["</arg_value>"]')}
    pieces = _written("ship", values, "", special)
    assert said(_read(pieces, special)) == ("", [("ship", expected(values), True)], None)


_WRITES = """
{%- for m in messages -%}
  {%- for call in m.tool_calls -%}
    {{- '<tool_call>' ~ call.function.name ~ SPACE -}}
    {%- for key, value in call.function.arguments.items() -%}
      {{- '<arg_key>' ~ key ~ '</arg_key>' ~ SPACE ~ '<arg_value>' -}}
      {{- value if value is string else value | tojson }}{{ '</arg_value>' ~ SPACE -}}
    {%- endfor -%}
    {{- '</tool_call>' -}}
  {%- endfor -%}
{%- endfor -%}
"""


@pytest.mark.parametrize("space", ["''", "'\\n'"])
def test_a_template_that_writes_these_calls_is_known(space: str) -> None:
    source = _WRITES.replace("SPACE", space)
    facts = facts_of(source, TAGS[:2])
    assert facts.markup is not None and facts.markup.name == "glm"
    assert facts.special_tags == set(TAGS[:2])
    assert facts_of(source.replace("<arg_value>", "<value>")).markup is None
