"""Probabilities as llama-server renders them, on its own routes and on OpenAI's."""

from __future__ import annotations

from typing import Any

import numpy as np

from bloomery.interface.tokenizer import complete_length
from bloomery.server.events import Probability, Token

# What a probability of 0 is reported as: JSON has no infinity.
_LOWEST = float(np.finfo(np.float32).min)


def token_json(token: Token) -> dict[str, Any] | None:
    """The entry of one id, None when its probabilities were not asked for."""
    if token.own is None:
        return None
    key = "prob" if token.after_sampling else "logprob"
    return _entry(token.own, key) | {f"top_{key}s": [_entry(each, key) for each in token.best]}


def _entry(probability: Probability, key: str) -> dict[str, Any]:
    return {
        "id": probability.id,
        "token": _text(probability.piece),
        "bytes": list(probability.piece),
        key: max(probability.value, _LOWEST),
    }


def _text(piece: bytes) -> str:
    """A piece as text: a character that only begins in it is left out, other bytes that are no UTF-8 are replaced."""
    return piece[: complete_length(piece)].decode("utf-8", "replace")
