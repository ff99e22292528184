"""Replies in tagged markups as a real llama-server reads them, with the models' own templates.

The templates are read from a llama.cpp source tree, which BLOOMERY_LLAMA_CPP names; without it these tests are skipped.
llama-server's model writes a reply in one ordinary token, so the readers here get text as well. Thinking is off.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bloomery.conformance.fixtures.chain import Chain, line, metadata, tensors
from bloomery.conformance.fixtures.gguf_writer import write_gguf
from bloomery.conformance.oracle import Oracle, OracleSettings
from bloomery.conformance.wire import ask
from bloomery.server.chat.dsml import SPELLINGS, DsmlReader, respelled
from bloomery.server.chat.facts import ThinkingOff, read_facts
from bloomery.server.chat.glm_xml import GlmReader
from bloomery.server.chat.invoke import InvokeReader
from bloomery.server.chat.markup import ContentReader
from bloomery.server.chat.minimax import M2_TAGS, MiniMaxM3Reader
from bloomery.server.chat.muse import MuseReader
from bloomery.server.chat.template import ChatTemplate
from tests.server.chat.tagged_replies import read
from tests.server.chat.templates import Words

_TREE = os.environ.get("BLOOMERY_LLAMA_CPP")

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(_TREE is None, reason="BLOOMERY_LLAMA_CPP names no llama.cpp source tree"),
]

_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "ship",
        "description": "d",
        "parameters": {
            "type": "object",
            "properties": {
                "note": {"type": "string"},
                "count": {"type": "integer"},
                "list": {"type": "array", "items": {"type": "string"}},
                "box": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "number"}}},
            },
        },
    },
}
_N, _D = "]<]minimax[>[", "｜DSML｜"
_TEXT = 'a "b" <c>\n é🔥 '

# Reasoning, content, and the calls' names and arguments.
_Read = tuple[str, str, list[tuple[str, str]]]


def _template(name: str) -> str:
    return (Path(_TREE or "") / "models" / "templates" / f"{name}.jinja").read_text(encoding="utf-8")


def _glm(**values: str) -> str:
    written = (f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in values.items())
    return f"<tool_call>ship{''.join(written)}</tool_call>"


def _m2(**values: str) -> str:
    written = (f'<parameter name="{key}">{value}</parameter>\n' for key, value in values.items())
    return f'<minimax:tool_call>\n<invoke name="ship">\n{"".join(written)}</invoke>\n</minimax:tool_call>'


def _element(name: str, value: str) -> str:
    return f"{_N}<{name}>{value}{_N}</{name}>"


def _m3(**values: str) -> str:
    written = (_element(key, value) for key, value in values.items())
    return f'{_N}<tool_call>\n{_N}<invoke name="ship">{"".join(written)}{_N}</invoke>\n{_N}</tool_call>'


def _dsml(**values: str) -> str:
    written = "".join(
        f'<{_D}parameter name="{key}" string="{str(key == "note").lower()}">{value}</{_D}parameter>\n'
        for key, value in values.items()
    )
    return f'<{_D}tool_calls>\n<{_D}invoke name="ship">\n{written or chr(10)}</{_D}invoke>\n</{_D}tool_calls>'


def _muse(**values: str) -> str:
    written = (f'<atem:parameter name="{key}">{value}</atem:parameter>\n' for key, value in values.items())
    block = f'<atem:invoke name="ship">\n{"".join(written)}</atem:invoke>\n'
    return f" to=ship<|message|><atem:function_calls>\n{block}</atem:function_calls>"


_NEXT = "<|eom|><|start|>assistant"
_Maker = Callable[..., ContentReader]
_READERS: dict[str, _Maker] = {
    "GLM-4.7-Flash": GlmReader,
    "MiniMax-M2": lambda *args: InvokeReader(M2_TAGS, *args),
    "MiniMax-M3": MiniMaxM3Reader,
    "deepseek-ai-DeepSeek-V4": lambda *args: DsmlReader(SPELLINGS[0], *args, whole=True),
    "deepseek-ai-DeepSeek-V3.2": lambda *args: DsmlReader(SPELLINGS[2], *args, whole=True),
    "muse-glimmer": MuseReader,
}

_AGREED = [
    ("GLM-4.7-Flash", "Hello"),
    ("GLM-4.7-Flash", _glm(note=_TEXT, count="3")),
    ("GLM-4.7-Flash", "Look.\n" + _glm(box='{"a": "</x>",  "b": 2}')),
    ("GLM-4.7-Flash", _glm(note="x") + _glm(count="5")),
    ("GLM-4.7-Flash", _glm()),
    ("MiniMax-M2", "Hello"),
    ("MiniMax-M2", _m2(note=_TEXT, count="3")),
    ("MiniMax-M2", "Look.\n" + _m2(box='{"a": "x"}')),
    ("MiniMax-M2", _m2()),
    ("MiniMax-M3", "Hello"),
    ("MiniMax-M3", _m3(note=_TEXT, count="3")),
    (
        "MiniMax-M3",
        _m3(list=_element("item", "x") + _element("item", "y"), box=_element("a", "q") + _element("b", "2")),
    ),
    ("MiniMax-M3", "Look.\n" + _m3(list="", box="")),
    ("MiniMax-M3", _m3()),
    ("MiniMax-M3", _m3(note="x").replace(_N, "")),
    ("deepseek-ai-DeepSeek-V4", "Hello"),
    ("deepseek-ai-DeepSeek-V4", "Both.\n\n" + _dsml(note=_TEXT, count="3")),
    ("deepseek-ai-DeepSeek-V4", _dsml(box='{"a": "x"}')),
    ("deepseek-ai-DeepSeek-V4", _dsml()),
    ("deepseek-ai-DeepSeek-V3.2", _dsml(note=_TEXT, count="3").replace("tool_calls", "function_calls")),
    ("muse-glimmer", " to=user<|message|>Hello"),
    ("muse-glimmer", "<|message|>Hello"),
    ("muse-glimmer", f" to=self<|message|>plan{_NEXT} to=user<|message|>Hello"),
    ("muse-glimmer", _muse(note=_TEXT, count="3")),
    ("muse-glimmer", " to=self<|message|>plan" + _NEXT + _muse(box='{"a": "x"}') + _NEXT + _muse(note="x")),
    ("muse-glimmer", f" to=user<|message|>Look.{_NEXT}{_muse()}"),
]

# A template, a reply, llama-server's answer (its status, or its reading), and ours (None is the 500 naming the call).
_DIFFERENT: list[tuple[str, str, int | _Read, _Read | None]] = [
    # Text after a call is content.
    ("GLM-4.7-Flash", _glm(note="x") + " done.", 500, ("", " done.", [("ship", '{"note":"x"}')])),
    ("MiniMax-M3", _m3(note="x") + " done.", 500, ("", " done.", [("ship", '{"note":"x"}')])),
    ("deepseek-ai-DeepSeek-V4", f"a\n\n{_dsml()} done.", 500, ("", "a done.", [("ship", "{}")])),
    # An argument is given once.
    ("GLM-4.7-Flash", _glm(note="x").replace("</tool_call>", _glm(note="y").removeprefix("<tool_call>ship")),
     ("", "", [("ship", '{"note":"x","note":"y"}')]), None),
    # An object that is written as JSON is as good as one in tags.
    ("MiniMax-M3", _m3(box='{"a": "x"}'), 500, ("", "", [("ship", '{"box":{"a": "x"}}')])),
    # A fault is named; DSML that is no call is content.
    ("GLM-4.7-Flash", _glm(count="five"), 500, None),
    ("MiniMax-M2", _m2(count="five"), 500, None),
    ("MiniMax-M3", _m3(count="five"), 500, None),
    ("muse-glimmer", _muse(count="five"), 500, None),
    ("deepseek-ai-DeepSeek-V4", _dsml(count="five"), 500, ("", _dsml(count="five"), [])),
]  # fmt: skip


def _theirs(name: str, text: str, folder: Path) -> int | _Read:
    # M2's prompt opens a think span, whatever is asked.
    chain = Chain("reply", line(("</think>" + text if name == "MiniMax-M2" else text).encode()))
    path = folder / "reply.gguf"
    fields = {**metadata(chain), "qwen3.context_length": 4096, "tokenizer.chat_template": _template(name)}
    write_gguf(path, fields, tensors(chain))
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": 0,
        "tools": [_TOOL],
        "chat_template_kwargs": {"enable_thinking": False},
    }
    with Oracle(path, OracleSettings(configuration="default", n_ctx=4096)) as oracle:
        answer = ask(oracle.address, "POST", "/v1/chat/completions", json.dumps(body).encode())
    if answer.status != 200:
        return answer.status
    message = json.loads(answer.body)["choices"][0]["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]
    return message.get("reasoning_content", ""), message["content"], calls


def _ours(name: str, text: str) -> _Read | None:
    reply = read(_READERS[name]((), [_TOOL], str), [(text, False)])
    if reply.failure is not None:
        return None
    return reply.reasoning, reply.content, [(call.name, call.arguments) for call in reply.calls]


@pytest.mark.parametrize(("name", "text"), _AGREED)
def test_a_reply_that_both_read_alike(name: str, text: str, tmp_path: Path) -> None:
    assert _ours(name, text) == _theirs(name, text, tmp_path)


@pytest.mark.parametrize(("name", "text", "theirs", "ours"), _DIFFERENT)
def test_a_reply_that_we_read_otherwise_on_purpose(
    name: str, text: str, theirs: int | _Read, ours: _Read | None, tmp_path: Path
) -> None:
    assert _theirs(name, text, tmp_path) == theirs
    assert _ours(name, text) == ours


@pytest.mark.parametrize(
    ("name", "markup", "think", "thinking_off", "thinks"),
    [
        ("GLM-4.6", "glm", "<think>", "switch", True),
        ("GLM-4.7-Flash", "glm", "<think>", "switch", True),
        ("MiniMax-M2", "minimax-m2", "<think>", "neither", True),
        ("MiniMax-M3", "minimax-m3", "<mm:think>", "neither", True),
        ("deepseek-ai-DeepSeek-V3.2", "dsml <｜DSML｜function_calls>", "<think>", "switch", False),
        ("deepseek-ai-DeepSeek-V4", "dsml <｜DSML｜tool_calls>", "<think>", "switch", False),
        ("deepseek-ai-DeepSeek-V4-Flash-0731", "dsml <｜DSML｜tool_calls>", "<think>", "switch", False),
        ("muse-glimmer", "muse", None, "neither", True),
        ("Qwen-Qwen3-0.6B", "hermes", "<think>", "switch", True),
        ("deepseek-ai-DeepSeek-V3.1", None, "<think>", "switch", False),
        ("upstage-Solar-Open-100B", None, None, "low_effort", True),
    ],
)
def test_what_templates_write(
    name: str, markup: str | None, think: str | None, thinking_off: ThinkingOff, thinks: bool
) -> None:
    facts = read_facts(ChatTemplate(_template(name)), Words())
    assert (facts.markup.name if facts.markup else None) == markup
    assert (facts.think.open if facts.think else None) == think
    assert (facts.thinking_off, facts.thinks_by_default) == (thinking_off, thinks)


@pytest.mark.parametrize("name", ["deepseek-ai-DeepSeek-V4", "deepseek-ai-DeepSeek-V4-Flash-0731"])
def test_respelling_changes_the_tags_and_nothing_else(name: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "ship", "arguments": {"note": "gold"}}}
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    renders = [
        ChatTemplate(source).try_raw({"messages": messages, "tools": [_TOOL]})
        for source in (_template(name), respelled(_template(name)))
    ]
    written = renders[0]
    assert written
    for old, new in [("tool_calls", " calls"), ("invoke", " invoke"), ("parameter", " parameter")]:
        written = written.replace(f"{_D}{old}", f"{_D}{new}")
    assert renders[1] == written != renders[0]
    markup = read_facts(ChatTemplate(respelled(_template(name))), Words()).markup
    assert markup is not None and markup.name == "dsml <｜DSML｜ calls>"
