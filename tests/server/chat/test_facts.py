"""What probe renders find in templates."""

from __future__ import annotations

import pytest

from bloomery.server.chat.facts import TemplateFacts
from bloomery.server.chat.hermes import hermes_markup
from bloomery.server.chat.template import CHATML
from bloomery.server.chat.think import ThinkTags
from tests.server.chat.templates import HERMES, OPENING, TAGS, Words, facts_of

_THINK = ThinkTags("<think>", "</think>", after_open="\n", before_close="\n", after_close="\n\n")


@pytest.mark.parametrize("source", [HERMES, OPENING], ids=["hermes", "opening"])
def test_a_hermes_template(source: str) -> None:
    assert facts_of(source, ["<think>", "<tool_call>"]) == TemplateFacts(
        think=_THINK,
        markup=hermes_markup("<tool_call>", "</tool_call>"),
        writes_calls=True,
        special_tags=frozenset({"<think>", "<tool_call>"}),
        thinking_off="switch",
        thinks_by_default=True,
        object_arguments=True,
    )


def test_a_template_of_turns_alone() -> None:
    assert facts_of(CHATML) == TemplateFacts()


def test_a_template_that_refuses_everything_teaches_nothing() -> None:
    assert facts_of("{{ raise_exception('no') }}") == TemplateFacts(string_content=False, system_role=False)


def test_content_in_parts() -> None:
    parts = "{% for part in m.content %}{{ part.text }}{% endfor %}"
    either = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        + parts
        + "{% endif %}{% endfor %}"
    )
    assert (facts_of(either).typed_content, facts_of(either).string_content) == (True, True)
    only_parts = "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}"
    assert (facts_of(only_parts).typed_content, facts_of(only_parts).string_content) == (True, False)
    # A list that is printed as it is, is not understood.
    assert not facts_of(
        "{{ messages[0].content if messages[0].content is string else messages[0].content | tojson }}"
    ).typed_content


def test_thinking_that_is_off_until_it_is_asked_for() -> None:
    facts = facts_of(
        CHATML + "{% if add_generation_prompt %}{{ '<think>' if enable_thinking else '</think>' }}{% endif %}"
    )
    assert (facts.thinking_off, facts.thinks_by_default) == ("switch", False)
    assert facts.think == ThinkTags("<think>", "</think>")


def test_thinking_that_only_an_effort_changes() -> None:
    facts = facts_of(CHATML + "{{ 'effort: ' ~ reasoning_effort | default('max') }}")
    assert (facts.thinking_off, facts.thinks_by_default) == ("low_effort", True)


def _calls(body: str) -> str:
    return (
        CHATML
        + "{% for m in messages if m.tool_calls %}{% for c in m.tool_calls %}"
        + body
        + "{% endfor %}{% endfor %}"
    )


@pytest.mark.parametrize(
    ("body", "tags"),
    [
        (
            "<call> {{ {'arguments': c.function.arguments, 'name': c.function.name} | tojson }} </call>",
            ("<call>", "</call>"),
        ),
        (
            "[CALL]{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}[/CALL]",
            ("[CALL]", "[/CALL]"),
        ),
        ("<tool_call>{{ c.function.name }}{{ c.function.arguments | tojson }}</tool_call>", None),
        ("<tool_call>{{ {'name': c.function.name, 'parameters': c.function.arguments} | tojson }}</tool_call>", None),
        ("{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}", None),
        ("<tool_call><function={{ c.function.name }}></function></tool_call>", None),
    ],
)
def test_a_markup_is_known_by_how_calls_are_written(body: str, tags: tuple[str, str] | None) -> None:
    facts = facts_of(_calls(body))
    assert facts.markup == (hermes_markup(*tags) if tags else None)
    assert facts.parses_calls == (tags is not None)
    assert facts.writes_calls


def test_arguments_as_text() -> None:
    body = '<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments }}}</tool_call>'
    facts = facts_of(_calls(body))
    assert not facts.object_arguments
    assert facts.markup == hermes_markup("<tool_call>", "</tool_call>")


def test_the_developer_role() -> None:
    assert not facts_of(CHATML).keeps_developer
    assert facts_of(CHATML + "{# <|channel|> #}").keeps_developer


def test_preserved_ids_are_those_of_the_special_tags() -> None:
    words = Words("<|im_end|>", *TAGS)
    assert facts_of(HERMES).preserved_ids(words) == {1, 2, 3, 4}
    assert facts_of(HERMES, ()).preserved_ids(words) == frozenset()
