"""Which values a schema makes texts, and what it says of their members."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.server.chat.value_schema import ValueSchema, argument_schemas


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": ["integer", "string"]},
        {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        {"oneOf": [{"type": "null"}, {"anyOf": [{"const": "a"}]}]},
        {"allOf": [{"type": "string"}, {}, {"minLength": 1}]},
        {"const": "a"},
        {"enum": [1, "a"]},
        {"pattern": "a+"},
        {"maxLength": 3},
        {"format": "date-time"},
        {"$ref": "#/$defs/text"},
        {"anyOf": [{"$ref": "#/$defs/loop"}, {"$ref": "#/$defs/text"}]},
    ],
)
def test_texts(schema: dict[str, Any]) -> None:
    root = {"$defs": {"text": {"type": "string"}, "loop": {"anyOf": [{"$ref": "#/$defs/loop"}, {"type": "null"}]}}}
    read = ValueSchema(schema, root)
    assert read.is_text and not read.is_unknown


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer"},
        {"type": ["integer", "null"]},
        {"type": "object", "properties": {"a": {"type": "string"}}},
        {"type": "array", "items": {"type": "string"}},
        {"anyOf": [{"type": "integer"}, {"type": "boolean"}]},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"const": 1},
        {"enum": [1, None]},
        {"format": "int32"},
        {"$ref": "#/$defs/loop"},
    ],
)
def test_other_values(schema: dict[str, Any]) -> None:
    read = ValueSchema(schema, {"$defs": {"loop": {"anyOf": [{"$ref": "#/$defs/loop"}, {"type": "null"}]}}})
    assert not read.is_text and not read.is_unknown


@pytest.mark.parametrize(
    "schema", [{}, True, None, {"description": "a"}, {"$ref": "#/nowhere"}, {"$ref": "other.json"}, {"$ref": "#"}, 3]
)
def test_schemas_that_say_nothing(schema: Any) -> None:
    read = ValueSchema(schema, {"$ref": "#"})
    assert read.is_unknown and not read.is_text and not read.kinds
    assert read.member("a").is_unknown and read.items.is_unknown


def test_members_items_and_kinds() -> None:
    root = {
        "properties": {
            "box": {"anyOf": [{"type": "null"}, {"allOf": [{"$ref": "#/$defs/a~1b"}]}]},
            "list": {"type": ["array", "null"], "items": {"type": "string"}},
        },
        "$defs": {"a/b": {"properties": {"size": {"type": "number"}, "self": {"$ref": "#"}}}},
    }
    schema = argument_schemas([{"function": {"name": "f", "parameters": root}}, {"function": {"name": "g"}}])
    assert schema["g"].is_unknown
    box = schema["f"].member("box")
    assert box.kinds == {"object", "null"}
    assert box.member("size").kinds == {"number"}
    assert box.member("self").member("list").items.is_text
    assert schema["f"].member("list").kinds == {"array", "null"}
    assert schema["f"].member("other").is_unknown


def test_kinds_of_values_that_a_schema_lists() -> None:
    listed = {"enum": ["a", 1, 2.5, True, None, [], {}]}
    assert ValueSchema(listed).kinds == {"string", "number", "boolean", "null", "array", "object"}
    assert ValueSchema({"anyOf": [{"const": "a"}, {"const": None}]}).kinds == {"string", "null"}


_words = ["type", "anyOf", "allOf", "oneOf", "enum", "const", "$ref", "properties", "items", "format", "pattern"]
_anything = st.recursive(
    st.none() | st.booleans() | st.sampled_from(["string", "object", "#", "#/anyOf", "#/$ref", "#/properties/a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*_words, "a"]), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(root=_anything)
def test_no_schema_breaks_the_reading(root: Any) -> None:
    schema = ValueSchema(root, root)
    for read in (schema, schema.member("a"), schema.items, schema.member("a").items):
        assert isinstance(read.is_text, bool)
        assert not (read.is_unknown and read.is_text)


def test_deep_and_tangled_schemas_are_read_in_bounds() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(2000):
        deep = {"anyOf": [deep]}
    assert not ValueSchema(deep, deep).is_text and not ValueSchema(deep, deep).kinds
    tangled: dict[str, Any] = {"$defs": {"0": {"type": "integer"}}}
    for level in range(1, 30):
        tangled["$defs"][str(level)] = {"anyOf": [{"$ref": f"#/$defs/{level - 1}"}] * 20}
    schema = ValueSchema({"$ref": "#/$defs/29"}, tangled)
    assert not schema.is_text and schema.kinds == {"integer"}
