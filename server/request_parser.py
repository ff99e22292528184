"""Requests as they arrive: judged by their headers before any of a body is read.

waitress reads a whole body, and answers `Expect: 100-continue`, before an application runs. The parser here looks at
the headers the moment they are complete, so that a request without a key or in an unreadable coding costs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from waitress.adjustments import Adjustments
from waitress.parser import HTTPRequestParser

from bloomery.server.auth import PUBLIC_PATHS
from bloomery.server.body import BODY_LIMIT
from bloomery.server.errors import ApiError, invalid_request
from bloomery.server.key_limits import Place

# How long a request may take to arrive: this many seconds, and one more for each of so many bytes that did arrive.
ARRIVAL_SECONDS = 30
ARRIVAL_BYTES_A_SECOND = 1 << 16
# The one refusal after which the connection goes on: the client may ask again in a while.
GOES_ON = 429


class Arrival:
    """How long something has been arriving, and how much of it has."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self.n_bytes = 0

    def late(self, now: float) -> bool:
        """Whether all of it should be here by now: a client that sends it in drops holds a connection."""
        return now - self._began > ARRIVAL_SECONDS + self.n_bytes / ARRIVAL_BYTES_A_SECOND


class RequestParser(HTTPRequestParser):  # type: ignore[misc]
    """waitress's parser, which hands its headers to `judge` before it takes any of the body.

    goes_on: whether the connection goes on although the request is refused.  unwanted: the body of such a request,
    and `rest` what arrived of it with the headers.  place: what the request holds of its key's limits.
    """

    body_rcv: Any

    def __init__(self, adj: Adjustments, judge: Callable[[RequestParser], ApiError | None] | None = None) -> None:
        super().__init__(adj)
        self._judge = judge
        self.body_unread = False
        self.goes_on = False
        self.unwanted: UnwantedBody | None = None
        self.rest = b""
        self.place: Place | None = None
        self.arrival = Arrival()

    def received(self, data: bytes) -> int:
        """Take bytes of the connection; returns how many were taken. After a refusal, that is all of them."""
        self.arrival.n_bytes += len(data)
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
                self.goes_on = refusal.code == GOES_ON and not self.connection_close
            elif self.error is None and (self.command == "OPTIONS" or self.path in PUBLIC_PATHS):
                self._leave_body()
        if self.error is None and not self.body_unread:
            return consumed
        self.completed = True
        self.expect_continue = False
        if self.goes_on and not self.has_body:
            return consumed
        if self.goes_on:
            self.unwanted = UnwantedBody(self.body_rcv)
            self.body_rcv = None
            self.rest = data[consumed:]
        # What follows is the body, and must never be read as another request.
        return len(data)

    @property
    def has_body(self) -> bool:
        """Whether the headers declare a body."""
        return self.body_rcv is not None

    @property
    def ends_connection(self) -> bool:
        """Whether nothing more of the connection is read."""
        return self.body_unread or (self.error is not None and not self.goes_on)

    def leave(self) -> None:
        """Let go of the key's place; idempotent."""
        place, self.place = self.place, None
        if place is not None:
            place.release()

    def close(self) -> None:
        """Let go of everything."""
        super().close()
        self.leave()

    def _leave_body(self) -> None:
        """A public request is answered from its headers; the connection of one with a body ends there."""
        if self.has_body:
            self.body_unread = True
            self.body_rcv = None
            self.headers.pop("CONTENT_LENGTH", None)
            self.headers["CONNECTION"] = "close"


class _Nowhere:
    """A buffer that keeps nothing."""

    def append(self, data: bytes) -> None:
        """Forget the bytes."""


class UnwantedBody:
    """The body of a refused request whose connection goes on: read to its end, and kept nowhere."""

    def __init__(self, receiver: Any) -> None:
        """`receiver` is waitress's for the body's framing, which has taken nothing yet."""
        receiver.buf.close()
        receiver.buf = _Nowhere()
        self._receiver = receiver
        self.arrival = Arrival()

    def take(self, data: bytes) -> bytes:
        """Take bytes of the connection; returns those past the body's end."""
        consumed = self._receiver.received(data)
        self.arrival.n_bytes += consumed
        return data[consumed:]

    @property
    def ended(self) -> bool:
        """Whether the next byte is another request's."""
        return bool(self._receiver.completed)

    @property
    def broken(self) -> bool:
        """Whether nothing tells where the next request begins, or too much of it came to wait for that."""
        return self._receiver.error is not None or self.arrival.n_bytes > BODY_LIMIT
