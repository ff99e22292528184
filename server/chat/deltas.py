"""What a reply says, piece by piece: the one stream that every chat API renders.

Whole answers are these deltas concatenated (`Reply`), so a stream and a whole answer cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True)
class ReasoningDelta:
    """More of what the model thinks; never empty."""

    text: str


@dataclass(frozen=True)
class ContentDelta:
    """More of what the model says; never empty."""

    text: str


@dataclass(frozen=True)
class CallStart:
    """A tool call whose name is whole. `index` counts the reply's calls from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class CallArguments:
    """More of a call's arguments, as JSON text in the model's own spelling; never empty."""

    index: int
    text: str


@dataclass(frozen=True)
class CallEnd:
    """A call that closed. A call that the token limit cut has none."""

    index: int


@dataclass(frozen=True)
class ParseFailure:
    """Markup that is no call, or a call that never ended; the message names it. Nothing follows."""

    message: str


ChatDelta: TypeAlias = ReasoningDelta | ContentDelta | CallStart | CallArguments | CallEnd | ParseFailure


@dataclass
class Call:
    """A tool call; `closed` is False when the token limit cut it."""

    id: str
    name: str
    arguments: str = ""
    closed: bool = False


@dataclass
class Reply:
    """A whole answer."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)
    failure: str | None = None


def collect(deltas: Iterable[ChatDelta]) -> Reply:
    """The whole answer of a stream of deltas."""
    reply = Reply()
    reasoning: list[str] = []
    content: list[str] = []
    arguments: list[list[str]] = []
    for delta in deltas:
        match delta:
            case ReasoningDelta(text):
                reasoning.append(text)
            case ContentDelta(text):
                content.append(text)
            case CallStart(_, id=call_id, name=name):
                reply.calls.append(Call(call_id, name))
                arguments.append([])
            case CallArguments(index, text):
                arguments[index].append(text)
            case CallEnd(index):
                reply.calls[index].closed = True
            case ParseFailure(message):
                reply.failure = message
    reply.reasoning = "".join(reasoning)
    reply.content = "".join(content)
    for call, pieces in zip(reply.calls, arguments, strict=True):
        call.arguments = "".join(pieces)
    return reply
