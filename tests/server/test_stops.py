"""Stop strings end a text in the same place however it is cut, and nothing that could become one is released early."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomery.server.stops import StopStrings

# Two letters make overlaps, repeats and near misses likely.
TEXTS = st.text("ab", max_size=30)
WORDS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def whole_text_search(text: str, words: list[str]) -> tuple[str, str]:
    """The text before its stop string, and that string, by the definition: the first to end, the longest of those."""
    for end in range(1, len(text) + 1):
        ending = [word for word in words if text[:end].endswith(word)]
        if ending:
            found = max(ending, key=len)
            return text[: end - len(found)], found
    return text, ""


def cut(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


@given(TEXTS, WORDS, st.lists(st.integers(0, 30), max_size=8))
def test_any_cut_of_a_text_gives_what_a_search_of_the_whole_gives(
    text: str, words: list[str], places: list[int]
) -> None:
    stops = StopStrings(words)
    released = "".join(stops.feed(piece) for piece in cut(text, places)) + stops.flush()
    assert (released, stops.found) == whole_text_search(text, words)


@given(TEXTS, WORDS)
def test_what_is_released_can_no_longer_become_part_of_a_stop_string(text: str, words: list[str]) -> None:
    stops = StopStrings(words)
    released = ""
    for letter in text:
        released += stops.feed(letter)
        if stops.found:
            break
        assert not any(released.endswith(word[:length]) for word in words for length in range(1, len(word)))


def test_text_is_held_while_it_ends_with_the_beginning_of_a_stop_string() -> None:
    stops = StopStrings(["two three fo"])
    assert [stops.feed(piece) for piece in ("One", " two", " three", " four\n")] == ["One", "", "", " "]
    assert stops.found == "two three fo"


def test_a_beginning_that_never_becomes_a_stop_string_is_released_at_the_end() -> None:
    stops = StopStrings(["TRE\nA"])
    assert stops.feed("MA") == "MA"
    assert stops.feed("TRE") == ""
    assert stops.flush() == "TRE"
    assert stops.found == ""


def test_the_stop_string_that_ends_first_wins_and_the_longest_of_those() -> None:
    stops = StopStrings(["wo", "two", " two th"])
    assert stops.feed("One two three") == "One "
    assert stops.found == "two"
    assert stops.feed("more") == stops.flush() == ""


@pytest.mark.parametrize("words", [(), ("",)])
def test_without_stop_strings_everything_passes_at_once(words: tuple[str, ...]) -> None:
    assert StopStrings(words).feed("text") == "text"


def test_a_long_repetitive_stop_string_costs_its_length_once() -> None:
    # Comparing every beginning of the word with the text would take 10^10 steps, and never end within the test's limit.
    stops = StopStrings(["a" * 100_000 + "b"])
    assert stops.feed("a" * 200_000) == ""
    assert stops.feed("b") == "a" * 100_000
    assert stops.found
