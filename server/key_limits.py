"""How often and how many at once: the state of one key's limits while the server runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from bloomery.server.errors import ApiError
from bloomery.server.key_fields import KeyFields, Rate

# Where a request's WSGI environment has its place.
PLACE = "bloomery.place"
_NS = 1_000_000_000
# When a place may be free again is not known; a second is short for a client and long for the server.
_PLACE_RETRY_SECONDS = 1


class Place:
    """A request's place among those its key may have answered at once, until everything that holds it let go."""

    def __init__(self, free: Callable[[], None]) -> None:
        self._free = free
        self._holders = 1
        self._lock = threading.Lock()

    def hold(self) -> None:
        """One more holds the place, while another still does."""
        with self._lock:
            self._holders += 1

    def release(self) -> None:
        """A holder lets go, each once."""
        with self._lock:
            self._holders -= 1
            last = not self._holders
        if last:
            self._free()


class Bucket:
    """A rate's bucket, full at first. Counted in whole nanoseconds times requests, so that no rounding adds up."""

    def __init__(self, rate: Rate, now: int) -> None:
        self._rate = rate
        self._cost = rate.seconds * _NS
        self._level = self._size = rate.burst * self._cost
        self._at = now

    def take(self, now: int) -> int:
        """Take a request at a time in nanoseconds.

        Returns 0, or, when there is none to take, the seconds until there is, rounded up.
        """
        self._level = min(self._size, self._level + (now - self._at) * self._rate.n)
        self._at = now
        if self._level >= self._cost:
            self._level -= self._cost
            return 0
        return -(-(self._cost - self._level) // (self._rate.n * _NS))


class KeyLimits:
    """The limits of a key, each key's apart from all others'."""

    def __init__(self, fields: KeyFields, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """`clock` counts nanoseconds."""
        self._inflight = fields.inflight
        self._clock = clock
        self._bucket = Bucket(fields.rate, clock()) if fields.rate else None
        self._rate = f"{fields.rate.n} requests in {fields.rate.seconds} s" if fields.rate else ""
        self._taken = 0
        self._lock = threading.Lock()

    def enter(self) -> Place:
        """A place for one more request, which counts against the rate.

        Raises a 429 that says when to come back; a request that is refused takes no place and counts for nothing.
        """
        with self._lock:
            if self._inflight is not None and self._taken >= self._inflight:
                raise _limited(f"{self._inflight} requests at once", _PLACE_RETRY_SECONDS)
            if self._bucket is not None and (seconds := self._bucket.take(self._clock())):
                raise _limited(self._rate, seconds)
            self._taken += 1
        return Place(self._leave)

    def _leave(self) -> None:
        with self._lock:
            self._taken -= 1


def _limited(limit: str, seconds: int) -> ApiError:
    return ApiError(
        429,
        "rate_limit_error",
        f"this API key is limited to {limit}; try again in {seconds} s",
        retry_after=seconds,
    )
