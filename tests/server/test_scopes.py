"""Scopes of keys against the application's own routes."""

from __future__ import annotations

import pytest

from bloomery.server.scopes import narrow_scopes
from tests.server.http.serving import in_process
from tests.server.scripted import served

PUBLIC = {"/health", "/v1/health"}


def test_every_route_is_reached_by_a_narrow_scope() -> None:
    with in_process(served()) as client:
        routes = client.simulate_get("/props").json["routes"]
    unreached = [
        path
        for path in routes
        if path not in PUBLIC and not any(narrow_scopes(method, path) for method in ("GET", "POST"))
    ]
    assert not unreached, "name each in bloomery.server.scopes, or here when it is an administrator's"


@pytest.mark.parametrize(
    ("method", "path", "scopes"),
    [
        ("POST", "/v1/chat/completions", {"inference"}),
        ("POST", "/tokenize", {"inference"}),
        ("GET", "/props", {"read"}),
        ("HEAD", "/metrics", {"read"}),
        ("GET", "/v1/models", {"inference", "read"}),
        ("GET", "/models/org/a+b", {"inference", "read"}),
        ("GET", "/api/tags", {"inference", "read"}),
        ("POST", "/api/show", {"inference", "read"}),
        ("POST", "/props", set()),
        ("POST", "/slots", set()),
        ("POST", "/slots/0", set()),
        ("POST", "/shutdown", set()),
        ("POST", "/residency/reset", set()),
        ("DELETE", "/v1/models/x", set()),
        ("GET", "/nothing", set()),
        ("GET", "//props", set()),
        ("POST", "/completion/", set()),
        ("POST", "/COMPLETION", set()),
    ],
)
def test_the_narrow_scopes_of_a_route(method: str, path: str, scopes: set[str]) -> None:
    assert narrow_scopes(method, path) == scopes
