"""A chat request's part in its prompt and in how its reply is read: messages, tools, template options, reasoning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bloomery.server.chat.facts import TemplateFacts
from bloomery.server.chat.markup import NewId
from bloomery.server.chat.messages import as_text, read_messages, read_tools
from bloomery.server.chat.parser import ChatParser, new_call_id
from bloomery.server.chat.template import ChatTemplate, Rendered
from bloomery.server.errors import ApiError, invalid_request

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_SPLIT_FORMATS = (None, "auto", "deepseek", "deepseek-legacy")


@dataclass(frozen=True, kw_only=True)
class ChatRequest:
    """What a request says about its conversation; frozen, so that one request can be rendered and parsed n times.

    continued: the last message, when it is an assistant's that the reply goes on with.  parse_calls: whether the
    reply's tool calls are read.  thinking: False when the request turned thinking off.  raw_reasoning: whether the
    reasoning stays in the content.
    """

    facts: TemplateFacts
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    variables: Mapping[str, Any]
    add_generation_prompt: bool
    continued: dict[str, Any] | None
    parse_calls: bool
    thinking: bool
    raw_reasoning: bool

    def render(self, template: ChatTemplate) -> Rendered:
        """The prompt. Raises a 400 when the template refuses the conversation."""
        if self.continued is None:
            return template.render(self.messages, self.tools, self.add_generation_prompt, **self.variables)
        return self._render_continued(template, self.continued)

    def _render_continued(self, template: ChatTemplate, message: dict[str, Any]) -> Rendered:
        """The prompt up to the reply, and the beginning of the reply after it, as llama-server puts them together."""
        before = template.render(self.messages, self.tools, False, **self.variables)
        ready = template.render(self.messages, self.tools, True, **self.variables)
        if not ready.text.startswith(before.text):
            raise invalid_request(
                "the chat template cannot continue an assistant message: its generation prompt changes the messages"
                " before it; end the conversation with another role",
                "messages",
            )
        opening = ready.text[len(before.text) :]
        if think := self.facts.think:
            opening = opening.partition(think.open)[0] + think.open + think.after_open
            opening += message.get("reasoning_content", "")
            if not _goes_on_thinking(message):
                opening += think.before_close + think.close + think.after_close
        return before + f"{opening}{message['content']}"

    def parser(self, prompt: Rendered, *, whole: bool = False, new_id: NewId = new_call_id) -> ChatParser:
        """A parser for one reply to the prompt.  whole: the reply is not streamed."""
        tail = prompt.tail
        if self.continued is not None and (think := self.facts.think):
            tail = think.open + think.after_open if _goes_on_thinking(self.continued) else think.close
        return ChatParser(
            self.facts,
            tail,
            self.tools if self.parse_calls else (),
            thinking=self.thinking,
            raw_reasoning=self.raw_reasoning,
            whole=whole,
            new_id=new_id,
        )


def read_chat_request(body: Mapping[str, Any], facts: TemplateFacts) -> ChatRequest:
    """Read the fields `messages`, `tools`, `tool_choice`, `chat_template_kwargs`, `add_generation_prompt`,
    `reasoning_effort` and `reasoning_format` of a request to the chat route or /apply-template.

    Raises a 400 that names the field at fault, and a 501 for tools on a template whose calls this server cannot read.
    """
    messages = read_messages(body.get("messages"), facts)
    tools = read_tools(body.get("tools"))
    parse_calls = _reads_calls(body.get("tool_choice"), tools, facts)
    variables = _template_variables(body.get("chat_template_kwargs"))
    thinking = _apply_effort(body.get("reasoning_effort"), variables, facts)
    add_generation_prompt = body.get("add_generation_prompt", True)
    if not isinstance(add_generation_prompt, bool):
        raise invalid_request("'add_generation_prompt' must be a boolean", "add_generation_prompt")
    continued = _continued(messages)
    return ChatRequest(
        facts=facts,
        messages=messages[:-1] if continued else messages,
        tools=tools,
        variables=variables,
        add_generation_prompt=add_generation_prompt,
        continued=continued,
        parse_calls=parse_calls,
        thinking=thinking,
        raw_reasoning=_keeps_reasoning(body.get("reasoning_format")),
    )


def _reads_calls(choice: Any, tools: list[dict[str, Any]], facts: TemplateFacts) -> bool:
    if choice == "required" or isinstance(choice, Mapping):
        raise invalid_request(
            "'tool_choice' that forces a call is not part of this version yet; use auto or none", "tool_choice"
        )
    if choice not in (None, "auto", "none"):
        raise invalid_request(f"Invalid tool_choice: {choice!s:.100}", "tool_choice")
    if not tools or choice == "none":
        return False
    if not facts.parses_calls:
        raise ApiError(
            501,
            "not_supported_error",
            "this model's chat template writes tool calls in a way this server does not read; send no tools,"
            ' or "tool_choice": "none"',
            param="tools",
        )
    return True


def _template_variables(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise invalid_request("'chat_template_kwargs' must be an object", "chat_template_kwargs")
    variables = dict(value)
    enabled = variables.get("enable_thinking", True)
    if not isinstance(enabled, bool):
        kind = {str: "string", type(None): "null", list: "array", dict: "object"}.get(type(enabled), "number")
        raise invalid_request(
            f'invalid type for "enable_thinking" (expected boolean, got {kind})', "chat_template_kwargs"
        )
    return variables


def _apply_effort(effort: Any, variables: dict[str, Any], facts: TemplateFacts) -> bool:
    """Put the request's effort into the template's variables; False if it turns thinking off."""
    if effort is None:
        return True
    if not isinstance(effort, str) or effort not in EFFORTS:
        raise invalid_request(
            f"'reasoning_effort' is {effort!r:.100}; accepted are {', '.join(EFFORTS)}", "reasoning_effort"
        )
    if effort == "none":
        if facts.thinking_off == "low_effort":
            variables["reasoning_effort"] = "low"
            return True
        variables.pop("reasoning_effort", None)
        variables["enable_thinking"] = False
        return False
    variables["reasoning_effort"] = effort
    if facts.thinking_off == "switch" and not facts.thinks_by_default:
        variables.setdefault("enable_thinking", True)
    return True


def _keeps_reasoning(value: Any) -> bool:
    if value in _SPLIT_FORMATS:
        return False
    if value != "none":
        raise invalid_request(
            f"'reasoning_format' is {value!r:.100}; accepted are auto, deepseek, deepseek-legacy, none",
            "reasoning_format",
        )
    return True


def _goes_on_thinking(message: Mapping[str, Any]) -> bool:
    """Whether a continued message ends inside its reasoning."""
    return bool(message.get("reasoning_content")) and not message["content"]


def _continued(messages: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The last message if the reply goes on with it."""
    if not messages or messages[-1]["role"] != "assistant":
        return None
    if len(messages) > 1 and messages[-2]["role"] == "assistant":
        raise invalid_request("Cannot have 2 or more assistant messages at the end of the list.", "messages")
    if messages[-1].get("tool_calls"):
        raise invalid_request("Cannot continue an assistant message that contains tool calls.", "messages")
    return messages[-1] | {"content": as_text(messages[-1]["content"])}
