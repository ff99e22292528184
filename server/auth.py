"""API keys: whether a request's headers carry one of the server's keys."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping

PUBLIC_PATHS = frozenset({"/health", "/v1/health"})
_BEARER = "Bearer "


class ApiKeys:
    """The keys a server accepts; with none, it accepts every request.

    Only digests of equal length are kept and compared, every one of them on every check, so that neither the time of an
    answer nor a crash report tells anything about a key.
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = tuple(_digest(key.encode()) for key in keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def admit(self, method: str, path: str, headers: Mapping[str, str]) -> bool:
        """Whether a request may go on.

        `path` is the percent-decoded path; `headers` has WSGI's spelling of names (`X_API_KEY`) and values that are
        the sent bytes as Latin-1. The health routes and OPTIONS are public. A non-empty Authorization header decides
        alone: a right X-Api-Key beside a wrong Authorization does not rescue it.
        """
        if not self._digests or method == "OPTIONS" or path in PUBLIC_PATHS:
            return True
        carried = headers.get("AUTHORIZATION") or headers.get("X_API_KEY") or ""
        presented = _digest(carried.removeprefix(_BEARER).encode("latin-1", "replace"))
        matches = [hmac.compare_digest(presented, known) for known in self._digests]
        return any(matches)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
