"""Typed reading of `tokenizer.ggml.*` metadata: a value of the expected type, or a refusal that names the key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bloomery.interface.quoted import quoted
from bloomery.interface.tokenizer.errors import TokenizerError

PREFIX = "tokenizer.ggml."


def read_text(metadata: Mapping[str, Any], name: str) -> str | None:
    """The string under `tokenizer.ggml.<name>`, None when the key is absent."""
    value = metadata.get(PREFIX + name)
    if value is not None and not isinstance(value, str):
        raise _wrong_type(name, value, "a string")
    return value


def read_flag(metadata: Mapping[str, Any], name: str) -> bool | None:
    """The truth value under `tokenizer.ggml.<name>`, None when the key is absent."""
    value = metadata.get(PREFIX + name)
    if value is not None and not isinstance(value, bool | np.bool_):
        raise _wrong_type(name, value, "a bool")
    return None if value is None else bool(value)


def read_token_id(metadata: Mapping[str, Any], name: str, n_vocab: int) -> int | None:
    """The token id under `tokenizer.ggml.<name>`, checked to be inside the vocabulary; None when the key is absent."""
    value = metadata.get(PREFIX + name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise _wrong_type(name, value, "a token id")
    if not 0 <= value < n_vocab:
        raise TokenizerError(f"{PREFIX}{name} is {value}, but the vocabulary has the ids 0..{n_vocab - 1}")
    return int(value)


def read_integers(metadata: Mapping[str, Any], name: str) -> npt.NDArray[np.integer[Any]] | None:
    """The one-dimensional integer array under `tokenizer.ggml.<name>`, None when the key is absent."""
    value = metadata.get(PREFIX + name)
    if value is None:
        return None
    if not isinstance(value, np.ndarray) or value.ndim != 1 or not np.issubdtype(value.dtype, np.integer):
        raise _wrong_type(name, value, "an array of integers")
    return value


def read_scores(metadata: Mapping[str, Any], n_vocab: int) -> npt.NDArray[np.float32]:
    """The scores `[n_vocab]` under `tokenizer.ggml.scores`; zeros when the key is absent, as in llama.cpp."""
    value = metadata.get(f"{PREFIX}scores")
    if value is None:
        return np.zeros(n_vocab, np.float32)
    if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.kind not in "fi":
        raise _wrong_type("scores", value, "an array of numbers")
    if len(value) < n_vocab:
        raise TokenizerError(f"{PREFIX}scores has {len(value)} entries for {n_vocab} tokens")
    scores = value[:n_vocab].astype(np.float32)
    if np.isnan(scores).any():
        raise TokenizerError(f"{PREFIX}scores[{int(np.isnan(scores).argmax())}] is not a number")
    return scores


def read_strings(metadata: Mapping[str, Any], name: str) -> list[str]:
    """The array of strings under `tokenizer.ggml.<name>`; the key is required.

    A string ends at its first NUL, as it does in llama.cpp, which reads it as a C string. Bytes that are not UTF-8
    become lone surrogates (Python's "surrogateescape"), so that a string can be given back as it was stored.
    """
    value = metadata.get(PREFIX + name)
    if value is None:
        raise TokenizerError(f"{PREFIX}{name} is missing")
    if hasattr(value, "raws"):
        joined: bytes = value.joined()
        if joined.count(b"\0") == len(value):
            # One decoding of them all is several times faster than one of each.
            strings = joined.decode("utf-8", "surrogateescape").split("\0")
            del strings[0]
            return strings
        return [raw.partition(b"\0")[0].decode("utf-8", "surrogateescape") for raw in value.raws()]
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise _wrong_type(name, value, "an array of strings")
    strings = list(value)
    for index, text in enumerate(strings):
        if not isinstance(text, str):
            raise _wrong_type(f"{name}[{index}]", text, "a string")
    return [text.partition("\0")[0] for text in strings]


def _wrong_type(name: str, value: object, expected: str) -> TokenizerError:
    if isinstance(value, np.ndarray):
        found = f"an array of {value.dtype}"
    elif isinstance(value, str):
        found = f"str {quoted(value)}"
    else:
        found = f"{type(value).__name__} {value!r:.80}"
    return TokenizerError(f"{PREFIX}{name} must be {expected}, but is {found}")
