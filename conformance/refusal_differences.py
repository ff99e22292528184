"""The known differences in errors: their form, and where one of the two servers refuses and the other answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from bloomery.conformance import error_rewrites as rewrite
from bloomery.conformance.known_difference import (
    ALIAS,
    BRANCH,
    CALLS,
    COUNTS,
    KEYS,
    PROBABILITIES,
    REFUSALS,
    STATUS,
    TEXT,
    TOKENIZER,
    Cases,
    KnownDifference,
)
from bloomery.conformance.rewrites import DONE

# The field that the server names in an error, by patterns of cases.
_AT_FAULT: Mapping[str, Mapping[str, str]] = {
    REFUSALS: {
        **{f"{route}: an empty object": "prompt" for route in ("/completion", "/v1/completions")},
        **{f"{route}: an empty object": "messages" for route in ("/v1/chat/completions", "/apply-template")},
        **{
            f"{field}: *": field
            for field in (
                "prompt", "temperature", "top_k", "top_p", "n_predict", "seed", "repeat_last_n", "repeat_penalty",
                "stop", "stream", "cache_prompt", "n_probs", "n", "ignore_eos", "n_keep", "dry_sequence_breakers",
                "messages",
            )
        },
        "a refused field, streamed": "top_k",
        **{f"chat {field}: *": field for field in ("top_logprobs", "tool_choice", "response_format", "max_tokens")},
        "chat chat_template_kwargs: {*": "chat_template_kwargs",
    },
    TOKENIZER: {
        "content *": "content", "ids text": "tokens", "ids null": "tokens", "ids a number": "tokens",
        "template: two assistants at the end*": "messages", "template: a call at the end*": "messages",
    },
    COUNTS: {
        "count: two assistants at the end*": "messages", "count: a call at the end*": "messages",
        "count: messages *": "messages", "count: enable_thinking a text": "chat_template_kwargs",
    },
}  # fmt: skip


def _by_field(cases: Mapping[str, Mapping[str, str | None]]) -> Iterator[tuple[str | None, Cases]]:
    """Every field with the patterns that have it, by set."""
    for param in sorted({param for fields in cases.values() for param in fields.values()}, key=str):
        yield (
            param,
            {
                set_name: [pattern for pattern, named in fields.items() if named == param]
                for set_name, fields in cases.items()
            },
        )


_ERRORS = (
    *(
        KnownDifference(
            name="error-param",
            why="An error about one field of the request names it in a key of its own, as OpenAI's do.",
            source="design",
            cases=cases,
            without=rewrite.with_param(str(param)),
            owed=True,
        )
        for param, cases in _by_field(_AT_FAULT)
    ),
    KnownDifference(
        name="own-words",
        why="Messages are this server's own sentences, with the value at fault and the remedy.",
        source="judgement",
        # The errors of all other cases are in llama-server's words.
        cases={
            REFUSALS: (
                "*: no JSON", "*: empty body", "*: an array", "*: a string", "*: not UTF-8", "*: a lone surrogate",
                "prompt: *", "temperature: *", "top_k: 'x'", "top_p: 'x'", "n_predict: 'x'", "seed: 'x'",
                "repeat_penalty: 0", "stop: [5]", "stream: *", "cache_prompt: 'yes'", "n_probs: 'x'", "n: *",
                "ignore_eos: 'x'", "n_keep: 'x'", "dry_sequence_breakers: []", "a refused field, streamed",
                "messages: an array of text", "messages: no content", "messages: content a number",
                "messages: an unknown content type",
                "chat response_format: *", "chat max_tokens: 'x'",
            ),
            TOKENIZER: ("content *", "ids text", "ids null", "ids a number"),
            ALIAS: ("/v1/models/chain-text, fresh",),
        },
        without=rewrite.in_own_words,
    ),
    KnownDifference(
        name="unknown-route",
        why="The message of a 404 says what was asked for and which routes there are.",
        source="design",
        cases={
            REFUSALS: ("an unknown route", "GET where POST is served", "POST where GET is served"),
            KEYS: ("/nothing with*key*",),
        },
        without=rewrite.unknown_route,
    ),
    KnownDifference(
        name="error-key-order",
        why="Every error object has its keys in one order.",
        source="judgement",
        cases={
            REFUSALS: ("an unknown route", "GET where POST is served", "POST where GET is served"),
            ALIAS: ("/v1/models/chain-text, fresh",),
            KEYS: ("/nothing *", "* with no key", "* with a wrong key", "* with an empty bearer", "*small letters"),
        },
        without=rewrite.error_keys_in_order,
    ),
)  # fmt: skip


def _refusals(
    name: str,
    why: str,
    source: Literal["design", "judgement"],
    cases: Mapping[str, Mapping[str, str | None]],
    instead_of: int = 200,
) -> Iterator[KnownDifference]:
    """Rules for a 400 where llama-server answers another status: for each case, the field that the 400 names."""
    for param, patterns in _by_field(cases):
        without = rewrite.refused(param, instead_of=instead_of)
        yield KnownDifference(name=name, why=why, source=source, cases=patterns, without=without)


_REFUSALS = (
    *_refusals(
        "logit-bias",
        "logit_bias is OpenAI's object from ids to numbers; llama-server's other forms are refused by name.",
        "design",
        {
            REFUSALS: dict.fromkeys(("logit_bias: 'x'", "logit_bias: [*", "logit_bias: {'A': False}"), "logit_bias"),
            BRANCH: {"probabilities are before the bias*": "logit_bias"},
        },
    ),
    *_refusals(
        "cannot-honour",
        "A field that asks for what this server does not do is refused by name, never dropped.",
        "design",
        {
            REFUSALS: {"mirostat: 9": "mirostat", "grammar: *": "grammar", "samplers: ['unknown']": "samplers"},
            TEXT: {"n_indent*": "n_indent"},
            PROBABILITIES: {"text completion*": "post_sampling_probs"},
        },
    ),
    *_refusals(
        "wrong-types",
        "A field of another type or out of range is refused by name; llama-server rounds it or takes its default.",
        "judgement",
        {
            REFUSALS: {
                "top_k: 2.9": "top_k", "n_predict: 1.9": "n_predict", "n_predict: 4294967296": "n_predict",
                "stop: 5": "stop", "stop: {}": "stop", "samplers: 5": "samplers", "id_slot: 'x'": "id_slot",
                "response_fields: 'x'": "response_fields", "chat tool_choice: 5": "tool_choice",
                "chat chat_template_kwargs: 'x'": "chat_template_kwargs",
            }
        },
    ),
    *_refusals(
        "one-prompt",
        "/completion answers one prompt, and not an empty one.",
        "judgement",
        {
            REFUSALS: dict.fromkeys(
                ("prompt: an empty string", "prompt: nested arrays", "prompt: several strings"), "prompt"
            )
        },
    ),
    *_refusals(
        "tokenize-text",
        "/tokenize takes one text and no ids, and both tokenizer routes take an object.",
        "design",
        {
            REFUSALS: {
                "/tokenize: an array": None, "/tokenize: a string": None, "/tokenize: an empty object": "content",
                "/detokenize: an array": None, "/detokenize: a string": None,
            },
            TOKENIZER: {"every token": "content", "ids and text": "content"},
        },
    ),
    *_refusals(
        "clients-fault",
        "A fault of the request is a 400 that names the field, not a 500.",
        "judgement",
        {
            REFUSALS: {
                "messages: no role": "messages", "messages: role a number": "messages",
                "messages: a text part without text": "messages", "messages: an image": "messages",
                "messages: a tool call without a function": "messages", "chat tools: *": "tools",
                "chat reasoning_format: 'strange'": "reasoning_format",
            },
            TOKENIZER: {"ids past the vocabulary": "tokens", "ids negative": "tokens"},
        },
        500,
    ),
)  # fmt: skip


def _two_same_choices(body: Any) -> bool:
    one, other = body["choices"]
    same = one | {"index": 1} == other and one["index"] == 0 and one["message"]["content"] == "The"
    return bool(same and body["usage"]["completion_tokens"] == 2)


def _model_entry(body: Any) -> bool:
    keys = ["id", "aliases", "tags", "object", "architecture", "created", "owned_by", "meta"]
    return list(body) == keys and (body["id"], body["object"]) == ("chain-text", "model")


# What `chain-calls` says of itself, in the places of a chat stream.
_REPLY = {
    "reasoning_content": "Weather needs a tool.\n",
    "content": "Let me look.\n\n",
    "arguments": '{"city": "Seoul", "days": 2, "units": ["c"], "exact": true}',
}


def _stream_with_probabilities(body: Any) -> bool:
    """The reply of `chain-calls` with one entry of log-probabilities an id."""
    *chunks, last = body
    said = dict.fromkeys(_REPLY, "")
    parts = [part for chunk in chunks for part in chunk["choices"]]
    for part in parts:
        for key in said.keys() & part["delta"].keys():
            said[key] += part["delta"][key] or ""
        for call in part["delta"].get("tool_calls", ()):
            said["arguments"] += call["function"]["arguments"]
    entries = [entry for part in parts for entry in part.get("logprobs", {"content": []})["content"]]
    whole = all(list(entry) == ["id", "token", "bytes", "logprob", "top_logprobs"] for entry in entries)
    counted = len(entries) == chunks[-1]["timings"]["predicted_n"]
    ended = last == DONE and parts[-1]["finish_reason"] == "tool_calls"
    return said == _REPLY and whole and counted and ended


_MORE_ROUTES = (
    KnownDifference(
        name="several-choices",
        why="A chat and a text completion answer up to as many choices as can wait, not as there are slots.",
        source="design",
        cases={REFUSALS: ("chat n: 2",)},
        without=rewrite.answered(_two_same_choices, instead_of=400),
    ),
    KnownDifference(
        name="calls-with-probabilities",
        why="A streamed answer with tools may carry log-probabilities.",
        source="judgement",
        cases={CALLS: ("a call with logprobs, streamed",)},
        without=rewrite.answered(_stream_with_probabilities, instead_of=400),
    ),
    KnownDifference(
        name="model-lookup",
        why="One model can be asked for by its name.",
        source="design",
        cases={STATUS: ("/v1/models/chain-text, fresh",)},
        without=rewrite.answered(_model_entry, instead_of=404),
    ),
    KnownDifference(
        name="no-props-change",
        why="Properties are set at the start, so there is no route to change them.",
        source="judgement",
        cases={STATUS: ("POST /props",), ALIAS: ("POST /props",)},
        without=rewrite.no_such_route(instead_of=501),
    ),
)

REFUSAL_DIFFERENCES: tuple[KnownDifference, ...] = (*_ERRORS, *_REFUSALS, *_MORE_ROUTES)
