"""What a chat template can take, in llama-server's words: `chat_template_caps` of /props.

Where llama-server looks at which values a template touches (common/jinja/caps.cpp), this compares what it renders.
"""

from __future__ import annotations

import json
from typing import Any

from bloomery.server.chat.facts import TemplateFacts
from bloomery.server.chat.template import ChatTemplate

# Words that no template has.
_FIRST, _SECOND, _THOUGHT = "zcap1", "zcap2", "Zcap3"
_USER = {"role": "user", "content": "Zcap4"}


def template_caps(template: ChatTemplate, facts: TemplateFacts) -> dict[str, bool]:
    """llama-server's capabilities of a template, by their names in order."""

    def prompt(*messages: dict[str, Any], **variables: Any) -> str:
        return template.try_raw({"messages": [_USER, *messages], **variables}) or ""

    def calls(*names: str) -> dict[str, Any]:
        arguments: Any = {"x": "y"} if facts.object_arguments else json.dumps({"x": "y"})
        listed = [
            {"id": f"call0000{at}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for at, name in enumerate(names)
        ]
        return {"role": "assistant", "content": "", "tool_calls": listed}

    thought = {"role": "assistant", "content": "Zcap5", "reasoning_content": _THOUGHT}
    prompted: dict[str, Any] = {"add_generation_prompt": True}
    return {
        "supports_object_arguments": facts.object_arguments,
        "supports_parallel_tool_calls": all(name in prompt(calls(_FIRST, _SECOND)) for name in (_FIRST, _SECOND)),
        "supports_preserve_reasoning": _THOUGHT in prompt(thought),
        "supports_reasoning_effort": prompt(**prompted) != prompt(**prompted, reasoning_effort="low"),
        "supports_string_content": facts.string_content,
        "supports_system_role": facts.system_role,
        "supports_tool_calls": facts.writes_calls,
        "supports_tools": facts.writes_calls,
        "supports_typed_content": facts.typed_content,
    }
