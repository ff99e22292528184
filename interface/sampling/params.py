"""What a request may ask of the sampler: llama-server's field names, defaults and ranges.

The ranges are those of llama-server's request schema (``tools/server/server-schema.cpp``) and of its sampler's
constructor (``common/sampling.cpp``): some values are quietly brought into range, others are an error. Which is which
stands at each field. Samplers that are not listed here (typical_p, mirostat, dry, xtc, top_n_sigma, dynatemp,
adaptive_p) are off in llama-server by default and are not offered; refusing a request that turns one on is the
server's work, not this module's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

INT32_MAX = 2**31 - 1
UINT32_MASK = 0xFFFF_FFFF
RANDOM_SEED = UINT32_MASK
"""The seed that asks for a random one (``LLAMA_DEFAULT_SEED``)."""


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Sampling settings of one request, checked and brought into llama-server's ranges on construction.

    Numbers are kept as given; the chain rounds them to float32 where it uses them, as llama-server does.

    Raises:
        ValueError: a field has the wrong type, is not finite, or lies outside a range that llama-server enforces.
            The message starts with the field's name.
    """

    seed: int | None = None
    """Start of the draw's Mersenne twister, taken modulo 2**32. None and 4294967295 (so also -1) leave it to chance."""
    temperature: float = 0.8
    """Divides the logits. At most 0 is greedy: negative values are brought to 0."""
    top_k: int = 40
    """Keep the k best. At most 0 keeps all: negative values are brought to 0."""
    top_p: float = 0.95
    """Keep the smallest best-first set of at least this probability. Brought into 0..1; 1 is off, 0 keeps one."""
    min_p: float = 0.05
    """Keep what has at least this share of the best probability. Brought into 0..1; 0 is off."""
    repeat_penalty: float = 1.0
    """Divides positive and multiplies other logits of seen ids. Must be positive with a finite float32 reciprocal."""
    repeat_last_n: int = 64
    """How many of the last ids (prompt included) the three penalties look at. Must be 0..2147483647; 0 is off."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of every seen id. Must be finite."""
    frequency_penalty: float = 0.0
    """Subtracted from a seen id's logit once for each time it was seen. Must be finite."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these ids before anything else. Finite, or -inf for an id that is never drawn."""
    ignore_eos: bool = False
    """Whether the vocabulary's end-of-generation ids are held at -inf, whatever their bias."""
    n_probs: int = 0
    """How many best ids to report with each drawn one. At most 0 is off: negative values are brought to 0."""
    min_keep: int = 0
    """How many candidates top_p and min_p leave at least. Must be 0..2147483647."""

    def __post_init__(self) -> None:
        put = object.__setattr__
        if self.seed is not None:
            put(self, "seed", _integer("seed", self.seed) & UINT32_MASK)
        put(self, "temperature", max(0.0, _number("temperature", self.temperature)))
        put(self, "top_k", min(max(0, _integer("top_k", self.top_k)), INT32_MAX))
        put(self, "top_p", min(max(0.0, _number("top_p", self.top_p)), 1.0))
        put(self, "min_p", min(max(0.0, _number("min_p", self.min_p)), 1.0))
        put(self, "repeat_penalty", _number("repeat_penalty", self.repeat_penalty))
        if not _has_finite_reciprocal(self.repeat_penalty):
            raise ValueError(
                f"repeat_penalty must be above 0 with a finite reciprocal, but is {self.repeat_penalty}; 1 is off"
            )
        put(self, "repeat_last_n", _count("repeat_last_n", self.repeat_last_n))
        put(self, "presence_penalty", _number("presence_penalty", self.presence_penalty))
        put(self, "frequency_penalty", _number("frequency_penalty", self.frequency_penalty))
        put(self, "logit_bias", {_bias_id(key): _bias(key, value) for key, value in self.logit_bias.items()})
        if not isinstance(self.ignore_eos, bool):
            raise _unfit("ignore_eos", "true or false", self.ignore_eos)
        put(self, "n_probs", max(0, _integer("n_probs", self.n_probs)))
        put(self, "min_keep", _count("min_keep", self.min_keep))

    @property
    def has_random_seed(self) -> bool:
        """Whether the request leaves the seed to the server."""
        return self.seed is None or self.seed == RANDOM_SEED

    @property
    def is_greedy(self) -> bool:
        """Whether the best id is taken without a draw: the temperature is 0 as a float32."""
        return bool(np.float32(self.temperature) <= 0)

    @property
    def has_penalties(self) -> bool:
        """Whether any of the three penalties changes a logit, so that accepted ids matter."""
        neutral = self.repeat_penalty == 1 and self.frequency_penalty == 0 and self.presence_penalty == 0
        return self.repeat_last_n > 0 and not neutral

    @property
    def only_lowers(self) -> bool:
        """Whether no penalty and no bias can raise a logit."""
        penalties = self.repeat_penalty >= 1 and self.frequency_penalty >= 0 and self.presence_penalty >= 0
        return (penalties or not self.has_penalties) and all(bias <= 0 for bias in self.logit_bias.values())


def _unfit(name: str, wanted: str, value: object) -> ValueError:
    return ValueError(f"{name} must be {wanted}, not {value!r}")


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _unfit(name, "a number", value)
    if not _is_finite_float32(value):
        raise ValueError(f"{name} must be a finite number within float32's range, but is {value}")
    return float(value)


def _integer(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _unfit(name, "an integer", value)
    return value


def _count(name: str, value: object) -> int:
    number = _integer(name, value)
    if not 0 <= number <= INT32_MAX:
        raise ValueError(f"{name}: Value must be between 0 <= value <= {INT32_MAX}, but got {number}")
    return number


def _bias_id(key: object) -> int:
    number = _integer("logit_bias: a token id", key)
    if not 0 <= number <= INT32_MAX:
        raise ValueError(f"logit_bias: {number} is not a token id")
    return number


def _bias(key: object, value: object) -> float:
    if isinstance(value, float) and value == -math.inf:
        return value
    return _number(f"logit_bias: the bias of token {key}", value)


def _is_finite_float32(value: float) -> bool:
    try:
        return abs(value) <= float(np.finfo(np.float32).max)
    except OverflowError:  # An int past every float.
        return False


def _has_finite_reciprocal(value: float) -> bool:
    with np.errstate(over="ignore", divide="ignore"):
        return value > 0 and bool(np.isfinite(np.float32(1) / np.float32(value)))
