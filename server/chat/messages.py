"""Reading OpenAI's messages and tools into what chat templates take.

The shapes and their order of keys are llama-server's (common/chat.cpp), for templates print them: only the fields it
knows reach the template. Whatever cannot be read is a 400 that says where; `param` is the request's own field.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping
from itertools import dropwhile
from typing import Any, NoReturn

from bloomery.server.chat.facts import TemplateFacts
from bloomery.server.errors import invalid_request

_MEDIA_PARTS = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "audio": "audio",
    "input_audio": "audio",
    "video": "video",
    "video_url": "video",
    "input_video": "video",
}


def read_messages(value: Any, facts: TemplateFacts) -> list[dict[str, Any]]:
    """The messages of a request as the template takes them."""
    if not isinstance(value, list):
        _refuse("'messages' is required" if value is None else "Expected 'messages' to be an array")
    messages = [_Message(message, f"messages[{index}]", facts).read() for index, message in enumerate(value)]
    return messages if facts.system_role else _without_system(messages)


def read_tools(value: Any) -> list[dict[str, Any]]:
    """The tools of a request as templates take them; none for null or an empty list."""
    if value is None:
        return []
    if not isinstance(value, list):
        _refuse("'tools' must be an array", "tools")
    return [_tool(tool, f"tools[{index}]") for index, tool in enumerate(value)]


def _refuse(message: str, param: str = "messages") -> NoReturn:
    raise invalid_request(message, param)


class _Message:
    """One message under reading; `where` is its place in the request."""

    def __init__(self, message: Any, where: str, facts: TemplateFacts) -> None:
        if not isinstance(message, Mapping):
            _refuse(f"{where} must be an object")
        self._message = message
        self._where = where
        self._facts = facts

    def read(self) -> dict[str, Any]:
        role = self._message.get("role")
        if not isinstance(role, str):
            _refuse(f"{self._where}: each message needs a string 'role'")
        calls = self._calls()
        if "content" not in self._message and (role != "assistant" or "tool_calls" not in self._message):
            _refuse(
                f"{self._where}: Assistant message must contain either 'content' or 'tool_calls'!"
                if role == "assistant"
                else f"{self._where}: All non-assistant messages must contain 'content'"
            )
        read: dict[str, Any] = {
            "role": "system" if role == "developer" and not self._facts.keeps_developer else role,
            "content": self._content(),
        }
        for field in ("reasoning_content", "name", "tool_call_id"):
            if text := self._text(field):
                read[field] = text
        if calls:
            read["tool_calls"] = calls
        return read

    def _text(self, field: str) -> str:
        value = self._message.get(field)
        if value is not None and not isinstance(value, str):
            _refuse(f"{self._where}.{field} must be a string")
        return value or ""

    def _content(self) -> str | list[dict[str, str]]:
        content = self._message.get("content")
        if content is None:
            content = ""
        if isinstance(content, str):
            return content if self._facts.string_content or not self._facts.typed_content else [_text_part(content)]
        if not isinstance(content, list):
            _refuse(f"{self._where}: Expected 'content' to be a string or an array")
        texts = [self._part(part, f"{self._where}.content[{index}]") for index, part in enumerate(content)]
        if not texts:
            return ""
        return [_text_part(text) for text in texts] if self._facts.typed_content else _lines(texts)

    def _part(self, part: Any, where: str) -> str:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if isinstance(kind, str) and kind in _MEDIA_PARTS:
            _refuse(f"{where}: {_MEDIA_PARTS[kind]} input is not supported: this server reads text only")
        if kind != "text":
            _refuse(f"{where}: unsupported content[].type")
        if not isinstance(part.get("text"), str):
            _refuse(f"{where}.text must be a string")
        text: str = part["text"]
        return text

    def _calls(self) -> list[dict[str, Any]]:
        calls = self._message.get("tool_calls")
        if calls is None:
            return []
        if not isinstance(calls, list):
            _refuse(f"{self._where}.tool_calls must be an array")
        return [self._call(call, f"{self._where}.tool_calls[{index}]") for index, call in enumerate(calls)]

    def _call(self, call: Any, where: str) -> dict[str, Any]:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or call.get("type", "function") != "function":
            _refuse(f"{where} must have the type 'function' and an object 'function'")
        name, call_id = function.get("name"), call.get("id")
        if not isinstance(name, str) or not name:
            _refuse(f"{where}.function.name must be a string that is not empty")
        if call_id is not None and not isinstance(call_id, str):
            _refuse(f"{where}.id must be a string")
        arguments = self._arguments(function.get("arguments"), f"{where}.function.arguments")
        read: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments}}
        return read | ({"id": call_id} if call_id else {})

    def _arguments(self, arguments: Any, where: str) -> Any:
        """Arguments as the template takes them: an object, or JSON text. No text at all stands for no arguments."""
        if isinstance(arguments, str) and self._facts.object_arguments:
            arguments = _json_value(arguments, where) if arguments.strip() else {}
        if isinstance(arguments, str):
            return arguments
        if not isinstance(arguments, Mapping):
            _refuse(f"{where} must be a JSON object, or one as a string")
        if self._facts.object_arguments:
            return arguments
        return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))


def _lines(texts: list[str]) -> str:
    """Parts of a content as one text: a line each, but none for empty parts at the beginning."""
    return "\n".join(dropwhile(operator.not_, texts))


def _text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _json_value(text: str, where: str) -> Any:
    def no_constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is no JSON value")

    try:
        return json.loads(text, parse_constant=no_constant)
    except RecursionError:
        _refuse(f"{where} nests too deep")
    except ValueError as error:
        _refuse(f"{where} is not valid JSON: {error}")


def _tool(tool: Any, where: str) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or tool.get("type") != "function":
        _refuse(f"{where} must have the type 'function' and an object 'function'", "tools")
    name, description = function.get("name"), function.get("description")
    if not isinstance(name, str) or not name:
        _refuse(f"{where}.function.name must be a string that is not empty", "tools")
    if description is not None and not isinstance(description, str):
        _refuse(f"{where}.function.description must be a string", "tools")
    parameters = function.get("parameters", {})
    if parameters is not None and not isinstance(parameters, Mapping):
        _refuse(f"{where}.function.parameters must be an object", "tools")
    return {
        "type": "function",
        "function": {"name": name, "description": description or "", "parameters": parameters},
    }


def _without_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A leading system message joined to the next one, for a template without that role; alone, it is dropped."""
    if not messages or messages[0]["role"] != "system":
        return messages
    if len(messages) == 1:
        return []
    system, following, *others = messages
    texts = [as_text(system["content"]), as_text(following["content"])]
    return [following | {"content": "\n".join(texts)}, *others]


def as_text(content: str | list[dict[str, str]]) -> str:
    """A message's content as one text."""
    return content if isinstance(content, str) else _lines([part["text"] for part in content])
