"""The HTTP server under the application: waitress, with a request judged by its headers before its body is read."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer
from waitress.task import ThreadedTaskDispatcher

from bloomery.server.auth import ApiKeys
from bloomery.server.body import BODY_LIMIT, content_coding
from bloomery.server.errors import ApiError, invalid_request, unavailable
from bloomery.server.http_answers import IDLE_SECONDS, REASONS, RefusalTask, RequestTask
from bloomery.server.render.errors import error_body, error_headers
from bloomery.server.request_parser import Arrival, RequestParser, UnwantedBody

SERVER_NAME = "bloomery-serve"
READ_SECONDS = 600

_HEADER_LIMIT = 1 << 16
CLOSE_SECONDS = 5.0

# Threads beyond one for every request that may wait or run: they answer everything that never waits, /health first.
_SPARE_THREADS = 4
_REFUSED_READ = 1 << 16
# What the log says of a key's refusal.
_KEY_REFUSALS = {
    401: "no valid API key",
    403: "its API key's scope is another",
    429: "its API key's limit is reached",
}

Wsgi: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class TransportSettings:
    """Where to listen, and for how many.

    host, port: the address; port 0 takes a free one.  keys: the keys a request may carry.  admitted: the most
    generations the scheduler holds at once, running and waiting, each of which keeps a thread.  connections: the most
    connections served at once, or None for 64 or as many as `admitted` needs.  log: takes a line for the operator.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    keys: ApiKeys
    admitted: int
    connections: int | None = None
    log: Callable[[str], None]

    @property
    def threads(self) -> int:
        """Threads that run requests."""
        return self.admitted + _SPARE_THREADS

    @property
    def max_connections(self) -> int:
        """The most connections served at once; always more than can hold a thread."""
        return self.connections or max(64, self.admitted + 4 * _SPARE_THREADS)


class Channel(HTTPChannel):  # type: ignore[misc]
    """One connection."""

    task_class = RequestTask
    error_task_class = RefusalTask
    # After a refusal nothing more is read: what the client still sends is a body nobody wants.
    deaf = False
    # The request that was just refused, and the body of one that was, when the connection goes on after it.
    _refused: RequestParser | None = None
    _unwanted: UnwantedBody | None = None

    def parser_class(self, adj: Adjustments) -> RequestParser:
        """A parser for the connection's next request."""
        return RequestParser(adj, self._judge)

    def _judge(self, request: RequestParser) -> ApiError | None:
        """Why a request goes no further than its headers; None when it does, with a place among its key's."""
        try:
            limits = self.server.settings.keys.admit(request.command, request.path, request.headers)
            if request.has_body:
                if request.chunked and "CONTENT_LENGTH" in request.headers:
                    return invalid_request("the request has both a Content-Length and a Transfer-Encoding")
                content_coding(request.headers)
            if limits is not None and request.error is None:
                request.place = limits.enter()
        except ApiError as error:
            self._log_refusal(request, error.code)
            self._refused = request
            return error
        return None

    def _log_refusal(self, request: RequestParser, code: int) -> None:
        if code in _KEY_REFUSALS:
            path = request.request_uri.partition("?")[0][:200].encode("unicode_escape").decode()
            self.server.settings.log(f"{request.command} {path} from {self.addr[0]}: refused, {_KEY_REFUSALS[code]}")

    @property
    def arrival(self) -> Arrival | None:
        """How long what is arriving has been; None while nothing is."""
        arriving = self._unwanted or self.request
        return None if arriving is None else arriving.arrival

    def received(self, data: bytes) -> bool:
        """Take bytes of the connection."""
        while data:
            if self._unwanted is None:
                super().received(data)
                refused, self._refused = self._refused, None
                if refused is None or refused.unwanted is None:
                    break
                self._unwanted, data = refused.unwanted, refused.rest
            else:
                data = self._unwanted.take(data)
                if self._unwanted.broken:
                    self.will_close = True
                    break
                if self._unwanted.ended:
                    self._unwanted = None
        self.deaf = self.deaf or any(request.ends_connection for request in self.requests)
        return not self.will_close

    def readable(self) -> bool:
        """Whether the loop should read."""
        return not self.deaf and bool(super().readable())

    def handle_close(self) -> None:
        """Close the connection; a request that has not arrived whole leaves its place, the others when they end."""
        if self.request is not None:
            self.request.leave()
        if self.deaf and self.socket is not None:
            _take_what_arrived(self.socket)
        super().handle_close()


def _take_what_arrived(connection: socket.socket) -> None:
    # Bytes left unread turn the close into a reset, which may overtake the answer. Taking what is already here costs
    # one call; a client that goes on sending is not waited for.
    try:
        connection.shutdown(socket.SHUT_WR)
        connection.recv(_REFUSED_READ)
    except OSError:
        return


