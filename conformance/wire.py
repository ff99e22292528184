"""HTTP/1.1 exchanges over a socket, with the bytes of every chunk as the server sent them.

HTTP libraries join chunks, reorder nothing and hide much; a recording needs where the server cut its stream. This reads
what llama-server and bloomery send: a body of stated length, a chunked one, or one that ends with the connection.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO

MAX_BODY = 64 << 20


class WireError(RuntimeError):
    """The peer's bytes are no HTTP response that this client reads."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Status, headers in order, and the body: `chunks` as they were cut, or None when it was not chunked."""

    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    chunks: tuple[bytes, ...] | None

    def header(self, name: str) -> str | None:
        """The first header of that name, whatever its case."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


def _line(stream: BinaryIO) -> str:
    raw = stream.readline(65537)
    if not raw.endswith(b"\r\n"):
        raise WireError(f"a header line ends too early: {raw[:80]!r}")
    return raw[:-2].decode("latin-1")


def _exactly(stream: BinaryIO, count: int) -> bytes:
    if count > MAX_BODY:
        raise WireError(f"a body of {count} bytes is past this client's {MAX_BODY}")
    raw = stream.read(count)
    if len(raw) != count:
        raise WireError(f"the body ends after {len(raw)} of {count} bytes")
    return raw


def _chunks(stream: BinaryIO) -> tuple[bytes, ...]:
    chunks: list[bytes] = []
    while size := int(_line(stream).split(";")[0], 16):
        chunks.append(_exactly(stream, size))
        if _exactly(stream, 2) != b"\r\n":
            raise WireError("a chunk is longer than it says")
    while _line(stream):
        pass
    return tuple(chunks)


def _read_answer(stream: BinaryIO, method: str) -> Answer:
    _, status, reason = [*_line(stream).split(" ", 2), "", ""][:3]
    headers: list[tuple[str, str]] = []
    while line := _line(stream):
        name, _, value = line.partition(":")
        headers.append((name, value.strip()))
    low = {name.lower(): value for name, value in headers}
    chunks = None
    if method == "HEAD" or status == "204":
        body = b""
    elif low.get("transfer-encoding") == "chunked":
        chunks = _chunks(stream)
        body = b"".join(chunks)
    elif "content-length" in low:
        body = _exactly(stream, int(low["content-length"]))
    else:
        body = stream.read(MAX_BODY)
    return Answer(status=int(status), reason=reason, headers=tuple(headers), body=body, chunks=chunks)


def _request(
    address: tuple[str, int],
    method: str,
    path: str,
    body: bytes | None,
    headers: Sequence[tuple[str, str]],
    *,
    keep_alive: bool,
) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {address[0]}"]
    if not keep_alive:
        lines.append("Connection: close")
    lines += [f"{name}: {value}" for name, value in headers]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (body or b"")


def ask(
    address: tuple[str, int],
    method: str,
    path: str,
    body: bytes | None = None,
    headers: Sequence[tuple[str, str]] = (),
    timeout: float = 60.0,
) -> Answer:
    """Send one request on a connection of its own and read the whole answer.

    `Host`, `Connection: close` and, with a body, `Content-Length` are added to `headers`. Raises WireError and OSError.
    """
    with socket.create_connection(address, timeout) as connection:
        connection.sendall(_request(address, method, path, body, headers, keep_alive=False))
        with connection.makefile("rb") as stream:
            return _read_answer(stream, method)


class KeptConnection:
    """One connection for many requests; when the server has closed it, the next request opens another.

    opened: how many connections there were.
    """

    def __init__(self, address: tuple[str, int], timeout: float = 60.0) -> None:
        self.opened = 0
        self._address = address
        self._timeout = timeout
        self._connection: socket.socket | None = None
        self._stream: BinaryIO | None = None

    def ask(self, method: str, path: str, body: bytes | None = None, headers: Sequence[tuple[str, str]] = ()) -> Answer:
        """As the function `ask`, without asking the server to close.  Raises WireError and OSError."""
        connection, stream = self._open()
        try:
            connection.sendall(_request(self._address, method, path, body, headers, keep_alive=True))
            answer = _read_answer(stream, method)
        except (OSError, WireError):
            self.close()
            raise
        if (answer.header("Connection") or "").lower() == "close":
            self.close()
        return answer

    def _open(self) -> tuple[socket.socket, BinaryIO]:
        if self._connection is not None and select.select([self._connection], [], [], 0)[0]:
            # Nothing was asked, so what can be read is the end: the server closed an idle connection.
            self.close()
        if self._connection is None or self._stream is None:
            self._connection = socket.create_connection(self._address, self._timeout)
            self._stream = self._connection.makefile("rb")
            self.opened += 1
        return self._connection, self._stream

    def close(self) -> None:
        """Close the connection; idempotent."""
        if self._connection is not None and self._stream is not None:
            self._stream.close()
            self._connection.close()
        self._connection = self._stream = None

    def __enter__(self) -> KeptConnection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
