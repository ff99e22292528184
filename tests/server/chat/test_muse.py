"""Muse's replies: recipients say what is reasoning, content or a call, and a call is what the model wrote."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.server.chat.deltas import CallArguments, CallEnd, CallStart, ContentDelta, ReasoningDelta, Reply, collect
from bloomery.server.chat.muse import SPECIAL, MuseReader
from bloomery.server.chat.parser import ChatParser
from tests.server.chat.replies import Piece, cut
from tests.server.chat.tagged_replies import Call, calls, ends_at, expected, read, said, spell, stream, texts
from tests.server.chat.templates import TOOL, facts_of

_texts = texts("</atem:parameter>", "<atem:function_calls>", "<|eom|>", "<|start|>assistant to=user<|message|>")
_NEXT = "<|eom|><|start|>assistant"


def _read(pieces: list[Piece], special: bool, *, tools: bool = True, **options: Any) -> Reply:
    tags = SPECIAL if special else ()
    return read(MuseReader(tags, [TOOL] if tools else [], lambda index: f"id{index}"), pieces, tags, **options)


def _written(call: Call, special: bool, space: str = "\n") -> list[Piece]:
    """A message to a tool as a model writes it; names and values are ordinary tokens whatever they spell."""
    name, values = call
    pieces: list[Piece] = [(f" to={name.split()[0]}", False), ("<|message|>", special)]
    pieces += [("<atem:function_calls>", special), (f'{space}<atem:invoke name="{name}">{space}', False)]
    for key, (_, value, _) in values.items():
        pieces += [(f'<atem:parameter name="{key}">{value}', False), ("</atem:parameter>", special), (space, False)]
    pieces += [("</atem:invoke>", special), (space, False), ("</atem:function_calls>", special)]
    return [piece for piece in pieces if piece[0]]


def _calls(special: bool) -> st.SearchStrategy[list[Call]]:
    # Among ordinary tokens, a bare value cannot hold its own closing tag.
    text = _texts if special else _texts.filter(lambda text: ends_at(text, "</atem:parameter>"))
    return st.lists(calls(text, _texts), min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    thoughts=st.lists(st.sampled_from(["plan", "\n plan <b>", "call <atem:function_calls>?"]), max_size=2),
    content=st.sampled_from(["", "Look.", "\nto=self"]),
    space=st.sampled_from(["", "\n"]),
    turn_ends=st.booleans(),
    special=st.booleans(),
    places=st.lists(st.integers(1, 400), max_size=12),
)
def test_a_turn_is_what_was_written(
    data: st.DataObject,
    thoughts: list[str],
    content: str,
    space: str,
    turn_ends: bool,
    special: bool,
    places: list[int],
) -> None:
    drawn = data.draw(_calls(special))
    messages = [spell(f" to=self<|message|>{thought}", SPECIAL[:3], special) for thought in thoughts]
    messages += [spell(f" to=user<|message|>{content}", SPECIAL, special)] if content else []
    messages += [_written(call, special, space) for call in drawn]
    # The turn's next message may also begin without the end of the one before.
    between = spell(_NEXT if turn_ends else "<|start|>assistant", SPECIAL, special)
    pieces = messages[0] + [piece for message in messages[1:] for piece in [*between, *message]]
    reply = _read(cut(pieces, places), special)
    assert said(reply) == (content, [(name, expected(values), True) for name, values in drawn], None)
    assert reply.reasoning == "".join(thoughts)
    assert _read(cut(pieces, range(sum(len(text) for text, _ in pieces))), special) == reply


_words = st.sampled_from(
    [*SPECIAL, "<|start|>assistant", " to=", "self", "user", "ship", " to=ship", '<atem:invoke name="ship">', "x",
     '<atem:parameter name="note">', '<atem:parameter name="data">', "5", "[", "\n", "<|", "<atem", "é"]
)  # fmt: skip


@settings(max_examples=200, deadline=None)
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
    text = (' to=ship<|message|><atem:function_calls><atem:invoke name="ship">' if opened else "") + "".join(tokens)
    pieces = spell(text, SPECIAL, special)
    reply = _read(pieces, special, cut=at_limit)
    assert _read(cut(pieces, places), special, cut=at_limit) == reply
    assert _read(cut(pieces, range(len(text))), special, cut=at_limit) == reply


_CALL = (
    " to=ship<|message|><atem:function_calls>\n"
    '<atem:invoke name="ship">\n<atem:parameter name="note"> a "b"\n</atem:parameter>\n'
    '<atem:parameter name="data">[1, 2]</atem:parameter>\n</atem:invoke>\n</atem:function_calls>'
)
_ARGUMENTS = '{"note":" a \\"b\\"\\n","data":[1, 2]}'


@pytest.mark.parametrize("special", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize(
    ("text", "reasoning", "content", "calls_made"),
    [
        (" to=user<|message|>Hi", "", "Hi", 0),
        ("<|message|>Hi", "", "Hi", 0),
        (" to=self<|message|>plan<|eom|><|start|>assistant to=user<|message|>Hi", "plan", "Hi", 0),
        (" to=self<|message|>a<|eom|><|start|>assistant to=self<|message|>b", "ab", "", 0),
        (" to=commentary<|message|>a<|eom|><|start|>assistant to=user<|message|>b", "", "ab", 0),
        (" to=developer<|message|>a<|eom|><|start|>assistant to=user<|message|>b", "", "b", 0),
        (_CALL, "", "", 1),
        (f" to=self<|message|>plan{_NEXT}{_CALL}{_NEXT}{_CALL}<|eom|>", "plan", "", 2),
        (f" to=user<|message|>Look.{_NEXT}{_CALL}", "", "Look.", 1),
        (f" to=user<|message|>Look.<|start|>assistant{_CALL}", "", "Look.", 1),
        (f" to=self<|message|>{_CALL.partition('|>')[2]}", _CALL.partition("|>")[2], "", 0),
        (f" to=user<|message|>{_CALL.partition('|>')[2]}", "", _CALL.partition("|>")[2], 0),
        ("Hello there", "", "Hello there", 0),
        ("tomorrow", "", "tomorrow", 0),
        (" to=" + "a" * 300, "", " to=" + "a" * 300, 0),
        ("", "", "", 0),
    ],
)
def test_what_recipients_say(text: str, reasoning: str, content: str, calls_made: int, special: bool) -> None:
    reply = _read(spell(text, SPECIAL, special), special)
    assert reply.reasoning == reasoning
    assert said(reply) == (content, [("ship", _ARGUMENTS, True)] * calls_made, None)


def test_without_tools_a_message_to_a_tool_is_content() -> None:
    for special in (True, False):
        reply = _read(spell(f" to=self<|message|>plan{_NEXT}{_CALL}", SPECIAL, special), special, tools=False)
        assert (reply.reasoning, *said(reply)) == ("plan", _CALL, [], None)


def test_tags_in_ordinary_tokens_are_text_where_they_are_special() -> None:
    pieces = [(" to=user", False), ("<|message|>", True), (f"{_NEXT}{_CALL}", False)]
    assert said(_read(pieces, True)) == (f"{_NEXT}{_CALL}", [], None)


@pytest.mark.parametrize("special", [True, False], ids=["tokens", "text"])
def test_where_the_token_limit_may_cut(special: bool) -> None:
    """Before the name is whole the call is content, but for a header alone; then it stands as far as it came."""
    header = _CALL.index("<atem")
    named_at = _CALL.index('ship">') + len('ship">')
    done_at = _CALL.index("</atem:invoke>") + len("</atem:invoke>")
    seen = ""
    for length in range(1, len(_CALL) + 1):
        text = _CALL[:length]
        if special and any(text.endswith(tag[:n]) for tag in SPECIAL for n in range(1, len(tag))):
            continue
        pieces = spell(text, SPECIAL, special)
        reply = _read(pieces, special, cut=True)
        if length < named_at:
            assert said(reply) == (text if length >= header else "", [], None)
            continue
        ((name, got, closed),) = said(reply)[1]
        assert (reply.content, name, closed, reply.failure) == ("", "ship", length >= done_at, None)
        assert _ARGUMENTS.startswith(got) and got.startswith(seen)
        seen = got
        failure = _read(pieces, special).failure
        assert (failure is None) if length == len(_CALL) else ("is not closed" in str(failure))
    assert seen == _ARGUMENTS


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("x</atem:function_calls>", "has 'x' where <atem:function_calls> belongs"),
        ("<atem:function_calls></atem:function_calls>", "is missing"),
        ('<atem:function_calls><atem:invoke name="">', "has no name"),
        ('<atem:function_calls><atem:invoke name="ship">x', "has 'x' where"),
        ('<atem:function_calls><atem:invoke name="ship"><atem:parameter name="count">five</atem:parameter>',
         "has a value that is not JSON"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("special", [True, False], ids=["tokens", "text"])
def test_a_fault_is_named(body: str, fault: str, special: bool) -> None:
    text = f"{_CALL}{_NEXT} to=ship<|message|>{body}</atem:invoke></atem:function_calls>"
    failure = _read(spell(text, SPECIAL, special), special).failure
    assert failure is not None and failure.startswith("tool call 1")
    assert fault in failure


def test_a_stream_releases_what_is_decided() -> None:
    reader = MuseReader((), [TOOL], lambda index: f"id{index}")
    pieces = [" to=se", "lf<|message|>pl", "an<|e", "om|><|start|>assistant", " to=user<|message|>Hi",
              '<|eom|><|start|>assistant to=ship<|message|><atem:function_calls><atem:invoke name="sh', 'ip">',
              '<atem:parameter name="note">a', "</atem:parameter></atem:invoke>"]  # fmt: skip
    assert stream(reader, [(piece, False) for piece in pieces])[:-1] == [
        [], [ReasoningDelta("pl")], [ReasoningDelta("an")], [], [ContentDelta("Hi")], [],
        [CallStart(0, "id0", "ship"), CallArguments(0, "{")], [CallArguments(0, '"note":"a')],
        [CallArguments(0, '"}'), CallEnd(0)],
    ]  # fmt: skip


def test_a_very_long_argument_passes_through() -> None:
    value = 'x\n<é"</atem:' * 10_000
    text = "".join(text for text, _ in _written(("ship", {"note": (True, value, "")}), False))
    pieces = [(text[start : start + 8], False) for start in range(0, len(text), 8)]
    assert json.loads(_read(pieces, False).calls[0].arguments) == {"note": value}


_WRITES = """
{%- for m in messages -%}
  {%- for call in m.tool_calls -%}
    {{- '<|start|>assistant to=' ~ call.function.name ~ '<|message|><atem:function_calls>\\n<atem:invoke name="' -}}
    {{- call.function.name ~ '">\\n' -}}
    {%- for key, value in call.function.arguments.items() -%}
      {{- '<atem:parameter name="' ~ key ~ '">' ~ value ~ '</atem:parameter>\\n' -}}
    {%- endfor -%}
    {{- '</atem:invoke>\\n</atem:function_calls>' ~ ('<|eot|>' if loop.last else '<|eom|>') -}}
  {%- endfor -%}
{%- endfor -%}
"""


def test_a_template_that_writes_these_calls_is_known() -> None:
    facts = facts_of(_WRITES, SPECIAL)
    assert facts.markup is not None and facts.markup.name == "muse"
    assert facts.special_tags == set(SPECIAL)
    other = facts_of(_WRITES.replace(" to=", " for=")).markup
    assert other is None


def test_the_parser_reads_recipients_without_tools_as_well() -> None:
    parser = ChatParser(facts_of(_WRITES, ()), "", ())
    text = f" to=self<|message|>plan{_NEXT} to=user<|message|>Hi"
    reply = collect([*parser.feed(text, False), *parser.finish("eos")])
    assert (reply.reasoning, reply.content) == ("plan", "Hi")
