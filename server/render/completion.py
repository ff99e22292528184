"""/completion: llama-server's own answer, whole and streamed. The whole answer is the stream, joined."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from bloomery.interface.tokenizer import Tokenizer
from bloomery.server.events import Finish, PromptProgress, Token
from bloomery.server.fields import Options
from bloomery.server.render.characters import Characters
from bloomery.server.render.probabilities import token_json
from bloomery.server.render.settings import generation_settings
from bloomery.server.render.timings import RunningTimings, progress_json, timings_json

_MISSING = object()


@dataclass(frozen=True, kw_only=True)
class CompletionFacts:
    """What the answer repeats of the request.

    prompt: the prompt's ids as text.  banned: the ids that the request's `ignore_eos` keeps out.
    """

    model: str
    options: Options
    prompt: str
    n_prompt: int
    banned: tuple[int, ...] = ()


class CompletionRenderer:
    """The events of one generation, as the objects of its stream."""

    def __init__(self, facts: CompletionFacts, tokenizer: Tokenizer) -> None:
        self._facts = facts
        self._characters = Characters(tokenizer)
        self._timings = RunningTimings()
        self._ids: list[int] = []
        self._probabilities: list[dict[str, Any]] = []
        self._n = 0

    def render(self, event: PromptProgress | Token | Finish) -> list[dict[str, Any]]:
        """The objects an event adds to the stream, the last one for a `Finish`."""
        if isinstance(event, PromptProgress):
            return self._progress(event)
        if isinstance(event, Token):
            return self._token(event)
        objects = [self._piece(event.text)] if event.text or self._ids else []
        final = self._final(event)
        return [*objects, selected(final, self._facts.options) if self._facts.options.stream else final]

    def _progress(self, progress: PromptProgress) -> list[dict[str, Any]]:
        self._timings.prompt(progress)
        if not self._facts.options.return_progress:
            return []
        return [self._piece("") | {"prompt_progress": progress_json(progress)}]

    def _token(self, token: Token) -> list[dict[str, Any]]:
        self._n += 1
        self._timings.token()
        self._ids.append(token.id)
        if (probabilities := token_json(token)) is not None:
            self._probabilities.append(probabilities)
        # The ids of a character come together, with the last of them, as its text does.
        return [self._piece(token.text)] if self._characters.whole_after(token) else []

    def _piece(self, text: str) -> dict[str, Any]:
        piece: dict[str, Any] = {
            "index": 0,
            "content": text,
            "tokens": self._ids,
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": self._n,
            "tokens_evaluated": self._facts.n_prompt,
        }
        if self._facts.options.timings_per_token:
            piece["timings"] = timings_json(self._timings.now())
        if self._probabilities:
            piece["completion_probabilities"] = self._probabilities
        self._ids, self._probabilities = [], []
        return piece

    def _final(self, finish: Finish) -> dict[str, Any]:
        return {
            "index": 0,
            "content": "",
            "tokens": [],
            "id_slot": finish.id_slot,
            "stop": True,
            "model": self._facts.model,
            "tokens_predicted": finish.n_decoded,
            "tokens_evaluated": finish.n_prompt,
            "generation_settings": generation_settings(self._facts.options, self._facts.banned),
            "prompt": self._facts.prompt,
            "has_new_line": finish.has_new_line,
            "truncated": finish.truncated,
            "stop_type": finish.stop_type,
            "stopping_word": finish.stopping_word,
            "stopped_eos": finish.stop_type == "eos",
            "stopped_word": finish.stop_type == "word",
            "stopped_limit": finish.stop_type == "limit",
            "tokens_cached": finish.n_past,
            "timings": timings_json(finish.timings),
        }


def whole(objects: Iterable[dict[str, Any]], options: Options) -> dict[str, Any]:
    """The answer that a stream's objects make together: the last one, with the texts, ids and probabilities of all.

    The ids are listed when they were asked for, which a stream does not wait for.
    """
    content: list[str] = []
    tokens: list[int] = []
    probabilities: list[dict[str, Any]] = []
    last: dict[str, Any] = {}
    for last in objects:
        content.append(last["content"])
        tokens.extend(last["tokens"])
        probabilities.extend(last.get("completion_probabilities", ()))
    answer = last | {"content": "".join(content), "tokens": tokens if options.return_tokens else []}
    return selected(answer | {"completion_probabilities": probabilities} if probabilities else answer, options)


def selected(answer: dict[str, Any], options: Options) -> dict[str, Any]:
    """What `response_fields` leaves of an answer: the values at its paths, each under its path, missing ones left out.

    (llama.cpp, tools/server/server-task.cpp.)
    """
    if not options.response_fields:
        return answer
    found: dict[str, Any] = {}
    for path in options.response_fields:
        value: Any = answer
        for key in path.split("/"):
            value = value.get(key, _MISSING) if isinstance(value, dict) else _MISSING
        if value is not _MISSING:
            found[path] = value
    return found
