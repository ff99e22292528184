"""The chat template, rendered in the environment that transformers made customary for chat templates."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

SOURCE = Path(__file__).with_name("template.jinja").read_text(encoding="utf-8")


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    """Plain JSON. Jinja's own filter escapes for HTML, which no chat model was trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


@cache
def _compiled() -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = _tojson
    return environment.from_string(SOURCE)


def render(
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None = None,
    *,
    add_generation_prompt: bool = False,
    enable_thinking: bool = True,
) -> str:
    """The text a server would give the model for this conversation."""
    return _compiled().render(
        messages=messages,
        tools=tools,
        add_generation_prompt=add_generation_prompt,
        enable_thinking=enable_thinking,
    )
