"""Reading the chat fields of a request; llama-server's answers where it has one (b11549), named 400s throughout."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from bloomery.server.chat.deltas import collect
from bloomery.server.chat.facts import TemplateFacts
from bloomery.server.chat.request import read_chat_request
from bloomery.server.chat.template import CHATML, ChatTemplate
from bloomery.server.errors import ApiError
from tests.server.chat.templates import BUSY, HERMES, OPENING, facts_of

_USER = {"role": "user", "content": "hi"}
_TOOL = {"type": "function", "function": {"name": "now", "description": "n", "parameters": {"type": "object"}}}
_OFF_BY_DEFAULT = CHATML + "{% if add_generation_prompt %}{{ '<think>' if enable_thinking else '</think>' }}{% endif %}"
_EFFORT_ONLY = CHATML + "{{ reasoning_effort | default('max') }}"


def _prompt(source: str = HERMES, **body: Any) -> str:
    return read_chat_request({"messages": [_USER]} | body, facts_of(source)).render(ChatTemplate(source)).text


def _refused(source: str = HERMES, **body: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read_chat_request({"messages": [_USER]} | body, facts_of(source))
    return caught.value


def _read(message: dict[str, Any], facts: TemplateFacts | None = None) -> dict[str, Any]:
    request = read_chat_request({"messages": [message, _USER]}, facts or TemplateFacts())
    return request.messages[0]


@pytest.mark.parametrize(
    ("message", "read"),
    [
        ({"role": "user", "content": None}, {"role": "user", "content": ""}),
        ({"role": "developer", "content": "d"}, {"role": "system", "content": "d"}),
        ({"role": "whoever", "content": "d"}, {"role": "whoever", "content": "d"}),
        ({"role": "user", "content": [{"type": "text", "text": text} for text in ("", "a", "b")]},
         {"role": "user", "content": "a\nb"}),
        ({"role": "user", "content": []}, {"role": "user", "content": ""}),
        # Fields come in the order templates print them, and no others reach them.
        ({"tool_call_id": "t", "name": "n", "reasoning_content": "r", "content": "c", "role": "tool", "refusal": None},
         {"role": "tool", "content": "c", "reasoning_content": "r", "name": "n", "tool_call_id": "t"}),
        ({"role": "user", "content": "c", "name": "", "reasoning_content": None}, {"role": "user", "content": "c"}),
    ],
)  # fmt: skip
def test_a_message(message: dict[str, Any], read: dict[str, Any]) -> None:
    assert json.dumps(_read(message)) == json.dumps(read)


def _call(arguments: Any, **fields: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"type": "function", "function": function} | fields]}


@pytest.mark.parametrize("arguments", ['{"a":  [1.0, 2]}', {"a": [1.0, 2]}])
def test_arguments_are_an_object_where_the_template_takes_one(arguments: Any) -> None:
    assert _read(_call(arguments, id="x"), TemplateFacts(object_arguments=True)) == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"a": [1.0, 2]}}, "id": "x"}],
    }


def test_arguments_are_text_where_the_template_prints_text() -> None:
    def arguments(sent: Any) -> Any:
        return _read(_call(sent))["tool_calls"][0]["function"]["arguments"]

    assert arguments('{"a":  1}') == '{"a":  1}'
    assert arguments({"a": [1, "é"]}) == '{"a":[1,"é"]}'


def test_no_arguments_are_an_empty_object() -> None:
    assert _read(_call(" "), TemplateFacts(object_arguments=True))["tool_calls"][0]["function"]["arguments"] == {}


def test_parts_stay_parts_where_the_template_takes_them() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert _read({"role": "user", "content": parts}, TemplateFacts(typed_content=True))["content"] == parts
    only_parts = TemplateFacts(typed_content=True, string_content=False)
    assert _read({"role": "user", "content": "a"}, only_parts)["content"] == [{"type": "text", "text": "a"}]


def test_a_system_message_joins_the_next_where_the_template_has_none() -> None:
    facts = TemplateFacts(system_role=False)
    system = {"role": "system", "content": "s"}
    assert read_chat_request({"messages": [system, _USER]}, facts).messages == [{"role": "user", "content": "s\nhi"}]
    assert read_chat_request({"messages": [system]}, facts).messages == []


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        (None, "'messages' is required"),
        ("x", "array"),
        (["x"], r"messages\[0\] must be an object"),
        ([{"content": "x"}], "each message needs a string 'role'"),
        ([{"role": 3, "content": "x"}], "each message needs a string 'role'"),
        ([_USER, {"role": "user"}], r"messages\[1\].*must contain 'content'"),
        ([{"role": "assistant"}], "must contain either 'content' or 'tool_calls'"),
        ([{"role": "user", "content": 3}], "string or an array"),
        ([{"role": "user", "content": [{"type": "foo"}]}], r"content\[0\]: unsupported content\[\].type"),
        ([{"role": "user", "content": ["x"]}], "unsupported"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\].text must be a string"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "image input is not supported"),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "audio input is not supported"),
        ([{"role": "user", "content": [{"type": "video_url"}]}], "video input is not supported"),
        ([{"role": "user", "content": "x", "name": 3}], "name must be a string"),
        ([_call("{bad"), _USER], r"messages\[0\].tool_calls\[0\].function.arguments is not valid JSON"),
        ([_call("[1]"), _USER], "must be a JSON object"),
        ([_call('{"a": NaN}'), _USER], "NaN"),
        ([_call("[" * 99999), _USER], "nests too deep"),
        ([_call(None), _USER], "must be a JSON object"),
        ([_call("{}", id=3), _USER], "id must be a string"),
        ([_call("{}", type="custom"), _USER], "type 'function'"),
        ([{"role": "assistant", "tool_calls": {}}], "must be an array"),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": ""}}]}], "name must be a string"),
        ([{"role": "assistant", "content": "a"}] * 2, "2 or more assistant messages"),
        ([_call("{}")], "Cannot continue an assistant message that contains tool calls"),
    ],
)  # fmt: skip
def test_a_refused_message(messages: Any, reason: str) -> None:
    error = _refused(messages=messages)
    assert (error.code, error.type, error.param) == (400, "invalid_request_error", "messages")
    assert re.search(reason, error.message)


@pytest.mark.parametrize(
    "tools",
    ["x", ["x"], [{"name": "x"}], [{"type": "custom", "function": {"name": "x"}}],
     [{"type": "function", "function": {}}],
     [{"type": "function", "function": {"name": "f", "description": 3}}],
     [{"type": "function", "function": {"name": "f", "parameters": []}}]],
)  # fmt: skip
def test_a_refused_tool(tools: Any) -> None:
    assert (_refused(tools=tools).code, _refused(tools=tools).param) == (400, "tools")


def test_tools_reach_the_template_in_one_shape() -> None:
    tool = {"type": "function", "function": {"strict": True, "parameters": {"b": 1, "a": 2}, "name": "f"}}
    shape = '[{"type": "function", "function": {"name": "f", "description": "", "parameters": {"b": 1, "a": 2}}}]'
    assert shape in _prompt(tools=[tool])
    assert _prompt(tools=[]) == _prompt(tools=None) == _prompt()


def test_a_tools_description_never_changes_what_is_accepted() -> None:
    for description in ("", "<tool_call>", "{{ 7 * 7 }}", '"}\n', "\x00", "%s {}"):
        tool = {"type": "function", "function": {"name": "now", "description": description}}
        request = read_chat_request({"messages": [_USER], "tools": [tool]}, facts_of(HERMES))
        assert request.parse_calls
        assert json.dumps(description, ensure_ascii=False) in request.render(ChatTemplate(HERMES)).text


def test_which_calls_are_read() -> None:
    def parses(**body: Any) -> bool:
        return read_chat_request({"messages": [_USER]} | body, facts_of(HERMES)).parse_calls

    assert parses(tools=[_TOOL])
    assert parses(tools=[_TOOL], tool_choice="auto")
    assert not parses(tools=[_TOOL], tool_choice="none")
    assert not parses(tools=[])
    assert not parses()


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "now"}}])
def test_a_forced_call_is_refused_by_name(choice: Any) -> None:
    error = _refused(tools=[_TOOL], tool_choice=choice)
    assert (error.code, error.param) == (400, "tool_choice")
    assert "not part of this version yet" in error.message


@pytest.mark.parametrize("choice", ["x", 3, [], True])
def test_an_unknown_choice_is_refused(choice: Any) -> None:
    assert (_refused(tools=[_TOOL], tool_choice=choice).code, _refused(tool_choice=choice).param) == (
        400,
        "tool_choice",
    )


def test_tools_on_a_template_whose_calls_nobody_reads() -> None:
    error = _refused(CHATML, tools=[_TOOL])
    assert (error.code, error.type) == (501, "not_supported_error")
    assert "<|im_start|>" in _prompt(CHATML, tools=[_TOOL], tool_choice="none")


@pytest.mark.parametrize(
    ("source", "body", "ends"),
    [
        (HERMES, {}, "assistant\n"),
        (HERMES, {"chat_template_kwargs": {"enable_thinking": False}}, "</think>\n\n"),
        (HERMES, {"reasoning_effort": "none"}, "</think>\n\n"),
        (HERMES, {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, "</think>\n\n"),
        (HERMES, {"reasoning_effort": None}, "assistant\n"),
        (HERMES, {"reasoning_effort": "high"}, "assistant\n"),
        (HERMES, {"add_generation_prompt": False}, "<|im_end|>\n"),
        (OPENING, {}, "<think>\n"),
        (_OFF_BY_DEFAULT, {}, "</think>"),
        (_OFF_BY_DEFAULT, {"reasoning_effort": "minimal"}, "<think>"),
        (_OFF_BY_DEFAULT, {"reasoning_effort": "max", "chat_template_kwargs": {"enable_thinking": False}}, "</think>"),
        (_EFFORT_ONLY, {}, "max"),
        (_EFFORT_ONLY, {"reasoning_effort": "none"}, "low"),
        (_EFFORT_ONLY, {"reasoning_effort": "none", "chat_template_kwargs": {"reasoning_effort": "high"}}, "low"),
        (_EFFORT_ONLY, {"reasoning_effort": "high"}, "high"),
        (_EFFORT_ONLY, {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "max"}}, "low"),
        (_EFFORT_ONLY, {"chat_template_kwargs": {"reasoning_effort": "odd"}}, "odd"),
    ],
)  # fmt: skip
def test_what_a_request_says_about_thinking(source: str, body: dict[str, Any], ends: str) -> None:
    assert _prompt(source, **body).endswith(ends)


def test_thinking_turned_off_makes_all_of_a_reply_content() -> None:
    """Also where the template has no switch and leaves the span to the model."""
    neither = HERMES.replace("enable_thinking is defined", "false")
    for source in (HERMES, neither):
        request = read_chat_request({"messages": [_USER], "reasoning_effort": "none"}, facts_of(source, ()))
        parser = request.parser(request.render(ChatTemplate(source)))
        assert collect([*parser.feed("<think>a</think>b", False), *parser.finish("eos")]).content == "<think>a</think>b"


@pytest.mark.parametrize("effort", ["", "None", "ultra", 3, True, []])
def test_an_unknown_effort_is_refused(effort: Any) -> None:
    error = _refused(reasoning_effort=effort)
    assert (error.code, error.param) == (400, "reasoning_effort")
    assert repr(effort) in error.message
    assert "none, minimal, low, medium, high, xhigh, max" in error.message


@pytest.mark.parametrize(("value", "kind"), [("false", "string"), (0, "number"), (None, "null"), ([], "array")])
def test_a_switch_that_is_no_boolean_is_refused(value: Any, kind: str) -> None:
    error = _refused(chat_template_kwargs={"enable_thinking": value})
    assert (error.code, error.param) == (400, "chat_template_kwargs")
    assert error.message == f'invalid type for "enable_thinking" (expected boolean, got {kind})'


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("chat_template_kwargs", [1]),
        ("reasoning_format", "zz"),
        ("reasoning_format", 3),
        ("add_generation_prompt", "no"),
    ],
)
def test_a_field_of_the_wrong_type_is_refused_by_name(field: str, value: Any) -> None:
    assert (_refused(**{field: value}).code, _refused(**{field: value}).param) == (400, field)


@pytest.mark.parametrize("form", [None, "auto", "deepseek", "deepseek-legacy", "none"])
def test_the_reasoning_formats(form: str | None) -> None:
    request = read_chat_request({"messages": [_USER], "reasoning_format": form}, facts_of(HERMES))
    assert request.raw_reasoning == (form == "none")


@pytest.mark.parametrize(
    ("message", "ends", "reply", "reasoning", "content"),
    [
        ({"content": "Begin"}, "assistant\n<think>\n\n</think>\n\nBegin", " it", "", " it"),
        ({"content": "Begin", "reasoning_content": "R"}, "assistant\n<think>\nR\n</think>\n\nBegin", "\nx", "", "\nx"),
        ({"content": "", "reasoning_content": "R"}, "assistant\n<think>\nR", "\nS\n</think>\n\nx", "\nS\n", "x"),
        ({"content": [{"type": "text", "text": "a"}]}, "</think>\n\na", "b", "", "b"),
    ],
)  # fmt: skip
def test_a_reply_goes_on_with_an_assistants_last_message(
    message: dict[str, Any], ends: str, reply: str, reasoning: str, content: str
) -> None:
    messages = [_USER, {"role": "assistant"} | message]
    request = read_chat_request({"messages": messages}, facts_of(HERMES, ()))
    prompt = request.render(ChatTemplate(HERMES))
    assert prompt.text.endswith(ends)
    parser = request.parser(prompt)
    parsed = collect([*parser.feed(reply, False), *parser.finish("eos")])
    assert (parsed.reasoning, parsed.content) == (reasoning, content)


def test_a_template_without_thinking_continues_too() -> None:
    messages = [_USER, {"role": "assistant", "content": "Begin"}]
    assert _prompt(CHATML, messages=messages).endswith("<|im_start|>assistant\nBegin")


def test_a_busy_template_takes_a_whole_request() -> None:
    assert "hi" in _prompt(BUSY)
