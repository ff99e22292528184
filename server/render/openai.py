"""What OpenAI's two completion APIs have in common: the frame of every object, and what a request cost."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from bloomery.server.events import Finish, StopType
from bloomery.server.fields import Options

FINISH_REASONS: dict[StopType, Literal["stop", "length"]] = {"eos": "stop", "word": "stop", "limit": "length"}


def new_id(prefix: str) -> str:
    """An answer's id: the prefix and 32 hexadecimal digits that nobody can guess."""
    return f"{prefix}-{secrets.token_hex(16)}"


def now() -> int:
    """Unix time in whole seconds."""
    return int(time.time())


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What every object of one answer repeats.

    fingerprint: the server's build.  created: Unix time in seconds.
    """

    id: str
    model: str
    fingerprint: str
    options: Options
    created: int = field(default_factory=now)

    def text_object(self, choices: list[dict[str, Any]], cost: dict[str, Any] | None = None) -> dict[str, Any]:
        """An object of /v1/completions, its keys in llama-server's order; `cost` is the request's usage."""
        return {"choices": choices, **self._head("text_completion"), **_usage(cost), "id": self.id}

    def chat_object(self, choices: list[dict[str, Any]], cost: dict[str, Any]) -> dict[str, Any]:
        """The whole answer of /v1/chat/completions."""
        return {"choices": choices, **self._head("chat.completion"), **_usage(cost), "id": self.id}

    def chat_chunk(self, choices: list[dict[str, Any]], cost: dict[str, Any] | None = None) -> dict[str, Any]:
        """A chunk of a /v1/chat/completions stream."""
        head = {"created": self.created, "id": self.id} | self._head("chat.completion.chunk")
        return {"choices": choices, **head, **_usage(cost)}

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "object": kind,
        }


def _usage(cost: dict[str, Any] | None) -> dict[str, Any]:
    return {} if cost is None else {"usage": cost}


def usage(finishes: Mapping[int, Finish]) -> dict[str, Any]:
    """`usage` of a request: its prompt once, and the ids of every choice. `finishes` are by the choices' indices."""
    first = finishes[min(finishes)]
    completion = sum(finish.n_decoded for finish in finishes.values())
    return {
        "completion_tokens": completion,
        "prompt_tokens": first.n_prompt,
        "total_tokens": first.n_prompt + completion,
        "prompt_tokens_details": {"cached_tokens": first.timings.cache_n},
    }
