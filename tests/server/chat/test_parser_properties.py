"""What is true of every reply: no cut changes it, no end breaks it, and its calls are what was spelled."""

from __future__ import annotations

import json
from dataclasses import astuple
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.chat.replies import Piece, bodies, cut, parse, spelled
from tests.server.chat.templates import TAGS

_words = st.sampled_from(
    ["a", " ", "\n", "\n\n", "<", "</", "<th", "think>", "<tool_call", "tool_call>", "é", "🔥", '{"name": "f", ',
     '"arguments": {', '"x": "', '\\"', '"}', "}", ", ", '{"name": "f", "arguments": {"a": [1, "</tool_call>"]}}', "`"]
)  # fmt: skip
_tokens = st.one_of(_words.map(lambda text: (text, False)), st.sampled_from(TAGS).map(lambda tag: (tag, True)))
_replies = st.lists(_tokens, max_size=14)
_tails = st.sampled_from(["assistant\n", "assistant\n<think>\n", "<think>\n\n</think>\n\n"])
_stops = st.sampled_from(["eos", "limit", "word"])


def _as_text(reply: list[Piece], special: bool) -> list[Piece]:
    return reply if special else [("".join(text for text, _ in reply), False)]


def _explained(pieces: list[Piece], places: list[int]) -> str:
    return f"pieces {pieces!r} cut at {places!r}"


@settings(max_examples=150, deadline=None)
@given(
    reply=_replies,
    tail=_tails,
    stop=_stops,
    special=st.booleans(),
    raw=st.booleans(),
    places=st.lists(st.integers(1, 99)),
)
def test_no_cut_changes_a_reply(
    reply: list[Piece], tail: str, stop: str, special: bool, raw: bool, places: list[int]
) -> None:
    pieces = _as_text(reply, special)
    options: dict[str, Any] = {"special": special, "tail": tail, "raw_reasoning": raw}
    whole = parse(pieces, stop, **options)
    assert parse(cut(pieces, places), stop, **options) == whole, _explained(pieces, places)
    everywhere = range(sum(len(text) for text, _ in pieces))
    assert parse(cut(pieces, everywhere), stop, **options) == whole, _explained(pieces, [*everywhere])


@settings(max_examples=30, deadline=None)
@given(reply=_replies, tail=_tails, stop=_stops, special=st.booleans())
def test_no_place_for_two_pieces_changes_a_reply(reply: list[Piece], tail: str, stop: str, special: bool) -> None:
    pieces = _as_text(reply, special)
    whole = parse(pieces, stop, special=special, tail=tail)
    for place in range(1, sum(len(text) for text, _ in pieces)):
        assert parse(cut(pieces, [place]), stop, special=special, tail=tail) == whole, _explained(pieces, [place])


@settings(max_examples=60, deadline=None)
@given(reply=_replies, tail=_tails)
def test_every_prefix_is_a_legal_answer(reply: list[Piece], tail: str) -> None:
    """At the token limit no prefix fails that does not hold a fault of its own, and what was said only grows."""
    previous = parse([], "limit", tail=tail)
    for length in range(len(reply) + 1):
        answer = parse(reply[:length], "limit", tail=tail)
        parse(reply[:length], "eos", tail=tail)
        if answer.failure is None:
            assert answer.reasoning.startswith(previous.reasoning)
            assert len(answer.calls) >= len(previous.calls)
            for before, after in zip(previous.calls, answer.calls, strict=False):
                assert after.arguments.startswith(before.arguments)
        previous = answer


@settings(max_examples=60, deadline=None)
@given(reply=_replies, stop=_stops)
def test_a_tag_spelled_in_ordinary_tokens_is_never_markup(reply: list[Piece], stop: str) -> None:
    """The hostile twin: the same characters without one special token say themselves, all of them."""
    text = "".join(text for text, _ in reply)
    answer = parse([(text, False)], stop)
    assert astuple(answer) == ("", text.lstrip(" \n"), [], None)


@settings(max_examples=150, deadline=None)
@given(
    calls=st.lists(bodies(), min_size=1, max_size=3),
    between=st.sampled_from(["", "\n", " and ", "\n\n"]),
    thought=st.sampled_from(["", "<think>\nplan\n</think>\n\n"]),
    special=st.booleans(),
    places=st.lists(st.integers(1, 400), max_size=12),
)
def test_calls_are_what_was_spelled(
    calls: list[tuple[str, str, Any]], between: str, thought: str, special: bool, places: list[int]
) -> None:
    pieces = spelled(thought, special)
    for index, (body, _, _) in enumerate(calls):
        opener = ("<tool_call>", special), (body, False), ("</tool_call>", special)
        pieces += [(between, False), *opener] if index else opener
    reply = parse(cut(pieces, places), special=special)
    assert reply.failure is None
    assert [(call.id, call.name) for call in reply.calls] == [
        (f"call_{i}", name) for i, (_, name, _) in enumerate(calls)
    ]
    assert [call.arguments for call in reply.calls] == [written for _, _, written in calls]
    assert all(isinstance(json.loads(call.arguments), dict) and call.closed for call in reply.calls)
    assert reply.content == (between * (len(calls) - 1) if between.strip() else "")
    assert reply.reasoning == ("plan\n" if thought else "")


@settings(max_examples=60, deadline=None)
@given(call=bodies(), damage=st.integers(0, 10**6), inserted=st.sampled_from(["", "x", '"', "}", ",", "\\", "\n"]))
def test_a_damaged_call_is_named_or_unharmed(call: tuple[str, str, Any], damage: int, inserted: str) -> None:
    """One character gone or added: never other arguments, unless the text still is JSON that says so."""
    body, _, _ = call
    at = damage % len(body)
    changed = body[:at] + inserted + body[at + (not inserted) :]
    reply = parse([("<tool_call>", True), (changed, False), ("</tool_call>", True)])
    try:
        meant = json.loads(changed)
    except ValueError:
        assert reply.failure is not None
        return
    if reply.failure is None:
        arguments = meant["arguments"]
        said = json.loads(reply.calls[0].arguments)
        assert (reply.calls[0].name, said) == (
            meant["name"],
            json.loads(arguments) if isinstance(arguments, str) else arguments,
        )
