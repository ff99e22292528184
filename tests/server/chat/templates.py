"""Chat templates of the tests' own, each with habits of real ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bloomery.server.chat.facts import TemplateFacts, read_facts
from bloomery.server.chat.template import ChatTemplate

# ChatML with Hermes calls and a think span that the model opens, and that a switch closes.
HERMES = r"""
{%- macro turn(role, text) -%}<|im_start|>{{ role }}
{{ text }}<|im_end|>
{% endmacro -%}
{%- if tools -%}
  {{- turn('system', 'Tools: ' ~ (tools | tojson)) -}}
{%- endif -%}
{%- for message in messages -%}
  {%- if message.role == 'assistant' -%}
    {{- '<|im_start|>assistant\n' -}}
    {%- if message.reasoning_content and loop.last -%}
      {{- '<think>\n' ~ message.reasoning_content ~ '\n</think>\n\n' -}}
    {%- endif -%}
    {{- message.content -}}
    {%- for call in message.tool_calls -%}
      {{- '\n' if message.content or not loop.first else '' -}}
      {{- '<tool_call>\n{"name": "' ~ call.function.name ~ '", "arguments": ' ~ (call.function.arguments | tojson) -}}
      {{- '}\n</tool_call>' -}}
    {%- endfor -%}
    {{- '<|im_end|>\n' -}}
  {%- elif message.role == 'tool' -%}
    {{- turn('user', '<tool_response>' + message.content + '</tool_response>') -}}
  {%- else -%}
    {{- turn(message.role, message.content) -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\n' -}}
  {{- '<think>\n\n</think>\n\n' if enable_thinking is defined and not enable_thinking else '' -}}
{%- endif -%}
"""

# The same, but the prompt opens the span.
OPENING = HERMES.replace("else '' -}}\n{%- endif -%}\n", "else '<think>\\n' -}}\n{%- endif -%}\n")

_HERMES_CALL = HERMES[HERMES.index("      {{- '<tool_call>") : HERMES.index("    {%- endfor -%}\n    {{- '<|im_end|>")]


def _with_function_tags(source: str, line: str) -> str:
    """A template with calls in function tags; `line` stands after and before each tag inside a call."""
    call = r"""
      {{- '<tool_call>LINE<function=' ~ call.function.name ~ '>LINE' -}}
      {%- for key, value in call.function.arguments.items() -%}
        {{- '<parameter=' ~ key ~ '>LINE' ~ (value if value is string else value | tojson) ~ 'LINE</parameter>LINE' -}}
      {%- endfor -%}
      {{- '</function>LINE</tool_call>' -}}
"""
    return source.replace(_HERMES_CALL, call.replace("LINE", line))


# The same with calls in function tags: values on lines of their own, after a span that the prompt opens, or bare.
FUNCTION_LINES = _with_function_tags(OPENING, r"\n")
FUNCTION_BARE = _with_function_tags(HERMES, "")

# Cuts, joins and re-spells whatever it is given.
BUSY = r"""
{%- set seen = namespace(text='', last=none) -%}
{%- for message in messages -%}
  {%- set text = message.content -%}
  {%- if text is not string -%}{%- set text = text | map(attribute='text') | join('|') -%}{%- endif -%}
  {%- if '</think>' in text -%}
    {%- set text = text.split('</think>')[-1].lstrip('\n') -%}
  {%- endif -%}
  {%- set seen.text = seen.text ~ '<|' ~ message.role | upper ~ '|>' + text.strip() + '<|end|>' -%}
  {{- text[:3] }}{{ text[3:] | replace('a', '<|b|>') }}{{ text | trim | title }}{{ text.replace('<', '[') -}}
  {{- text.partition('|') | join('+') }}{{ text.splitlines() | join('/') }}{{ text | reverse }}{{ text | list | last -}}
  {{- '%s<|%s|>' % (text, message.role) }}{{ '<|{}|>{x}'.format(message.role, x=text) }}{{ text * 2 }}{{ text | e -}}
  {{- text.rsplit(' ', 1) | first }}{{ text | indent(2, true) }}{{ text | capitalize }}{{ text.lower() | string -}}
  {{- [text, 1, none, {'k': text}] | tojson }}{{ {text: [text]} | tojson(indent=2) -}}
  {{- text | tojson(ensure_ascii=true) -}}
  {%- for key, value in message.items() -%}{{ key }}={{ value if value is string else value | tojson }};{%- endfor -%}
  {%- if text.startswith('<tool_response>') -%}<|result|>{%- endif -%}
  {{- [text, [1, text]] }}{{ text | truncate(9, true, '<|…|>', 0) -}}
{%- endfor -%}
{{- seen.text -}}
{%- for tool in tools -%}<|tool|>{{ tool.function.name }}{{ tool | tojson }}{%- endfor -%}
{%- filter upper -%}<|done|>{{ extra }}{%- endfilter -%}
"""


class Words:
    """A vocabulary of which only the special tokens matter."""

    def __init__(self, *special: str) -> None:
        self._special = special

    def special_id(self, text: str) -> int | None:
        return self._special.index(text) if text in self._special else None


TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")


def facts_of(source: str, special: Iterable[str] = TAGS) -> TemplateFacts:
    """What a template does on a vocabulary with these special tokens."""
    return read_facts(ChatTemplate(source), Words(*special))


# One parameter of each kind that markups tell apart, and any other that the schema does not name.
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "ship",
        "parameters": {
            "type": "object",
            "properties": {
                "note": {"type": "string"},
                "mixed": {"type": ["string", "integer"]},
                "count": {"type": "integer"},
                "data": {"anyOf": [{"type": "object"}, {"type": "array"}, {"type": "number"}, {"type": "null"}]},
                "flag": {"enum": [True, False]},
                "free": {},
            },
        },
    },
}