class _WaitressServer(TcpWSGIServer):  # type: ignore[misc]
    channel_class = Channel

    def __init__(self, *args: Any, settings: TransportSettings, **kwargs: Any) -> None:
        self.settings = settings
        # Reentrant, as a signal handler may wake the loop of the very thread it interrupts.
        self._waking = threading.RLock()
        self._ended = False
        super().__init__(*args, **kwargs)

    def pull_trigger(self) -> None:
        """Wake the loop, if there is one: its pipe may be closed, and its number another file's, once it has ended."""
        with self._waking:
            if not self._ended:
                super().pull_trigger()

    def end(self) -> None:
        """The loop has ended, and nothing wakes it any more."""
        with self._waking:
            self._ended = True

    def handle_accept(self) -> None:
        if len(self.active_channels) < self.settings.max_connections:
            super().handle_accept()
            return
        try:
            accepted = self.accept()
        except OSError:
            return
        if accepted is not None:
            self._turn_away(accepted[0])

    def _turn_away(self, connection: socket.socket) -> None:
        limit = self.settings.max_connections
        error = unavailable(f"the server is serving {limit} connections, its limit", retry_after=1)
        body = error_body(error)
        headers = error_headers(error) | {
            "Connection": "close",
            "Content-Length": str(len(body)),
            "Server": SERVER_NAME,
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        with connection:
            connection.setblocking(False)
            try:
                connection.send(f"HTTP/1.1 503 {REASONS[503]}\r\n{head}\r\n".encode() + body)
            except OSError:
                return
            _take_what_arrived(connection)

    def maintenance(self, now: float) -> None:
        """Close connections on which nothing happens."""
        for channel in list(self.active_channels.values()):
            if channel.requests:
                continue
            arrival = channel.arrival
            if arrival is not None and arrival.late(time.monotonic()):
                channel.will_close = True
            idle = arrival is None and not channel.total_outbufs_len
            if channel.last_activity < now - (IDLE_SECONDS if idle else READ_SECONDS):
                channel.will_close = True

    def busy(self) -> bool:
        return any(channel.requests or channel.total_outbufs_len for channel in self.active_channels.values())


class HttpServer:
    """A listening server. `run` serves until `close`, which any thread or signal handler may call."""

    def __init__(self, app: Wsgi, settings: TransportSettings) -> None:
        """Bind and listen.  Raises OSError naming the address when it cannot be had."""
        # A request that waits for a thread waits for a generation's answer, which is no news to an operator.
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)
        listener = _listener(settings.host, settings.port)
        self._closing = False
        self._map: dict[int, Any] = {}
        self._threads = ThreadedTaskDispatcher()
        self._threads.set_thread_count(settings.threads)
        self._server = _WaitressServer(
            app,
            settings=settings,
            map=self._map,
            _sock=listener,
            bind_socket=False,
            sockinfo=(listener.family, listener.type, listener.proto, listener.getsockname()),
            dispatcher=self._threads,
            adj=Adjustments(
                listen="127.0.0.1:0",  # Not bound: the listener above is.
                ident=SERVER_NAME,
                connection_limit=1 << 30,  # Counted above, where more are answered instead of left waiting.
                channel_request_lookahead=1,
                clear_untrusted_proxy_headers=False,  # No header about a proxy is read.
                max_request_body_size=BODY_LIMIT + 1,
                max_request_header_size=_HEADER_LIMIT,
                cleanup_interval=1,
                log_socket_errors=False,
                asyncore_use_poll=True,
            ),
        )
        self.host, self.port = listener.getsockname()[:2]

    @property
    def url(self) -> str:
        """The address a client on this machine can use."""
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    def run(self) -> None:
        """Serve until `close`; then let what is being answered end, for a few seconds, and close every connection."""
        try:
            while not self._closing:
                self._turn(1.0)
            self._server.del_channel()
            self._server.socket.close()
            patience = time.monotonic() + CLOSE_SECONDS
            while self._server.busy() and time.monotonic() < patience:
                self._turn(0.05)
        finally:
            self._server.end()
            for channel in list(self._server.active_channels.values()):
                channel.cancel()
                channel.handle_close()
            self._threads.shutdown(timeout=1)
            wasyncore.close_all(self._map, ignore_all=True)

    def close(self) -> None:
        """End `run`; idempotent. It only sets a flag and wakes the loop, so a signal handler may call it."""
        self._closing = True
        self._server.pull_trigger()

    def _turn(self, seconds: float) -> None:
        wasyncore.loop(timeout=seconds, use_poll=True, map=self._map, count=1)


def _listener(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on --host {host}: {error.strerror}") from None
    # A name with both kinds of address is served on the first IPv4 one, as llama-server does.
    family, kind, protocol, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from None
    return listener


def serve(app: Wsgi, settings: TransportSettings, on_listening: Callable[[HttpServer], None]) -> None:
    """Listen, tell `on_listening`, and serve until its server is closed.  Raises OSError when the address is taken."""
    server = HttpServer(app, settings)
    on_listening(server)
    server.run()
