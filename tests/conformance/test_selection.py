"""What `-k` selects: as Python's own operators would."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomery.conformance.selection import SelectionError, selection

WORDS = ("norm", "q4", "rms", "seat", "f16-strict")


def negation(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    joined = st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(" ".join)
    return inner.map("not {}".format) | joined.map("({})".format) | joined


expressions = st.recursive(st.sampled_from(WORDS), negation, max_leaves=8)


@given(expressions, st.sets(st.sampled_from(WORDS)).map(sorted).map(" ".join))
def test_expressions_mean_what_they_say(expression: str, name: str) -> None:
    python = " ".join(
        word if word in {"and", "or", "not", "(", ")"} else str(word in name)
        for word in expression.replace("(", "( ").replace(")", " )").split()
    )
    assert selection(expression)(name.upper()) == eval(python)


def test_a_quoted_word_may_hold_spaces_and_operators() -> None:
    assert selection("\"greedy ids\" and not 'or'")("qwen3 greedy ids")
    assert not selection('"greedy ids"')("greedy qwen3 ids")
    assert selection('"and"')("sand")


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", "a word, 'not' or '(' is missing at the end"),
        ("a and", "a word, 'not' or '(' is missing at the end"),
        ("and a", "missing before 'and'"),
        ("(a", "a ')' is missing at the end"),
        ("a b", "'and' or 'or' is missing before 'b'"),
        ("a)", "'and' or 'or' is missing before ')'"),
        ('a "b', "has no end"),
        ("(" * 100_000, "more than 50 levels"),
        ("not " * 100_000 + "a", "more than 50 levels"),
    ],
)
def test_nonsense_is_refused_with_its_place(expression: str, message: str) -> None:
    with pytest.raises(SelectionError, match=re.escape(message)):
        selection(expression)
