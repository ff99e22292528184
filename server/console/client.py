"""A client of `/v1/chat/completions` that takes an answer piece by piece. It works with any llama-server."""

from __future__ import annotations

import http.client
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

from bloomery.interface.quoted import one_line

_CONNECT_SECONDS = 10.0
# A server sends a piece of text at a time; a line or an error past these bounds is no answer.
_MAX_LINE_BYTES = 1 << 24
_MAX_ERROR_BYTES = 1 << 16
_DATA = b"data: "

Message: TypeAlias = Mapping[str, str]


class ChatError(Exception):
    """A question the server did not answer; the message is the server's own where it gave one."""


class ServerGoneError(ChatError):
    """There is no server at the address, or it went away, or what it sends is no answer of a chat server's."""


@dataclass(frozen=True)
class Piece:
    """A part of an answer: text, a part of its reasoning, or, last, why it ended."""

    kind: Literal["content", "reasoning", "finish"]
    text: str


@dataclass(frozen=True)
class Address:
    """Where a server is: its host, port and path, and the key it asks for."""

    secure: bool
    host: str
    port: int | None
    path: str
    key: str | None = field(repr=False)

    def __str__(self) -> str:
        port = "" if self.port is None else f":{self.port}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.secure else 'http'}://{host}{port}{self.path}"


def read_address(url: str, key: str | None) -> Address:
    """The address of a URL, with or without OpenAI's `/v1` at its end.  Raises ValueError with what it takes."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise ValueError("it takes an address such as http://127.0.0.1:8080")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("an address has no spaces, control characters or letters beyond ASCII")
    path = parts.path.rstrip("/").removesuffix("/v1")
    return Address(parts.scheme == "https", parts.hostname, parts.port, path, key)


def ask(server: Address, messages: Sequence[Message]) -> Generator[Piece, None, None]:
    """Send a conversation and yield the answer as it comes; closing it ends the answer on the server.

    Raises ChatError for a request that the server refuses or gives up, and ServerGoneError.
    """
    kind = http.client.HTTPSConnection if server.secure else http.client.HTTPConnection
    connection = kind(server.host, server.port, timeout=_CONNECT_SECONDS)
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
    if server.key is not None:
        headers["Authorization"] = f"Bearer {server.key}"
    body = json.dumps({"messages": list(messages), "stream": True}).encode()
    try:
        connection.connect()
        # Nothing comes while a long prompt is read.
        connection.sock.settimeout(None)
        connection.request("POST", f"{server.path}/v1/chat/completions", body, headers)
        # The response holds the socket as well, and the server goes on answering until both are closed.
        with connection.getresponse() as response:
            yield from _answer(response)
    except (OSError, http.client.HTTPException) as error:
        raise ServerGoneError(str(error) or type(error).__name__) from None
    finally:
        connection.close()


def _answer(response: http.client.HTTPResponse) -> Iterator[Piece]:
    if response.status != http.client.OK:
        raise ChatError(_refusal(response))
    while line := response.readline(_MAX_LINE_BYTES + 1):
        if len(line) > _MAX_LINE_BYTES:
            raise ServerGoneError("it sent an event too long to be a piece of an answer")
        # Other lines are empty, or comments that keep the connection alive.
        if line.startswith(_DATA):
            data = line.removeprefix(_DATA).strip()
            if data == b"[DONE]":
                return
            yield from _pieces(data)
    raise ServerGoneError("it ended the stream before the end of the answer")


def _refusal(response: http.client.HTTPResponse) -> str:
    body = response.read(_MAX_ERROR_BYTES)
    try:
        return _error_message(json.loads(body)) or f"{response.status} {one_line(response.reason)}"
    except (ValueError, RecursionError):
        return f"{response.status} {one_line(response.reason)}"


def _error_message(value: Any) -> str | None:
    """The message of a server's error object; None when there is none."""
    error = value.get("error") if isinstance(value, dict) else None
    if isinstance(error, dict) and isinstance(message := error.get("message"), str):
        return message
    return None if error is None else "it sent an error without a message"


def _pieces(data: bytes) -> Iterator[Piece]:
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        raise ServerGoneError("it sent an event that is no JSON") from None
    if message := _error_message(event):
        raise ChatError(message)
    choices = event.get("choices") if isinstance(event, dict) else None
    for choice in choices if isinstance(choices, list) else []:
        if not isinstance(choice, dict):
            continue
        delta = choice.get("delta")
        if isinstance(delta, dict):
            if isinstance(text := delta.get("reasoning_content"), str) and text:
                yield Piece("reasoning", text)
            if isinstance(text := delta.get("content"), str) and text:
                yield Piece("content", text)
        if isinstance(reason := choice.get("finish_reason"), str):
            yield Piece("finish", reason)
