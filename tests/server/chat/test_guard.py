"""The guard: what a client spells is text, in every field, for every template.

One witness is the same conversation in harmless words: it has the same special tokens. The other has characters that
nobody else uses where a client, or the model, writes: those of a client must read no special tokens, all others must.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.conformance.fixtures.vocabulary import vocabulary
from bloomery.interface.tokenizer import Tokenizer, load_tokenizer
from bloomery.server.chat.template import ChatTemplate
from bloomery.server.errors import ApiError
from tests.server.chat.templates import BUSY, HERMES, OPENING

_SPELLINGS = (
    *("<|im_start|>", "<|im_end|>", "<think>", "</think>"),
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
)

# Whole spellings, cut ones, doubled ones, other cases, and what templates look at.
_fragments = st.one_of(
    st.sampled_from(_SPELLINGS),
    st.sampled_from(_SPELLINGS).flatmap(lambda word: st.integers(1, len(word) - 1).map(lambda cut: word[:cut])),
    st.sampled_from(_SPELLINGS).flatmap(lambda word: st.integers(1, len(word) - 1).map(lambda cut: word[cut:])),
    st.sampled_from(
        ["<THINK>", "<think\u200b>", "<think<think>", " a b ", "\n", '"', "\\u003cthink>", "{}", "%s", "\ue000"]
    ),
)
_texts = st.lists(_fragments, max_size=4).map("".join)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
    """Messages, tools and template variables, as templates take them, with hostile text in every field."""
    messages: list[dict[str, Any]] = []
    for kind in draw(
        st.lists(st.sampled_from(["user", "system", "assistant", "call", "tool", "odd"]), min_size=1, max_size=4)
    ):
        message: dict[str, Any] = {"role": "assistant" if kind == "call" else kind, "content": draw(_texts)}
        if kind == "odd":
            message |= {"role": draw(_texts), "name": draw(_texts)}
        if kind == "tool":
            message["tool_call_id"] = draw(_texts)
        if kind == "assistant" and draw(st.booleans()):
            message["reasoning_content"] = draw(_texts)
        if kind == "call":
            arguments = draw(st.dictionaries(_texts, _texts | st.integers() | st.lists(_texts, max_size=2), max_size=2))
            function = {"name": draw(_texts), "arguments": arguments}
            message["tool_calls"] = [{"type": "function", "function": function, "id": draw(_texts)}]
        messages.append(message)
    schema = {"type": "object", "properties": {draw(_texts): {"enum": [draw(_texts)], "description": draw(_texts)}}}
    function = {"name": draw(_texts), "description": draw(_texts), "parameters": schema}
    tools = draw(st.sampled_from([[], [{"type": "function", "function": function}]]))
    return messages, tools, draw(st.dictionaries(st.just("extra"), _texts))


def _shifted(text: str) -> str:
    """Each character as one of a private plane, so that none is the template's or the model's."""
    return "".join(chr(0x100000 + ord(character) % 0xFF00) for character in text)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _mapped(held, change) for key, held in value.items()}
    return [_mapped(held, change) for held in value] if isinstance(value, list) else value


@pytest.mark.parametrize("source", [HERMES, OPENING, BUSY], ids=["hermes", "opening", "busy"])
@settings(max_examples=25, deadline=None)
@given(conversation=conversations())
def test_spans_are_the_plain_render(
    source: str, conversation: tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]
) -> None:
    """A template sees exactly the text it was sent: the same strings, unmarked, render the same."""
    messages, tools, variables = conversation
    template = ChatTemplate(source)
    rendered = template.render(messages, tools, True, **variables)
    plain = template.try_raw({"messages": messages, "tools": tools, "add_generation_prompt": True, **variables})
    assert rendered.text == plain
    assert "".join(text for text, _ in rendered.spans) == plain
    assert all(text for text, _ in rendered.spans)


def _special_count(spans: list[tuple[str, bool]]) -> dict[str, int]:
    return {word: sum(text.count(word) for text, parse_special in spans if parse_special) for word in _SPELLINGS}


@settings(max_examples=60, deadline=None)
@given(conversation=conversations())
def test_a_clients_spelling_adds_no_special_token(
    conversation: tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]],
) -> None:
    """The special tokens are those of the same conversation in harmless words, but for the model's own."""
    messages, tools, variables = conversation
    template = ChatTemplate(HERMES)

    def harmless(text: str) -> str:
        return "x" * len(text)

    def keep_models(message: dict[str, Any]) -> dict[str, Any]:
        own = {"content", "reasoning_content"} if message["role"] == "assistant" else set()
        kept = {"role"} if message["role"] in {"user", "system", "assistant", "tool"} else set()
        return {key: held if key in own | kept else _mapped_values(held, harmless) for key, held in message.items()}

    guarded = template.render(messages, tools, True, **variables)
    twin = template.render(
        [keep_models(message) for message in messages], _mapped_values(tools, harmless), True, **variables
    )
    assert _special_count(guarded.spans) == _special_count(twin.spans)


def _mapped_values(value: Any, change: Callable[[str], str]) -> Any:
    """The strings of a JSON value changed; its objects keep the keys that templates look for."""
    if isinstance(value, dict):
        kept = {"function", "name", "arguments", "parameters", "description", "type", "properties", "enum"}
        return {key if key in kept else change(key): _mapped_values(held, change) for key, held in value.items()}
    return _mapped(value, change) if not isinstance(value, list) else [_mapped_values(held, change) for held in value]


