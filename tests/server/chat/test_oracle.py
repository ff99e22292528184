"""Replies as a real llama-server reads them, from scripted models that say each text with certainty.

llama-server's parser works on text, so its model writes a reply in one ordinary token; ours gets the tags as special
tokens, as a vocabulary that has them would give them. Where the two differ, the serving rules are ours on purpose, and
both answers are written down.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bloomery.conformance.fixtures.chain import Chain, line, metadata, tensors
from bloomery.conformance.fixtures.gguf_writer import write_gguf
from bloomery.conformance.oracle import Oracle, OracleSettings
from bloomery.conformance.wire import ask
from bloomery.server.chat.request import read_chat_request
from bloomery.server.chat.template import ChatTemplate
from tests.server.chat.replies import Piece, hermes, parse, spelled
from tests.server.chat.templates import HERMES, OPENING, facts_of

# Reasoning, content, and the calls' names and arguments.
_Read = tuple[str, str, list[tuple[str, str]]]

pytestmark = pytest.mark.oracle

_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "w",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "n": {"type": "object"}},
        },
    },
}
_ARGUMENTS = '{"city": "Oslo", "days": 3}'
_CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {_ARGUMENTS}}}\n</tool_call>'


@contextmanager
def _saying(text: str, folder: Path, template: str = HERMES) -> Iterator[Oracle]:
    """A llama-server whose model answers anything with `text`."""
    chain = Chain("reply", line(text.encode()))
    path = folder / "reply.gguf"
    write_gguf(path, {**metadata(chain), "tokenizer.chat_template": template}, tensors(chain))
    with Oracle(path, OracleSettings(configuration="default", n_ctx=1024)) as oracle:
        yield oracle


def _asked(oracle: Oracle, tools: bool, **fields: Any) -> tuple[int, dict[str, Any]]:
    """The status and message of a chat answer."""
    body = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0} | fields
    answer = ask(
        oracle.address,
        "POST",
        "/v1/chat/completions",
        json.dumps(body | ({"tools": [_TOOL]} if tools else {})).encode(),
    )
    return answer.status, json.loads(answer.body)["choices"][0]["message"] if answer.status == 200 else {}


def _theirs(message: dict[str, Any]) -> _Read:
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]
    return message.get("reasoning_content", ""), message["content"], calls


def _ours(text: str, **options: Any) -> _Read:
    reply = parse(spelled(text, True), **options)
    assert reply.failure is None
    return reply.reasoning, reply.content, [(call.name, call.arguments) for call in reply.calls]


AGREED = [
    "Hello",
    "  \n\n  Hi",
    "<think>\nplan\n</think>\n\nHi",
    "<think>\nplan\n</think>\n\n Hi",
    "<think>\nplan\n</think>\nHi",
    "<think>\nplan\n</think>\n\n\nHi",
    "<think>plan</think>Hi",
    "<think>\n\n plan </think> \n\nHi",
    "\n<think>\nplan\n</think>\n\nHi",
    "<think>\n\n</think>\n\nHi",
    "<think>\nabc",
    "<think>\nplan\n</think>\n\nHi  \n",
    "Hi </think> there",
    "<think>a</think>b<think>c</think>d",
    "  <think>a</think>  b",
    _CALL,
    f"\n{_CALL}",
    f"Look.\n{_CALL}",
    f"{_CALL}\n",
    f"<think>\np\n</think>\n\n{_CALL}",
    f"{_CALL}\n{_CALL}",
    f"<think>\np\n</think>\n\nLet me see.\n\n{_CALL}\n{_CALL}",
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "쇠 \\"é\\" \\n🔥", "n": {"x": [1, 2.5e3, null]}}}\n'
    "</tool_call>",
    '<tool_call>\n{"name": "get_weather", "arguments": {}}\n</tool_call>',
]

# Text, what llama-server answers (its status, or its reading), and ours (None is the 500 that names the call).
DIFFERENT: list[tuple[str, int | _Read, _Read | None]] = [
    # Text after a call is content.
    (f"{_CALL} done.", 500, ("", " done.", [("get_weather", _ARGUMENTS)])),
    # The line ends inside the tags are layout.
    (_CALL.replace("\n", ""), ("", _CALL.replace("\n", ""), []), ("", "", [("get_weather", _ARGUMENTS)])),
    # A tag's beginning at the end is text; a whole opener is a call that never ended.
    ("text <tool_call", ("", "text ", []), ("", "text <tool_call", [])),
    ("text <tool_call>", ("", "text ", []), None),
    # Keys come in any order, and arguments may be an object in a string.
    (f'<tool_call>\n{{"arguments": {_ARGUMENTS}, "name": "get_weather"}}\n</tool_call>', 500,
     ("", "", [("get_weather", _ARGUMENTS)])),
    ('<tool_call>\n{"name": "get_weather", "arguments": "{\\"city\\": \\"A\\"}"}\n</tool_call>',
     500, ("", "", [("get_weather", '{"city": "A"}')])),
    # A call inside the reasoning is reasoning.
    (f"<think>a{_CALL}</think>b", 500, (f"a{_CALL}", "b", [])),
    # Which functions there are is not the parser's business.
    ('<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>', 500, ("", "", [("other", "{}")])),
]  # fmt: skip


@pytest.mark.parametrize("text", AGREED)
def test_a_reply_that_both_read_alike(text: str, tmp_path: Path) -> None:
    with _saying(text, tmp_path) as oracle:
        assert _ours(text) == _theirs(_asked(oracle, tools=True)[1])
        assert _ours(text, tools=False) == _theirs(_asked(oracle, tools=False)[1])
        off = {"chat_template_kwargs": {"enable_thinking": False}}
        assert _ours(text, tail="</think>\n\n") == _theirs(_asked(oracle, tools=True, **off)[1])
        assert _ours(text, raw_reasoning=True) == _theirs(_asked(oracle, tools=True, reasoning_format="none")[1])


@pytest.mark.parametrize(
    "text", ["plan\n</think>\n\nHi", "\n\nplan</think>Hi", "  \n</think>\n\nHi", "<think>\nplan</think>Hi", "plan"]
)
def test_a_reply_after_an_open_span(text: str, tmp_path: Path) -> None:
    tail = "<|im_start|>assistant\n<think>\n"
    with _saying(text, tmp_path, OPENING) as oracle:
        assert _ours(text, tail=tail) == _theirs(_asked(oracle, tools=True)[1])
        assert _ours(text, tail=tail, raw_reasoning=True) == _theirs(
            _asked(oracle, tools=True, reasoning_format="none")[1]
        )


@pytest.mark.parametrize(("text", "theirs", "ours"), DIFFERENT)
def test_a_reply_that_we_read_otherwise_on_purpose(text: str, theirs: Any, ours: Any, tmp_path: Path) -> None:
    with _saying(text, tmp_path) as oracle:
        status, message = _asked(oracle, tools=True)
        assert (_theirs(message) if status == 200 else status) == theirs
    pieces: list[Piece] = spelled(text, True)
    reply = parse(pieces)
    if ours is None:
        assert reply.failure is not None
    else:
        assert _ours(text) == ours != theirs


_CONVERSATIONS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
    {"messages": [{"role": "developer", "content": "d"}, {"role": "user", "content": None}]},
    {"messages": [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": '{"a":  [1, "é"]}'}}]},
        {"role": "tool", "content": "r", "tool_call_id": "c"}], "tools": [_TOOL]},
    {"messages": [{"role": "user", "content": "u"}], "tools": [_TOOL], "tool_choice": "none"},
    {"messages": [{"role": "user", "content": "u"}], "chat_template_kwargs": {"enable_thinking": False}},
    {"messages": [{"role": "user", "content": "u"}], "reasoning_effort": "none"},
    {"messages": [{"role": "user", "content": "u"}], "add_generation_prompt": False},
    {"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "Begin"}]},
    {"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "B", "reasoning_content": "R"}]},
    {"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "", "reasoning_content": "R"}]},
    {"messages": []},
]  # fmt: skip


def test_prompts_are_llama_servers(tmp_path: Path) -> None:
    facts, template = facts_of(HERMES), ChatTemplate(HERMES)
    assert facts == hermes(True)
    with _saying("-", tmp_path) as oracle:
        for body in _CONVERSATIONS:
            theirs = oracle.post("/apply-template", body)["prompt"]
            assert read_chat_request(body, facts).render(template).text == theirs
