"""Replies and what they say: every rule of the think span and of Hermes calls, by example."""

from __future__ import annotations

import pytest

from bloomery.server.chat.deltas import (
    CallArguments,
    CallEnd,
    CallStart,
    ChatDelta,
    ContentDelta,
    ReasoningDelta,
    Reply,
)
from bloomery.server.chat.parser import ChatParser, new_call_id
from tests.server.chat.replies import hermes, parse, spelled
from tests.server.chat.templates import TOOL

_OPEN = "<|im_start|>assistant\n<think>\n"
_CLOSED = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
_ARGUMENTS = '{"city": "Oslo",  "days": 3}'
_CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {_ARGUMENTS}}}\n</tool_call>'


def _said(reply: Reply) -> tuple[str, str, list[tuple[str, str, bool]], str | None]:
    return (
        reply.reasoning,
        reply.content,
        [(call.name, call.arguments, call.closed) for call in reply.calls],
        reply.failure,
    )


@pytest.mark.parametrize("special", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("Hello", "", "Hello"),
        ("  \n\n  Hi", "", "Hi"),
        ("<think>\nplan\n</think>\n\nHi", "plan\n", "Hi"),
        ("<think>\nplan\n</think>\n\n Hi", "plan\n", " Hi"),
        ("<think>\nplan\n</think>\nHi", "plan\n", "Hi"),
        ("<think>\nplan\n</think>\n\n\nHi", "plan\n", "\nHi"),
        ("<think>plan</think>Hi", "plan", "Hi"),
        ("<think>\n\n plan </think> \n\nHi", "\n plan ", " \n\nHi"),
        ("\n<think>\nplan\n</think>\n\nHi", "plan\n", "Hi"),
        ("  <think>a</think>  b", "a", "  b"),
        ("<think>\n\n</think>\n\nHi", "", "Hi"),
        ("<think> \n\t</think>Hi", "", "Hi"),
        ("<think>\nabc", "abc", ""),
        ("<think>\n \n", "", ""),
        ("<think>\nplan\n</think>\n\nHi  \n", "plan\n", "Hi  \n"),
        ("Hi </think> there", "", "Hi </think> there"),
        ("Hi <think>there</think>", "", "Hi <think>there</think>"),
        ("<think>a</think>b<think>c</think>d", "a", "b<think>c</think>d"),
        ("<think>a<tool_call>b</think>c", "a<tool_call>b", "c"),
        ("", "", ""),
        ("\n\n", "", ""),
    ],
)
def test_a_span_that_the_model_opens(text: str, reasoning: str, content: str, special: bool) -> None:
    assert _said(parse(spelled(text, special), special=special)) == (reasoning, content, [], None)


@pytest.mark.parametrize(
    ("tail", "text", "reasoning", "content"),
    [
        (_OPEN, "plan\n</think>\n\nHi", "plan\n", "Hi"),
        (_OPEN, "\n\nplan</think>Hi", "\n\nplan", "Hi"),
        (_OPEN.rstrip(), "\n\nplan</think>Hi", "\nplan", "Hi"),
        (_OPEN, "  \n</think>\n\nHi", "", "Hi"),
        (_OPEN, "<think>\nplan</think>Hi", "<think>\nplan", "Hi"),
        (_OPEN, "plan", "plan", ""),
        (_CLOSED, "<think>\nplan\n</think>\n\nHi", "", "<think>\nplan\n</think>\n\nHi"),
        (_CLOSED, "  \n\n  Hi", "", "  \n\n  Hi"),
    ],
)
def test_a_span_that_the_prompt_opened_or_closed(tail: str, text: str, reasoning: str, content: str) -> None:
    for special in (True, False):
        assert _said(parse(spelled(text, special), special=special, tail=tail)) == (reasoning, content, [], None)


@pytest.mark.parametrize(
    ("tail", "text", "content"),
    [
        ("assistant\n", "<think>\nplan\n</think>\n\nHi", "<think>\nplan\n</think>\n\nHi"),
        ("assistant\n", "\n<think>\nplan\n</think>\n\nHi", "<think>\nplan\n</think>\n\nHi"),
        (_OPEN, "plan\n</think>\n\nHi", "<think>\nplan\n</think>\n\nHi"),
        (_CLOSED, "Hi", "Hi"),
        ("assistant\n", f"<think>{_CALL}", f"<think>{_CALL}"),
    ],
)
def test_reasoning_left_in_the_content(tail: str, text: str, content: str) -> None:
    assert _said(parse(spelled(text, True), tail=tail, raw_reasoning=True)) == ("", content, [], None)


