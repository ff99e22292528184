"""Requests to the scripted models: whole and streamed answers, stops, probabilities, thoughts and tool calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bloomery.conformance.corpus.request import Request, post

_CHAT = "/v1/chat/completions"
_HELLO = [{"role": "user", "content": "Say something."}]
_PREFILL = {"role": "assistant", "content": "Well,"}
_PARTS = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
_ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}, "note": {"type": "string"}},
            "required": ["a", "b"],
        },
    },
}
_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "units": {"type": "array", "items": {"type": "string"}},
                "exact": {"type": "boolean"},
            },
            "required": ["city"],
        },
    },
}
_ASK_WEATHER = {"messages": [{"role": "user", "content": "Weather in Seoul?"}], "tools": [_WEATHER, _ADD]}


def _both(name: str, path: str, fields: dict[str, Any]) -> Iterator[Request]:
    """The same request whole and streamed."""
    yield post(name, path, fields)
    yield post(f"{name}, streamed", path, {**fields, "stream": True})


# What a completion of "Hello" at temperature 0 is asked for beside.
_COMPLETIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("completion to its end", {}),
    ("completion of nine ids", {"n_predict": 9, "return_tokens": True}),
    ("completion cut inside a character", {"n_predict": 8, "return_tokens": True}),
    ("completion with n_predict 0", {"n_predict": 0}),
    ("completion with n_predict 1", {"n_predict": 1}),
    ("completion of ids", {"prompt": [72, 105], "n_predict": 5}),
    ("completion of ids and text", {"prompt": [72, "ello", 33], "n_predict": 5}),
    ("stop within a piece", {"stop": ["or"]}),
    ("stop across pieces", {"stop": ["STOP"]}),
    ("stop that begins and does not come", {"stop": ["is warmer", "2. strikes"]}),
    ("stop with bytes of several tokens", {"stop": ["쇠"]}),
    ("two stops, the later one first in the list", {"stop": ["warm", "forge"]}),
    ("stop as plain text", {"stop": "warm"}),
    ("stop that is empty", {"stop": [""], "n_predict": 4}),
    ("probabilities", {"n_predict": 14, "n_probs": 3, "return_tokens": True}),
    ("probabilities at a stop", {"n_probs": 2, "stop": ["arm"]}),
    ("probabilities after sampling", {"temperature": 0.8, "n_predict": 6, "n_probs": 3, "post_sampling_probs": True}),
    ("timings with each token", {"n_predict": 3, "timings_per_token": True}),
    ("progress of the prompt", {"n_predict": 2, "return_progress": True}),
    ("ignore_eos", {"n_predict": 50, "ignore_eos": True}),
    ("response_fields", {"n_predict": 2, "response_fields": ["content", "stop_type"]}),
    ("n_indent", {"n_indent": 1}),
    ("the same prompt again, not from the cache", {"n_predict": 2, "cache_prompt": False}),
)

_OPENAI_COMPLETIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("v1 completions", {"model": "any"}),
    ("v1 completions cut short", {"max_tokens": 4}),
    ("v1 completions with a stop", {"stop": ["warm"]}),
    ("v1 completions with usage", {"max_tokens": 3, "stream_options": {"include_usage": True}}),
)

# What a chat of one user message at temperature 0 is asked for beside.
_CHATS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("chat to its end", {}),
    ("chat cut short", {"max_tokens": 5}),
    ("chat with max_completion_tokens", {"max_completion_tokens": 5}),
    ("chat cut inside a character", {"max_tokens": 8}),
    ("chat with a stop", {"stop": ["STOP"]}),
    ("chat with logprobs", {"max_tokens": 14, "logprobs": True, "top_logprobs": 2}),
    ("chat with logprobs and no count", {"max_tokens": 2, "logprobs": True}),
    ("chat with usage", {"max_tokens": 3, "stream_options": {"include_usage": True}}),
    ("chat that continues the assistant's text", {"messages": [*_HELLO, _PREFILL], "max_tokens": 4}),
    ("chat with content parts", {"messages": _PARTS, "max_tokens": 2}),
    ("chat with tools it does not use", {"tools": [_ADD]}),
    ("chat without messages in the list", {"messages": [], "max_tokens": 3}),
)


def text() -> Iterator[Request]:
    """Of `chain-text`: completions and chats without markup."""
    prompt: dict[str, Any] = {"prompt": "Hello", "temperature": 0}
    for name, fields in _COMPLETIONS:
        yield from _both(name, "/completion", {**prompt, **fields})
    yield from _both("completion by its other name", "/completions", {**prompt, "n_predict": 3})
    for name, fields in _OPENAI_COMPLETIONS:
        yield from _both(name, "/v1/completions", {**prompt, **fields})
    chat: dict[str, Any] = {"messages": _HELLO, "temperature": 0}
    for name, fields in _CHATS:
        yield from _both(name, _CHAT, {**chat, **fields})
    yield from _both("chat by its other name", "/chat/completions", {**chat, "max_tokens": 3})


_SUM = {"role": "user", "content": "7 + 5?"}
_EARLIER_TURN = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "reasoning_content": "Greet.", "content": "Hello."},
    _SUM,
]

_THOUGHTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("a thought and an answer", {}),
    ("cut inside the thought", {"max_tokens": 5}),
    ("cut at the thought's end", {"max_tokens": 10}),
    ("reasoning_format none", {"reasoning_format": "none"}),
    ("reasoning_format deepseek-legacy", {"reasoning_format": "deepseek-legacy"}),
    ("thinking off", {"chat_template_kwargs": {"enable_thinking": False}}),
    ("thinking on", {"chat_template_kwargs": {"enable_thinking": True}}),
    ("a stop inside the thought", {"stop": ["asks"]}),
    ("logprobs through a thought", {"logprobs": True, "top_logprobs": 1}),
    ("a thought of an earlier turn", {"messages": _EARLIER_TURN}),
)


def think() -> Iterator[Request]:
    """Of `chain-think`: an answer with a thought before it."""
    for name, fields in _THOUGHTS:
        yield from _both(name, _CHAT, {"messages": [_SUM], "temperature": 0, **fields})
    yield from _both("a completion shows the markup", "/completion", {"prompt": "7 + 5?", "temperature": 0})


_CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Seoul"}'}}
_AFTER_A_TOOL = [
    {"role": "user", "content": "Weather in Seoul?"},
    {"role": "assistant", "content": "Looking.", "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "Sunny."},
]


def calls() -> Iterator[Request]:
    """Of `chain-calls`: tool calls whole and streamed, cut short, and drawn several at a time."""
    greedy: dict[str, Any] = {**_ASK_WEATHER, "temperature": 0}
    yield from _both("one call", _CHAT, greedy)
    yield from _both("one call, tool_choice auto", _CHAT, {**greedy, "tool_choice": "auto"})
    yield from _both("tool_choice none", _CHAT, {**greedy, "tool_choice": "none"})
    yield from _both("no tools in the request", _CHAT, {"messages": _ASK_WEATHER["messages"], "temperature": 0})
    for limit in range(10, 32, 2):
        yield from _both(f"a call cut after {limit} ids", _CHAT, {**greedy, "max_tokens": limit})
    for seed in range(1, 7):
        drawn = {**_ASK_WEATHER, "temperature": 1.0, "seed": seed, "max_tokens": 160}
        yield from _both(f"calls drawn with seed {seed}", _CHAT, drawn)
    yield from _both("a call and a stop inside it", _CHAT, {**greedy, "stop": ["Seoul"]})
    yield from _both("a call with logprobs", _CHAT, {**greedy, "logprobs": True, "top_logprobs": 1})
    yield from _both("a turn after a tool's answer", _CHAT, {**greedy, "messages": _AFTER_A_TOOL})
    yield from _both("a completion shows the call", "/completion", {"prompt": "Weather?", "temperature": 0})


# After how many ids a call in function tags is cut: at its tags, its name, and inside and after each kind of value.
_LIMITS = (11, 13, 16, 18, 20, 22, 24, 27, 30, 32)
# With these, draws begin a call inside the thought, or make several calls after it.
_SEEDS = (6, 13, 19, 25)


def function_calls() -> Iterator[Request]:
    """Of `chain-function-lines` and `chain-function-bare`: calls in function tags, cut and drawn."""
    greedy: dict[str, Any] = {**_ASK_WEATHER, "temperature": 0}
    yield from _both("no tools in the request", _CHAT, {"messages": _ASK_WEATHER["messages"], "temperature": 0})
    yield from _both("one call", _CHAT, greedy)
    yield from _both("tool_choice none", _CHAT, {**greedy, "tool_choice": "none"})
    yield from _both("reasoning_format none", _CHAT, {**greedy, "reasoning_format": "none"})
    for limit in _LIMITS:
        yield from _both(f"a call cut after {limit} ids", _CHAT, {**greedy, "max_tokens": limit})
    for seed in _SEEDS:
        drawn = {**_ASK_WEATHER, "temperature": 1.0, "seed": seed, "max_tokens": 160, "parallel_tool_calls": True}
        yield from _both(f"calls drawn with seed {seed}", _CHAT, drawn)
    yield from _both("a call and a stop inside it", _CHAT, {**greedy, "stop": ["Seoul"]})
    yield post("a turn after a tool's answer", _CHAT, {**greedy, "messages": _AFTER_A_TOOL, "max_tokens": 8})
    yield post("a completion shows the call", "/completion", {"prompt": "Weather?", "temperature": 0, "n_predict": 14})
    yield post("the prompt after a tool's answer", "/apply-template", {**_ASK_WEATHER, "messages": _AFTER_A_TOOL})


_DRAWN: tuple[tuple[str, dict[str, Any]], ...] = (
    ("drawn text with probabilities", {"n_probs": 5}),
    ("probabilities after sampling", {"n_probs": 5, "post_sampling_probs": True, "top_k": 4}),
    ("probabilities are before the bias", {"n_probs": 3, "logit_bias": [[65, 30.0]]}),
)


def branch() -> Iterator[Request]:
    """Of `chain-branch`: probabilities of drawn text."""
    for name, fields in _DRAWN:
        yield from _both(name, "/completion", {"prompt": "Words:", "seed": 5, "n_predict": 6, **fields})
    chat: dict[str, Any] = {"messages": _HELLO, "seed": 5, "max_tokens": 6}
    yield from _both("chat logprobs of drawn text", _CHAT, {**chat, "logprobs": True, "top_logprobs": 4})
