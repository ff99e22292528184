"""A scripted model behind the application, in process or on a real socket."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import falcon.testing

from bloomery.server.api_keys import ApiKey
from bloomery.server.app import make_app
from bloomery.server.auth import ApiKeys
from bloomery.server.model import ServedModel
from bloomery.server.scheduler import Scheduler
from bloomery.server.settings import Settings, read_settings
from bloomery.server.transport import HttpServer, TransportSettings


def settings(queue_depth: int = 63) -> Settings:
    """Settings of a start; only the queue's depth matters to the application."""
    return read_settings(["--model", "demo", "--queue-depth", str(queue_depth)], {}, lambda line: None)


@contextlib.contextmanager
def scheduled(model: ServedModel, *, queue_depth: int = 63) -> Iterator[Scheduler]:
    """A running scheduler for a model."""
    scheduler = Scheduler(model, n_parallel=model.n_parallel, queue_depth=queue_depth, log=lambda line: None)
    scheduler.start()
    try:
        yield scheduler
    finally:
        assert scheduler.stop("the test ended")


class Client(falcon.testing.TestClient):
    """The application in process, with a shorthand for its JSON."""

    scheduler: Scheduler

    def ask(self, path: str, body: Any, **headers: str) -> falcon.testing.Result:
        """POST a JSON body, or raw bytes."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.simulate_post(path, body=raw, headers=headers)


@contextlib.contextmanager
def in_process(model: ServedModel, *, queue_depth: int = 63) -> Iterator[Client]:
    """A client of an application that serves `model`."""
    with scheduled(model, queue_depth=queue_depth) as scheduler:
        client = Client(make_app(model, scheduler, settings(queue_depth)))
        client.scheduler = scheduler
        yield client


class Server:
    """A listening server, and raw connections to it."""

    def __init__(self, http: HttpServer, scheduler: Scheduler, log: Sequence[str]) -> None:
        self.http = http
        self.scheduler = scheduler
        self.log = log

    def connect(self) -> socket.socket:
        """A connection whose reads fail after half a minute rather than hang."""
        return socket.create_connection((self.http.host, self.http.port), timeout=30)

    def exchange(self, request: bytes) -> bytes:
        """Send bytes on a connection of their own and read until the server closes it."""
        with self.connect() as connection:
            connection.sendall(request)
            return read_all(connection)


@contextlib.contextmanager
def listening(
    model: ServedModel, *, queue_depth: int = 63, keys: Sequence[str | ApiKey] = (), connections: int | None = None
) -> Iterator[Server]:
    """A server on a free port."""
    log: list[str] = []
    with scheduled(model, queue_depth=queue_depth) as scheduler:
        transport = TransportSettings(
            port=0,
            keys=ApiKeys(key if isinstance(key, ApiKey) else ApiKey(key) for key in keys),
            admitted=model.n_parallel + queue_depth,
            connections=connections,
            log=log.append,
        )
        http = HttpServer(make_app(model, scheduler, settings(queue_depth)), transport)
        thread = threading.Thread(target=http.run)
        thread.start()
        try:
            yield Server(http, scheduler, log)
        finally:
            http.close()
            thread.join(30)
            assert not thread.is_alive()


def post(path: str, body: Any, *headers: str) -> bytes:
    """The bytes of an HTTP/1.1 POST."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: test", f"Content-Length: {len(raw)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + raw


def get(path: str, *headers: str) -> bytes:
    """The bytes of an HTTP/1.1 GET."""
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: test", *headers]).encode() + b"\r\n\r\n"


def read_all(connection: socket.socket) -> bytes:
    """Everything the server sends until it closes; a reset after its answer is a close."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while data := connection.recv(65536):
            received += data
    return received


def read_answer(connection: socket.socket) -> tuple[bytes, bytes]:
    """The head and the body of one answer that has a Content-Length."""
    received = b""
    while b"\r\n\r\n" not in received:
        data = connection.recv(65536)
        assert data, f"the connection closed after {received!r}"
        received += data
    head, _, body = received.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
    )
    while len(body) < length:
        body += connection.recv(65536)
    return head, body


def events(text: str) -> list[Any]:
    """The payloads of a stream of server-sent events; `[DONE]` stays a word."""
    blocks = text.split("\n\n")
    assert blocks.pop() == ""
    payloads = []
    for block in blocks:
        assert block.startswith("data: ") and "\n" not in block, block
        payload = block.removeprefix("data: ")
        payloads.append(payload if payload == "[DONE]" else json.loads(payload))
    return payloads


def wait_for(what: str, condition: Callable[[], bool]) -> None:
    """Wait until something that other threads bring about is so."""
    patience = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < patience, f"in vain: {what}"
        time.sleep(0.01)