def test_calls_are_read_after_reasoning_left_in_the_content() -> None:
    reply = parse(spelled(f"<think>\np\n</think>\n\n{_CALL}", True), raw_reasoning=True)
    assert _said(reply) == ("", "<think>\np\n</think>\n\n", [("get_weather", _ARGUMENTS, True)], None)


@pytest.mark.parametrize("special", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (_CALL, "", 1),
        (f"\n{_CALL}", "", 1),
        (f"Look.\n{_CALL}", "Look.\n", 1),
        (f"{_CALL}\n{_CALL}", "", 2),
        (f"{_CALL}{_CALL}\n\n", "", 2),
        (f"{_CALL}\n", "", 1),
        (f"{_CALL} done.", " done.", 1),
        (f"a{_CALL}\nb\n{_CALL}\n c ", "a\nb\n\n c ", 2),
        (_CALL.replace("\n", ""), "", 1),
    ],
)
def test_calls(text: str, content: str, calls: int, special: bool) -> None:
    reply = parse(spelled(text, special), special=special)
    assert _said(reply) == ("", content, [("get_weather", _ARGUMENTS, True)] * calls, None)


def test_content_before_a_call_keeps_its_white_space_when_thinking_is_off() -> None:
    assert parse(spelled(f"\n{_CALL}", True), tail=_CLOSED).content == "\n"


def test_a_call_after_reasoning() -> None:
    reply = parse(spelled(f"<think>\np\n</think>\n\n{_CALL}", True))
    assert _said(reply) == ("p\n", "", [("get_weather", _ARGUMENTS, True)], None)


def test_without_tools_a_call_is_content() -> None:
    assert _said(parse(spelled(f"{_CALL}\n", True), tools=False)) == ("", f"{_CALL}\n", [], None)


@pytest.mark.parametrize(
    ("body", "name", "arguments"),
    [
        ('{"arguments": {"a": 1}, "name": "f"}', "f", '{"a": 1}'),
        ('{"name":"f","arguments":{}}', "f", "{}"),
        ('\n\n {"name": "f" , "arguments" : { } }\t', "f", "{ }"),
        ('{"name": "f", "arguments": "{\\"a\\": \\"\\u00e9\\"}"}', "f", '{"a": "é"}'),
        ('{"arguments": " {} ", "name": "f"}', "f", "{}"),
        ('{"name": "\\u00e9\\n\\ud83d\\udd25", "arguments": {}}', "é\n🔥", "{}"),
        ('{"name": "f", "arguments": {"a": "</tool_call>", "b": "<tool_call>"}}', "f",
         '{"a": "</tool_call>", "b": "<tool_call>"}'),
        ('{"name": "f", "arguments": {"n": -1.5e+3, "t": [true, null, {"x": "\\\\"}]}}', "f",
         '{"n": -1.5e+3, "t": [true, null, {"x": "\\\\"}]}'),
    ],
)  # fmt: skip
def test_how_a_call_may_be_written(body: str, name: str, arguments: str) -> None:
    in_text = parse([(f"<tool_call>{body}</tool_call>", False)], special=False)
    in_tokens = parse([("<tool_call>", True), (body, False), ("</tool_call>", True)])
    assert _said(in_text) == _said(in_tokens) == ("", "", [(name, arguments, True)], None)


