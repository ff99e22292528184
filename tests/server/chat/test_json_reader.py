"""The incremental JSON reader against Python's own, at every cut."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomery.server.chat.json_reader import JsonError, JsonReader, kind_of

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


def _read(pieces: list[str]) -> tuple[bool, int]:
    """Whether the value ended, and how many characters of all were its own."""
    reader, taken = JsonReader(), 0
    for piece in pieces:
        taken += reader.read(piece)
        if reader.ended:
            break
    return reader.ended, taken


@given(
    value=st.dictionaries(st.text(max_size=4), values, max_size=4) | st.lists(values, max_size=4) | st.text(),
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 1]),
    after=st.text(max_size=5),
    cuts=st.lists(st.integers(0, 400), max_size=8),
)
def test_a_value_ends_where_it_ends(
    value: Any, ascii_only: bool, indent: int | None, after: str, cuts: list[int]
) -> None:
    written = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    text = written + after
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    pieces = [text[start:end] for start, end in itertools.pairwise(edges)]
    assert _read(pieces) == (True, len(written))
    assert _read(list(text)) == (True, len(written))


def _python_accepts(text: str) -> bool:
    def no_constant(_: str) -> None:
        raise ValueError

    try:
        json.loads(text, parse_constant=no_constant)
    except ValueError:
        return False
    return True


@given(st.text('{}[]",:\\ truefalsn0123456789.eE+-u\n', max_size=12))
def test_what_is_no_json_is_refused(text: str) -> None:
    """In an array, so that a number's end can be seen."""
    wrapped = f"[{text}]"
    try:
        ended, taken = _read([wrapped])
        accepted = ended and taken == len(wrapped)
    except JsonError:
        accepted = False
    assert accepted == _python_accepts(wrapped)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("{}", "object"), ("[1]", "array"), ('"a"', "string"), ("-1.5e3", "number"), ("true", "boolean"),
        ("false", "boolean"), ("null", "null"), ("", None), (" 1", None), ("1 ", None), ("\n{}", None), ("{}{}", None),
        ("{", None), ("1-", None), ("True", None), ("nullx", None),
    ],
)  # fmt: skip
def test_the_kind_of_a_value(text: str, kind: str | None) -> None:
    assert kind_of(text) == kind


@pytest.mark.parametrize("cut", [1, 3, 7])
def test_a_fault_is_found_at_its_place(cut: int) -> None:
    text = '{"a": [1, 2, }'
    reader, at = JsonReader(), 0
    with pytest.raises(JsonError) as caught:
        for at in range(0, len(text), cut):
            reader.read(text[at : at + cut])
    assert at + caught.value.at == text.rindex("}")