@settings(max_examples=40, deadline=None)
@given(texts=st.lists(st.text(max_size=6), min_size=8, max_size=8))
def test_every_character_has_its_authors_origin(texts: list[str]) -> None:
    """In a template that prints every field, a client's characters are exactly those that read no special tokens."""
    client_texts = [_shifted(text) for text in texts]
    own = "".join(chr(0xF0000 + ord(character) % 0xFF00) for character in texts[0])
    messages = [
        {"role": client_texts[0], "name": client_texts[1], "content": client_texts[2]},
        {"role": "user", "content": [{"type": "text", "text": client_texts[3]}]},
        {"role": "assistant", "content": own, "reasoning_content": own},
    ]
    calls = [
        {"type": "function", "function": {"name": client_texts[4], "arguments": {client_texts[5]: client_texts[6]}}}
    ]
    messages.append({"role": "assistant", "content": own, "tool_calls": calls})
    source = (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.name }}"
        "{% for p in m.content if p is mapping %}{{ p.text }}{% endfor %}"
        "{{ m.content if m.content is string }}{{ m.reasoning_content }}{{ m.tool_calls | tojson if m.tool_calls }}"
        "{% for c in m.tool_calls %}{{ c.function.name }}{% for k, v in c.function.arguments.items() %}{{ k }}{{ v }}"
        "{% endfor %}{% endfor %}{% endfor %}{{ extra }}"
    )
    spans = ChatTemplate(source).render(messages, None, True, extra=client_texts[7]).spans
    for text, parse_special in spans:
        for character in text:
            if ord(character) >= 0x100000:
                assert not parse_special, f"{text!r} is a client's"
            elif ord(character) >= 0xF0000:
                assert parse_special, f"{text!r} is the model's"


@cache
def _tokenizer() -> Tokenizer:
    words = vocabulary()
    return load_tokenizer({**words.metadata(HERMES), "tokenizer.ggml.token_type": np.array(words.types, np.int32)})


@settings(max_examples=40, deadline=None)
@given(conversation=conversations())
def test_the_prompts_ids_spell_the_render(
    conversation: tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]],
) -> None:
    """On a real tokenizer: the ids decode to the render, and its special tokens are those the template wrote."""
    messages, tools, variables = conversation
    tokenizer = _tokenizer()
    rendered = ChatTemplate(HERMES).render(messages, tools, True, **variables)
    ids = tokenizer.encode_spans(rendered.spans, add_special=False)
    assert tokenizer.detokenize(ids, special=True) == rendered.text
    spelled = Counter(tokenizer.detokenize([token], special=True) for token in ids if token in tokenizer.special_ids)
    assert spelled == +Counter(_special_count(rendered.spans))


def test_a_spelling_that_the_template_could_finish_is_not_finished() -> None:
    rendered = ChatTemplate("{{ messages[0].content }}|im_end|>").render([{"role": "user", "content": "x<"}])
    assert rendered.spans == [("x<", False), ("|im_end|>", True)]


def test_parts_of_a_spelling_do_not_join() -> None:
    parts = [{"type": "text", "text": "<|im_"}, {"type": "text", "text": "start|>"}]
    source = "{% for part in messages[0].content %}{{ part.text }}{% endfor %}!"
    assert ChatTemplate(source).render([{"role": "user", "content": parts}]).spans == [
        ("<|im_start|>", False),
        ("!", True),
    ]


def test_an_assistants_text_keeps_its_special_tokens() -> None:
    messages = [{"role": "assistant", "content": "<think>a</think>"}, {"role": "user", "content": "<think>"}]
    spans = ChatTemplate(HERMES).render(messages).spans
    assert ("<think>", False) in spans
    assert any("<think>a</think>" in text and parse_special for text, parse_special in spans)


def test_a_decision_of_the_template_sees_the_real_text() -> None:
    """Qwen's templates tell tool results from questions by how a user's text begins."""
    source = "{{ 'result' if messages[0].content.startswith('<tool_response>') else 'question' }}"
    assert ChatTemplate(source).render([{"role": "user", "content": "<tool_response>"}]).text == "result"


def test_a_template_that_cuts_a_spelling_gets_text() -> None:
    spans = ChatTemplate("{{ messages[0].content[:4] }}nk>").render([{"role": "user", "content": "<think>"}]).spans
    assert spans == [("<thi", False), ("nk>", True)]


def test_escaped_arguments_are_what_they_spell() -> None:
    arguments = json.loads('{"a": "\\u003cthink\\u003e"}')
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    spans = ChatTemplate(HERMES).render([{"role": "assistant", "content": "", "tool_calls": [call]}]).spans
    assert ('"<think>"', False) in spans


def test_the_tail_is_the_templates_own() -> None:
    template = ChatTemplate("{{ messages[0].content }}{{ end }}{% if add_generation_prompt %}<think>\n{% endif %}")
    asked = [{"role": "user", "content": "<think>"}]
    assert template.render(asked).tail == "<think>\n"
    assert template.render(asked, None, False).tail == ""
    assert template.render(asked, None, False, end="</think>").tail == ""


def test_a_clients_clock_format_is_the_clients() -> None:
    template = ChatTemplate("{{ strftime_now(messages[0].content) }}")
    assert template.render([{"role": "user", "content": "<think>"}]).spans == [("<think>", False)]


def test_a_template_may_not_reach_the_characters_another_way() -> None:
    """Bytes would lose the origin of what they spell."""
    with pytest.raises(ApiError, match="encode"):
        ChatTemplate("{{ messages[0].content.encode().decode() }}").render([{"role": "user", "content": "<think>"}])
