"""Calls in function tags: what a model writes is what the client gets, in both framings and wherever it is cut."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.server.chat.deltas import CallArguments, CallEnd, CallStart, ContentDelta, ReasoningDelta, Reply
from bloomery.server.chat.facts import TemplateFacts
from bloomery.server.chat.function_xml import BARE, LINES
from bloomery.server.chat.parser import ChatParser
from bloomery.server.chat.template import CHATML
from bloomery.server.chat.think import ThinkTags
from tests.server.chat.replies import Piece, cut, parse, spelled
from tests.server.chat.tagged_replies import Argument, Call, calls, ends_at, expected, said, texts
from tests.server.chat.templates import FUNCTION_BARE, FUNCTION_LINES, TAGS, TOOL, facts_of
from tests.server.chat.writers import function_call, typed

_LINE = {True: "\n", False: ""}
_OPEN, _CLOSED, _ASSISTANT = "assistant\n<think>\n", "assistant\n<think>\n\n</think>\n\n", "assistant\n"

both_framings = pytest.mark.parametrize("lines", [True, False], ids=["lines", "bare"])
both_vocabularies = pytest.mark.parametrize("special", [True, False], ids=["tokens", "text"])


@cache
def _facts(lines: bool, special: bool) -> TemplateFacts:
    return facts_of(FUNCTION_LINES if lines else FUNCTION_BARE, TAGS if special else ())


def _read(
    pieces: list[Piece], lines: bool, special: bool, stop: str = "eos", tail: str = _CLOSED, **more: Any
) -> Reply:
    return parse(pieces, stop, special=special, tail=tail, facts=_facts(lines, special), **more)


def _as_text(pieces: list[Piece], special: bool) -> list[Piece]:
    return pieces if special else [("".join(text for text, _ in pieces), False)]


_texts = texts(*TAGS, "<function=", "</function>", "<parameter=note>", "</parameter>", "\n</parameter>\n")


def _calls(lines: bool) -> st.SearchStrategy[list[Call]]:
    line = _LINE[lines]
    # A bare text cannot hold its own closing tag.
    text = _texts.filter(lambda text: ends_at(text, f"{line}</parameter>{line}"))
    return st.lists(calls(text, _texts), min_size=1, max_size=3)


def _wanted(arguments: dict[str, Argument], lines: bool) -> str:
    return expected({key: typed(each) if lines and key == "mixed" else each for key, each in arguments.items()})


@settings(max_examples=150, deadline=None)
@given(
    data=st.data(),
    lines=st.booleans(),
    special=st.booleans(),
    before=st.sampled_from(["", "Look.\n"]),
    between=st.sampled_from(["", "\n", " and "]),
    places=st.lists(st.integers(1, 400), max_size=12),
)
def test_calls_are_what_was_written(
    data: st.DataObject, lines: bool, special: bool, before: str, between: str, places: list[int]
) -> None:
    drawn = data.draw(_calls(lines))
    pieces: list[Piece] = [(before, False)] if before else []
    for index, (name, arguments) in enumerate(drawn):
        pieces += [(between, False)] if index and between else []
        pieces += function_call(name, arguments, _LINE[lines], special)
    reply = _read(cut(pieces, places), lines, special)
    content = before + between * (len(drawn) - 1) if between.strip() else before
    assert said(reply) == (content, [(name, _wanted(arguments, lines), True) for name, arguments in drawn], None)
    for call in reply.calls:
        assert isinstance(json.loads(call.arguments), dict)
    everywhere = range(sum(len(text) for text, _ in pieces))
    assert _read(cut(pieces, everywhere), lines, special) == reply


_words = st.sampled_from(
    [*TAGS, "<function=", "ship>", "</function>", "<parameter=", "note>", "count>", "mixed>", "</parameter>", "\n",
     "\n", "\n</parameter>\n", "5", "{", "}", '"', "a", "<", " ", "é", "</para", "<tool_"]
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(
    tokens=st.lists(_words, max_size=16),
    lines=st.booleans(),
    special=st.booleans(),
    opened=st.booleans(),
    tail=st.sampled_from([_OPEN, _CLOSED, _ASSISTANT]),
    stop=st.sampled_from(["eos", "limit"]),
    raw=st.booleans(),
    places=st.lists(st.integers(1, 99)),
)
def test_no_cut_changes_a_reply(
    tokens: list[str], lines: bool, special: bool, opened: bool, tail: str, stop: str, raw: bool, places: list[int]
) -> None:
    line = _LINE[lines]
    start = ["<tool_call>", f"{line}<function=ship>{line}<parameter=", "note>", line] if opened else []
    pieces: list[Piece] = [(token, token in TAGS) for token in [*start, *tokens] if token]
    pieces = _as_text(pieces, special)
    options: dict[str, Any] = {"stop": stop, "tail": tail, "raw_reasoning": raw}
    whole = _read(pieces, lines, special, **options)
    assert _read(cut(pieces, places), lines, special, **options) == whole
    assert _read(cut(pieces, range(300)), lines, special, **options) == whole


@settings(max_examples=60, deadline=None)
@given(text=st.lists(_words, max_size=14).map("".join), lines=st.booleans())
def test_tags_in_ordinary_tokens_are_text_where_they_are_special(text: str, lines: bool) -> None:
    reply = _read([(text, False)] if text else [], lines, True)
    assert said(reply) == (text.lstrip() if lines else text, [], None)


def _call(lines: bool) -> str:
    arguments: dict[str, Argument] = {
        "note": (True, 'a <b> "c"\n\n </parameter', ""),
        "data": (False, "[1,  {}]", ""),
        "mixed": (True, "é", ""),
    }
    return "".join(text for text, _ in function_call("ship", arguments, _LINE[lines], True))


_ARGUMENTS = '{"note":"a <b> \\"c\\"\\n\\n </parameter","data":[1,  {}],"mixed":"é"}'


@both_vocabularies
@both_framings
def test_where_the_token_limit_may_cut(lines: bool, special: bool) -> None:
    """Before the name is whole the call is content; after it, the call stands as far as it came."""
    call = _call(lines)
    assert said(_read(spelled(call, special), lines, special)) == ("", [("ship", _ARGUMENTS, True)], None)
    named_at = call.index("ship>") + len("ship>")
    seen = ""
    closing = len(call) - len("</tool_call>") if special else len(call) - 1
    for length in range(len("<tool_call>"), closing + 1):
        pieces = spelled(call[:length], special)
        reply = _read(pieces, lines, special, "limit")
        if length < named_at:
            assert said(reply) == (call[:length], [], None)
        else:
            ((name, got, closed),) = said(reply)[1]
            assert (reply.content, name, closed, reply.failure) == ("", "ship", False, None)
            assert _ARGUMENTS.startswith(got) and got.startswith(seen)
            seen = got
        assert "is not closed" in str(_read(pieces, lines, special).failure)
    assert seen == _ARGUMENTS


@pytest.mark.parametrize(
    ("key", "value", "lines", "bare"),
    [
        ("note", "5", '"5"', '"5"'),
        ("note", "", '""', '""'),
        ("note", "\n a \n", '"\\n a \\n"', '"\\n a \\n"'),
        ("mixed", "5", "5", '"5"'),
        ("mixed", "-1.5e3", "-1.5e3", '"-1.5e3"'),
        ("mixed", "five", '"five"', '"five"'),
        ("mixed", "true", '"true"', '"true"'),
        ("mixed", " 5", '" 5"', '" 5"'),
        ("count", "5", "5", "5"),
        ("count", "\n5 ", "5", "5"),
        ("count", "None", "null", "null"),
        ("flag", "True", "true", "true"),
        ("flag", "false", "false", "false"),
        (
            "data",
            '{"a": "</parameter>",\n "b": 2}',
            '{"a": "</parameter>",\n "b": 2}',
            '{"a": "</parameter>",\n "b": 2}',
        ),
        ("free", "[1, 2]", "[1, 2]", "[1, 2]"),
        ("free", "plain", '"plain"', '"plain"'),
        ("free", "True", '"True"', '"True"'),
        ("free", '"quoted"', '"\\"quoted\\""', '"\\"quoted\\""'),
        ("unheard of", "1", "1", "1"),
    ],
)
def test_how_the_schema_types_a_value(key: str, value: str, lines: str, bare: str) -> None:
    for is_lines, got in ((True, lines), (False, bare)):
        for special in (True, False):
            pieces = function_call("ship", {key: (True, value, "")}, _LINE[is_lines], special)
            assert said(_read(pieces, is_lines, special)) == ("", [("ship", f'{{"{key}":{got}}}', True)], None)


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("", "where <function= belongs"),
        ("x", "has 'x' where <function= belongs"),
        ('{"name": "ship"}', "has '{' where <function= belongs"),
        ("<function=>", "has no name"),
        ("<function=ship", "has no name"),
        ("<function=a<b>", "has a name with '<' in it"),
        ("<function=ship>\nx", "has 'x' where <parameter= or </function> belongs"),
        ("<function=ship>\n<parameter=>\n", "has '' where the name of a parameter belongs"),
        ("<function=ship>\n<parameter=a\nb>\n", "where the name of a parameter belongs"),
        ("<function=ship>\n<parameter=count>\nfive\n</parameter>\n", "has a value that is not JSON"),
        ("<function=ship>\n<parameter=count>\n\n</parameter>\n", "has a value that is not JSON"),
        ("<function=ship>\n<parameter=data>\n[1\n</parameter>\n", "has a value that is not JSON"),
        ("<function=ship>\n<parameter=note>\na\n</parameter>\n<parameter=note>\nb", "has 'note' twice"),
        ("<function=ship>\n</function>\nx", "has 'x' where </tool_call> belongs"),
    ],
)
@both_vocabularies
@both_framings
def test_a_fault_is_named(body: str, fault: str, lines: bool, special: bool) -> None:
    failure = _read(spelled(f"{_call(lines)}<tool_call>{body}</tool_call>", special), lines, special).failure
    assert failure is not None and failure.startswith("tool call 1")
    assert fault in failure


def test_the_framing_on_lines_needs_its_line_ends() -> None:
    failure = _read(spelled(_call(False), True), True, True).failure
    assert failure == "tool call 0 (\"ship\") of the model's reply has no line end after the tag of 'note'"


@pytest.mark.parametrize("space", ["", "\n", " \n\n\t"])
@both_framings
def test_white_space_between_tags_is_layout(lines: bool, space: str) -> None:
    value = "<parameter=note>\nx\n</parameter>\n" if lines else "<parameter=note>x</parameter>"
    text = f"<tool_call>{space}<function=ship>{space}{value}{space}</function>{space}</tool_call>{space}"
    assert said(_read(spelled(text, True), lines, True)) == ("", [("ship", '{"note":"x"}', True)], None)


@both_framings
def test_a_call_opened_by_a_token_needs_the_closing_token(lines: bool) -> None:
    pieces: list[Piece] = [*spelled(_call(lines).removesuffix("</tool_call>"), True), ("</tool_call>", False)]
    assert "has '<' where </tool_call> belongs" in str(_read(pieces, lines, True).failure)


@both_vocabularies
def test_on_lines_a_call_ends_an_open_thought(special: bool) -> None:
    call = _call(True)
    for tail, text in ((_OPEN, f"plan\n{call} done"), (_ASSISTANT, f"<think>plan\n{call} done")):
        reply = _read(spelled(text, special), True, special, tail=tail)
        assert (reply.reasoning, said(reply)) == ("plan\n", (" done", [("ship", _ARGUMENTS, True)], None))
    raw = _read(spelled(f"plan\n{call}", special), True, special, tail=_OPEN, raw_reasoning=True)
    assert (raw.reasoning, said(raw)) == ("", ("<think>\nplan\n", [("ship", _ARGUMENTS, True)], None))
    around = _read(spelled("\nplan\n</think>\n\nHi", special), True, special, tail=_OPEN, raw_reasoning=True)
    assert around.content == "<think>\n\nplan\n</think>\n\nHi"
    plain = _read(spelled(f"plan\n{call}", special), True, special, tail=_OPEN, tools=False)
    assert (plain.reasoning, said(plain)) == ("plan\n", (call, [], None))


@both_vocabularies
def test_bare_calls_in_a_thought_are_reasoning(special: bool) -> None:
    call = _call(False)
    reply = _read(spelled(f"<think>plan{call}</think>{call}", special), False, special, tail=_ASSISTANT)
    assert (reply.reasoning, said(reply)) == (f"plan{call}", ("", [("ship", _ARGUMENTS, True)], None))


def test_in_ordinary_tokens_a_tag_ends_no_thought() -> None:
    reply = _read([("a <tool_call> b", False), ("</think>", True), ("c", False)], True, True, tail=_OPEN)
    assert (reply.reasoning, reply.content) == ("a <tool_call> b", "c")


@pytest.mark.parametrize(
    ("tail", "text", "reasoning", "content"),
    [
        (_OPEN, "\n\n plan\n</think>\n\n\n Hi ", "plan\n", "Hi "),
        (_ASSISTANT, " \n<think>\n\nplan</think> Hi", "plan", "Hi"),
        (_CLOSED, "\n Hi", "", "Hi"),
        (_ASSISTANT, "\n Hi", "", "Hi"),
        (_OPEN, "\n \n</think>\n", "", ""),
    ],
)
def test_on_lines_all_white_space_around_a_thought_is_layout(
    tail: str, text: str, reasoning: str, content: str
) -> None:
    for tools in (True, False):
        for special in (True, False):
            reply = _read(spelled(text, special), True, special, tail=tail, tools=tools)
            assert (reply.reasoning, reply.content) == (reasoning, content)


def test_white_space_inside_a_thought_is_the_models() -> None:
    pieces: list[Piece] = [(text, False) for text in ("\n", " a", "\n", "\n", "b\n")]
    assert _read(pieces, True, True, tail=_OPEN).reasoning == "a\n\nb\n"


def test_a_stream_releases_what_is_decided() -> None:
    parser = ChatParser(_facts(True, False), _OPEN, [TOOL], new_id=lambda index: f"id{index}")
    pieces = ["Hm<to", "ol_call>\n<function=sh", "ip>\n<parameter=note>", "\na\n", 'b"', "\n</para",
              "m\n</parameter>\n", "<parameter=count>\n4", "2\n</parameter>\n</function>\n", "</tool_call>",
              "\n", "so"]  # fmt: skip
    assert [parser.feed(piece, False) for piece in pieces] == [
        [ReasoningDelta("Hm")], [], [CallStart(0, "id0", "ship"), CallArguments(0, "{")],
        [CallArguments(0, '"note":"a')], [CallArguments(0, '\\nb\\"')], [], [CallArguments(0, '\\n</param"')],
        [CallArguments(0, ',"count":')], [CallArguments(0, "42}")], [CallEnd(0)], [],
        [ContentDelta("\nso")],
    ]  # fmt: skip


@both_framings
def test_a_very_long_argument_passes_through(lines: bool) -> None:
    value = 'x\n<é"\n</parameter' * 20_000
    ((opener, _), (body, _), (closer, _)) = function_call("ship", {"note": (True, value, "")}, _LINE[lines], False)
    text = opener + body + closer
    pieces = [(text[start : start + 8], False) for start in range(0, len(text), 8)]
    assert json.loads(_read(pieces, lines, False).calls[0].arguments) == {"note": value}


@pytest.mark.parametrize(("source", "markup"), [(FUNCTION_LINES, LINES), (FUNCTION_BARE, BARE)], ids=["lines", "bare"])
def test_a_template_that_writes_these_calls_is_known(source: str, markup: Any) -> None:
    facts = facts_of(source, ["<think>", "<tool_call>"])
    assert facts == TemplateFacts(
        think=ThinkTags("<think>", "</think>", after_open="\n", before_close="\n", after_close="\n\n"),
        markup=markup,
        writes_calls=True,
        special_tags=frozenset({"<think>", "<tool_call>"}),
        thinking_off="switch",
        object_arguments=True,
    )
    assert facts_of(source.replace("<tool_call>", "<call>")).markup is None
    assert facts_of(source.replace("'<parameter='", "'<argument='")).markup is None


@pytest.mark.parametrize("value", ["'\\n' ~ value", "value ~ '\\n'", "'[' ~ value ~ ']'"])
def test_half_a_framing_is_none(value: str) -> None:
    argument = f"<parameter=place>{{{{ {value} }}}}</parameter>"
    call = f"<tool_call><function={{{{ c.function.name }}}}>{argument}</function></tool_call>"
    loop = "{% for m in messages if m.tool_calls %}{% for c in m.tool_calls %}"
    bound = "{% set value = c.function.arguments.place %}"
    assert facts_of(f"{CHATML}{loop}{bound}{call}{{% endfor %}}{{% endfor %}}").markup is None
