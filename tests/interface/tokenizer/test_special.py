"""Finding special spellings: equal to llama.cpp's search, one token after the other, longest first."""

from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.interface.tokenizer.special import SpecialMatcher, search_order
from bloomery.interface.tokenizer.vocabulary import Vocabulary


def by_definition(text, spellings):
    """Split what is left of the text at each spelling in turn, the longest (in bytes) first."""
    fragments = [(0, text)]
    for token_id, spelling in sorted(enumerate(spellings), key=lambda item: -len(item[1].encode())):
        split = []
        for start, fragment in fragments:
            if not isinstance(fragment, str):
                split.append((start, fragment))
                continue
            place = start
            for part in fragment.split(spelling):
                split += [(place, part), (place + len(part), token_id)]
                place += len(part) + len(spelling)
            split.pop()
        fragments = split
    return [(start, start + len(spellings[item]), item) for start, item in fragments if isinstance(item, int)]


def find(text, spellings):
    vocabulary = Vocabulary(spellings, {}, bytearray(len(spellings)))
    order = search_order(vocabulary, range(len(spellings)))
    return SpecialMatcher((spellings[token_id], token_id) for token_id in order).find(text)


letters = st.sampled_from("ab<|é")


@settings(max_examples=500, deadline=None)
@given(st.text(letters, max_size=40), st.lists(st.text(letters, min_size=1, max_size=5), max_size=8, unique=True))
def test_any_spellings_in_any_text(text, spellings):
    assert find(text, spellings) == by_definition(text, spellings)


@settings(deadline=None)
@given(st.integers(0, 200), st.sets(st.integers(1, 31), min_size=1))
def test_runs_of_one_character(length, sizes):
    spellings = [" " * size for size in sorted(sizes)]
    assert find(" " * length, spellings) == by_definition(" " * length, spellings)


def test_a_longer_spelling_wins_over_one_that_begins_before_it():
    assert find("x<|b|>y", ["<|b|>", "x<|"]) == [(1, 6, 0)]


def test_nested_spellings_give_the_outer_one():
    assert find("<|a|><|b|>", ["<|a|>", "<|b|>", "<|a|><|b|>"]) == [(0, 10, 2)]


def test_very_long_spellings_are_found():
    long = "ab" * 1000
    assert find(f"a{long}b", ["b" + "ab" * 500, long]) == by_definition(f"a{long}b", ["b" + "ab" * 500, long])


def test_no_spellings_and_no_text():
    assert find("anything", []) == []
    assert find("", ["a"]) == []


def test_a_spelling_that_is_not_utf8_is_never_found():
    assert find("x\udc80", ["\udc80"]) == []
