"""MiniMax's calls, of M2 and of M3: what a model writes is what the client gets, wherever the reply is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.server.chat.deltas import CallArguments, CallEnd, CallStart, ContentDelta, Reply, collect
from bloomery.server.chat.invoke import InvokeReader
from bloomery.server.chat.minimax import M2_SPECIAL, M2_TAGS, M3_SPECIAL, MiniMaxM3Reader
from bloomery.server.chat.parser import ChatParser
from tests.server.chat.replies import Piece, cut
from tests.server.chat.tagged_replies import (
    Call,
    calls,
    ends_at,
    expected,
    names,
    read,
    said,
    spell,
    stream,
    texts,
)
from tests.server.chat.templates import TOOL, facts_of

_N = "]<]minimax[>["

# M3's values may be nested in tags, so its tool names every shape.
_NESTED: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "ship",
        "parameters": {
            "type": "object",
            "properties": {
                "note": {"type": "string"},
                "count": {"type": "integer"},
                "list": {"type": "array", "items": {"type": "string"}},
                "box": {"$ref": "#/$defs/box"},
                "maybe": {"anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "null"}]},
                "free": {},
            },
            "$defs": {
                "box": {
                    "type": "object",
                    "properties": {
                        "item": {"type": "string"},
                        "size": {"type": "number"},
                        "inner": {"type": "array", "items": {"$ref": "#/$defs/box"}},
                    },
                },
            },
        },
    },
}

_texts = texts(_N, f"{_N}</note>", f"{_N}<item>", "<tool_call>", "</note>")


def _text(close: str) -> st.SearchStrategy[str]:
    return _texts.filter(lambda text: ends_at(text, _N + close))


_numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
_boxes: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.fixed_dictionaries({}, optional={"item": _text("</item>"), "size": _numbers}),
    lambda inner: st.fixed_dictionaries(
        {}, optional={"item": _text("</item>"), "inner": st.lists(inner, max_size=2), "size": _numbers}
    ),
    max_leaves=4,
)
# What a schema that says nothing makes of tags: no text that reads as JSON, no empty object or list.
_free: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(["plain", "", "no json {"]) | _numbers | st.booleans(),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b c", "é"]), inner, min_size=1, max_size=3)
    ),
    max_leaves=4,
)
_arguments = st.fixed_dictionaries(
    {},
    optional={
        "note": _text("</note>"),
        "count": st.integers(),
        "list": st.lists(_text("</item>"), max_size=3),
        "box": _boxes,
        "maybe": st.lists(_numbers, max_size=3),
        "free": _free,
    },
)


def _element(name: str, value: Any, space: str) -> str:
    return f"{_N}<{name}>{_value(value, space)}{_N}</{name}>{space}"


def _value(value: Any, space: str) -> str:
    if isinstance(value, dict):
        return "".join(_element(key, inner, space) for key, inner in value.items())
    if isinstance(value, list):
        return "".join(_element("item", inner, space) for inner in value)
    return value if isinstance(value, str) else json.dumps(value)


def _block(drawn: list[tuple[str, dict[str, Any]]], space: str = "\n", inner_space: str = "") -> str:
    written = [f'{_N}<invoke name="{name}">{_value(values, inner_space)}{_N}</invoke>{space}' for name, values in drawn]
    return f"{_N}<tool_call>{space}{''.join(written)}{_N}</tool_call>"


def _read(pieces: list[Piece], special: bool, **options: Any) -> Reply:
    tags = M3_SPECIAL if special else ()
    return read(MiniMaxM3Reader(tags, [_NESTED], lambda index: f"id{index}"), pieces, tags, **options)


@settings(max_examples=60, deadline=None)
@given(
    drawn=st.lists(st.tuples(st.just("ship"), _arguments), min_size=1, max_size=3),
    space=st.sampled_from(["\n", "", " \n"]),
    inner_space=st.sampled_from(["", "\n"]),
    after=st.sampled_from(["", "\n", " done."]),
    special=st.booleans(),
    places=st.lists(st.integers(1, 400), max_size=12),
)
def test_m3_calls_are_what_was_written(
    drawn: list[tuple[str, dict[str, Any]]], space: str, inner_space: str, after: str, special: bool, places: list[int]
) -> None:
    text = "Look.\n" + _block(drawn, space, inner_space) + after
    pieces = spell(text, M3_SPECIAL, special)
    reply = _read(cut(pieces, places), special)
    assert reply.failure is None
    assert reply.content == "Look.\n" + (after if after.strip() else "")
    assert [(call.name, json.loads(call.arguments)) for call in reply.calls] == drawn
    assert all(
        call.arguments == json.dumps(values, ensure_ascii=False, separators=(",", ":"))
        for call, (_, values) in zip(reply.calls, drawn, strict=True)
    )
    assert _read(cut(pieces, range(len(text))), special) == reply


@settings(max_examples=40, deadline=None)
@given(name=names, values=st.dictionaries(st.sampled_from(["a", "b c"]), _free), special=st.booleans())
def test_an_m3_call_of_a_function_that_is_not_in_the_request(name: str, values: dict[str, Any], special: bool) -> None:
    (call,) = _read(spell(_block([(name, values)]), M3_SPECIAL, special), special).calls
    assert (call.name, json.loads(call.arguments)) == (name, values)


_words = st.sampled_from(
    [_N, "<tool_call>", "</tool_call>", "]<]mini", '<invoke name="ship">', "</invoke>", "<note>", "</note>", "<box>",
     "</box>", "<item>", "</item>", "<list>", "</list>", "<free>", "</free>", "<", ">", "5", '"', "[", "\n", "é"]
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(
    tokens=st.lists(_words, max_size=20),
    opened=st.booleans(),
    special=st.booleans(),
    at_limit=st.booleans(),
    places=st.lists(st.integers(1, 99)),
)
def test_no_cut_changes_a_reply(
    tokens: list[str], opened: bool, special: bool, at_limit: bool, places: list[int]
) -> None:
    text = (f'{_N}<tool_call>{_N}<invoke name="ship">{_N}' if opened else "") + "".join(tokens)
    pieces = spell(text, M3_SPECIAL, special)
    reply = _read(pieces, special, cut=at_limit)
    assert _read(cut(pieces, places), special, cut=at_limit) == reply
    assert _read(cut(pieces, range(len(text))), special, cut=at_limit) == reply


@settings(max_examples=60, deadline=None)
@given(text=st.lists(_words, max_size=14).map("".join))
def test_tags_in_ordinary_tokens_are_text_where_they_are_special(text: str) -> None:
    assert said(_read([(text, False)] if text else [], True)) == (text, [], None)


def test_m3_tags_without_the_namespace_token_are_text() -> None:
    text = _block([("ship", {"note": "x"})]).replace(_N, "")
    for special in (True, False):
        assert said(_read(spell(text, M3_SPECIAL, special), special)) == (text, [], None)


_VALUES = {"note": 'a <b> "c"', "list": ["x", "y"], "box": {"item": "i", "inner": [{"size": 1}]}}
_ARGUMENTS = json.dumps(_VALUES, separators=(",", ":"))


@pytest.mark.parametrize("special", [True, False], ids=["tokens", "text"])
def test_where_the_token_limit_may_cut(special: bool) -> None:
    """Before the name is whole the call is content; after it, the call stands as far as it came."""
    text = _block([("ship", _VALUES)])
    named_at = text.index('ship">') + len('ship">')
    done_at = text.index("</invoke>") + len("</invoke>")
    seen = ""
    for length in range(1, len(text)):
        if special and any(
            text[:length].endswith(tag[:n]) for tag in M3_SPECIAL for n in range(1, len(tag)) if tag[:n] != "<"
        ):
            continue
        pieces = spell(text[:length], M3_SPECIAL, special)
        reply = _read(pieces, special, cut=True)
        if length < named_at:
            assert said(reply) == (text[:length], [], None)
            continue
        ((name, got, closed),) = said(reply)[1]
        assert (reply.content, name, closed, reply.failure) == ("", "ship", length >= done_at, None)
        assert _ARGUMENTS.startswith(got) and got.startswith(seen)
        seen = got
        assert "is not closed" in str(_read(pieces, special).failure)
    assert seen == _ARGUMENTS


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("", "is missing"),
        ("x", f"has 'x' where {_N}<invoke"),
        (f'{_N}<invoke name="">', "has no name"),
        (f'{_N}<invoke name="ship">x', "has 'x' where"),
        (f'{_N}<invoke name="ship">{_N}</note>', "has the tag </note> where a member or </invoke> belongs"),
        (f'{_N}<invoke name="ship">{_N}<count>five{_N}</count>', "has a value that is not JSON"),
        (f'{_N}<invoke name="ship">{_N}<count>{_N}</count>', "where the value of 'count' belongs"),
        (
            f'{_N}<invoke name="ship">{_N}<count>{_N}<item>1{_N}</item>{_N}</count>',
            "where the value of 'count' belongs",
        ),
        (f'{_N}<invoke name="ship">{_N}<list>{_N}<x>1{_N}</x>{_N}</list>', "has the tag <x> where an item or </list>"),
        (f'{_N}<invoke name="ship">{_N}<note>a{_N}</note>{_N}<note>', "has 'note' twice"),
        (f'{_N}<invoke name="ship">{_N}<free>' + f"{_N}<item>" * 100, "is nested deeper than 64 levels"),
    ],
)
@pytest.mark.parametrize("special", [True, False], ids=["tokens", "text"])
def test_an_m3_fault_is_named(body: str, fault: str, special: bool) -> None:
    text = _block([("ship", _VALUES)]) + f"{_N}<tool_call>\n{body}{_N}</tool_call>"
    failure = _read(spell(text, M3_SPECIAL, special), special).failure
    assert failure is not None and failure.startswith("tool call 1")
    assert fault in failure


def test_an_m3_stream_releases_what_is_decided() -> None:
    reader = MiniMaxM3Reader((), [_NESTED], lambda index: f"id{index}")
    pieces = [f"Hi{_N}<tool", f'_call>\n{_N}<invoke name="ship">', f"{_N}<list>{_N}<item>a", "b]<]mini", "mum",
              f"{_N}</item>", f"{_N}</list>{_N}<count>4", "2", f"{_N}</count>{_N}</invoke>"]  # fmt: skip
    assert stream(reader, [(piece, False) for piece in pieces])[:-1] == [
        [ContentDelta("Hi")], [CallStart(0, "id0", "ship"), CallArguments(0, "{")], [CallArguments(0, '"list":["a')],
        [CallArguments(0, "b")], [CallArguments(0, "]<]minimum")], [CallArguments(0, '"')],
        [CallArguments(0, '],"count":')], [], [CallArguments(0, "42}"), CallEnd(0)],
    ]  # fmt: skip


def test_a_very_long_argument_passes_through() -> None:
    values = {"list": ['x\n<é"' + _N[:9] + " " * 3] * 5_000}
    text = _block([("ship", values)])
    pieces = [(text[start : start + 8], False) for start in range(0, len(text), 8)]
    assert json.loads(_read(pieces, False).calls[0].arguments) == values


# M2.

_M2_TEXTS = texts("</parameter>", "<minimax:tool_call>", "</minimax:tool_call>", "</invoke>")


def _read_m2(pieces: list[Piece], special: bool, **options: Any) -> Reply:
    tags = M2_SPECIAL if special else ()
    return read(InvokeReader(M2_TAGS, tags, [TOOL], lambda index: f"id{index}"), pieces, tags, **options)


def _written_m2(drawn: list[Call], special: bool, space: str = "\n") -> list[Piece]:
    inner = space
    for name, values in drawn:
        inner += f'<invoke name="{name}">{space}'
        inner += "".join(f'<parameter name="{key}">{value}</parameter>{space}' for key, (_, value, _) in values.items())
        inner += f"</invoke>{space}"
    return [("<minimax:tool_call>", special), (inner, False), ("</minimax:tool_call>", special)]


@settings(max_examples=80, deadline=None)
@given(
    drawn=st.lists(
        calls(_M2_TEXTS.filter(lambda text: ends_at(text, "</parameter>")), _M2_TEXTS), min_size=1, max_size=3
    ),
    space=st.sampled_from(["\n", ""]),
    special=st.booleans(),
    places=st.lists(st.integers(1, 400), max_size=12),
)
def test_m2_calls_are_what_was_written(drawn: list[Call], space: str, special: bool, places: list[int]) -> None:
    pieces = [("Look.", False), *_written_m2(drawn, special, space)]
    reply = _read_m2(cut(pieces, places), special)
    assert said(reply) == ("Look.", [(name, expected(values), True) for name, values in drawn], None)
    assert _read_m2(cut(pieces, range(sum(len(text) for text, _ in pieces))), special) == reply
    if special:
        text = "".join(text for text, _ in pieces)
        assert said(_read_m2([(text, False)], True)) == (text, [], None)


def test_an_m2_fault_is_named() -> None:
    text = '<minimax:tool_call><invoke name="ship"><parameter name="count">five</parameter>'
    assert "has a value that is not JSON" in str(_read_m2([(text, False)], False).failure)
    assert "is not closed" in str(_read_m2([(text.replace("five", "5"), False)], False).failure)


_WRITES_M3 = """
{%- set n = ']<]minimax[>[' -%}
{%- for m in messages if m.tool_calls -%}
  {{- n ~ '<tool_call>\\n' -}}
  {%- for call in m.tool_calls -%}
    {{- n ~ '<invoke name="' ~ call.function.name ~ '">' -}}
    {%- for key, value in call.function.arguments.items() -%}
      {{- n ~ '<' ~ key ~ '>' ~ value ~ n ~ '</' ~ key ~ '>' -}}
    {%- endfor -%}
    {{- n ~ '</invoke>\\n' -}}
  {%- endfor -%}
  {{- n ~ '</tool_call>' -}}
{%- endfor -%}
"""
_WRITES_M2 = _WRITES_M3.replace("<tool_call>", "<minimax:tool_call>").replace("</tool_call>", "</minimax:tool_call>")
_WRITES_M2 = _WRITES_M2.replace("'<' ~ key ~ '>'", "'<parameter name=\"' ~ key ~ '\">'").replace(
    "'</' ~ key ~ '>'", "'</parameter>'"
)


def test_a_template_that_writes_these_calls_is_known() -> None:
    m3, m2 = facts_of(_WRITES_M3, M3_SPECIAL), facts_of(_WRITES_M2.replace(_N, ""), M2_SPECIAL)
    assert m3.markup is not None and m3.markup.name == "minimax-m3" and m3.special_tags == set(M3_SPECIAL)
    assert m2.markup is not None and m2.markup.name == "minimax-m2" and m2.special_tags == set(M2_SPECIAL)
    assert facts_of(_WRITES_M3.replace("~ n ~ '</' ~ key", "~ '</' ~ key")).markup is None


_THINKS = """
{%- for m in messages -%}
  {{- '<' ~ m.role ~ '>' -}}
  {%- if m.role == 'assistant' -%}
    {{- '<mm:think>' ~ m.reasoning_content if m.reasoning_content else '' }}{{ '</mm:think>' -}}
  {%- endif -%}
  {{- m.content -}}
{%- endfor -%}
{{- '<assistant>' if add_generation_prompt else '' -}}
"""


@pytest.mark.parametrize("special", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("</mm:think>Hi", "", "Hi"),
        ("\n</mm:think>\nHi", "", "\nHi"),
        ("</mm:think>Hi</mm:think>", "", "Hi</mm:think>"),
        ("</mm:think><mm:think>Hi", "", "<mm:think>Hi"),
        ("<mm:think>plan</mm:think>Hi", "plan", "Hi"),
        ("Hi</mm:think>", "", "Hi</mm:think>"),
    ],
)
def test_a_turn_without_reasoning_begins_with_the_closing_tag(
    text: str, reasoning: str, content: str, special: bool
) -> None:
    tags = ("<mm:think>", "</mm:think>")
    facts = facts_of(_THINKS, tags if special else ())
    for places in (range(0), range(len(text))):
        parser = ChatParser(facts, "<assistant>", ())
        deltas = [delta for piece in cut(spell(text, tags, special), places) for delta in parser.feed(*piece)]
        reply = collect([*deltas, *parser.finish("eos")])
        assert (reply.reasoning, reply.content) == (reasoning, content)
