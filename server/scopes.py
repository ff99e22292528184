"""Which routes a key of a narrow scope reaches.

Every route that no scope names needs `admin`, so a route that is forgotten here is closed to narrow keys, not open.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

Scope: TypeAlias = Literal["inference", "read", "admin"]
SCOPES: tuple[Scope, ...] = ("inference", "read", "admin")

# Generation, token counts and the tokenizer.
_INFERENCE = frozenset({
    "/completion", "/completions", "/v1/completions", "/chat/completions", "/v1/chat/completions",
    "/chat/completions/input_tokens", "/v1/chat/completions/input_tokens", "/apply-template", "/tokenize",
    "/detokenize",
})  # fmt: skip
_READ = frozenset({"/props", "/slots", "/metrics"})
_MODEL_LISTS = frozenset({"/models", "/v1/models", "/api/tags"})
_MODEL_LOOKUPS = ("/models/", "/v1/models/")


def narrow_scopes(method: str, path: str) -> frozenset[Scope]:
    """The scopes besides `admin` that reach a route; `path` is percent-decoded, as the application routes it."""
    reads = method in {"GET", "HEAD"}
    if method == "POST" and path in _INFERENCE:
        return frozenset({"inference"})
    if reads and path in _READ:
        return frozenset({"read"})
    if (reads and (path in _MODEL_LISTS or path.startswith(_MODEL_LOOKUPS))) or (method, path) == ("POST", "/api/show"):
        return frozenset({"inference", "read"})
    return frozenset()
