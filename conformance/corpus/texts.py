"""Texts, ids and chats for /tokenize, /detokenize, /apply-template and the counts of chats; of `qwen3-a-f32`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bloomery.conformance.corpus.request import Request, post

TEXTS: tuple[str, ...] = (
    "", " ", "  ", "   \n", "\n", "\r\n\r\n", " \t ", "a", " a", "a ", "  a", "\ta", "The forge is warm.",
    "the THE tHe", "What is 12 plus 30? It is 42.", "12345678", "3.14159e-10", "1 2  3", "²³½Ⅷ٣४", "don't'",
    "it's I'M we'Re they'LL y'all 'd 've 'T '", "x=y+z;//comment", '{"name": "heat", "arguments": {"x": 1}}',
    "def strike(bar):\n    return [bar for _ in range(3)]\n", "쇠를 달구고 두드리고 다시 달군다.", "쇠를 쇠를",
    "Der Schmied hämmert früh.", "L'enclume résonne à l'aube.", "Το σίδερο είναι ζεστό", "e\u0301 é ñ n\u0303",
    "नमस्ते दुनिया", "ภาษาไทย", "漢字かなカナ", "مرحبا بالعالم", "שלום", "🔥", "👩\u200d🔧🔨🔥🇰🇷", "a🔥b",
    "\u200b\u200d\ufeff", "\u00a0\u00a0x", "\u3000x", "x\u2028y\u2029z", "\x00\x01\x7f", "a\x00b",
    "tab\tand\u000bvertical\u000cfeed", "....!!!???", "--- *** ___", "!a !!a a!b", " !a", "a\n\n\nb", "a \n \n b",
    "a  \n\n  b", "a\r\nb\rc\n", "  \n  \n", "end with spaces   ", "ends with newline\n", " heat strike turn",
    "againagain", "<|im_start|>", "<|im_start|>user\nhi<|im_end|>\n", "a<|im_end|>b", "a <|im_end|> b",
    "<|im_end|><|im_end|>", "<|im_end", "<tool_call>", " <tool_call> x </tool_call>", "<think>\n\n</think>\n\n",
    "<|endoftext|>", "<|strange|>", "<|spare_0|>", "x<|spare_1|>y", "<unk>", "<|IM_START|>", "<think><think>",
    "\u0130stanbul ſ \u212a", "ABCdefGHI123jkl", "snake_case_name", "camelCaseName",
    "http://example.test/a?b=c&d=%20", "a" * 40, "ab" * 30, " " * 20 + "x", "\n" * 9, "heatheheat",
    "\U0010ffff\ud7ff\ue000", "ǅ ʰ ª", "١٢٣", "①②", "x\u0302y\u0302", "κ\u0345",
)  # fmt: skip

_IDS: tuple[tuple[int, ...], ...] = (
    (), (65,), (72, 101, 108, 108, 111), (256, 257, 258), (240, 159, 148, 165), (240, 159), (159,), (255, 254), (0,),
    (352, 353, 354), (355, 356), (359, 360), (361,), (362, 363, 364), (65, 354, 66), (353, 65, 10, 66, 354), (32, 65),
    (273, 32, 274), (290, 290), (9, 10, 13),
)  # fmt: skip

_TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "Do <it>.", "parameters": {"type": "object",
    "properties": {"x": {"type": "string"}}}},
}  # fmt: skip


def tokenizer() -> Iterator[Request]:
    """Every text under every setting; every id list; chats through the template."""
    for index, text in enumerate(TEXTS):
        yield post(f"text {index}", "/tokenize", {"content": text})
        yield post(f"text {index}, with_pieces", "/tokenize", {"content": text, "with_pieces": True})
        if "<" in text or index < 3:
            for special in (False, True):
                for parse in (False, True):
                    yield post(
                        f"text {index}, add_special {special}, parse_special {parse}", "/tokenize",
                        {"content": text, "add_special": special, "parse_special": parse},
                    )  # fmt: skip
    yield post("every token", "/tokenize", {"content": list(range(365)), "with_pieces": True})
    yield post("ids and text", "/tokenize", {"content": [65, "heat", 66]})
    yield post("content null", "/tokenize", {"content": None})
    yield post("content a number", "/tokenize", {"content": 5})
    for index, ids in enumerate(_IDS):
        yield post(f"ids {index}", "/detokenize", {"tokens": ids})
    for name, ids_ in (
        ("past the vocabulary", [365]),
        ("negative", [-1]),
        ("text", ["a"]),
        ("null", None),
        ("a number", 5),
    ):
        yield post(f"ids {name}", "/detokenize", {"tokens": ids_})
    yield from _templates()


def _message(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def _chats() -> Iterator[tuple[str, dict[str, Any]]]:
    """Chats with and without tools, and the fields that shape a prompt."""
    user = _message("user", "Hi")
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": "y"}'}}
    caller = _message("assistant", "So:", tool_calls=[call, call])
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    chats: tuple[tuple[str, list[dict[str, Any]]], ...] = (
        ("a user", [user]),
        ("system and user", [_message("system", "Be brief."), user]),
        ("a developer", [_message("developer", "Be."), user]),
        ("an assistant at the end", [user, _message("assistant", "Well")]),
        ("two assistants at the end", [user, _message("assistant", "a"), _message("assistant", "b")]),
        ("two turns", [user, _message("assistant", "Yes."), user]),
        ("a thought of before", [user, _message("assistant", "Yes.", reasoning_content="Hm."), user]),
        ("a call and its answer", [user, _message("assistant", "", tool_calls=[call]), _message("tool", "z")]),
        ("two calls", [user, caller, _message("tool", "z"), _message("tool", "w")]),
        ("a call with content null", [user, _message("assistant", None, tool_calls=[call]), _message("tool", "z")]),
        ("a call at the end", [user, caller]),
        ("content parts", [_message("user", parts)]),
        ("no messages", []),
        ("markup", [_message("user", "<|im_end|>")]),
    )
    for name, messages in chats:
        yield name, {"messages": messages}
        yield f"{name}, with tools", {"messages": messages, "tools": [_TOOL]}
    for name, fields in (
        ("thinking off", {"chat_template_kwargs": {"enable_thinking": False}}),
        ("thinking on", {"chat_template_kwargs": {"enable_thinking": True}}),
        ("no generation prompt", {"add_generation_prompt": False}),
        ("tool_choice none", {"tools": [_TOOL], "tool_choice": "none"}),
    ):
        yield name, {"messages": [user], **fields}


def _templates() -> Iterator[Request]:
    for name, fields in _chats():
        yield post(f"template: {name}", "/apply-template", fields)


def counts() -> Iterator[Request]:
    """How long every chat's prompt is; fields that do not shape it are not read."""
    path = "/v1/chat/completions/input_tokens"
    for name, fields in _chats():
        yield post(f"count: {name}", path, fields)
    user = _message("user", "Hi")
    yield post("count: under the other path", "/chat/completions/input_tokens", {"messages": [user]})
    for key, value in (("max_tokens", -5), ("temperature", "x"), ("n", 9), ("stream", True), ("stop", 5), ("model", 5)):
        yield post(f"count: {key} not read", path, {"messages": [user], key: value})
    yield post("count: messages missing", path, {})
    yield post("count: messages a text", path, {"messages": "Hi"})
    yield post("count: enable_thinking a text", path, {
        "messages": [user], "chat_template_kwargs": {"enable_thinking": "no"},
    })  # fmt: skip
