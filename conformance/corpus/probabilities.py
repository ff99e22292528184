"""Requests for the probabilities of a draw: what the sampler left, and by what each id was drawn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bloomery.conformance.corpus.request import Request, post

_OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}

# What a completion of three drawn ids is asked for beside.
_STAGES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("defaults", {}),
    ("no count", {"n_probs": 0}),
    ("more than are left", {"n_probs": 100, "top_k": 3}),
    ("every stage off", _OFF),
    ("temperature alone", {**_OFF, "temperature": 2.0}),
    ("a temperature that leaves most of them at 0", {**_OFF, "n_probs": 100, "temperature": 0.05}),
    ("a huge temperature", {"temperature": 1e6, "top_k": 6}),
    ("temperature 0", {"temperature": 0}),
    ("temperature 0, every stage off", {**_OFF, "temperature": 0}),
    ("temperature below 0", {"temperature": -2.5}),
    ("top_k alone", {**_OFF, "top_k": 4}),
    ("top_p alone", {**_OFF, "top_p": 0.4}),
    ("top_p of nothing", {**_OFF, "top_p": 0.0}),
    ("min_p alone", {**_OFF, "min_p": 0.3}),
    ("min_p of the best", {**_OFF, "min_p": 1.0}),
    ("min_keep", {**_OFF, "top_p": 0.01, "min_p": 0.9, "min_keep": 3}),
    ("penalties", {"repeat_penalty": 1.5, "presence_penalty": 1.0, "frequency_penalty": 0.5}),
    ("a bias", {"logit_bias": {"65": 17.5}}),
    ("ignore_eos", {**_OFF, "ignore_eos": True, "n_probs": 12}),
    ("one stage of the list", {"samplers": ["top_k"], "top_k": 4, "temperature": 3.0}),
)

_CHATS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("chat", {"logprobs": True, "top_logprobs": 3}),
    ("chat, no count", {"logprobs": True}),
    ("chat, temperature 0", {"logprobs": True, "top_logprobs": 3, "temperature": 0}),
    ("chat, none asked for", {}),
)


def _both(name: str, path: str, fields: dict[str, Any]) -> Iterator[Request]:
    """The same request whole and streamed."""
    drawn = {"seed": 11, "post_sampling_probs": True, **fields}
    yield post(name, path, drawn)
    yield post(f"{name}, streamed", path, {**drawn, "stream": True})


def probabilities() -> Iterator[Request]:
    """Of `chain-branch`: every stage alone and in company, on each route that has probabilities, and on one without."""
    for name, fields in _STAGES:
        yield from _both(name, "/completion", {"prompt": "Words:", "n_predict": 3, "n_probs": 5, **fields})
    messages = [{"role": "user", "content": "Say something."}]
    for name, fields in _CHATS:
        yield from _both(name, "/v1/chat/completions", {"messages": messages, "max_tokens": 3, **fields})
    yield from _both("text completion", "/v1/completions", {"prompt": "Words:", "max_tokens": 2})


# Few ids, because a random model's parts for good where a draw falls on an edge.
_RANDOM: tuple[tuple[str, dict[str, Any]], ...] = (
    ("defaults", {}),
    ("every stage off", _OFF),
    ("hot", {**_OFF, "temperature": 1.5}),
    ("top_p", {**_OFF, "top_p": 0.6}),
    ("min_p", {**_OFF, "min_p": 0.1}),
    ("temperature 0", {"temperature": 0}),
)


def random() -> Iterator[Request]:
    """Of a random model: long tails, and ids that are no whole character."""
    for name, fields in _RANDOM:
        asked = {"prompt": [72, 105], "n_predict": 4, "n_probs": 6, "return_tokens": True, **fields}
        yield from _both(name, "/completion", asked)
