"""Answers on a connection: the application's, and those to requests that never reach it."""

from __future__ import annotations

from typing import Any

from waitress.task import ErrorTask, WSGITask

from bloomery.server.body import too_large
from bloomery.server.errors import ApiError, invalid_request, server_error
from bloomery.server.key_limits import PLACE
from bloomery.server.render.errors import error_body, error_headers
from bloomery.server.sse import DONE

IDLE_SECONDS = 5


class RequestTask(WSGITask):  # type: ignore[misc]
    """A request for the application."""

    close_on_finish: bool

    def get_environment(self) -> dict[str, Any]:
        """WSGI's environment, with the request's place among those of its key."""
        environ: dict[str, Any] = super().get_environment()
        environ[PLACE] = self.request.place
        return environ

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
        return head if self.close_on_finish else _with_idle_time(head)

    def write(self, data: bytes) -> None:
        """Write a piece of the answer; the key's place is left just before the last.

        A client may ask again as soon as it has that, which may be before this thread gets to do anything else.
        """
        length = self.content_length
        if data.endswith(DONE) or (length is not None and self.content_bytes_written + len(data) >= length):
            self.request.leave()
        super().write(data)

    def finish(self) -> None:
        """End the answer."""
        self.request.leave()
        super().finish()


class RefusalTask(ErrorTask):  # type: ignore[misc]
    """The answer to a request that never reached the application, in llama-server's words."""

    def execute(self) -> None:
        """Write the answer; the connection closes after it, unless the request may be sent again on it."""
        error = _as_api_error(self.request.error)
        body = error_body(error)
        self.status = f"{error.code} {REASONS.get(error.code, 'Error')}"
        self.response_headers.extend(error_headers(error).items())
        self.response_headers.append(("Access-Control-Allow-Origin", self.request.headers.get("ORIGIN", "")))
        if not self.request.goes_on:
            self.set_close_on_finish()
        self.content_length = len(body)
        self.write(b"" if getattr(self.request, "command", "") == "HEAD" else body)

    def build_response_header(self) -> bytes:
        """The answer's status line and headers."""
        head: bytes = super().build_response_header()
        return head if self.close_on_finish else _with_idle_time(head)


def _with_idle_time(head: bytes) -> bytes:
    """A head that says how long the connection is kept while nothing happens on it."""
    return head.removesuffix(b"\r\n") + b"Keep-Alive: timeout=%d\r\n\r\n" % IDLE_SECONDS


REASONS = {
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    415: "Unsupported Media Type",
    429: "Too Many Requests",
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
