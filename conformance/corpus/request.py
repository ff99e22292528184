"""A request of the HTTP corpus."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

JSON_HEADER = ("Content-Type", "application/json")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to send. `name` is unique in its set."""

    name: str
    method: str
    path: str
    body: bytes | None = None
    headers: tuple[tuple[str, str], ...] = ()


def get(name: str, path: str, *headers: tuple[str, str]) -> Request:
    """A GET."""
    return Request(name=name, method="GET", path=path, headers=headers)


def post(name: str, path: str, fields: Any, *headers: tuple[str, str]) -> Request:
    """A POST of JSON."""
    return raw_post(name, path, json.dumps(fields, ensure_ascii=False).encode(), *headers)


def raw_post(name: str, path: str, body: bytes, *headers: tuple[str, str]) -> Request:
    """A POST of these bytes."""
    return Request(name=name, method="POST", path=path, body=body, headers=(JSON_HEADER, *headers))
