"""The wire client against servers that answer canned bytes."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.conformance.wire import Answer, KeptConnection, WireError, ask


@contextmanager
def answering(*pieces: bytes) -> Iterator[tuple[tuple[str, int], list[bytes]]]:
    """A server for one connection: reads a request's head and stated body, sends the pieces, closes. Yields its address
    and, once it has answered, what it read."""
    seen: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as stream:
            head = b"".join(iter(stream.readline, b"\r\n"))
            stated = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            body = stream.read(int(stated[0].split(b":")[1])) if stated else b""
            seen.append(head + b"\r\n" + body)
            for piece in pieces:
                connection.sendall(piece)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname(), seen
    finally:
        thread.join(10)
        listener.close()


def answer_to(*pieces: bytes, method: str = "GET") -> Answer:
    with answering(*pieces) as (address, _):
        return ask(address, method, "/", timeout=10)


def test_a_body_of_stated_length() -> None:
    answer = answer_to(b"HTTP/1.1 404 Not Found\r\nServer: x\r\nContent-Length: 3\r\n\r\nabc")
    assert (answer.status, answer.reason, answer.body, answer.chunks) == (404, "Not Found", b"abc", None)
    assert answer.headers == (("Server", "x"), ("Content-Length", "3"))
    assert answer.header("content-LENGTH") == "3"
    assert answer.header("Absent") is None


def test_a_body_that_ends_with_the_connection() -> None:
    assert answer_to(b"HTTP/1.0 200 OK\r\n\r\n", b"ab", b"c").body == b"abc"


def test_an_answer_without_a_body() -> None:
    assert answer_to(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", method="HEAD").body == b""
    assert answer_to(b"HTTP/1.1 204 No Content\r\n\r\n").body == b""


@settings(max_examples=25, deadline=None)
@given(chunks=st.lists(st.binary(min_size=1, max_size=40), max_size=6), cut=st.integers(0, 400))
def test_chunks_come_as_they_were_cut_however_they_travel(chunks: list[bytes], cut: int) -> None:
    whole = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    whole += b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    answer = answer_to(whole[:cut], whole[cut:])
    assert answer.chunks == tuple(chunks)
    assert answer.body == b"".join(chunks)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"HTTP/1.1 200",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabXX0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n",
    ],
)
def test_an_answer_that_is_not_whole_is_an_error(sent: bytes) -> None:
    with pytest.raises(WireError):
        answer_to(sent)


def test_what_is_sent() -> None:
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as (address, seen):
        ask(address, "POST", "/x?y", b"body", [("A", "b")], timeout=10)
    assert seen == [
        b"POST /x?y HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nA: b\r\nContent-Length: 4\r\n\r\nbody"
    ]


@contextmanager
def keeping(*connections: tuple[bytes, ...]) -> Iterator[tuple[str, int]]:
    """A server that gives each connection its answers, one a request without a body, and then closes it."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for answers in connections:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as stream:
                for answer in answers:
                    assert b"".join(iter(stream.readline, b"\r\n")).endswith(b"\r\n")
                    connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()
    finally:
        thread.join(10)
        listener.close()


STATED = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n%d!"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n%d!\r\n0\r\n\r\n"


def test_a_kept_connection_asks_again_on_the_same_one() -> None:
    with keeping((STATED % 1, CHUNKED % 2, STATED % 3)) as address, KeptConnection(address, timeout=10) as kept:
        assert [kept.ask("GET", "/").body for _ in range(3)] == [b"1!", b"2!", b"3!"]
        assert kept.opened == 1


def test_another_is_opened_after_the_server_closed_or_said_so() -> None:
    told = b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 2\r\n\r\n1!"
    with keeping((told,), (STATED % 2,), (STATED % 3,)) as address, KeptConnection(address, timeout=10) as kept:
        assert kept.ask("GET", "/").body == b"1!"
        assert kept.ask("GET", "/").body == b"2!"
        assert kept._connection is not None
        # The end of an idle connection arrives when it does; after it the next request takes another one.
        assert select.select([kept._connection], [], [], 10)[0]
        assert kept.ask("GET", "/").body == b"3!"
        assert kept.opened == 3


def test_a_kept_connection_that_fails_is_closed() -> None:
    short = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n1!"
    with keeping((short,), (STATED % 2,)) as address, KeptConnection(address, timeout=10) as kept:
        with pytest.raises(WireError, match="the body ends after 2 of 9 bytes"):
            kept.ask("GET", "/")
        assert kept.ask("GET", "/").body == b"2!"
