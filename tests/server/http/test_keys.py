"""Keys with limits on real sockets: whom a scope lets in, how often, how many at once, and what becomes of bodies."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

import pytest
from waitress.buffers import OverflowableBuffer
from waitress.receiver import ChunkedReceiver

from bloomery.server.api_keys import ApiKey
from bloomery.server.http_answers import RequestTask
from bloomery.server.key_fields import read_fields
from bloomery.server.request_parser import UnwantedBody
from tests.server.http.serving import Server, get, listening, post, read_all, read_answer, wait_for
from tests.server.scripted import ScriptedEngine, answering, served

BODY = {"prompt": "A", "temperature": 0}


def key(secret: str, fields: str = "") -> ApiKey:
    return ApiKey(secret, read_fields(fields.split()))


def bearer(secret: str = "k") -> str:
    return f"Authorization: Bearer {secret}"


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def ask(connection: socket.socket, request: bytes) -> tuple[int, Any]:
    """The status and the JSON of an answer on a connection that goes on."""
    connection.sendall(request)
    head, body = read_answer(connection)
    assert b"Connection: close" not in head
    return status_of(head), json.loads(body)


@pytest.mark.parametrize(
    ("scope", "request_bytes", "status"),
    [
        ("inference", post("/completion", BODY, bearer(), "Connection: close"), 200),
        ("inference", post("/tokenize", {"content": "a"}, bearer(), "Connection: close"), 200),
        ("inference", get("/v1/models", bearer(), "Connection: close"), 200),
        ("inference", get("/props", bearer(), "Connection: close"), 403),
        ("read", get("/props", bearer(), "Connection: close"), 200),
        ("read", get("/api/tags", bearer(), "Connection: close"), 200),
        ("read", post("/api/show", {"model": "scripted"}, bearer(), "Connection: close"), 200),
        ("read", post("/completion", BODY, bearer()), 403),
        ("read,inference", post("/completion", BODY, bearer(), "Connection: close"), 200),
        ("read,inference", get("/nothing", bearer()), 403),
        ("admin", get("/nothing", bearer(), "Connection: close"), 404),
        ("read", get("/health", "Connection: close"), 200),
    ],
)
def test_a_scope_reaches_its_routes(scope: str, request_bytes: bytes, status: int) -> None:
    with listening(served(answering({"A": "yes"})), keys=[key("k", f"scope={scope}")]) as server:
        answer = server.exchange(request_bytes)
    assert status_of(answer) == status
    assert b"Connection: close" in answer
    if status == 403:
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "permission_error"
        (line,) = server.log
        assert line.endswith("refused, its API key's scope is another")


def test_a_route_outside_the_scope_is_refused_before_its_body() -> None:
    with listening(served(), keys=[key("sk-narrow", "scope=read")]) as server:
        body = get("/props", bearer("sk-narrow"))
        answer = server.exchange(post("/completion", body, bearer("sk-narrow"), "Expect: 100-continue"))
    assert answer.count(b"HTTP/1.1") == 1
    assert status_of(answer) == 403
    assert b"/completion is outside the scope" in answer
    assert b"sk-narrow" not in answer + server.log[0].encode()


def test_a_rate_is_counted_for_each_key_and_the_connection_stays() -> None:
    keys = [key("k", "rate=2/m"), key("other", "rate=1/m")]
    with listening(served(), keys=keys) as server, server.connect() as connection:
        for _ in range(2):
            assert ask(connection, get("/props", bearer()))[0] == 200
        for _ in range(2):
            connection.sendall(get("/props", bearer()))
            head, body = read_answer(connection)
            assert head.startswith(b"HTTP/1.1 429 Too Many Requests")
            assert b"Keep-Alive: timeout=5" in head
            (retry,) = (line for line in head.split(b"\r\n") if line.startswith(b"Retry-After: "))
            assert 29 <= int(retry.split()[1]) <= 30
            error = json.loads(body)["error"]
            assert (error["code"], error["type"]) == (429, "rate_limit_error")
        assert ask(connection, get("/health"))[0] == 200
        assert ask(connection, get("/props", bearer("other")))[0] == 200
    assert server.log == [server.log[0]] * 2
    assert server.log[0].endswith("refused, its API key's limit is reached")


CHUNKED = b'4\r\n{"a"\r\n3\r\n: 1\r\n1\r\n}\r\n0\r\n\r\n'


@pytest.mark.parametrize(
    "refused",
    [
        post("/tokenize", {"content": "a" * 200_000}, bearer()),
        post("/tokenize", get("/props", bearer("free")), bearer()),
        post("/tokenize", {"content": "a"}, bearer(), "Expect: 100-continue"),
        post("/tokenize", b"", bearer()),
        post("/tokenize", b"", bearer(), "Transfer-Encoding: chunked").replace(b"Content-Length: 0\r\n", b"") + CHUNKED,
    ],
    ids=["long", "like a request", "expecting", "empty", "chunked"],
)
@pytest.mark.parametrize("pieces", [1, 7, None])
def test_the_body_of_a_request_past_a_limit_is_not_another_request(refused: bytes, pieces: int | None) -> None:
    with (
        listening(served(), keys=[key("k", "rate=1/m"), key("free")]) as server,
        server.connect() as connection,
    ):
        assert ask(connection, get("/props", bearer()))[0] == 200
        following = get("/health") + post("/tokenize", {"content": "b"}, bearer("free"), "Connection: close")
        data = refused + following
        step = len(data) if pieces is None else max(1, len(refused) // pieces)
        for start in range(0, len(data), step):
            connection.sendall(data[start : start + step])
        answers = read_all(connection).split(b"HTTP/1.1 ")[1:]
        assert [int(answer[:3]) for answer in answers] == [429, 200, 200]
        assert b"100 Continue" not in b"".join(answers)
        assert json.loads(answers[2].partition(b"\r\n\r\n")[2]) == {"tokens": [98]}


def test_a_request_past_a_limit_is_answered_before_its_body() -> None:
    with listening(served(), keys=[key("k", "rate=1/m")]) as server, server.connect() as connection:
        ask(connection, get("/props", bearer()))
        whole = post("/tokenize", {"content": "a"}, bearer(), "Expect: 100-continue")
        head, _, body = whole.partition(b"\r\n\r\n")
        assert ask(connection, head + b"\r\n\r\n")[0] == 429
        assert ask(connection, body + get("/health")) == (200, {"status": "ok"})


@pytest.mark.parametrize(
    "refused",
    [
        post("/tokenize", b"", bearer()).replace(b"Content-Length: 0", b"Content-Length: 67108865"),
        post("/tokenize", b"xx", bearer(), "Transfer-Encoding: chunked"),
        post("/tokenize", b"", bearer(), "Content-Encoding: br").replace(b"Content-Length: 0", b"Content-Length: 9"),
        post("/tokenize", b"zz\r\n", bearer(), "Transfer-Encoding: chunked").replace(b"Content-Length: 4\r\n", b""),
        post("/tokenize", b"a", bearer(), "Connection: close"),
        post("/tokenize", b"", bearer()).replace(b"HTTP/1.1", b"HTTP/1.0"),
    ],
    ids=["too long", "framed twice", "unknown coding", "broken chunks", "closing", "HTTP/1.0"],
)
def test_a_connection_that_cannot_go_on_ends(refused: bytes) -> None:
    with listening(served(), keys=[key("k", "rate=1/m")]) as server, server.connect() as connection:
        ask(connection, get("/props", bearer()))
        connection.sendall(refused + get("/health"))
        assert read_all(connection).count(b'"status":"ok"') == 0


def running(server: Server) -> bool:
    return any(slot.is_processing for slot in server.scheduler.slots())


def test_a_place_is_taken_until_the_answer_is_written() -> None:
    engine = ScriptedEngine(n_sequences=2, held=True)
    keys = [key("k", "inflight=1"), key("other", "inflight=1")]
    with (
        listening(served(engine=engine), keys=keys) as server,
        server.connect() as first,
        server.connect() as second,
    ):
        first.sendall(post("/completion", BODY | {"n_predict": 2}, bearer()))
        wait_for("it runs", lambda: running(server))
        assert ask(second, post("/completion", BODY, bearer()))[0] == 429
        assert ask(second, get("/props", bearer()))[0] == 429
        assert ask(second, get("/props", bearer("other")))[0] == 200
        engine.free()
        assert status_of(read_answer(first)[0]) == 200
        assert ask(second, get("/props", bearer()))[0] == 200


@pytest.mark.parametrize(
    ("path", "stream", "end"),
    [
        ("/completion", False, b"}"),
        ("/v1/completions", False, b"}"),
        ("/v1/completions", True, b"data: [DONE]\n\n\r\n"),
    ],
)
def test_whoever_has_the_answer_may_ask_again(
    path: str, stream: bool, end: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_finish = threading.Event()

    def finish(_task: RequestTask) -> None:
        # The thread that answers may get to nothing more before the client asks again.
        assert may_finish.wait(30)

    monkeypatch.setattr(RequestTask, "finish", finish)
    keys = [key("k", "inflight=1")]
    with listening(served(answering({"A": "yes"})), keys=keys) as server, server.connect() as connection:
        connection.sendall(post(path, BODY | {"stream": stream, "n_predict": 2}, bearer()))
        received = b""
        while not received.endswith(end):
            received += connection.recv(65536)
        with server.connect() as other:
            assert ask(other, get("/props", bearer()))[0] == 200
        may_finish.set()


def test_no_more_of_an_unwanted_body_is_read_than_of_a_wanted_one() -> None:
    body = UnwantedBody(ChunkedReceiver(OverflowableBuffer(1)))
    body.take(b"fffffffff\r\n")
    for _ in range(64):
        assert not body.broken
        assert body.take(bytes(1 << 20)) == b""
    assert body.broken


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_keeps_its_place_until_the_engine_has_left(stream: bool) -> None:
    engine = ScriptedEngine(held=True)
    with listening(served(engine=engine), keys=[key("k", "inflight=1")]) as server, server.connect() as other:
        gone = server.connect()
        gone.sendall(post("/completion", BODY | {"stream": stream}, bearer()))
        engine.allow(2)
        engine.wait_until_held()
        gone.close()
        wait_for("it is cancelled", lambda: cancelled(server))
        # The engine is still inside the pass.
        assert ask(other, get("/props", bearer()))[0] == 429
        engine.free()
        wait_for("the place is free", lambda: ask(other, get("/props", bearer()))[0] == 200)


def cancelled(server: Server) -> bool:
    slot = server.scheduler._slots[0]
    return slot.running is not None and slot.running.stream.cancelled


def test_every_choice_and_those_that_wait_hold_the_place() -> None:
    engine = ScriptedEngine(held=True)
    with listening(served(engine=engine), keys=[key("k", "inflight=1")]) as server, server.connect() as other:
        gone = server.connect()
        gone.sendall(post("/v1/completions", BODY | {"n": 3, "max_tokens": 2}, bearer()))
        engine.wait_until_held()
        gone.close()
        wait_for("it is cancelled", lambda: cancelled(server))
        assert ask(other, get("/props", bearer()))[0] == 429
        engine.free()
        wait_for("the place is free", lambda: ask(other, get("/props", bearer()))[0] == 200)


@pytest.mark.parametrize(
    "request_bytes",
    [
        post("/completion", b"{}" * 50, bearer())[:-10],
        post("/completion", {"prompt": 5}, bearer(), "Connection: close"),
        post("/completion", b"\0", bearer(), "Content-Encoding: gzip", "Connection: close"),
        post("/completion", b"", bearer()).replace(b"Content-Length: 0", b"Content-Length: 67108865"),
        post("/completion", b"a", bearer(), "Content-Encoding: br"),
        post("/completion", b"zz\r\n", bearer(), "Transfer-Encoding: chunked").replace(b"Content-Length: 4\r\n", b""),
        b"HEAD /props HTTP/1.1\r\nHost: t\r\n" + bearer().encode() + b"\r\nConnection: close\r\n\r\n",
        get("/nothing", bearer(), "Connection: close"),
    ],
    ids=["cut", "bad field", "bad stream", "too long", "unknown coding", "broken chunks", "head", "unknown route"],
)
def test_no_request_keeps_a_place_for_good(request_bytes: bytes) -> None:
    with listening(served(), keys=[key("k", "inflight=1")]) as server, server.connect() as other:
        connection = server.connect()
        connection.sendall(request_bytes)
        connection.shutdown(socket.SHUT_WR)
        read_all(connection)
        connection.close()
        wait_for("the place is free", lambda: ask(other, get("/props", bearer()))[0] == 200)
