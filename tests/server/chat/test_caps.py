"""What templates can take, as /props says it."""

from __future__ import annotations

from bloomery.server.chat.caps import template_caps
from bloomery.server.chat.facts import read_facts
from bloomery.server.chat.template import CHATML, ChatTemplate
from tests.server.chat.templates import HERMES, Words


def caps_of(source: str) -> set[str]:
    template = ChatTemplate(source)
    caps = template_caps(template, read_facts(template, Words()))
    assert list(caps) == sorted(caps)
    return {name.removeprefix("supports_") for name, value in caps.items() if value}


def test_a_template_of_turns_alone() -> None:
    assert caps_of(CHATML) == {"string_content", "system_role"}


def test_a_hermes_template() -> None:
    assert caps_of(HERMES) == {
        "object_arguments", "parallel_tool_calls", "preserve_reasoning", "string_content", "system_role", "tool_calls",
        "tools",
    }  # fmt: skip


def test_a_template_that_writes_one_call() -> None:
    one = HERMES.replace("for call in message.tool_calls", "for call in message.tool_calls[:1]")
    assert "parallel_tool_calls" not in caps_of(one)
    assert "tool_calls" in caps_of(one)


def test_a_template_with_an_effort_header() -> None:
    assert "reasoning_effort" in caps_of("Effort: {{ reasoning_effort }}" + CHATML)


def test_a_template_that_refuses_everything_can_take_nothing() -> None:
    assert caps_of("{{ raise_exception('no') }}") == set()
