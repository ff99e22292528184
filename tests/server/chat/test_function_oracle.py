"""Calls in function tags as a real llama-server reads them, and the templates of models that write them.

llama-server's model writes a reply in one ordinary token; ours gets the tags as special tokens. The models' templates
are read from a llama.cpp source tree, which BLOOMERY_LLAMA_CPP names; without it their tests are skipped.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from bloomery.conformance.fixtures.chain import Chain, line, metadata, tensors
from bloomery.conformance.fixtures.gguf_writer import write_gguf
from bloomery.conformance.oracle import Oracle, OracleSettings
from bloomery.conformance.wire import ask
from bloomery.server.chat.facts import ThinkingOff, read_facts
from bloomery.server.chat.function_xml import LINES
from bloomery.server.chat.template import ChatTemplate
from tests.server.chat.replies import parse, spelled
from tests.server.chat.templates import FUNCTION_BARE, FUNCTION_LINES, TAGS, TOOL, Words, facts_of

_TREE = os.environ.get("BLOOMERY_LLAMA_CPP")

pytestmark = pytest.mark.oracle

# llama-server takes a source that spells the tag out for one with values on lines.
_SOURCES = {"lines": FUNCTION_LINES, "bare": FUNCTION_BARE.replace("<function=", "<function' ~ '=")}
_TAILS = {"lines": "assistant\n<think>\n", "bare": "assistant\n"}

# Reasoning, content, and the calls' names and arguments.
_Read = tuple[str, str, list[tuple[str, str]]]


def _theirs(framing: str, text: str, folder: Path, **fields: Any) -> int | _Read:
    chain = Chain("reply", line(text.encode()), _SOURCES[framing])
    path = folder / "reply.gguf"
    write_gguf(path, metadata(chain), tensors(chain))
    body = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "tools": [TOOL], **fields}
    with Oracle(path, OracleSettings(configuration="default", n_ctx=1024)) as oracle:
        answer = ask(oracle.address, "POST", "/v1/chat/completions", json.dumps(body).encode())
    if answer.status != 200:
        return answer.status
    message = json.loads(answer.body)["choices"][0]["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]
    return message.get("reasoning_content", ""), message["content"], calls


def _ours(framing: str, text: str, **options: Any) -> _Read | None:
    facts = facts_of(_SOURCES[framing])
    reply = parse(spelled(text, True), tail=options.pop("tail", _TAILS[framing]), facts=facts, **options)
    if reply.failure is not None:
        return None
    return reply.reasoning, reply.content, [(call.name, call.arguments) for call in reply.calls]


def _lines(**values: str) -> str:
    written = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function=ship>\n{written}</function>\n</tool_call>"


def _bare(**values: str) -> str:
    written = "".join(f"<parameter={key}>{value}</parameter>" for key, value in values.items())
    return f"<tool_call><function=ship>{written}</function></tool_call>"


_TEXT = ' a "b" <c>\n\n é🔥\n</parameter>x '

_AGREED = [
    ("lines", "plan\n</think>\n\nHi"),
    ("lines", "\n\n plan </think>\n\n\n Hi \n"),
    ("lines", "plan"),
    ("lines", " \n</think>Hi"),
    ("lines", f"plan\n</think>\n\nLook.\n\n{_lines(note=_TEXT, count='3')}"),
    ("lines", f"plan\n{_lines()}"),
    ("lines", f"</think>{_lines(mixed='5')}"),
    ("lines", f"</think>{_lines(mixed='-1.5e3')}"),
    ("lines", f"</think>{_lines(mixed='five')}"),
    ("lines", f"</think>{_lines(mixed='true')}"),
    ("lines", f"</think>{_lines(free='[1,  2]')}"),
    ("lines", f"</think>{_lines(free='plain')}"),
    ("lines", f"</think>{_lines(free=chr(34) + 'quoted' + chr(34))}"),
    ("lines", f"</think>{_lines(flag='false', data='{}', note='')}"),
    ("lines", f"</think>{_lines(note='x')}\n"),
    ("bare", "<think>\nplan\n</think>\n\nHi"),
    ("bare", f"<think>\nplan\n</think>\n\nLook.\n{_bare(note='<x>' + chr(10), count='3')}"),
    ("bare", _bare(mixed="5", note="")),
    ("bare", _bare(data='{"a": "</parameter>"}')),
    ("bare", _bare()),
]

# A reply after an empty thought on lines, what llama-server makes of it, and ours (None is the 500 naming the call).
# Where llama-server reads no call, it answers with the whole reply as content.
_WHOLE = "whole"
_DIFFERENT: list[tuple[str, str | _Read, _Read | None]] = [
    # Text after a call is content.
    (f"{_lines(note='x')} done.", ("", "", [("ship", '{"note":"x"}')]), ("", " done.", [("ship", '{"note":"x"}')])),
    # A fault is named.
    (_lines(count="five"), _WHOLE, None),
    (_bare(note="x"), _WHOLE, None),
    # An argument is given once.
    (_lines(note="x", other="").replace("other", "note"), ("", "", [("ship", '{"note":"x","note":""}')]), None),
    # White space between tags is layout.
    (_lines(note="x").replace("<function", "\n<function"), _WHOLE, ("", "", [("ship", '{"note":"x"}')])),
    # Templates of this kind print Python's constants.
    (_lines(flag="True"), _WHOLE, ("", "", [("ship", '{"flag":true}')])),
    # A client must check the names and arguments.
    (_lines(other="x"), _WHOLE, ("", "", [("ship", '{"other":"x"}')])),
]


@pytest.mark.parametrize(("framing", "text"), _AGREED)
def test_a_reply_that_both_read_alike(framing: str, text: str, tmp_path: Path) -> None:
    assert _ours(framing, text) == _theirs(framing, text, tmp_path)
    raw = {"reasoning_format": "none"}
    assert _ours(framing, text, raw_reasoning=True) == _theirs(framing, text, tmp_path, **raw)


@pytest.mark.parametrize("text", ["\n Hi", f"\n Look. {_lines(note='x')}", f"\n{_lines(note='x')}"])
def test_a_reply_without_a_thought(text: str, tmp_path: Path) -> None:
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    assert _ours("lines", text, tail="<think>\n\n</think>\n\n") == _theirs("lines", text, tmp_path, **off)


@pytest.mark.parametrize(("text", "theirs", "ours"), _DIFFERENT)
def test_a_reply_that_we_read_otherwise_on_purpose(
    text: str, theirs: str | _Read, ours: _Read | None, tmp_path: Path
) -> None:
    reply = f"</think>{text}"
    assert _theirs("lines", reply, tmp_path) == (("", reply, []) if theirs == _WHOLE else theirs)
    assert _ours("lines", reply) == ours != theirs


@pytest.mark.skipif(_TREE is None, reason="BLOOMERY_LLAMA_CPP names no llama.cpp source tree")
@pytest.mark.parametrize(
    ("name", "think", "thinking_off"),
    [
        ("Qwen3-Coder", None, "neither"),
        ("Qwen3.5-4B", "<think>", "switch"),
        ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "<think>", "switch"),
        ("StepFun3.5-Flash", "<think>", "neither"),
    ],
)
def test_what_templates_write(name: str, think: str | None, thinking_off: ThinkingOff) -> None:
    source = (Path(_TREE or "") / "models" / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
    facts = read_facts(ChatTemplate(source), Words(*TAGS))
    assert facts.markup == LINES
    assert (facts.think.open if facts.think else None) == think
    assert (facts.thinking_off, facts.thinks_by_default) == (thinking_off, True)
    assert facts.object_arguments and facts.special_tags == set(TAGS if think else TAGS[2:])
