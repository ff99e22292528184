"""The HTTP server under the application: waitress, with a request judged by its headers before its body is read.

waitress reads a whole body, and answers `Expect: 100-continue`, before an application runs. The parser here looks at
the headers the moment they are complete, so that a request without a key or in an unreadable coding costs nothing.
"""

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
from waitress.parser import HTTPRequestParser
from waitress.server import TcpWSGIServer
from waitress.task import ErrorTask, ThreadedTaskDispatcher, WSGITask

from bloomery.server.auth import PUBLIC_PATHS, ApiKeys
from bloomery.server.body import BODY_LIMIT, content_coding, too_large
from bloomery.server.errors import ApiError, invalid_request, server_error, unavailable
from bloomery.server.render.errors import error_body, error_headers

SERVER_NAME = "bloomery-serve"
IDLE_SECONDS = 5
READ_SECONDS = 600

# How long a request may take to arrive: this many seconds, and one more for each of so many bytes that did arrive.
ARRIVAL_SECONDS = 30
ARRIVAL_BYTES_A_SECOND = 1 << 16

_HEADER_LIMIT = 1 << 16
CLOSE_SECONDS = 5.0

# Threads beyond one for every request that may wait or run: they answer everything that never waits, /health first.
_SPARE_THREADS = 4
_REFUSED_READ = 1 << 16

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


class RequestParser(HTTPRequestParser):  # type: ignore[misc]
    """waitress's parser, which hands its headers to `judge` before it takes any of the body."""

    def __init__(self, adj: Adjustments, judge: Callable[[RequestParser], ApiError | None] | None = None) -> None:
        super().__init__(adj)
        self._judge = judge
        self.body_unread = False
        self.began = time.monotonic()
        self.n_received = 0

    def received(self, data: bytes) -> int:
        """Take bytes of the connection; returns how many were taken. After a refusal, that is all of them."""
        self.n_received += len(data)
        try:
            consumed: int = super().received(data)
        except Exception as error:
            # waitress lets some faults of a request line or a header through as they come.
            self.error = invalid_request(f"the request is not valid HTTP: {type(error).__name__}")
            self.completed = True
            return len(data)
        # A request line that was no HTTP leaves no path, and nothing to judge.
        if self.headers_finished and self._judge is not None and hasattr(self, "path"):
            judge, self._judge = self._judge, None
            refusal = judge(self)
            if refusal is not None:
                self.error = refusal
            elif self.error is None and (self.command == "OPTIONS" or self.path in PUBLIC_PATHS):
                self._leave_body()
        if self.error is not None or self.body_unread:
            self.completed = True
            self.expect_continue = False
            # What follows is the body, and must never be read as another request.
            return len(data)
        return consumed

    def late(self, now: float) -> bool:
        """Whether the request should have arrived by now: a client that sends it in drops holds a connection."""
        return now - self.began > ARRIVAL_SECONDS + self.n_received / ARRIVAL_BYTES_A_SECOND

    @property
    def has_body(self) -> bool:
        """Whether the headers declare a body."""
        return self.body_rcv is not None

    def _leave_body(self) -> None:
        """A public request is answered from its headers; the connection of one with a body ends there."""
        if self.has_body:
            self.body_unread = True
            self.body_rcv = None
            self.headers.pop("CONTENT_LENGTH", None)
            self.headers["CONNECTION"] = "close"


class RequestTask(WSGITask):  # type: ignore[misc]
    """A request for the application."""

    close_on_finish: bool

    def build_response_header(self) -> bytes:
        """The answer's status line and headers, which say how long an idle connection is kept.

        A client that was turned away gives its connection back: a full server needs it for others.
        """
        if self.status.startswith("503"):
            self.set_close_on_finish()
        closes = self.close_on_finish or self.request.headers.get("CONNECTION", "").lower() == "close"
        head: bytes = super().build_response_header()
        if self.chunked_response and not closes:
            # waitress closes after every chunked answer, although its chunks say where it ends.
            self.close_on_finish = False
            head = head.replace(b"\r\nConnection: close\r\n", b"\r\n", 1)
        if self.close_on_finish:
            return head
        return head.removesuffix(b"\r\n") + b"Keep-Alive: timeout=%d\r\n\r\n" % IDLE_SECONDS


class RefusalTask(ErrorTask):  # type: ignore[misc]
    """The answer to a request that never reached the application, in llama-server's words."""

    def execute(self) -> None:
        """Write the answer; the connection closes after it."""
        error = _as_api_error(self.request.error)
        body = error_body(error)
        self.status = f"{error.code} {REASONS.get(error.code, 'Error')}"
        self.response_headers.extend(error_headers(error).items())
        self.response_headers.append(("Access-Control-Allow-Origin", self.request.headers.get("ORIGIN", "")))
        self.set_close_on_finish()
        self.content_length = len(body)
        self.write(b"" if getattr(self.request, "command", "") == "HEAD" else body)


REASONS = {
    400: "Bad Request",
    401: "Unauthorized",
    415: "Unsupported Media Type",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
}


def _as_api_error(error: Any) -> ApiError:
    """waitress's own errors, as llama-server's object."""
    if isinstance(error, ApiError):
        return error
    if error.code == 413:
        return too_large()
    if error.code == 431:
        return ApiError(431, "invalid_request_error", "the request's headers are too large")
    if error.code == 501:
        return ApiError(501, "not_supported_error", "only the transfer coding chunked is supported")
    if error.code >= 500:
        return server_error("the server met an unexpected condition; its log has the details")
    return invalid_request(f"the request is not valid HTTP: {error.body}")


class Channel(HTTPChannel):  # type: ignore[misc]
    """One connection."""

    task_class = RequestTask
    error_task_class = RefusalTask
    # After a refusal nothing more is read: what the client still sends is a body nobody wants.
    deaf = False

    def parser_class(self, adj: Adjustments) -> RequestParser:
        """A parser for the connection's next request."""
        return RequestParser(adj, self._judge)

    def _judge(self, request: RequestParser) -> ApiError | None:
        settings: TransportSettings = self.server.settings
        if not settings.keys.admit(request.command, request.path, request.headers):
            path = request.request_uri.partition("?")[0][:200].encode("unicode_escape").decode()
            settings.log(f"{request.command} {path} from {self.addr[0]}: refused, no valid API key")
            return ApiError(401, "authentication_error", "Invalid API Key")
        if request.has_body:
            if request.chunked and "CONTENT_LENGTH" in request.headers:
                return invalid_request("the request has both a Content-Length and a Transfer-Encoding")
            try:
                content_coding(request.headers)
            except ApiError as error:
                return error
        return None

    def received(self, data: bytes) -> bool:
        """Take bytes of the connection."""
        result: bool = super().received(data)
        self.deaf = self.deaf or any(request.error or request.body_unread for request in self.requests)
        return result

    def readable(self) -> bool:
        """Whether the loop should read."""
        return not self.deaf and bool(super().readable())

    def handle_close(self) -> None:
        """Close the connection."""
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
            if channel.request is not None and channel.request.late(time.monotonic()):
                channel.will_close = True
            idle = channel.request is None and not channel.total_outbufs_len
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
