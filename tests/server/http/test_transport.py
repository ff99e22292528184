"""The server on real sockets: what is judged before a body is read, what a connection may do, and how it ends."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import threading
import zlib
from collections.abc import Callable

import pytest

from bloomery.server import request_parser
from bloomery.server.auth import ApiKeys
from bloomery.server.scheduler import Scheduler
from bloomery.server.stream import Stream
from bloomery.server.transport import HttpServer, TransportSettings
from tests.server.http.serving import get, listening, post, read_all, read_answer, wait_for
from tests.server.scripted import ScriptedEngine, answering, served

KEY = "sk-räksmörgås"
UNAUTHORIZED = {"error": {"code": 401, "message": "Invalid API Key", "type": "authentication_error"}}


def body_of(answer: bytes) -> object:
    return json.loads(answer.partition(b"\r\n\r\n")[2])


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def test_a_connection_is_kept_between_requests() -> None:
    with listening(served(answering({"A": "yes"}))) as server, server.connect() as connection:
        for _ in range(3):
            connection.sendall(get("/health"))
            head, body = read_answer(connection)
            assert json.loads(body) == {"status": "ok"}
            assert b"Server: bloomery-serve" in head
            assert b"Keep-Alive: timeout=5" in head
        connection.sendall(post("/completion", {"prompt": "A", "temperature": 0}))
        assert json.loads(read_answer(connection)[1])["content"] == "yes"
        connection.sendall(post("/completion", {"prompt": 5}))
        assert json.loads(read_answer(connection)[1])["error"]["param"] == "prompt"
        connection.sendall(get("/health"))
        assert json.loads(read_answer(connection)[1]) == {"status": "ok"}


def test_a_connection_is_kept_after_a_stream() -> None:
    body = {"prompt": "A", "temperature": 0, "stream": True}
    with listening(served(answering({"A": "yes"}))) as server, server.connect() as connection:
        for _ in range(2):
            connection.sendall(post("/completion", body))
            received = b""
            while not received.endswith(b"\r\n0\r\n\r\n"):
                data = connection.recv(65536)
                assert data, f"the connection closed after {received!r}"
                received += data
            head = received.partition(b"\r\n\r\n")[0]
            assert b"Transfer-Encoding: chunked" in head
            assert b"Connection: close" not in head
            assert b"Keep-Alive: timeout=5" in head
        connection.sendall(post("/completion", body, "Connection: close"))
        assert b"Connection: close" in read_all(connection)


def test_head_has_the_headers_of_get_and_no_body() -> None:
    with listening(served()) as server, server.connect() as connection:
        connection.sendall(b"HEAD /health HTTP/1.1\r\nHost: t\r\n\r\n" + get("/health", "Connection: close"))
        answer = read_all(connection)
        first, second = answer.split(b"HTTP/1.1 200 OK\r\n")[1:]
        assert b"Content-Length: 15\r\n" in first
        assert first.endswith(b"\r\n\r\n")
        assert second.endswith(b'{"status":"ok"}')


def test_a_stream_is_chunked_and_arrives_as_it_is_made() -> None:
    engine = ScriptedEngine(answering({"A": "abc"}), held=True)
    with listening(served(engine=engine)) as server, server.connect() as connection:
        connection.sendall(post("/completion", {"prompt": "A", "temperature": 0, "stream": True}))
        engine.allow()
        received = b""
        while b'"content":"a"' not in received:
            received += connection.recv(65536)
        assert b"Transfer-Encoding: chunked" in received
        assert b"Content-Type: text/event-stream" in received
        assert b'"content":"b"' not in received
        engine.free()
        received += read_all(connection)
        assert received.endswith(b"\r\n0\r\n\r\n")


def test_http_1_0_gets_a_stream_that_ends_with_the_connection() -> None:
    with listening(served(answering({"A": "ab"}))) as server:
        request = post("/v1/completions", {"prompt": "A", "temperature": 0, "stream": True})
        answer = server.exchange(request.replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        assert answer.startswith(b"HTTP/1.0 200 OK\r\n")
        assert b"chunked" not in answer
        assert answer.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    "header", [f"Authorization: Bearer {KEY}", f"Authorization: {KEY}", f"X-Api-Key: {KEY}", f"X-Api-Key: Bearer {KEY}"]
)
def test_a_key_opens_every_route(header: str) -> None:
    with listening(served(), keys=["other", KEY]) as server, server.connect() as connection:
        connection.sendall("\r\n".join(["GET /props HTTP/1.1", "Host: t", header, "", ""]).encode())
        assert read_answer(connection)[0].startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "request_line",
    [
        "POST /completion", "GET /props", "GET /nope", "HEAD /props", "GET //health", "GET /health/", "GET /HEALTH",
        "GET /%2e/health", "GET /v1/models", "DELETE /v1/chat/completions", "POST //v1//completions",
    ],
)  # fmt: skip
@pytest.mark.parametrize("header", ["", "Authorization: Bearer wrong\r\nX-Api-Key: right\r\n", "X-Api-Key: righ\r\n"])
def test_without_a_key_the_body_is_never_read(request_line: str, header: str) -> None:
    with listening(served(), keys=["right"]) as server, server.connect() as connection:
        # The body is announced and never sent: only a server that does not wait for it can answer.
        head = f"{request_line} HTTP/1.1\r\nHost: t\r\n{header}Content-Length: 1000000\r\nExpect: 100-continue\r\n\r\n"
        connection.sendall(head.encode())
        answer = read_all(connection)
        assert answer.startswith(b"HTTP/1.1 401 Unauthorized\r\n")
        assert b"100 Continue" not in answer
        assert b"Connection: close" in answer
        if not request_line.startswith("HEAD"):
            assert body_of(answer) == UNAUTHORIZED
    (line,) = server.log
    assert line.endswith("from 127.0.0.1: refused, no valid API key")
    assert "righ" not in line


def test_what_follows_a_refused_head_is_not_another_request() -> None:
    with listening(served(), keys=["right"]) as server:
        smuggled = get("/props", "X-Api-Key: right")
        answer = server.exchange(post("/completion", smuggled))
        assert answer.count(b"HTTP/1.1") == 1
        assert status_of(answer) == 401


@pytest.mark.parametrize("start", ["GET /health", "GET /v1/health", "OPTIONS /completion", "OPTIONS /nope"])
def test_public_requests_need_no_key(start: str) -> None:
    with listening(served(), keys=["right"]) as server:
        answer = server.exchange(f"{start} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n".encode())
        assert status_of(answer) == 200


def test_a_public_request_with_a_body_is_answered_from_its_head_and_ends_the_connection() -> None:
    with listening(served(), keys=["right"]) as server:
        body = get("/props", "X-Api-Key: right")
        answer = server.exchange(get("/health", f"Content-Length: {len(body)}") + body)
        assert answer.count(b"HTTP/1.1") == 1
        assert body_of(answer) == {"status": "ok"}
        assert b"Connection: close" in answer


def test_continue_is_sent_when_the_head_is_good() -> None:
    with listening(served(answering({"A": "yes"})), keys=["k"]) as server, server.connect() as connection:
        body = json.dumps({"prompt": "A", "temperature": 0}).encode()
        head = post("/completion", body, "X-Api-Key: k", "Expect: 100-continue").removesuffix(body)
        connection.sendall(head)
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert json.loads(read_answer(connection)[1])["content"] == "yes"


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, deflate"])
def test_an_unknown_coding_is_refused_before_the_body(coding: str) -> None:
    with listening(served()) as server:
        head = post("/completion", b"", f"Content-Encoding: {coding}", "Expect: 100-continue")
        answer = server.exchange(head.replace(b"Content-Length: 0", b"Content-Length: 99"))
        assert status_of(answer) == 415
        assert b"Accept-Encoding: gzip, deflate\r\n" in answer
        assert b"100 Continue" not in answer
        assert server.exchange(get("/health", f"Content-Encoding: {coding}", "Connection: close")).endswith(b"}")


@pytest.mark.parametrize(
    ("coding", "pack"), [("gzip", gzip.compress), ("X-GZIP", gzip.compress), ("deflate", zlib.compress)]
)
def test_a_coded_body_is_read(coding: str, pack: Callable[[bytes], bytes]) -> None:
    with listening(served(answering({"A": "yes"}))) as server, server.connect() as connection:
        body = pack(json.dumps({"prompt": "A", "temperature": 0}).encode())
        connection.sendall(post("/completion", body, f"Content-Encoding: {coding}"))
        assert json.loads(read_answer(connection)[1])["content"] == "yes"
        connection.sendall(post("/completion", body + b"x", f"Content-Encoding: {coding}"))
        head, refusal = read_answer(connection)
        assert head.startswith(b"HTTP/1.1 400")
        assert "past the end" in json.loads(refusal)["error"]["message"]
        # Two headers are a list of two, and a request with no body has no coding to refuse.
        connection.sendall(get("/props", "Content-Encoding: br"))
        assert read_answer(connection)[0].startswith(b"HTTP/1.1 200")
        connection.sendall(post("/completion", body, f"Content-Encoding: {coding}", f"Content-Encoding: {coding}"))
        assert status_of(read_all(connection)) == 415


def test_a_chunked_body_past_the_limit_is_refused() -> None:
    with listening(served()) as server, server.connect() as connection:
        connection.sendall(b"POST /completion HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"100000\r\n" + bytes(1 << 20) + b"\r\n"
        with contextlib.suppress(ConnectionError):
            for _ in range(65):
                connection.sendall(chunk)
        answer = read_all(connection)
        assert status_of(answer) == 400
        assert "67108864 bytes" in json.dumps(body_of(answer))


def test_a_body_past_the_limit_is_refused_before_it_is_sent() -> None:
    with listening(served()) as server:
        head = post("/completion", b"", "Expect: 100-continue")
        answer = server.exchange(head.replace(b"Content-Length: 0", b"Content-Length: 67108865"))
        assert status_of(answer) == 400
        assert "67108864 bytes" in json.dumps(body_of(answer))


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"get / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nbad header\r\n\r\n", 400),
        (b"POST /completion HTTP/1.1\r\nContent-Length: -5\r\n\r\n", 400),
        (b"POST /completion HTTP/1.1\r\nContent-Length: 1, 2\r\n\r\n", 400),
        (b"POST /completion HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"POST /completion HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 300_000, 431),
        (b"GET /\xff\xfe HTTP/1.1\r\n\r\n", 400),
        (b"GET /health?\xff HTTP/1.1\r\n\r\n", 400),
        (b"GET http://[ HTTP/1.1\r\n\r\n", 400),
        (b"POST /tokenize HTTP/1.1\r\nContent-Length: " + b"9" * 10_000 + b"\r\n\r\n{}", 400),
        (
            b"POST /tokenize HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            400,
        ),
    ],
)
def test_what_is_no_http_gets_the_error_object(request_bytes: bytes, status: int) -> None:
    with listening(served()) as server:
        answer = server.exchange(request_bytes)
        assert status_of(answer) == status
        error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        assert set(error) == {"code", "message", "type"}
        assert error["code"] == status
        assert status_of(server.exchange(get("/health", "Connection: close"))) == 200


def test_a_chunked_body_is_read() -> None:
    with listening(served(answering({"A": "yes"}))) as server, server.connect() as connection:
        body = json.dumps({"prompt": "A", "temperature": 0}).encode()
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
        connection.sendall(b"POST /completion HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
        assert json.loads(read_answer(connection)[1])["content"] == "yes"


def test_a_client_that_sends_byte_by_byte_is_served() -> None:
    with listening(served(answering({"A": "yes"}))) as server, server.connect() as connection:
        for byte in post("/completion", {"prompt": "A", "temperature": 0}):
            connection.sendall(bytes([byte]))
        assert json.loads(read_answer(connection)[1])["content"] == "yes"


def test_health_answers_while_every_place_is_taken() -> None:
    engine = ScriptedEngine(n_sequences=2, held=True)
    with listening(served(engine=engine), queue_depth=2) as server, contextlib.ExitStack() as stack:
        streams = [stack.enter_context(server.connect()) for _ in range(4)]
        for connection in streams:
            connection.sendall(post("/completion", {"prompt": "A", "stream": True, "n_predict": 3}))
        wait_for("all are admitted", lambda: admitted(server.scheduler) == 4)
        with server.connect() as connection:
            for _ in range(20):
                connection.sendall(get("/health"))
                assert json.loads(read_answer(connection)[1]) == {"status": "ok"}
            connection.sendall(post("/completion", {"prompt": "A"}))
            head, body = read_answer(connection)
            assert head.startswith(b"HTTP/1.1 503")
            assert b"Retry-After: 1\r\n" in head + b"\r\n"
            assert json.loads(body)["error"]["type"] == "unavailable_error"
        engine.free()
        for connection in streams:
            assert read_all(connection).endswith(b"\r\n0\r\n\r\n")


def admitted(scheduler: Scheduler) -> float:
    """Generations that run or wait."""
    wanted = {"requests_processing", "requests_deferred"}
    return sum(metric.value for metric in scheduler.metrics() if metric.name in wanted)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("reset", [True, False])
def test_a_client_that_goes_away_ends_its_generation(
    stream: bool, reset: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled = threading.Event()
    cancel = Stream.cancel

    def noted_cancel(self: Stream) -> None:
        cancel(self)
        cancelled.set()

    monkeypatch.setattr(Stream, "cancel", noted_cancel)
    engine = ScriptedEngine(held=True)
    with listening(served(engine=engine)) as server:
        connection = server.connect()
        connection.sendall(post("/completion", {"prompt": "A", "stream": stream}))
        engine.allow(3)
        engine.wait_until_held()
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()
        # The server notices while no event comes; then the pass that is held is the last one.
        assert cancelled.wait(30)
        engine.allow()
        wait_for("the slot is idle", lambda: not server.scheduler.slots()[0].is_processing)
        assert len(engine.passes) == 4
        engine.free()


def test_a_client_that_goes_away_ends_every_choice() -> None:
    engine = ScriptedEngine(n_sequences=2, held=True)
    with listening(served(engine=engine)) as server:
        connection = server.connect()
        connection.sendall(post("/v1/completions", {"prompt": "A", "n": 5}))
        wait_for("all are admitted", lambda: admitted(server.scheduler) == 5)
        connection.close()
        wait_for("those that wait are gone", lambda: admitted(server.scheduler) <= 2)
        engine.free()
        wait_for("those that run are gone", lambda: admitted(server.scheduler) == 0)


def test_a_client_that_goes_away_leaves_the_queue() -> None:
    engine = ScriptedEngine(held=True)
    with listening(served(engine=engine)) as server:
        first, second = server.connect(), server.connect()
        first.sendall(post("/completion", {"prompt": "A", "n_predict": 2}))
        engine.wait_until_held()
        second.sendall(post("/completion", {"prompt": "B", "n_predict": 2}))
        wait_for("the second waits", lambda: admitted(server.scheduler) == 2)
        second.close()
        wait_for("the queue is empty", lambda: admitted(server.scheduler) == 1)
        engine.free()
        assert json.loads(read_answer(first)[1])["tokens_predicted"] == 2
        first.close()
        assert all(ids != (ord("B"),) for one in engine.passes for _, ids in one)


def test_connections_past_the_limit_are_told() -> None:
    with listening(served(), connections=2) as server:
        held = [server.connect(), server.connect()]
        for connection in held:
            connection.sendall(get("/health"))
            read_answer(connection)
        answer = server.exchange(get("/health"))
        assert status_of(answer) == 503
        assert b"Retry-After: 1\r\n" in answer
        assert "the server is serving 2 connections, its limit" in json.dumps(body_of(answer))
        held.pop().close()
        wait_for("a place is free", lambda: status_of(server.exchange(get("/health", "Connection: close"))) == 200)
        held.pop().close()


def test_closing_lets_a_running_answer_end() -> None:
    engine = ScriptedEngine(answering({"A": "abc"}), held=True)
    with listening(served(engine=engine)) as server, server.connect() as connection:
        connection.sendall(post("/completion", {"prompt": "A", "temperature": 0}))
        engine.wait_until_held()
        server.http.close()
        server.http.close()
        engine.free()
        assert json.loads(read_answer(connection)[1])["content"] == "abc"
        assert read_all(connection) == b""
        with pytest.raises(ConnectionRefusedError):
            server.connect()


def test_a_taken_port_is_named() -> None:
    with listening(served()) as server:
        taken = TransportSettings(port=server.http.port, keys=ApiKeys(), admitted=1, log=print)
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{server.http.port}"):
            HttpServer(lambda *_: [], taken)


def test_a_server_that_has_ended_is_woken_no_more() -> None:
    """Its pipe is closed then, and the number of its end may be another file's."""
    faults: list[Exception] = []

    def close_often(http: HttpServer, ended: threading.Event) -> None:
        try:
            while not ended.is_set():
                http.close()
        except Exception as fault:
            faults.append(fault)

    for _ in range(10):
        http = HttpServer(lambda *_: [], TransportSettings(port=0, keys=ApiKeys(), admitted=1, log=lambda line: None))
        ended = threading.Event()
        closers = [threading.Thread(target=close_often, args=(http, ended)) for _ in range(2)]
        for closer in closers:
            closer.start()
        http.run()
        ended.set()
        for closer in closers:
            closer.join()
    assert not faults


@pytest.mark.parametrize("start", [b"GET /health HTTP/1.1\r\nX-", post("/completion", {"prompt": "x" * 50})[:-20]])
def test_a_request_that_comes_in_drops_does_not_hold_its_connection(
    start: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_parser, "ARRIVAL_SECONDS", 0.1)
    with listening(served()) as server, server.connect() as connection:
        connection.sendall(start)

        def closed() -> bool:
            try:
                connection.sendall(b"a")
                return connection.recv(1, socket.MSG_DONTWAIT) == b""
            except BlockingIOError:
                return False
            except OSError:
                return True

        wait_for("the connection is closed", closed)


def test_a_client_that_is_turned_away_gives_its_connection_back() -> None:
    engine = ScriptedEngine(held=True)
    with listening(served(engine=engine), queue_depth=0) as server, server.connect() as running:
        running.sendall(post("/completion", {"prompt": "A"}))
        wait_for("it runs", lambda: admitted(server.scheduler) == 1)
        # The exchange ends with the server's close, not with a deadline of the client.
        assert status_of(server.exchange(post("/completion", {"prompt": "A"}))) == 503
        engine.free()
