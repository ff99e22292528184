"""llama-server's error object, as an exception a route can raise."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """An answer `{"error": {"code", "message", "type"[, "param"][, extra keys]}}` with `code` as its HTTP status.

    `param` is the top-level request field at fault, when it is about one; `retry_after` is sent as that header, in
    seconds.
    """

    def __init__(
        self,
        code: int,
        type: str,  # noqa: A002  The object's own key.
        message: str,
        *,
        param: str | None = None,
        retry_after: int | None = None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.type = type
        self.message = message
        self.param = param
        self.retry_after = retry_after
        self.extra = extra or {}

    def body(self) -> dict[str, Any]:
        """The JSON object of the answer."""
        error: dict[str, Any] = {"code": self.code, "message": self.message, "type": self.type}
        if self.param is not None:
            error["param"] = self.param
        return {"error": error | self.extra}


def invalid_request(message: str, param: str | None = None) -> ApiError:
    """A 400 about the request, naming the field when it is about one."""
    return ApiError(400, "invalid_request_error", message, param=param)


def not_found(message: str) -> ApiError:
    """A 404."""
    return ApiError(404, "not_found_error", message)


def unavailable(message: str, *, retry_after: int | None = None) -> ApiError:
    """A 503: try again later, or not at all when the server is stopping."""
    return ApiError(503, "unavailable_error", message, retry_after=retry_after)


def server_error(message: str) -> ApiError:
    """A 500."""
    return ApiError(500, "server_error", message)
