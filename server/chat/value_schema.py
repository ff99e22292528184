"""What a tool's parameters may hold, as far as reading a call needs it.

Markups that write a text bare, without quotes, leave it to the request's schemas which values are texts. As in
llama-server (common/json-schema.cpp), a schema that allows a string among other things makes the value a text; any
other schema makes it JSON. A value whose schema says nothing is JSON if it reads as JSON, and a text otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bloomery.server.chat.markup import Tools

# A schema nested or referred to deeper than this says nothing from there on.
_MAX_DEPTH = 32

_TEXT_WORDS = frozenset({"pattern", "minLength", "maxLength"})
_TEXT_FORMATS = [
    "date", "time", "date-time", "uri", "email", "hostname", "ipv4", "ipv6",
    "uuid", "uuid1", "uuid2", "uuid3", "uuid4", "uuid5",
]  # fmt: skip
_IMPLIED_KINDS = {"properties": "object", "items": "array"}
_NOTHING: Mapping[str, Any] = {}
_SHAPING_WORDS = _TEXT_WORDS | {"type", "const", "enum", "anyOf", "oneOf", "allOf", "properties", "items", "format"}


class ValueSchema:
    """One schema inside `root`, the parameters of a tool."""

    def __init__(self, node: object = None, root: object = None) -> None:
        self._root = root
        self._node = _resolved(node, root)

    @property
    def is_text(self) -> bool:
        """Whether a string is among what the schema allows."""
        return _allows_text(self._node, self._root, {})

    @property
    def is_unknown(self) -> bool:
        """Whether the schema says nothing of what a value is."""
        return not _SHAPING_WORDS & self._node.keys()

    @property
    def kinds(self) -> frozenset[str]:
        """The JSON types that the schema names, by itself or by the values it allows."""
        kinds: set[str] = set()
        for node in self._alternatives():
            values = _parts(node, "enum") + ([node["const"]] if "const" in node else [])
            kinds.update(map(_kind_of, values))
            kinds.update(kind for kind in _types(node) if isinstance(kind, str))
            kinds.update(kind for word, kind in _IMPLIED_KINDS.items() if word in node)
        return frozenset(kinds)

    def member(self, key: str) -> ValueSchema:
        """The schema of an object's member; one that says nothing for a key the schema does not name."""
        for node in self._alternatives():
            properties = node.get("properties")
            if isinstance(properties, Mapping) and key in properties:
                return ValueSchema(properties[key], self._root)
        return ValueSchema()

    @property
    def items(self) -> ValueSchema:
        """The schema of an array's items."""
        items = next((node["items"] for node in self._alternatives() if "items" in node), None)
        return ValueSchema(items, self._root)

    def _alternatives(self) -> Iterator[Mapping[str, Any]]:
        """The schema and those it is put together from, each once."""
        seen: set[int] = set()
        waiting = [(self._node, 0)]
        while waiting:
            node, depth = waiting.pop()
            if id(node) in seen or depth > _MAX_DEPTH:
                continue
            seen.add(id(node))
            yield node
            parts = [part for word in ("anyOf", "oneOf", "allOf") for part in _parts(node, word)]
            waiting += [(_resolved(part, self._root), depth + 1) for part in reversed(parts)]


def argument_schemas(tools: Tools) -> dict[str, ValueSchema]:
    """The schema of each function's arguments."""
    functions = [tool["function"] for tool in tools]
    return {
        function["name"]: ValueSchema(function.get("parameters"), function.get("parameters")) for function in functions
    }


def _resolved(node: object, root: object) -> Mapping[str, Any]:
    """A schema with its reference followed; one that says nothing for anything else than a schema."""
    for _ in range(_MAX_DEPTH):
        if not isinstance(node, Mapping):
            return _NOTHING
        reference = node.get("$ref")
        if not isinstance(reference, str):
            return node
        node = _at_pointer(root, reference)
    return _NOTHING


def _at_pointer(root: object, reference: str) -> object:
    """What a reference into the document (`#/…`) points to; None when it points nowhere."""
    if reference == "#":
        return root
    if not reference.startswith("#/"):
        return None
    node = root
    for step in reference[2:].split("/"):
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping):
            node = node.get(key)
        else:
            return None
    return node


def _parts(node: Mapping[str, Any], word: str) -> list[object]:
    parts = node.get(word)
    return parts if isinstance(parts, list) else []


def _kind_of(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def _types(node: Mapping[str, Any]) -> list[object]:
    kind = node.get("type")
    return kind if isinstance(kind, list) else [kind]


def _allows_text(node: Mapping[str, Any], root: object, known: dict[int, bool], depth: int = 0) -> bool:
    """Whether a schema allows a string. `known`: the answers so far; a schema inside itself allows none."""
    if id(node) in known or depth > _MAX_DEPTH:
        return known.get(id(node), False)
    known[id(node)] = False

    def allowed(word: str) -> list[bool]:
        parts = [_resolved(part, root) for part in _parts(node, word)]
        return [_allows_text(part, root, known, depth + 1) for part in parts if _SHAPING_WORDS & part.keys()]

    if "const" in node:
        answer = isinstance(node["const"], str)
    elif isinstance(node.get("enum"), list):
        answer = any(isinstance(value, str) for value in node["enum"])
    elif "type" in node:
        answer = "string" in _types(node)
    elif any(allowed("anyOf")) or any(allowed("oneOf")):
        answer = True
    elif every := allowed("allOf"):
        answer = all(every)
    else:
        answer = any(word in node for word in _TEXT_WORDS) or node.get("format") in _TEXT_FORMATS
    known[id(node)] = answer
    return answer
