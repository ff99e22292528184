"""The prompt of the completion routes: a text, ids, or a mix of both, as llama-server tokenizes them."""

from __future__ import annotations

from typing import Any

from bloomery.interface.tokenizer import Tokenizer
from bloomery.server.errors import ApiError, invalid_request

_SHAPES = "'prompt' must be a string, an array of token ids, or an array of strings and token ids"


def read_prompt(body: dict[str, Any], tokenizer: Tokenizer) -> tuple[int, ...]:
    """The ids of a request's one prompt. Special tokens are parsed in its texts: the prompt is the client's own.

    Raises a 400 naming `prompt` when it is missing, empty, of another shape, or several prompts.
    """
    if "prompt" not in body:
        raise _refused("[json.exception.out_of_range.403] key 'prompt' not found")
    parts = _one_prompt(body["prompt"])
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, str | int):
            raise _refused(_SHAPES)
    ids: list[int] = []
    for index, part in enumerate(parts):
        if isinstance(part, int):
            ids.append(_checked(part, tokenizer))
        else:
            # Only the prompt's own beginning gets what the vocabulary puts there.
            ids += tokenizer.encode(part, add_special=index == 0, parse_special=True)
    if not ids:
        raise _refused("the prompt is empty")
    return tuple(ids)


def _one_prompt(value: Any) -> list[Any]:
    """The texts and ids of the one prompt a value stands for."""
    if isinstance(value, dict):
        if value.get("multimodal_data"):
            raise _refused("Multimodal data provided, but model does not support multimodal requests.")
        value = value.get("prompt_string")
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise _refused(_SHAPES)
    if len(value) == 1 and isinstance(value[0], list | dict):
        return _one_prompt(value[0])
    if len(value) > 1 and not any(isinstance(part, int) for part in value):
        raise _refused("several prompts in one request are not supported; send one request for each")
    return value


def _checked(token: int, tokenizer: Tokenizer) -> int:
    if not 0 <= token < tokenizer.n_vocab:
        raise _refused(f"invalid token id {token}: the vocabulary has ids 0 to {tokenizer.n_vocab - 1}")
    return token


def _refused(message: str) -> ApiError:
    return invalid_request(message, "prompt")
