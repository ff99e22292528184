"""The demo model's corpus, template and vocabulary; and that the embedded file was made from them."""

import json
import re
from itertools import islice
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.demo_model import template
from tools.demo_model.corpus import STAGES, Corpus, Document, is_held_out
from tools.demo_model.vocabulary import BYTE_CHARACTERS, CONTROL, USER_DEFINED, Vocabulary, spell, train

DEMO = Path(__file__).resolve().parents[2] / "interface" / "catalog" / "demo.gguf"
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    return list(islice(Corpus(5, STAGES[-1:]), 1500))


def user_messages(document: Document) -> list[str]:
    messages = document.conversation.messages if document.conversation else []
    return [message["content"] for message in messages if message["role"] == "user"]


def test_same_seed_same_documents(documents: list[Document]) -> None:
    assert list(islice(Corpus(5, STAGES[-1:]), 50)) == documents[:50]
    assert list(islice(Corpus(6, STAGES[-1:]), 50)) != documents[:50]


def test_every_kind_occurs(documents: list[Document]) -> None:
    assert {document.kind for document in documents} == set(STAGES[-1][1])


def test_stages_follow_each_other() -> None:
    stages: list[tuple[int | None, dict[str, int]]] = [(3, {"facts": 1}), (5, {"text": 1}), (None, {"copying": 1})]
    kinds = [document.kind for document in islice(Corpus(5, stages), 7)]
    assert kinds == ["facts"] * 3 + ["text"] * 2 + ["copying"] * 2


def test_copied_text_is_copied() -> None:
    asked = islice(Corpus(5, [(None, {"copying": 1})]), 100)
    for document in asked:
        assert document.conversation is not None
        question, answer = (message["content"] for message in document.conversation.messages[-2:])
        assert question.removesuffix(".").removesuffix(", please").endswith(answer)


def test_held_out_questions_are_never_trained_on(documents: list[Document]) -> None:
    assert not any(is_held_out(question) for document in documents for question in user_messages(document))
    assert any(is_held_out(f"What is {a} plus 5?") for a in range(200))


def test_arithmetic_is_right(documents: list[Document]) -> None:
    sums = [
        sum_
        for document in documents
        for sum_ in re.findall(r"(\d+) (plus|minus|times) (\d+) is (-?\d+)\.", document.target)
    ]
    assert len(sums) > 300
    for a, word, b, value in sums:
        expected = {"plus": int(a) + int(b), "minus": int(a) - int(b), "times": int(a) * int(b)}[word]
        assert int(value) == expected


def test_calls_use_an_offered_tool_and_copy_from_the_question(documents: list[Document]) -> None:
    called = 0
    for document in documents:
        for body in re.findall(r"<tool_call>\n(.*?)\n</tool_call>", document.target):
            assert document.conversation is not None
            assert document.conversation.tools is not None
            call = json.loads(body)
            offered = {tool["function"]["name"]: tool["function"] for tool in document.conversation.tools}
            properties = offered[call["name"]]["parameters"]["properties"]
            for name, value in call["arguments"].items():
                kind = properties[name]["type"]
                assert isinstance(value, str) == (kind == "string")
                if kind == "string" and "enum" not in properties[name] and not re.search(r"\d", value):
                    assert value.lower() in user_messages(document)[-1].lower()
            called += 1
    assert called > 60


def test_the_target_continues_the_prompt_as_the_template_writes_it(documents: list[Document]) -> None:
    for document in documents[:300]:
        if document.conversation is None:
            assert document.target.endswith("<|endoftext|>")
            continue
        assert document.target.endswith("<|im_end|>\n")
        assert document.target.startswith("<think>\n") == document.conversation.thinking
        assert document.prompt.endswith("</think>\n\n") != document.conversation.thinking
        if document.conversation.thinking:
            assert document.prompt + document.target == template.render(
                document.conversation.messages, document.conversation.tools
            )


