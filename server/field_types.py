"""How the value of a request field is read: what is taken, in which range, and what a refusal says."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from bloomery.server.body import Repeated

INT32_MAX = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the server behind a request has: ids of its vocabulary, slots, and the most choices of one request."""

    n_vocab: int
    n_parallel: int
    max_choices: int


# No vocabulary has more ids than ten digits count, and no longer text is ever converted.
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)

Reader: TypeAlias = Callable[[Any, Limits], Any]


@dataclass(frozen=True)
class FieldType:
    """`words` says in documentation what is taken; `read` checks and converts, raising ValueError with the reason."""

    words: str
    read: Reader


# How llama-server's JSON library calls each kind of value.
_JSON_KINDS = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", type(None): "null"}


def kind(value: Any) -> str:
    """The JSON name of a value's kind."""
    return _JSON_KINDS.get(type(value), "object")


def _wrong(wanted: str, value: Any) -> ValueError:
    return ValueError(f"type must be {wanted}, but is {kind(value)}")


def _boolean(value: Any, _limits: Limits) -> bool:
    if not isinstance(value, bool):
        raise _wrong("boolean", value)
    return value


def _number(value: Any, _limits: Limits) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong("number", value)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError("must be a finite number")
    return number


def _integer(value: Any, limits: Limits) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    number = _number(value, limits)
    if not number.is_integer():
        raise ValueError(f"must be an integer, not {number}")
    return int(number)


def _string(value: Any, _limits: Limits) -> str:
    if not isinstance(value, str):
        raise _wrong("string", value)
    return value


BOOLEAN = FieldType("boolean", _boolean)
NUMBER = FieldType("number", _number)
INTEGER = FieldType("integer", _integer)
STRING = FieldType("string", _string)
ANYTHING = FieldType("any value", lambda value, _limits: value)


def within(lo: int, hi: int | Callable[[Limits], int], words: str | None = None) -> FieldType:
    """An integer from lo to hi, which may depend on the server. The refusal is llama-server's."""

    def read(value: Any, limits: Limits) -> int:
        number = _integer(value, limits)
        most = hi(limits) if callable(hi) else hi
        if not lo <= number <= most:
            raise ValueError(f"Value must be between {lo} <= value <= {most}, but got {number}")
        return number

    return FieldType(f"integer from {lo} to {words or hi}", read)


def at_least_none(limit: Callable[[Limits], int]) -> FieldType:
    """A count: below 0 is 0, above the server's limit is the limit."""

    def read(value: Any, limits: Limits) -> int:
        return min(max(0, _integer(value, limits)), limit(limits))

    return FieldType("integer", read)


def _slot(value: Any, limits: Limits) -> int:
    number = _integer(value, limits)
    return number % limits.n_parallel if number >= 0 else -1


SLOT = FieldType("integer; -1 is any slot", _slot)


def _stop(value: Any, _limits: Limits) -> tuple[str, ...]:
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list):
        raise _wrong("string or array of strings", value)
    for word in words:
        if not isinstance(word, str):
            raise _wrong("string", word)
    return tuple(words)


STOP = FieldType("string or array of strings", _stop)


def _strings(value: Any, limits: Limits) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _wrong("array of strings", value)
    return tuple(_string(item, limits) for item in value)


STRINGS = FieldType("array of strings", _strings)


def _some_strings(value: Any, limits: Limits) -> tuple[str, ...]:
    strings = _strings(value, limits)
    if not strings:
        raise ValueError("the array is empty")
    return strings


SOME_STRINGS = FieldType("array of strings that is not empty", _some_strings)


def _boolean_or_count(value: Any, limits: Limits) -> int:
    return value if isinstance(value, bool) else min(max(0, _integer(value, limits)), limits.n_vocab)


BOOLEAN_OR_COUNT = FieldType("boolean or integer", _boolean_or_count)


def _token_id(key: str, limits: Limits) -> int:
    if _TOKEN_ID.fullmatch(key) and int(key) < limits.n_vocab:
        return int(key)
    raise ValueError(f"{key[:40]!r} is no token id; the vocabulary's are 0 to {limits.n_vocab - 1}")


def _bias(value: Any, limits: Limits) -> dict[int, float]:
    if not isinstance(value, dict):
        raise _wrong("object from token ids to numbers", value)
    biases: dict[int, float] = {}
    for key in value.repeated if isinstance(value, Repeated) else ():
        raise ValueError(f"token {key[:40]!r} stands twice")
    for key, number in value.items():
        token = _token_id(key, limits)
        try:
            bias = _number(number, limits)
        except ValueError as error:
            raise ValueError(f"the bias of token {token}: {error}") from None
        if not -100 <= bias <= 100:
            raise ValueError(f"the bias of token {token} must be from -100 to 100, but is {bias}")
        biases[token] = bias
    return biases


LOGIT_BIAS = FieldType("object from token ids to numbers from -100 to 100", _bias)


def _stream_options(value: Any, limits: Limits) -> bool:
    if not isinstance(value, dict):
        raise _wrong("object", value)
    wanted = value.get("include_usage")
    try:
        return wanted is not None and _boolean(wanted, limits)
    except ValueError as error:
        raise ValueError(f"include_usage: {error}") from None


STREAM_OPTIONS = FieldType("object with include_usage, a boolean", _stream_options)

# llama-server's default chain in its order, each with its letter in the short spelling.
SAMPLER_LETTERS = {
    "penalties": "e",
    "dry": "d",
    "top_n_sigma": "s",
    "top_k": "k",
    "typ_p": "y",
    "top_p": "p",
    "min_p": "m",
    "xtc": "x",
    "temperature": "t",
}


def _samplers(value: Any, _limits: Limits) -> tuple[str, ...]:
    by_letter = {letter: name for name, letter in SAMPLER_LETTERS.items()}
    names: Iterable[Any] = [by_letter.get(letter, letter) for letter in value] if isinstance(value, str) else value
    if not isinstance(names, list):
        raise _wrong("array of sampler names", value)
    for name in names:
        if not isinstance(name, str):
            raise _wrong("string", name)
        if name not in SAMPLER_LETTERS:
            raise ValueError(f"this server has no sampler {name[:40]!r}; it has {', '.join(SAMPLER_LETTERS)}")
    if len(set(names)) != len(names):
        raise ValueError("a sampler is named twice")
    return tuple(names)


SAMPLERS = FieldType("array of sampler names in llama-server's default order", _samplers)


def _response_format(value: Any, _limits: Limits) -> str:
    if not isinstance(value, dict):
        raise _wrong("object", value)
    name = value.get("type", "text")
    if not isinstance(name, str):
        raise _wrong("string", name)
    return name


RESPONSE_FORMAT = FieldType("object with a type", _response_format)