_FAULTS = [
    ("", "ends before its JSON object does"),
    ("nope", "is not one JSON object"),
    ("[1]", "is not one JSON object"),
    ("{}", 'has no "name"'),
    ('{"name": "f"}', 'has no "arguments"'),
    ('{"arguments": {}}', 'has no "name"'),
    ('{"name": "", "arguments": {}}', 'has an empty "name"'),
    ('{"name": 3, "arguments": {}}', 'has a "name" that is no string'),
    ('{"name": "f", "arguments": [1]}', 'has a "arguments" that is no object'),
    ('{"name": "f", "arguments": null}', 'has a "arguments" that is no object'),
    ('{"name": "f", "arguments": "[1]"}', 'has "arguments" in a string that holds no JSON object'),
    ('{"name": "f", "arguments": {}, "id": 1}', "has the key 'id' besides"),
    ('{"name": "f", "name": "g", "arguments": {}}', 'has "name" twice'),
    ('{"name": "f", "arguments": {"a": tru}}', "is not one JSON object"),
    ('{"name": "f", "arguments": {"a": "\n"}}', "bare control character"),
    ('{"name": "f", "arguments": {"a": 01}}', "is no number"),
    ('{"name": "f" "arguments": {}}', "is not one JSON object"),
    ('{"name": "\\ud83d", "arguments": {}}', "half a surrogate pair"),
    ('{"name": "f", "arguments": {}} x', "has text after its JSON object"),
    ('{"name": "f", "arguments": {}}}', "has text after its JSON object"),
    ('{"name": "f", "arguments": {"a": 1', "ends before its JSON object does"),
]


@pytest.mark.parametrize(("body", "fault"), _FAULTS)
def test_a_fault_is_named(body: str, fault: str) -> None:
    reply = parse([*spelled(_CALL, True), ("<tool_call>", True), (body, False), ("</tool_call>", True), ("x", False)])
    assert reply.failure is not None
    assert reply.failure.startswith("tool call 1")
    assert fault in reply.failure
    assert reply.content == ""


def test_a_fault_names_the_function_once_it_is_known() -> None:
    reply = parse([("<tool_call>", True), ('{"name": "f", "arguments": {"a": x', False)])
    assert reply.failure == "tool call 0 (\"f\") of the model's reply is not one JSON object: no value begins with 'x'"
    assert [call.arguments for call in reply.calls] == ['{"a": ']


@pytest.mark.parametrize("special", [True, False], ids=["tokens", "text"])
def test_where_the_token_limit_may_cut(special: bool) -> None:
    """Before the name is whole, the call is content; after it, the call stands as far as it came."""
    named_at = len('<tool_call>\n{"name": "get_weather"')
    arguments_at = _CALL.index(_ARGUMENTS)
    for length in range(len(_CALL)):
        text = _CALL[:length]
        if special and any(text.endswith(("<tool_call>"[:n], "</tool_call>"[:n])) for n in range(1, 11)):
            continue
        reply = parse(spelled(text, special), "limit", special=special)
        if length < named_at:
            assert _said(reply) == ("", text, [], None)
        else:
            assert _said(reply) == ("", "", [("get_weather", _ARGUMENTS[: max(0, length - arguments_at)], False)], None)


@pytest.mark.parametrize("stop_type", ["eos", "word", "reasoning_loop"])
@pytest.mark.parametrize("special", [True, False], ids=["tokens", "text"])
def test_a_reply_that_ends_by_itself_inside_a_call_is_an_error(special: bool, stop_type: str) -> None:
    for length in range(len("<tool_call>"), len(_CALL) - len("</tool_call>")):
        failure = parse(spelled(_CALL[:length], special), stop_type, special=special).failure
        assert failure is not None and failure.startswith("tool call 0")
        assert failure.endswith("is not closed: the reply ended without its </tool_call>")


@pytest.mark.parametrize("before", ["", "text ", f"{_CALL}", f"{_CALL}\n"])
def test_an_opener_at_the_end_is_a_call_and_its_beginning_is_text(before: str) -> None:
    for special in (True, False):
        assert parse(spelled(f"{before}<tool_call>", special), special=special).failure is not None
        reply = parse(spelled(f"{before}<tool_call", special), special=special)
        assert reply.failure is None
        assert reply.content.endswith("<tool_call")


def test_the_same_characters_in_ordinary_tokens_are_text() -> None:
    assert _said(parse([(_CALL, False)])) == ("", _CALL, [], None)
    assert _said(parse([("<think>a</think>b", False)])) == ("", "<think>a</think>b", [], None)
    quoted = [("<think>", True), ("a</think>b", False), ("</think>", True), ("c", False)]
    assert _said(parse(quoted)) == ("a</think>b", "c", [], None)


