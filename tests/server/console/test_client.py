"""The chat client against servers that answer rightly, badly, or not at all."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.server.console.client import ChatError, Piece, ServerGoneError, ask, read_address

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


class Canned:
    """A server of one answer: whatever it is asked, it sends these bytes and closes."""

    def __init__(self, response: bytes) -> None:
        self.request = b""
        self._response = response
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def _run(self) -> None:
        with self._listener, contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            with connection:
                while b"\r\n\r\n" not in self.request or len(self.body) < self._length():
                    self.request += connection.recv(65536)
                connection.sendall(self._response)

    def _length(self) -> int:
        (line,) = [line for line in self.request.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        return int(line.split(b":")[1])

    @property
    def body(self) -> bytes:
        return self.request.partition(b"\r\n\r\n")[2]

    def close(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()


@contextlib.contextmanager
def canned(response: bytes) -> Iterator[Canned]:
    server = Canned(response)
    try:
        yield server
    finally:
        server.close()


def answer(response: bytes) -> list[Piece]:
    with canned(response) as server:
        return list(ask(read_address(server.url, None), [{"role": "user", "content": "hi"}]))


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def delta(**fields: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": None}]})


def test_an_answer_comes_in_pieces() -> None:
    stream = (
        delta(role="assistant", content=None)
        + delta(reasoning_content="so ")
        + b": still here\n\n"
        + delta(content="Hé")
        + delta(content="llo")
        + event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        + event({"choices": [], "usage": {}})
        + b"data: [DONE]\n\n"
    )
    assert answer(HEAD + stream) == [
        Piece("reasoning", "so "),
        Piece("content", "Hé"),
        Piece("content", "llo"),
        Piece("finish", "stop"),
    ]


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
def test_the_request_has_the_conversation_and_the_key(path: str) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    with canned(HEAD + b"data: [DONE]\n\n") as server:
        assert list(ask(read_address(server.url + path, "sk-1"), messages)) == []
    assert server.request.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert b"\r\nAuthorization: Bearer sk-1\r\n" in server.request
    assert json.loads(server.body) == {"messages": messages, "stream": True}


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (b'HTTP/1.1 400 Bad Request\r\n\r\n{"error": {"code": 400, "message": "too long"}}', "too long"),
        (b"HTTP/1.1 500 Oh no\r\n\r\n<html>", "500 Oh no"),
        (b"HTTP/1.1 404 Not Found\r\n\r\n[]", "404 Not Found"),
        (HEAD + delta(content="a") + event({"error": {"message": "the engine failed"}}), "the engine failed"),
        (HEAD + event({"error": 7}), "an error without a message"),
    ],
)
def test_a_refusal_is_in_the_servers_words(response: bytes, message: str) -> None:
    with pytest.raises(ChatError, match=message) as caught:
        answer(response)
    assert not isinstance(caught.value, ServerGoneError)


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (HEAD + delta(content="a"), "before the end of the answer"),
        (HEAD, "before the end of the answer"),
        (HEAD + b"data: {\n\n", "no JSON"),
        (HEAD + b"data: " + b"[" * 100_000 + b"\n\n", "no JSON"),
        (b"", "without response"),
        (b"SSH-2.0\r\n\r\n", "SSH"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nda", "Incomplete"),
    ],
)
def test_a_server_that_goes_away_or_is_none_is_told_from_a_refusal(response: bytes, message: str) -> None:
    with pytest.raises(ServerGoneError, match=message):
        answer(response)


def test_no_server_at_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ServerGoneError, match="refused"):
        list(ask(read_address(f"http://127.0.0.1:{port}", None), []))


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:8080", "ftp://a", "http://", "http://a:b", "http://u:p@a", "http://a?b", "http://a/ b", "http://é"],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"address|[Pp]ort"):
        read_address(url, None)


def test_an_address_is_shown_without_its_key() -> None:
    address = read_address("https://[::1]:8443/models/v1", "sk-very-secret")
    assert str(address) == "https://[::1]:8443/models"
    assert "secret" not in repr(address)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["choices", "delta", "content", "reasoning_content", "finish_reason", "error", "message"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=60)
@given(st.lists(_JSON, max_size=3))
def test_any_events_are_pieces_or_a_named_end(values: list[Any]) -> None:
    try:
        pieces = answer(HEAD + b"".join(map(event, values)) + b"data: [DONE]\n\n")
    except ChatError as error:
        assert str(error)
    else:
        assert all(piece.text or piece.kind == "finish" for piece in pieces)
