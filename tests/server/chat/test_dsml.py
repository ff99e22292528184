"""DSML in its three spellings: what a model writes is what the client gets, and markup that is no call stays text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.server.chat.deltas import CallArguments, CallEnd, CallStart, ContentDelta, Reply, collect
from bloomery.server.chat.dsml import SPECIAL, SPELLINGS, DsmlReader, respelled
from bloomery.server.chat.parser import ChatParser
from bloomery.server.chat.template import ChatTemplate
from tests.server.chat.replies import Piece, cut
from tests.server.chat.tagged_replies import Call, calls, ends_at, expected, read, said, spell, stream, texts
from tests.server.chat.templates import TOOL, facts_of

# The names of the block and the tags of a spelling, as a model writes them.
_NAMES = [
    ("tool_calls", "invoke", "parameter"),
    (" calls", " invoke", " parameter"),
    ("function_calls", "invoke", "parameter"),
]
_indices = st.integers(0, 2)
_texts = texts("<｜DSML｜tool_calls>", "</｜DSML｜parameter>", "</｜DSML｜ parameter>", '" string="true">', "｜DSML｜")


def _read(pieces: list[Piece], spelling: int, special: bool, *, whole: bool = False, **options: Any) -> Reply:
    tags = SPECIAL if special else ()
    reader = DsmlReader(SPELLINGS[spelling], tags, [TOOL], lambda index: f"id{index}", whole=whole)
    return read(reader, pieces, tags, **options)


def _tag(name: str, special: bool, close: bool = False, rest: str = ">") -> list[Piece]:
    return [("</" if close else "<", False), ("｜DSML｜", special), (name + rest, False)]


def _written(drawn: list[Call], spelling: int, special: bool, space: str = "\n") -> list[Piece]:
    """A block as a model writes it; names and values are ordinary tokens whatever they spell."""
    block, invoke, parameter = _NAMES[spelling]
    pieces = [*_tag(block, special), (space, False)]
    for name, values in drawn:
        pieces += _tag(invoke, special, rest=f' name="{name}">{space}')
        for key, (bare, value, _) in values.items():
            flag = str(bare).lower()
            pieces += [*_tag(parameter, special, rest=f' name="{key}" string="{flag}">'), (value, False)]
            pieces += [*_tag(parameter, special, close=True), (space, False)]
        pieces += [*_tag(invoke, special, close=True), (space, False)]
    return [piece for piece in [*pieces, *_tag(block, special, close=True)] if piece[0]]


def _calls(spelling: int, special: bool) -> st.SearchStrategy[list[Call]]:
    # Among ordinary tokens, a bare value cannot hold its own closing tag.
    close = f"</｜DSML｜{_NAMES[spelling][2]}>"
    text = _texts if special else _texts.filter(lambda text: ends_at(text, close))
    return st.lists(calls(text, _texts), min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    spelling=_indices,
    space=st.sampled_from(["", "\n", "\n\n"]),
    separator=st.sampled_from(["", "\n\n"]),
    after=st.sampled_from(["", "\n", " done."]),
    special=st.booleans(),
    whole=st.booleans(),
    places=st.lists(st.integers(1, 400), max_size=12),
)
def test_calls_are_what_was_written(
    data: st.DataObject,
    spelling: int,
    space: str,
    separator: str,
    after: str,
    special: bool,
    whole: bool,
    places: list[int],
) -> None:
    drawn = data.draw(_calls(spelling, special))
    pieces = [("Both." + separator, False), *_written(drawn, spelling, special, space)]
    pieces += [(after, False)] if after else []
    reply = _read(cut(pieces, places), spelling, special, whole=whole)
    content = "Both." + (after if after.strip() else "")
    assert said(reply) == (content, [(name, expected(values), True) for name, values in drawn], None)
    for call in reply.calls:
        assert isinstance(json.loads(call.arguments), dict)
    everywhere = range(sum(len(text) for text, _ in pieces))
    assert _read(cut(pieces, everywhere), spelling, special, whole=whole) == reply


_words = st.sampled_from(
    [
        *("<", "</", "｜DSML｜", "tool_calls>", "invoke", ' name="ship">', "invoke>", "parameter", "parameter>"),
        *("\n", "\n\n", ' name="note" string="true">', ' name="data" string="false">', "[1", "]", '"', "a", "é"),
        *("<｜DSML｜tool_calls>", '<｜DSML｜invoke name="ship">', "</｜DSML｜parameter>"),
        *("</｜DSML｜invoke>", "</｜DSML｜tool_calls>"),
    ]
)


@settings(max_examples=200, deadline=None)
@given(
    tokens=st.lists(_words, max_size=16),
    opened=st.booleans(),
    special=st.booleans(),
    whole=st.booleans(),
    at_limit=st.booleans(),
    places=st.lists(st.integers(1, 99)),
)
def test_no_cut_changes_a_reply(
    tokens: list[str], opened: bool, special: bool, whole: bool, at_limit: bool, places: list[int]
) -> None:
    text = ("<｜DSML｜tool_calls>\n" + '<｜DSML｜invoke name="ship">' if opened else "") + "".join(tokens)
    pieces = spell(text, SPECIAL, special)
    reply = _read(pieces, 0, special, whole=whole, cut=at_limit)
    assert _read(cut(pieces, places), 0, special, whole=whole, cut=at_limit) == reply
    assert _read(cut(pieces, range(len(text))), 0, special, whole=whole, cut=at_limit) == reply
    if whole:
        # A whole answer loses nothing but layout.
        assert reply.failure is None or "is not closed" in reply.failure


_CALL: Call = ("ship", {"note": (True, 'a "b"', '"a \\"b\\""'), "data": (False, "[1, 2]", "[1, 2]")})
_ARGUMENTS = '{"note":"a \\"b\\"","data":[1, 2]}'


def _text(spelling: int = 0) -> str:
    return "".join(text for text, _ in _written([_CALL], spelling, False))


@pytest.mark.parametrize("special", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "streamed"])
def test_where_the_token_limit_may_cut(special: bool, whole: bool) -> None:
    """Before the name is whole the call is content; after it, the call stands as far as it came."""
    text = _text()
    named_at = text.index('ship">') + len('ship">')
    done_at = text.index("</｜DSML｜invoke>") + len("</｜DSML｜invoke>")
    seen = ""
    for length in range(1, len(text) + 1):
        pieces = spell(text[:length], SPECIAL, special)
        if special and any(text[:length].endswith("｜DSML｜"[:n]) for n in range(1, 6)):
            continue
        reply = _read(pieces, 0, special, whole=whole, cut=True)
        if length < named_at:
            assert said(reply) == (text[:length], [], None)
            continue
        ((name, got, closed),) = said(reply)[1]
        assert (reply.content, name, closed, reply.failure) == ("", "ship", length >= done_at, None)
        assert _ARGUMENTS.startswith(got) and got.startswith(seen)
        seen = got
        failure = _read(pieces, 0, special, whole=whole).failure
        assert (failure is None) if length == len(text) else ("is not closed" in str(failure))
    assert seen == _ARGUMENTS


def test_a_reader_knows_one_spelling() -> None:
    for reading in range(3):
        for writing in range(3):
            reply = _read([(_text(writing), False)], reading, False)
            assert bool(reply.calls) == (reading == writing)
            assert reading == writing or reply.content == _text(writing)


@settings(max_examples=60, deadline=None)
@given(text=st.lists(_words, max_size=14).map("".join), spelling=_indices)
def test_tags_in_ordinary_tokens_are_text_where_they_are_special(text: str, spelling: int) -> None:
    assert said(_read([(text, False)] if text else [], spelling, True)) == (text, [], None)


_FAULTS = [
    ("x", ""),
    ("</｜DSML｜tool_calls>", ""),
    ('<｜DSML｜invoke name="">', ""),
    ('<｜DSML｜invoke name="a<b">', ""),
    ('<｜DSML｜invoke name="ship">x', "has 'x' where"),
    ('<｜DSML｜invoke name="ship"><｜DSML｜parameter name="count" string="false">five</｜DSML｜parameter>',
     "has a value that is not JSON"),
    ('<｜DSML｜invoke name="ship"><｜DSML｜parameter name="k" string="true">a</｜DSML｜parameter>'
     '<｜DSML｜parameter name="k" string="true">b</｜DSML｜parameter>', "has 'k' twice"),
    ('<｜DSML｜invoke name="ship"><｜DSML｜parameter name="k" string="true">a</｜DSML｜parameter>.', "has '.' where"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "fault"), _FAULTS)
@pytest.mark.parametrize("special", [True, False], ids=["tokens", "text"])
def test_markup_that_is_no_call_is_content_unless_its_name_went_out(body: str, fault: str, special: bool) -> None:
    text = f"<｜DSML｜tool_calls>\n{body}</｜DSML｜invoke>\n</｜DSML｜tool_calls> end"
    pieces = spell(f"Look. {_text()}{text}", SPECIAL, special)
    call = ("ship", _ARGUMENTS, True)
    assert said(_read(pieces, 0, special, whole=True)) == (f"Look. {text}", [call], None)
    streamed = _read(pieces, 0, special)
    if not fault:
        assert said(streamed) == (f"Look. {text}", [call], None)
    else:
        assert fault in str(streamed.failure)
        assert streamed.failure is not None and streamed.failure.startswith('tool call 1 ("ship")')


def test_a_call_after_broken_markup_is_read() -> None:
    text = "<｜DSML｜tool_calls>x"
    assert said(_read([(text + "\n\n" + _text(), False)], 0, False)) == (text, [("ship", _ARGUMENTS, True)], None)


def test_a_stream_releases_what_is_decided() -> None:
    pieces = ["Hi", "\n\n<｜DSML｜tool_", 'calls>\n<｜DSML｜invoke name="sh', 'ip">\n<｜DSML｜parameter name="note" s',
              'tring="true">a', "</｜DSML｜para", "meter>\n", '<｜DSML｜parameter name="n" string="false">4',
              "2", "</｜DSML｜parameter>", "\n</｜DSML｜invoke>", "\n</｜DSML｜tool_calls>"]  # fmt: skip

    def steps(whole: bool) -> list[list[Any]]:
        reader = DsmlReader(SPELLINGS[0], (), [TOOL], lambda index: f"id{index}", whole=whole)
        return stream(reader, [(piece, False) for piece in pieces])[:-1]

    start, end = CallStart(0, "id0", "ship"), CallEnd(0)
    assert steps(whole=False) == [
        [ContentDelta("Hi")], [], [], [start, CallArguments(0, "{")], [CallArguments(0, '"note":"a')], [],
        [CallArguments(0, '"')], [CallArguments(0, ',"n":')], [], [CallArguments(0, "42")],
        [CallArguments(0, "}"), end], [],
    ]  # fmt: skip
    assert [step for step in steps(whole=True) if step] == [
        [ContentDelta("Hi")],
        [start, CallArguments(0, '{"note":"a","n":42}'), end],
    ]


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "streamed"])
def test_a_very_long_argument_passes_through(whole: bool) -> None:
    value = 'x\n<é"</｜DSML｜' * 10_000
    text = "".join(text for text, _ in _written([("ship", {"note": (True, value, "")})], 0, False))
    pieces = [(text[start : start + 8], False) for start in range(0, len(text), 8)]
    assert json.loads(_read(pieces, 0, False, whole=whole).calls[0].arguments) == {"note": value}


# A template with the tags in a variable, as V4's has them, and names that must not change.
_WRITES = """
{%- set dsml_token = '｜DSML｜' -%}
{%- for m in messages -%}
  {%- for call in m['tool_calls'] -%}
    {{- '\\n\\n<' + dsml_token + 'tool_calls>\\n' -}}
    {{- '<' + dsml_token + 'invoke name="' ~ call.function.name ~ '">\\n' -}}
    {%- for key, parameter in call.function.arguments.items() -%}
      {{- '<' + dsml_token + 'parameter name="' + key + '" string="true">' ~ parameter ~ '</｜DSML｜parameter>\\n' -}}
    {%- endfor -%}
    {{- '</' ~ dsml_token ~ 'invoke>\\n</' + dsml_token + 'tool_calls>' -}}
  {%- endfor -%}
{%- endfor -%}
"""


def _names_of(source: str) -> str | None:
    markup = facts_of(source).markup
    return markup.name if markup else None


def test_a_template_that_writes_these_calls_is_known() -> None:
    facts = facts_of(_WRITES, SPECIAL)
    assert facts.special_tags == set(SPECIAL)
    assert _names_of(_WRITES) == "dsml <｜DSML｜tool_calls>"
    assert _names_of(_WRITES.replace("tool_calls>", "function_calls>")) == "dsml <｜DSML｜function_calls>"
    assert _names_of(_WRITES.replace(' string="true"', "")) is None


def test_respelling() -> None:
    call = {"function": {"name": "ship", "arguments": {"note": "gold"}}}

    def rendered(source: str) -> str:
        text = ChatTemplate(source).try_raw({"messages": [{"tool_calls": [call]}]})
        assert text
        return text

    block = rendered(_WRITES)
    for old, new in [("tool_calls", " calls"), ("invoke", " invoke"), ("parameter", " parameter")]:
        block = block.replace(f"｜DSML｜{old}", f"｜DSML｜{new}")
    assert rendered(respelled(_WRITES)) == block
    assert _names_of(respelled(_WRITES)) == "dsml <｜DSML｜ calls>"
    assert respelled(respelled(_WRITES)) == respelled(_WRITES)
    elsewhere = "{{ messages[0]['tool_calls'] }} invoke parameter"
    assert respelled(elsewhere) == elsewhere


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "streamed"])
def test_the_parser_takes_the_reader_for_its_kind_of_answer(whole: bool) -> None:
    text = f'{_text()} <｜DSML｜tool_calls><｜DSML｜invoke name="ship">x'
    parser = ChatParser(facts_of(_WRITES, ()), "", [TOOL], whole=whole)
    reply = collect([*parser.feed(text, False), *parser.finish("eos")])
    assert [call.arguments for call in reply.calls if call.closed] == [_ARGUMENTS]
    assert (reply.failure is None) == whole
