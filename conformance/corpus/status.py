"""What a server says of itself, and who may ask; of `chain-text`."""

from __future__ import annotations

from collections.abc import Iterator

from bloomery.conformance.corpus.request import Request, get, post

API_KEY = "forge-key"

_PAGES = ("/health", "/v1/health", "/props", "/v1/models", "/models", "/slots", "/metrics", "/v1/models/chain-text")

_CREDENTIALS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("no key", ()),
    ("the key as a bearer", (("Authorization", f"Bearer {API_KEY}"),)),
    ("the bare key", (("Authorization", API_KEY),)),
    ("the key in X-Api-Key", (("X-Api-Key", API_KEY),)),
    ("a wrong key", (("Authorization", "Bearer wrong"),)),
    ("an empty bearer", (("Authorization", "Bearer "),)),
    ("bearer in small letters", (("Authorization", f"bearer {API_KEY}"),)),
)


def status() -> Iterator[Request]:
    """Every page of status, fresh and after work."""
    for path in _PAGES:
        yield get(f"{path}, fresh", path)
    yield post("a completion", "/completion", {"prompt": "Hello", "n_predict": 4, "temperature": 0, "id_slot": 0})
    for path in ("/slots", "/metrics", "/props"):
        yield get(f"{path}, after a completion", path)
    yield post("POST /props", "/props", {})


def keys() -> Iterator[Request]:
    """Of a server started with `API_KEY`: every form of credential on open, closed and unknown routes."""
    for name, headers in _CREDENTIALS:
        for path in ("/health", "/v1/models", "/props", "/nothing"):
            yield get(f"{path} with {name}", path, *headers)
        yield post(f"/tokenize with {name}", "/tokenize", {"content": "a"}, *headers)