def test_template_writes_tools_calls_and_results() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}
    text = {"id": "2", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Rome"}'}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!", "reasoning_content": "A greeting."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Weather in Oslo"}, {"type": "text", "text": "and Rome?"}],
        },
        {"role": "assistant", "content": None, "reasoning_content": "Two calls.", "tool_calls": [call, text]},
        {"role": "tool", "content": "cold"},
        {"role": "tool", "content": "warm"},
    ]
    expected = (
        "<|im_start|>system\nBe brief.\n\nTools:\n<tools>\n" + json.dumps(WEATHER) + "\n</tools>\n"
        "Call a tool with its name and arguments as JSON in tool_call tags.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n"
        "<|im_start|>user\nWeather in Oslo\nand Rome?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nTwo calls.\n</think>\n\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_weather", "arguments": {"city":"Rome"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\ncold\n</tool_response>\n<tool_response>\nwarm\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert template.render(messages, [WEATHER], add_generation_prompt=True) == expected
    off = template.render(messages, [WEATHER], add_generation_prompt=True, enable_thinking=False)
    assert off == expected + "<think>\n\n</think>\n\n"


def test_template_parts_reasoning_that_comes_inside_the_content() -> None:
    raw = {"role": "assistant", "content": "<think>\nA greeting.\n</think>\n\nHello!"}
    hi = {"role": "user", "content": "Hi"}
    opening = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert template.render([hi, raw]) == opening + raw["content"] + "<|im_end|>\n"
    assert template.render([hi, raw, hi]).startswith(opening + "Hello!<|im_end|>\n")


@pytest.fixture(scope="module")
def vocabulary(documents: list[Document]) -> Vocabulary:
    return train((document.prompt + document.target for document in documents), 700)


def text_of(vocabulary: Vocabulary, ids: list[int]) -> str:
    """Decode: the byte alphabet back to bytes, specials as they are spelled."""
    back = {character: bytes([byte]) for byte, character in enumerate(BYTE_CHARACTERS)}
    raw = b""
    for number in ids:
        token = vocabulary.tokens[number]
        raw += token.encode() if token in CONTROL + USER_DEFINED else b"".join(back[one] for one in token)
    return raw.decode()


@given(st.text())
def test_encoding_loses_nothing(vocabulary: Vocabulary, text: str) -> None:
    assert text_of(vocabulary, vocabulary.encode(text)) == text


def test_specials_digits_and_names(vocabulary: Vocabulary) -> None:
    assert len(vocabulary.tokens) == len(set(vocabulary.tokens)) == 700
    assert vocabulary.encode("<think>") == [vocabulary.id_of("<think>")]
    assert vocabulary.encode("127") == [vocabulary.tokens.index(digit) for digit in "127"]
    name = vocabulary.encode("Zorvinadal")
    assert vocabulary.encode(" Zorvinadal") == [vocabulary.tokens.index(spell(" ")), *name]
    assert vocabulary.encode('"Zorvinadal') == [vocabulary.tokens.index('"'), *name]


def test_the_embedded_file_holds_this_template_and_a_vocabulary_of_this_kind() -> None:
    assert DEMO.stat().st_size <= 6_000_000
    reader = gguf.GGUFReader(DEMO)
    fields = {
        name: field.contents() for name, field in reader.fields.items() if name.startswith(("tokenizer", "general"))
    }
    assert fields["general.architecture"] == "qwen3moe"
    assert fields["general.name"] == "bloomery-demo"
    assert fields["general.license"] == "Apache-2.0"
    assert fields["tokenizer.chat_template"] == template.SOURCE.rstrip("\n")
    left_right = [merge.split(" ") for merge in fields["tokenizer.ggml.merges"]]
    vocabulary = Vocabulary([(left, right) for left, right in left_right])
    assert fields["tokenizer.ggml.tokens"] == vocabulary.tokens
    assert 2000 <= len(vocabulary.tokens) <= 4096
    types = dict(zip(vocabulary.tokens, fields["tokenizer.ggml.token_type"], strict=True))
    assert {types[token] for token in CONTROL} == {3}
    assert {types[token] for token in USER_DEFINED} == {4}
    assert fields["tokenizer.ggml.eos_token_id"] == vocabulary.id_of("<|im_end|>")
    assert {tensor.tensor_type.name for tensor in reader.tensors} == {"F32", "Q4_K", "Q6_K"}
