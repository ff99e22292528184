"""Text with origins: it behaves as `str` does, and every character keeps its origin.

The second is checked against an independent witness: the same operation on a text in which the client's characters are
replaced by ones nobody else uses, so that the result shows where each came from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomery.server.chat import budget
from bloomery.server.chat.sourced import Sourced, as_sourced, client, joined, origin_of, plain, sourced

# The client's letters have no upper case, so an operation treats both alphabets alike.
_TEMPLATES = "ab <|\n"
_CLIENTS = "\ue000\ue001\ue002\ue003\ue004\ue005"

_parts = st.lists(st.tuples(st.booleans(), st.text(_TEMPLATES, max_size=5)), max_size=5)


def _built(parts: list[tuple[bool, str]]) -> str:
    return joined(client(text) if clients else text for clients, text in parts)


def _witness(parts: list[tuple[bool, str]]) -> str:
    swapped = str.maketrans(_TEMPLATES, _CLIENTS)
    return "".join(text.translate(swapped) if clients else text for clients, text in parts)


def _origins(text: str) -> list[bool]:
    return [bool(mark) for mark in origin_of(text)]


SLICES: list[Callable[[str], Any]] = [
    lambda text: text[1:],
    lambda text: text[:-2],
    lambda text: text[::-1],
    lambda text: text[::2],
    lambda text: [*text],
    lambda text: text + "x",
    lambda text: "x" + text,
    lambda text: text * 3,
    lambda text: as_sourced("-").join([text, "a", text]),
    lambda text: text[0] if text else "",
]

METHODS: list[tuple[str, tuple[Any, ...]]] = [
    ("strip", ()),
    ("lstrip", ()),
    ("rstrip", ()),
    ("strip", ("a<",)),
    ("split", ()),
    ("split", (None, 1)),
    ("split", ("a",)),
    ("split", ("<|", 1)),
    ("rsplit", ()),
    ("rsplit", (None, 1)),
    ("rsplit", ("b", 1)),
    ("splitlines", ()),
    ("splitlines", (True,)),
    ("partition", ("|",)),
    ("rpartition", ("a",)),
    ("removeprefix", ("a",)),
    ("removesuffix", ("b",)),
    ("replace", ("a", "<x>")),
    ("replace", ("b", "", 1)),
    ("replace", ("", "-")),
    ("upper", ()),
    ("lower", ()),
    ("title", ()),
    ("capitalize", ()),
    ("startswith", ("a",)),
    ("find", ("b",)),
    ("count", ("a",)),
    ("isspace", ()),
]


@pytest.mark.parametrize(("name", "arguments"), METHODS)
@given(parts=_parts)
def test_a_method_does_what_str_does(name: str, arguments: tuple[Any, ...], parts: list[tuple[bool, str]]) -> None:
    text = _built(parts)
    assert getattr(text, name)(*arguments) == getattr(plain(text), name)(*arguments)


@pytest.mark.parametrize("operation", SLICES)
@given(parts=_parts)
def test_an_operator_does_what_str_does(operation: Callable[[str], Any], parts: list[tuple[bool, str]]) -> None:
    text = _built(parts)
    assert operation(text) == operation(plain(text))
    assert hash(text) == hash(plain(text))


@pytest.mark.parametrize("operation", SLICES)
@given(parts=_parts)
def test_a_character_keeps_its_origin_through_an_operator(
    operation: Callable[[str], Any], parts: list[tuple[bool, str]]
) -> None:
    done, shown = operation(_built(parts)), operation(_witness(parts))
    if not isinstance(done, list):
        done, shown = [done], [shown]
    for text, witness in zip(done, shown, strict=True):
        assert _origins(text) == [character in _CLIENTS for character in witness]


@given(parts=_parts, separator=st.tuples(st.booleans(), st.text(_TEMPLATES, max_size=2)))
def test_a_character_keeps_its_origin_through_methods(
    parts: list[tuple[bool, str]], separator: tuple[bool, str]
) -> None:
    """Stripping a set of characters, cutting and joining: the witness uses both alphabets' spellings of it."""
    text, glue = _built(parts), _built([separator])
    witness, shown_glue = _witness(parts), _witness([separator])
    assert _origins(joined([glue, text])) == [character in _CLIENTS for character in shown_glue + witness]
    both = " \n" + _CLIENTS[_TEMPLATES.index(" ")] + _CLIENTS[_TEMPLATES.index("\n")]
    assert _origins(text.strip(" \n")) == [character in _CLIENTS for character in witness.strip(both)]


def test_a_change_of_length_counts_as_the_clients_as_a_whole() -> None:
    text = joined(["<|", client("straße"), "|>"])
    assert text.upper() == "<|STRASSE|>"
    assert all(_origins(text.upper()))
    assert not any(_origins("<|straße|>".upper()))


def test_plain_text_stays_plain() -> None:
    assert type(sourced("abc", bytes(3))) is str
    assert type(client("abc")[1:1]) is str
    assert isinstance(client("abc")[1:], Sourced)


def test_a_large_result_is_refused_before_it_is_made() -> None:
    with budget.spending(budget.Budget(units=1000)), pytest.raises(budget.BudgetError):
        client("a" * 100) * 10_000_000
    with budget.spending(budget.Budget(units=100_000)), pytest.raises(budget.BudgetError):
        client("a" * 1000).replace("a", "b" * 1000)
