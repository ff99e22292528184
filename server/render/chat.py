"""/v1/chat/completions: OpenAI's chat completion, whole and streamed. The whole answer is the stream, joined."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from bloomery.server.chat.deltas import (
    CallArguments,
    CallEnd,
    CallStart,
    ChatDelta,
    ContentDelta,
    ParseFailure,
    ReasoningDelta,
)
from bloomery.server.chat.parser import ChatParser
from bloomery.server.errors import server_error
from bloomery.server.events import Finish, PromptProgress, Token
from bloomery.server.render.openai import FINISH_REASONS, Frame, usage
from bloomery.server.render.probabilities import token_json
from bloomery.server.render.timings import RunningTimings, progress_json, timings_json


@dataclass(frozen=True, kw_only=True)
class Continued:
    """The beginning of the reply that the request itself brought, an assistant's message at the conversation's end."""

    content: str = ""
    reasoning: str = ""


class ChatRenderer:
    """The events of a request's choices, as the chunks of its stream."""

    def __init__(self, frame: Frame, parsers: list[ChatParser], continued: Continued) -> None:
        """`parsers` has a fresh one for each choice."""
        self._frame = frame
        self._continued = continued
        self._choices = [_Choice(index, frame, parser) for index, parser in enumerate(parsers)]
        self._finishes: dict[int, Finish] = {}

    def render(self, choice: int, event: PromptProgress | Token | Finish) -> list[dict[str, Any]]:
        """The chunks an event of a choice adds to the stream.

        Raises the 500 that names the call when the reply's markup stops being one.
        """
        chunks = self._choices[choice].render(event)
        if not isinstance(event, Finish):
            return chunks
        self._finishes[choice] = event
        if len(self._finishes) < len(self._choices):
            return chunks
        timings = timings_json(self._finishes[0].timings)
        if self._frame.options.include_usage:
            return [*chunks, self._frame.chat_chunk([], usage(self._finishes)) | {"timings": timings}]
        return [*chunks[:-1], chunks[-1] | {"timings": timings}]

    def whole(self, chunks: Iterable[dict[str, Any]]) -> dict[str, Any]:
        """The answer that all chunks of the stream make together.

        Like llama-server's, it begins with the message it continues, which a stream leaves to its client.
        """
        choices: dict[int, dict[str, Any]] = {}
        for chunk in chunks:
            for part in chunk["choices"]:
                _join(choices.setdefault(part["index"], self._beginning(part["index"])), part)
        answer = self._frame.chat_object([choices[index] for index in sorted(choices)], usage(self._finishes))
        return answer | {"timings": timings_json(self._finishes[0].timings)}

    def _beginning(self, index: int) -> dict[str, Any]:
        message = {"role": "assistant", "content": self._continued.content}
        if self._continued.reasoning:
            message["reasoning_content"] = self._continued.reasoning
        choice: dict[str, Any] = {"finish_reason": None, "index": index, "message": message}
        return choice | {"logprobs": {"content": []}} if self._frame.options.n_probs else choice


class _Choice:
    """One choice of the stream."""

    def __init__(self, index: int, frame: Frame, parser: ChatParser) -> None:
        self._index = index
        self._frame = frame
        self._parser = parser
        self._timings = RunningTimings()
        self._begun = False
        self._called = False
        self._logprobs: list[dict[str, Any]] = []

    def render(self, event: PromptProgress | Token | Finish) -> list[dict[str, Any]]:
        if isinstance(event, PromptProgress):
            return self._progress(event)
        return self._token(event) if isinstance(event, Token) else self._finish(event)

    def _token(self, token: Token) -> list[dict[str, Any]]:
        self._timings.token()
        if (entry := token_json(token)) is not None:
            self._logprobs.append(entry)
        chunks = [*self._begin(), *self._deltas(self._parser.feed(token.text, token.special))]
        # An id whose text is not out yet, or is no text, comes with a later chunk of whatever kind.
        if chunks:
            self._take_logprobs(chunks[-1])
        return chunks

    def _finish(self, finish: Finish) -> list[dict[str, Any]]:
        chunks = self._begin()
        if finish.text:
            chunks += self._deltas(self._parser.feed(finish.text, False))
        chunks += self._deltas(self._parser.finish(finish.stop_type))
        reason = FINISH_REASONS[finish.stop_type]
        chunks.append(self._chunk({}, "tool_calls" if self._called and reason == "stop" else reason))
        self._take_logprobs(chunks[0])
        return chunks

    def _progress(self, progress: PromptProgress) -> list[dict[str, Any]]:
        self._timings.prompt(progress)
        if not self._frame.options.return_progress:
            return []
        (chunk,) = self._begin() or [self._chunk({})]
        return [chunk | {"prompt_progress": progress_json(progress)}]

    def _begin(self) -> list[dict[str, Any]]:
        """The chunk that names the role, before anything else of the choice."""
        if self._begun:
            return []
        self._begun = True
        return [self._chunk({"role": "assistant", "content": None})]

    def _deltas(self, deltas: Iterable[ChatDelta]) -> list[dict[str, Any]]:
        chunks = []
        begun: dict[str, Any] | None = None
        for delta in deltas:
            # What comes with a call's name goes into the same chunk.
            opening, begun = begun, None
            match delta:
                case ReasoningDelta():
                    chunks.append(self._chunk({"reasoning_content": delta.text}))
                case ContentDelta():
                    chunks.append(self._chunk({"content": delta.text}))
                case CallStart():
                    self._called = True
                    begun = {"name": delta.name, "arguments": ""}
                    call = {"index": delta.index, "id": delta.id, "type": "function", "function": begun}
                    chunks.append(self._chunk({"tool_calls": [call]}))
                case CallArguments() if opening is not None:
                    opening["arguments"] = delta.text
                case CallArguments():
                    call = {"index": delta.index, "function": {"arguments": delta.text}}
                    chunks.append(self._chunk({"tool_calls": [call]}))
                case CallEnd():
                    pass
                case ParseFailure():
                    raise server_error(delta.message)
        return chunks

    def _take_logprobs(self, chunk: dict[str, Any]) -> None:
        if self._logprobs:
            chunk["choices"][0]["logprobs"] = {"content": self._logprobs}
            self._logprobs = []

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        part = {"finish_reason": finish_reason, "index": self._index, "delta": delta}
        chunk = self._frame.chat_chunk([part])
        if finish_reason is None and self._frame.options.timings_per_token:
            chunk["timings"] = timings_json(self._timings.now())
        return chunk


def _join(choice: dict[str, Any], part: dict[str, Any]) -> None:
    """Add one chunk's part to the choice it belongs to."""
    message, delta = choice["message"], part["delta"]
    message["content"] += delta.get("content") or ""
    if "reasoning_content" in delta:
        message["reasoning_content"] = message.get("reasoning_content", "") + delta["reasoning_content"]
    for call in delta.get("tool_calls", ()):
        calls = message.setdefault("tool_calls", [])
        if "id" in call:
            function = {"name": call["function"]["name"], "arguments": ""}
            calls.append({"type": "function", "function": function, "id": call["id"]})
        calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    if "logprobs" in part:
        choice["logprobs"]["content"] += part["logprobs"]["content"]
    choice["finish_reason"] = part["finish_reason"]