def test_a_call_opened_by_a_token_needs_the_closing_token() -> None:
    opened, body = ("<tool_call>", True), _CALL.removeprefix("<tool_call>")
    assert "not closed" in str(parse([opened, (body, False)]).failure)
    assert parse([opened, (body, False)], "limit").calls[0].arguments == _ARGUMENTS
    assert "text after its JSON object" in str(parse([opened, (body, False), ("</tool_call>", True)]).failure)


def test_a_tag_token_inside_a_string_of_a_call_is_text() -> None:
    body = [
        ('{"name": "f", "arguments": {"a": "', False),
        ("<think>", True),
        ("x", False),
        ("<tool_call>", True),
        ('"}}', False),
    ]
    reply = parse([("<tool_call>", True), *body, ("</tool_call>", True)])
    assert _said(reply) == ("", "", [("f", '{"a": "<think>x<tool_call>"}', True)], None)


def test_other_special_tokens_are_text() -> None:
    assert parse([("a", False), ("<|im_start|>", True), ("b", False)]).content == "a<|im_start|>b"


def test_a_special_piece_may_release_text_before_its_tag() -> None:
    reply = parse([("<th", False), ("ink> Hi <think>", True), ("x", False)])
    assert reply.content == "<think> Hi <think>x"
    assert parse([(" \n<think>", True), ("plan</think>", True), ("b", False)]).reasoning == "plan"


def _deltas(*pieces: tuple[str, bool]) -> list[list[ChatDelta]]:
    parser = ChatParser(hermes(True), "assistant\n", [TOOL], new_id=lambda index: f"id{index}")
    return [parser.feed(*piece) for piece in pieces]


def test_a_stream_releases_what_is_decided() -> None:
    assert _deltas(
        ("<think>", True), ("\n", False), ("pl", False), ("an\n", False), ("</think>", True), ("\n\n", False),
        ("Hi", False), ("\n", False), ("<tool_call>", True), ('\n{"name": "f', False), ('", "arg', False),
        ('uments": {"a', False), ('": 1}', False), ("}\n", False), ("</tool_call>", True), ("\n", False), ("x", False),
    ) == [
        [], [], [ReasoningDelta("pl")], [ReasoningDelta("an\n")], [], [], [ContentDelta("Hi")],
        [ContentDelta("\n")], [], [], [CallStart(0, "id0", "f")], [CallArguments(0, '{"a')],
        [CallArguments(0, '": 1}')], [], [CallEnd(0)], [], [ContentDelta("\nx")],
    ]  # fmt: skip


def test_text_tags_are_held_back_only_as_far_as_they_could_be_one() -> None:
    parser = ChatParser(hermes(False), "assistant\n", [TOOL])
    assert parser.feed("a <tool", False) == [ContentDelta("a ")]
    assert parser.feed("box", False) == [ContentDelta("<toolbox")]


def test_arguments_before_the_name_wait_for_it() -> None:
    assert _deltas(
        ("<tool_call>", True), ('{"arguments": {"a": 1}, "na', False), ('me": "f"', False), ("}", False)
    ) == [[], [], [CallStart(0, "id0", "f"), CallArguments(0, '{"a": 1}')], []]


def test_nothing_follows_a_failure() -> None:
    parser = ChatParser(hermes(True), "assistant\n", [TOOL])
    parser.feed("<tool_call>", True)
    assert parser.feed('{"name": "f", "arguments": {x', False)
    assert parser.feed("more", False) == []
    assert parser.finish("eos") == []


def test_call_ids_do_not_repeat() -> None:
    ids = {new_call_id(0) for _ in range(100)}
    assert len(ids) == 100
    assert all(call_id.startswith("call_0_") and len(call_id) == len("call_0_") + 16 for call_id in ids)


def test_a_very_long_argument_passes_through() -> None:
    value = 'x\\n<é"'.replace('"', '\\"') * 40_000
    body = f'{{"name": "f", "arguments": {{"a": "{value}"}}}}'
    pieces = [(body[start : start + 8], False) for start in range(0, len(body), 8)]
    reply = parse([("<tool_call>", True), *pieces, ("</tool_call>", True)])
    assert reply.calls[0].arguments == f'{{"a": "{value}"}}'
    assert parse([(f"<tool_call>{body}</tool_call>", False)], special=False).calls[0].arguments == f'{{"a": "{value}"}}'
