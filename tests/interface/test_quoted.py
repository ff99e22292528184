"""What a file says cannot forge a line, send a terminal a command, or fill a log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bloomery.interface.quoted import one_line, quoted

texts = st.text(st.characters(), max_size=120)


@given(texts)
def test_any_text_is_printable_and_short(text: str) -> None:
    for shown in (quoted(text), one_line(text)):
        assert shown.isprintable()
        # Ten characters are the longest escape, and the quotes and the dots are five.
        assert len(shown) <= 80 * 10 + 5


@given(st.text(st.characters(exclude_categories=("C", "Z")), max_size=80))
def test_a_short_printable_text_stands_as_it_is(text: str) -> None:
    assert one_line(text) == text
    assert text in quoted(text) or "'" in text or "\\" in text


def test_examples() -> None:
    assert quoted("a\nb") == one_line("a\nb") == r"'a\nb'"
    assert one_line("Qwen3 0.6B") == "Qwen3 0.6B"
    assert quoted("Qwen3 0.6B") == "'Qwen3 0.6B'"
    assert one_line("x" * 81) == quoted("x" * 81) == f"'{'x' * 80}'..."
