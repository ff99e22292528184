"""The request fields of the generating routes: one table, which reads a request and documents what is read.

A field is read on its routes. Where it cannot be honoured it is refused when its value asks for something, so that no
request is answered as if a wish had been granted. null is unset everywhere, and what is not in the table is ignored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bloomery.interface.sampling.params import SamplingParams
from bloomery.server.errors import invalid_request
from bloomery.server.field_types import (
    ANYTHING,
    BOOLEAN,
    BOOLEAN_OR_COUNT,
    INT32_MAX,
    INTEGER,
    LOGIT_BIAS,
    NUMBER,
    RESPONSE_FORMAT,
    SAMPLER_LETTERS,
    SAMPLERS,
    SLOT,
    SOME_STRINGS,
    STOP,
    STREAM_OPTIONS,
    STRING,
    STRINGS,
    FieldType,
    Limits,
    at_least_none,
    within,
)

DEFAULT_SAMPLERS = tuple(SAMPLER_LETTERS)
ALTERNATIVES = 20
NOT_YET = "it is not part of this version yet"


class Route(StrEnum):
    """The generating routes whose fields differ."""

    COMPLETION = "/completion"
    COMPLETIONS = "/v1/completions"
    CHAT = "/v1/chat/completions"


COMPLETION = frozenset({Route.COMPLETION})
COMPLETIONS = frozenset({Route.COMPLETIONS})
CHAT = frozenset({Route.CHAT})
EVERYWHERE = COMPLETION | COMPLETIONS | CHAT
NOWHERE: frozenset[Route] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a request asks of its generation and of its answer, defaults filled in.

    sampling has every stage off that `samplers` leaves out, `asked` has each as it was asked for.  n_probs: how many
    best probabilities come with each id, the sampler's own under post_sampling_probs.  n: how many choices.  n_keep,
    n_discard: reported back, and nothing else.  Times, progress and ids are extras of the answer.
    """

    sampling: SamplingParams
    asked: SamplingParams
    samplers: tuple[str, ...] = DEFAULT_SAMPLERS
    n_predict: int = -1
    stop: tuple[str, ...] = ()
    cache_prompt: bool = True
    id_slot: int = -1
    n_keep: int = 0
    n_discard: int = 0
    n_probs: int = 0
    post_sampling_probs: bool = False
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    return_tokens: bool = False
    return_progress: bool = False
    timings_per_token: bool = False
    response_fields: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Field:
    """One request field.

    name: its spelling, and `also` others, which count when the ones before them are unset.  into: the attribute of
    `Options` or `SamplingParams` it sets, the name unless given.  routes: where it is read.  refused: where a value
    that `asks` for something is refused, with `remedy`.
    """

    name: str
    type: FieldType
    about: str
    also: tuple[str, ...] = ()
    into: str = ""
    routes: frozenset[Route] = EVERYWHERE
    refused: frozenset[Route] = NOWHERE
    asks: Callable[[Any], bool] | None = None
    remedy: str = ""

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every name, the strongest first."""
        return (self.name, *self.also)


def _set(value: Any) -> bool:
    return bool(value)


def _above(least: float) -> Callable[[Any], bool]:
    return lambda value: value > least


def _unsupported(
    name: str, kind: FieldType, asks: Callable[[Any], bool], remedy: str, refused: frozenset[Route] = EVERYWHERE
) -> Field:
    return Field(
        name=name, type=kind, about="Not supported.", routes=NOWHERE, refused=refused, asks=asks, remedy=remedy
    )


_NO_SAMPLER = "this server has no such sampler; leave the field out"
_NO_PROBABILITIES = "this route renders no probabilities; /completion takes n_probs, /v1/chat/completions logprobs"

FIELDS: tuple[Field, ...] = (
    Field(name="temperature", type=NUMBER, about="Divides the logits; 0 or less is greedy. Default 0.8."),
    Field(name="top_k", type=INTEGER, about="Draw from the k best ids; 0 or less is all. Default 40."),
    Field(name="top_p", type=NUMBER, about="Draw from the best ids of this total probability. Default 0.95."),
    Field(name="min_p", type=NUMBER, about="Leave out ids below this share of the best probability. Default 0.05."),
    Field(name="repeat_penalty", type=NUMBER, about="Divides the logits of seen ids; above 0, 1 is off. Default 1."),
    Field(name="repeat_last_n", type=within(0, INT32_MAX), about="How many last ids the penalties see. Default 64."),
    Field(name="presence_penalty", type=NUMBER, about="Subtracted once from a seen id's logit. Default 0."),
    Field(name="frequency_penalty", type=NUMBER, about="Subtracted each time an id was seen. Default 0."),
    Field(name="seed", type=INTEGER, about="Start of the draw, modulo 2^32; -1 or unset is random."),
    Field(name="logit_bias", type=LOGIT_BIAS, about="Added to the logits of these ids before every pick."),
    Field(name="ignore_eos", type=BOOLEAN, about="Whether the end-of-generation ids are never drawn. Default false."),
    Field(name="min_keep", type=within(0, INT32_MAX), about="Ids that top_p and min_p leave at least. Default 0."),
    Field(name="samplers", type=SAMPLERS, about="The stages that run; an enabled one left out is off."),
    Field(
        name="n_predict",
        also=("max_completion_tokens", "max_tokens"),
        type=within(-1, INT32_MAX),
        about="The most ids to generate; -1 is no limit but the context. Default -1.",
    ),
    Field(name="stop", type=STOP, about="Texts that end the generation and are not part of it."),
    Field(name="cache_prompt", type=BOOLEAN, about="Whether a slot's common prefix may be reused. Default true."),
    Field(name="id_slot", type=SLOT, about="The slot to run in. Default -1, any."),
    Field(name="n_keep", type=INTEGER, about="Reported back; a context is never shifted, so nothing is kept of it."),
    Field(name="n_discard", type=INTEGER, about="Reported back; a context is never shifted."),
    Field(name="stream", type=BOOLEAN, about="Whether the answer comes as server-sent events. Default false."),
    Field(name="return_progress", type=BOOLEAN, about="Whether a stream reports the prompt's progress."),
    Field(name="timings_per_token", type=BOOLEAN, about="Whether every event of a stream carries timings."),
    Field(
        name="stream_options",
        type=STREAM_OPTIONS,
        into="include_usage",
        about="include_usage: whether a stream ends with a usage event.",
        routes=CHAT | COMPLETIONS,
    ),
    Field(name="return_tokens", type=BOOLEAN, about="Whether the answer lists its ids.", routes=COMPLETION),
    Field(
        name="response_fields",
        type=STRINGS,
        about="The keys the answer has; a/b is the key b of the object a. Default: all.",
        routes=COMPLETION,
    ),
    Field(
        name="n",
        type=within(1, lambda limits: limits.max_choices, "the slots plus the queue's depth"),
        about="How many choices to answer; choice i draws with seed + i. Default 1.",
        routes=CHAT | COMPLETIONS,
        refused=COMPLETION,
        asks=lambda value: value != 1,
        remedy="this route answers one choice; /v1/completions and /v1/chat/completions answer several",
    ),
    Field(
        name="n_probs",
        type=at_least_none(lambda limits: limits.n_vocab),
        about="How many best probabilities come with each id. Default 0.",
        routes=COMPLETION,
        refused=CHAT | COMPLETIONS,
        asks=_above(0),
        remedy=_NO_PROBABILITIES,
    ),
    Field(
        name="logprobs",
        type=BOOLEAN_OR_COUNT,
        about=f"Whether ids come with log-probabilities; {ALTERNATIVES} alternatives unless top_logprobs says.",
        routes=CHAT,
        refused=COMPLETION | COMPLETIONS,
        asks=_set,
        remedy=_NO_PROBABILITIES,
    ),
    Field(
        name="top_logprobs",
        type=at_least_none(lambda limits: limits.n_vocab),
        about="How many alternatives come with logprobs; 0 is no log-probabilities at all.",
        routes=CHAT,
        refused=COMPLETION | COMPLETIONS,
        asks=_above(0),
        remedy=_NO_PROBABILITIES,
    ),
    Field(
        name="post_sampling_probs",
        type=BOOLEAN,
        about="Whether the probabilities are those of the draw, after the samplers, and no logarithms. Default false.",
        routes=COMPLETION | CHAT,
        refused=COMPLETIONS,
        asks=_set,
        remedy=_NO_PROBABILITIES,
    ),
    _unsupported("typical_p", NUMBER, lambda value: value < 1, _NO_SAMPLER),
    _unsupported("top_n_sigma", NUMBER, _above(0), _NO_SAMPLER),
    _unsupported("mirostat", INTEGER, _above(0), _NO_SAMPLER),
    _unsupported("dry_multiplier", NUMBER, lambda value: value != 0, _NO_SAMPLER),
    _unsupported("dry_sequence_breakers", SOME_STRINGS, lambda value: False, _NO_SAMPLER),
    _unsupported("xtc_probability", NUMBER, _above(0), _NO_SAMPLER),
    _unsupported("dynatemp_range", NUMBER, _above(0), _NO_SAMPLER),
    _unsupported("adaptive_target", NUMBER, lambda value: value >= 0, _NO_SAMPLER),
    _unsupported("t_max_predict_ms", NUMBER, _above(0), "there is no time limit; use n_predict"),
    _unsupported("n_indent", INTEGER, _above(0), "there is no indentation rule; use stop"),
    _unsupported("lora", ANYTHING, _set, "this server loads no adapters"),
    _unsupported("grammar", STRING, _set, "this server runs no grammars"),
    _unsupported("json_schema", ANYTHING, lambda value: True, "a schema belongs into response_format"),
    _unsupported("response_format", RESPONSE_FORMAT, lambda value: value != "text", NOT_YET),
    _unsupported("reasoning_budget", INTEGER, lambda value: value != -1, NOT_YET),
    _unsupported("reasoning_loop", BOOLEAN, _set, NOT_YET),
    _unsupported("suffix", STRING, _set, "text can be generated only after the prompt", COMPLETIONS),
    _unsupported("echo", BOOLEAN, _set, "the answer never repeats the prompt", COMPLETIONS),
    _unsupported("best_of", INTEGER, _above(1), "use n, and choose among the choices", COMPLETIONS),
)


def read(body: Mapping[str, Any], route: Route, limits: Limits) -> Options:
    """What a request's body asks of `route`.

    Raises a 400 that names the field, in the client's spelling, for a wrong type, a value out of range, and one that
    asks for what the route does not do.
    """
    values: dict[str, Any] = {}
    for field in FIELDS:
        spelled = next((name for name in field.spellings if body.get(name) is not None), None)
        if spelled is None or route not in field.routes | field.refused:
            continue
        try:
            value = field.type.read(body[spelled], limits)
        except ValueError as error:
            raise invalid_request(f"Field '{spelled}': {error}", spelled) from None
        if route in field.routes:
            values[field.into or field.name] = value
        elif field.asks is not None and field.asks(value):
            raise invalid_request(f"Field '{spelled}' is not supported here: {field.remedy}", spelled)
    values["n_probs"] = _n_probs(values)
    return _options(values)


def _n_probs(values: dict[str, Any]) -> int:
    """The count that n_probs, or logprobs and top_logprobs together, come to."""
    wanted, alternatives = values.pop("logprobs", 0), values.pop("top_logprobs", None)
    if alternatives is not None and not wanted:
        raise invalid_request("top_logprobs requires logprobs to be set to true", "top_logprobs")
    if not wanted:
        return int(values.get("n_probs", 0))
    if alternatives is not None:
        return int(alternatives)
    return ALTERNATIVES if wanted is True else int(wanted)


def _options(values: dict[str, Any]) -> Options:
    sampling = {name: values[name] for name in _SAMPLING_FIELDS if name in values}
    rest = {name: value for name, value in values.items() if name not in sampling or name == "n_probs"}
    try:
        asked = params = SamplingParams(**sampling)
        if (samplers := values.get("samplers")) is not None:
            params = _run_only(samplers, asked)
    except ValueError as error:
        name = next((name for name in _SAMPLING_FIELDS if str(error).startswith(name)), "samplers")
        raise invalid_request(f"Field '{name}': {error}", name) from None
    return Options(sampling=params, asked=asked, **rest)


_SAMPLING_FIELDS = tuple(attribute.name for attribute in dataclasses.fields(SamplingParams))

# What turns each of this server's stages off. The draw itself always runs, and a temperature of 1 changes no logit.
_NEUTRAL: Mapping[str, Mapping[str, float]] = {
    "penalties": {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    "top_k": {"top_k": 0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "temperature": {"temperature": 1.0},
}


def _run_only(samplers: tuple[str, ...], params: SamplingParams) -> SamplingParams:
    """`params` with every stage off that `samplers` leaves out."""
    on = {
        stage
        for stage, neutral in _NEUTRAL.items()
        if any(getattr(params, name) != value for name, value in neutral.items())
    }
    named = [stage for stage in samplers if stage in on]
    if named != [stage for stage in DEFAULT_SAMPLERS if stage in named]:
        raise ValueError(
            f"samplers: the stages that are on run in llama-server's default order only: {', '.join(DEFAULT_SAMPLERS)}"
        )
    off = {name: value for stage in on - set(samplers) for name, value in _NEUTRAL[stage].items()}
    return dataclasses.replace(params, **off)  # type: ignore[arg-type]
