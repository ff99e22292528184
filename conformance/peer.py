"""A server that is asked by its URL: requests, and what it says of itself."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any

from bloomery.conformance.corpus.request import JSON_HEADER
from bloomery.conformance.serve_checks import address_of
from bloomery.conformance.wire import Answer, WireError, ask


class PeerError(RuntimeError):
    """A server does not answer, or not with what was asked for; the message names the request."""


@dataclass(frozen=True)
class Peer:
    """A server's address and the key it wants.  Raises ValueError for a URL that is none of a plain HTTP server."""

    url: str
    api_key: str = ""
    timeout: float = 120.0

    @cached_property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return address_of(self.url)

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """What every request of ours carries."""
        return (("Authorization", f"Bearer {self.api_key}"),) if self.api_key else ()

    def ask(self, method: str, path: str, body: bytes | None = None) -> Answer:
        """One request, whatever its answer.  Raises PeerError when there is none."""
        headers = (JSON_HEADER, *self.headers) if body is not None else self.headers
        try:
            return ask(self.address, method, path, body, headers, self.timeout)
        except (OSError, WireError, ValueError) as error:
            raise PeerError(f"{method} {path} at {self.url} was not answered: {error}") from None

    def get(self, path: str) -> Any:
        """The JSON of a page.  Raises PeerError unless its status is 200."""
        return self._json("GET", path, None)

    def post(self, path: str, fields: dict[str, Any]) -> Any:
        """The JSON answer to a JSON request.  Raises PeerError unless its status is 200."""
        return self._json("POST", path, json.dumps(fields).encode())

    def _json(self, method: str, path: str, body: bytes | None) -> Any:
        answer = self.ask(method, path, body)
        if answer.status != 200:
            raise PeerError(f"{method} {path} at {self.url} answered {answer.status}: {answer.body[:300]!r}")
        try:
            return json.loads(answer.body)
        except ValueError:
            raise PeerError(f"{method} {path} at {self.url} answered no JSON: {answer.body[:300]!r}") from None

    def stream(self, path: str, fields: dict[str, Any]) -> list[Any]:
        """The JSON events of a stream, without its `[DONE]`.  Raises PeerError for anything else."""
        answer = self.ask("POST", path, json.dumps({**fields, "stream": True}).encode())
        if answer.status != 200:
            raise PeerError(f"POST {path} at {self.url} answered {answer.status}: {answer.body[:300]!r}")
        events = [event.removeprefix(b"data: ") for event in answer.body.split(b"\n\n") if event.startswith(b"data: ")]
        try:
            return [json.loads(event) for event in events if event != b"[DONE]"]
        except ValueError:
            raise PeerError(f"POST {path} at {self.url} streamed an event that is no JSON in UTF-8") from None


@dataclass(frozen=True, kw_only=True)
class About:
    """What a server says it is.

    model: the name of its model's file without folders and ending, or its alias.  build: as /props says.  n_ctx: cells
    of one slot.  n_vocab: 0 where it does not say.  bloomery: whether it is this project's.
    """

    model: str
    model_path: str
    alias: str
    build: str
    n_ctx: int
    n_slots: int
    n_vocab: int
    bloomery: bool


def about(peer: Peer) -> About:
    """Ask /props and /v1/models.  Raises PeerError."""
    props, models = peer.get("/props"), peer.get("/v1/models")
    try:
        entry = models["data"][0]
        path = str(props.get("model_path", ""))
        alias = str(entry["id"])
        return About(
            model=PurePath(path or alias).name.removesuffix(".gguf"),
            model_path=path,
            alias=alias,
            build=str(props.get("build_info", "unknown")),
            n_ctx=int(props["default_generation_settings"].get("n_ctx", 0)),
            n_slots=int(props.get("total_slots", 1)),
            n_vocab=int((entry.get("meta") or {}).get("n_vocab", 0)),
            bloomery=entry.get("owned_by") == "bloomery",
        )
    except (AttributeError, LookupError, TypeError, ValueError):
        raise PeerError(
            f"/props and /v1/models at {peer.url} are not llama-server's: no model, slots or context"
        ) from None
