"""/v1/completions: OpenAI's text completion, whole and streamed. The whole answer is the stream, joined."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bloomery.interface.tokenizer import Tokenizer
from bloomery.server.events import Finish, PromptProgress, Token
from bloomery.server.render.characters import Characters
from bloomery.server.render.openai import FINISH_REASONS, Frame, usage
from bloomery.server.render.timings import RunningTimings, progress_json, timings_json


class TextCompletionRenderer:
    """The events of a request's choices, as the objects of its stream."""

    def __init__(self, frame: Frame, tokenizer: Tokenizer) -> None:
        self._frame = frame
        self._characters = [Characters(tokenizer) for _ in range(frame.options.n)]
        self._timings = [RunningTimings() for _ in range(frame.options.n)]
        self._finishes: dict[int, Finish] = {}

    def render(self, choice: int, event: PromptProgress | Token | Finish) -> list[dict[str, Any]]:
        """The objects an event of a choice adds to the stream."""
        timings = self._timings[choice]
        if isinstance(event, PromptProgress):
            timings.prompt(event)
            if not self._frame.options.return_progress:
                return []
            return [self._piece(choice, "") | {"prompt_progress": progress_json(event)}]
        if isinstance(event, Token):
            timings.token()
            return [self._piece(choice, event.text)] if self._characters[choice].whole_after(event) else []
        self._finishes[choice] = event
        pieces = [self._piece(choice, event.text)] if event.text else []
        return [*pieces, self._last(choice, event)]

    def _piece(self, choice: int, text: str) -> dict[str, Any]:
        piece = self._frame.text_object([_part(choice, text)])
        if self._frame.options.timings_per_token:
            piece["timings"] = timings_json(self._timings[choice].now())
        return piece

    def _last(self, choice: int, finish: Finish) -> dict[str, Any]:
        """A choice's last object; the one that ends the stream says what the request cost."""
        parts = [_part(choice, "", FINISH_REASONS[finish.stop_type])]
        if len(self._finishes) < self._frame.options.n:
            return self._frame.text_object(parts)
        cost = self._frame.text_object(parts, usage(self._finishes))
        return cost | {"timings": timings_json(self._finishes[0].timings)}


def _part(choice: int, text: str, finish_reason: str | None = None) -> dict[str, Any]:
    return {"text": text, "index": choice, "logprobs": None, "finish_reason": finish_reason}


def whole(objects: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The answer that a stream's objects make together."""
    choices: dict[int, dict[str, Any]] = {}
    last: dict[str, Any] = {}
    for last in objects:
        (part,) = last["choices"]
        choice = choices.setdefault(part["index"], part | {"text": ""})
        choice["text"] += part["text"]
        choice["finish_reason"] = part["finish_reason"]
    return last | {"choices": [choices[index] for index in sorted(choices)]}
