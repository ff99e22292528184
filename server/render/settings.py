"""`generation_settings`: how a request was read, in llama-server's words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from bloomery.interface.sampling import SamplingParams
from bloomery.interface.sampling.params import RANDOM_SEED
from bloomery.server.fields import DEFAULT_SAMPLERS, Options
from bloomery.server.generation import Generation

# Settings a client meets in every answer but only some documents show.
_TEXT_SETTINGS = (
    "dry_sequence_breakers",
    "stop",
    "logit_bias",
    "grammar",
    "grammar_lazy",
    "grammar_triggers",
    "preserved_tokens",
)


def generation_settings(options: Options, banned: Iterable[int] = ()) -> dict[str, Any]:
    """All settings of a request. Samplers and features that this server does not have stand at their neutral values.

    `banned` are the ids that `ignore_eos` keeps out: biases of minus infinity, for which JSON has only null.
    """
    sampling = options.asked
    return {
        "seed": RANDOM_SEED if sampling.has_random_seed else sampling.seed,
        "temperature": _single(sampling.temperature),
        "dynatemp_range": 0.0,
        "dynatemp_exponent": 1.0,
        "top_k": sampling.top_k,
        "top_p": _single(sampling.top_p),
        "min_p": _single(sampling.min_p),
        "top_n_sigma": -1.0,
        "xtc_probability": 0.0,
        "xtc_threshold": _single(0.1),
        "typical_p": 1.0,
        "repeat_last_n": sampling.repeat_last_n,
        "repeat_penalty": _single(sampling.repeat_penalty),
        "presence_penalty": _single(sampling.presence_penalty),
        "frequency_penalty": _single(sampling.frequency_penalty),
        "dry_multiplier": 0.0,
        "dry_base": 1.75,
        "dry_allowed_length": 2,
        "dry_penalty_last_n": 64,
        "dry_sequence_breakers": ["\n", ":", '"', "*"],
        "mirostat": 0,
        "mirostat_tau": 5.0,
        "mirostat_eta": _single(0.1),
        "adaptive_target": -1.0,
        "adaptive_decay": _single(0.9),
        "stop": list(options.stop),
        "max_tokens": options.n_predict,
        "n_predict": options.n_predict,
        "n_keep": options.n_keep,
        "n_discard": options.n_discard,
        "ignore_eos": sampling.ignore_eos,
        "stream": options.stream,
        "logit_bias": [
            *({"bias": _single(bias), "token": token} for token, bias in sampling.logit_bias.items()),
            *({"bias": None, "token": token} for token in banned),
        ],
        "n_probs": options.n_probs,
        "min_keep": sampling.min_keep,
        "grammar": "",
        "grammar_lazy": False,
        "grammar_triggers": [],
        "preserved_tokens": [],
        "chat_format": "Content-only",
        "reasoning_format": "deepseek",
        "reasoning_in_content": False,
        "generation_prompt": "",
        "samplers": list(options.samplers),
        "speculative.types": "none",
        "timings_per_token": options.timings_per_token,
        "post_sampling_probs": options.post_sampling_probs,
        "backend_sampling": False,
        "lora": [],
    }


def slot_params(generation: Generation) -> dict[str, Any]:
    """The settings that /slots shows of a slot's request: all but its texts."""
    options = Options(
        sampling=generation.sampling,
        asked=generation.sampling,
        samplers=DEFAULT_SAMPLERS,
        n_predict=generation.n_predict,
        n_probs=generation.n_probs,
        post_sampling_probs=generation.post_sampling_probs,
    )
    return _without_texts(generation_settings(options))


def default_params() -> dict[str, Any]:
    """The settings of a request that asks for nothing, as /props shows them."""
    defaults = SamplingParams()
    settings = generation_settings(Options(sampling=defaults, asked=defaults))
    return _without_texts(settings) | {"reasoning_format": "none"}


def _without_texts(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in _TEXT_SETTINGS}


def _single(value: float) -> float:
    """The value after float32, in which the sampler takes it and llama-server reports it."""
    return float(np.float32(value))
