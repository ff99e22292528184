"""API keys: whether a request's headers carry one of the server's keys, and whether that key may ask for the route."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping

from bloomery.server.api_keys import ApiKey
from bloomery.server.errors import ApiError
from bloomery.server.key_limits import KeyLimits
from bloomery.server.scopes import Scope, narrow_scopes

PUBLIC_PATHS = frozenset({"/health", "/v1/health"})
_BEARER = "Bearer "
_LONGEST_ECHO = 200


class ApiKeys:
    """The keys a server accepts; with none, it accepts every request.

    Only digests of equal length are kept and compared, every one of them on every check, so that neither the time of an
    answer nor a crash report tells anything about a key.
    """

    def __init__(self, keys: Iterable[ApiKey] = ()) -> None:
        self._keys = tuple((_digest(key.secret.encode()), key.fields.scopes, KeyLimits(key.fields)) for key in keys)

    def __bool__(self) -> bool:
        return bool(self._keys)

    def admit(self, method: str, path: str, headers: Mapping[str, str]) -> KeyLimits | None:
        """The limits of a request's key, which are still to be entered; None for a request that needs no key.

        `path` is the percent-decoded path; `headers` has WSGI's spelling of names (`X_API_KEY`) and values that are
        the sent bytes as Latin-1. The health routes and OPTIONS are public. A non-empty Authorization header decides
        alone: a right X-Api-Key beside a wrong Authorization does not rescue it. Raises a 401 for a request without a
        valid key, and a 403 for a key whose scope does not reach the route.
        """
        if not self._keys or method == "OPTIONS" or path in PUBLIC_PATHS:
            return None
        carried = headers.get("AUTHORIZATION") or headers.get("X_API_KEY") or ""
        presented = _digest(carried.removeprefix(_BEARER).encode("latin-1", "replace"))
        matches = [(scopes, limits) for known, scopes, limits in self._keys if hmac.compare_digest(presented, known)]
        if not matches:
            raise ApiError(401, "authentication_error", "Invalid API Key")
        scopes, limits = matches[0]
        if "admin" not in scopes and not scopes & narrow_scopes(method, path):
            raise _outside(method, path, scopes)
        return limits


def _outside(method: str, path: str, scopes: frozenset[Scope]) -> ApiError:
    return ApiError(
        403,
        "permission_error",
        f"{method} {path[:_LONGEST_ECHO]} is outside the scope of this API key, which is {', '.join(sorted(scopes))}",
    )


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
