"""What a client sent is text, whatever it spells.

A chat template writes the special tokens of a conversation: the marks of its turns, of tool calls, of reasoning. A
client that spells one of them in a message, a name, a tool's schema or a template variable means the characters. So
every string a client controls is marked before the render (`Sourced`), and after it only the template's own stretches
may become special tokens. An assistant's content and reasoning are exempt: they are the model's own past output, and
keep the special tokens it wrote.

A template that builds a spelling of its own pieces around a client's string (`'<' ~ key ~ '>'`) has built text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from bloomery.server.chat.sourced import CLIENT, client, origin_of, plain

_RUN = re.compile(rb"\x00+|\x01+")
_MODELS_OWN = frozenset(("content", "reasoning_content"))


def marked(value: Any) -> Any:
    """A copy of a JSON value in which every string, keys included, is the client's."""
    if isinstance(value, str):
        return client(value)
    if isinstance(value, Mapping):
        return {client(key): marked(held) for key, held in value.items()}
    if isinstance(value, Sequence):
        return [marked(held) for held in value]
    return value


def marked_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a message with all strings marked that its author controls.

    The names of a message's own fields are not the client's: they are the API's.
    """
    models = _MODELS_OWN if message.get("role") == "assistant" else frozenset[str]()
    return {key: _models_own(held) if key in models else marked(held) for key, held in message.items()}


def _models_own(value: Any) -> Any:
    """An assistant's content as it is; of content in parts, the text."""
    if isinstance(value, list):
        return [{key: held if key == "text" else marked(held) for key, held in part.items()} for part in value]
    return value


def spans(text: str) -> list[tuple[str, bool]]:
    """The stretches of a rendered prompt, and whether special tokens may be read in each. Joined, they are the text."""
    characters = plain(text)
    return [
        (characters[run.start() : run.end()], not run[0].startswith(CLIENT)) for run in _RUN.finditer(origin_of(text))
    ]


def template_tail(text: str) -> str:
    """What the template wrote at the very end, after the last character of a client's."""
    return plain(text)[origin_of(text).rfind(CLIENT) + 1 :]
