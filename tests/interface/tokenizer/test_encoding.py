"""What is true of every text: encoding and decoding are inverse, and the word cache changes nothing."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.interface.tokenizer import TokenizerError, load_tokenizer, merging
from bloomery.interface.tokenizer.merging import merge
from tests.interface.tokenizer.recorded import metadata_of, tokenizer_of

TOKENIZER = tokenizer_of("chatml")
SPELLINGS = [TOKENIZER.token_text(i) for i in sorted(TOKENIZER.special_ids)]

texts = st.text()
prompts = st.lists(st.one_of(texts, st.sampled_from(SPELLINGS))).map("".join)


@settings(deadline=None)
@given(prompts, st.booleans())
def test_decoding_gives_the_text_back(text, parse_special):
    ids = TOKENIZER.encode(text, add_special=False, parse_special=parse_special)
    assert TOKENIZER.detokenize(ids) == text


@pytest.mark.parametrize("name", ["sentencepiece", "gemma4"])
@given(text=texts)
def test_decoding_gives_the_text_back_where_spaces_are_written_out(name, text):
    """But for the space before it; and U+2581 is a space there."""
    tokenizer = tokenizer_of(name)
    for text_id in sorted(tokenizer.special_ids):
        text = text.replace(tokenizer.token_text(text_id), "")
    ids = tokenizer.encode(text, add_special=False, parse_special=True)
    before = " " if name == "sentencepiece" and text else ""
    assert tokenizer.detokenize(ids) == before + text.replace("\u2581", " ")


@settings(deadline=None)
@given(texts)
def test_a_fresh_tokenizer_agrees_with_one_that_has_seen_words(text):
    fresh = load_tokenizer(metadata_of("chatml"))
    flags = {"add_special": True, "parse_special": True}
    assert fresh.encode(text, **flags) == TOKENIZER.encode(text, **flags) == fresh.encode(text, **flags)


def test_a_full_word_cache_is_emptied(monkeypatch):
    monkeypatch.setattr(merging, "_CACHED_WORDS", 2)
    tokenizer = load_tokenizer(metadata_of("chatml"))
    text = "the smith opens the bloomery and the iron comes out"
    assert tokenizer.encode(text, add_special=False, parse_special=False) == TOKENIZER.encode(
        text, add_special=False, parse_special=False
    )
    assert len(tokenizer._model._cache) <= 2


@pytest.mark.parametrize(
    "unit", ["a", " ", "7", "\n", "!", "é", "가", "😀", "<|", "<think>", "<|im_start|>", "<|im_end", "'s"]
)
def test_long_runs_are_encoded_and_come_back(unit):
    text = unit * (131072 // len(unit))
    ids = TOKENIZER.encode(text, add_special=False, parse_special=True)
    assert TOKENIZER.detokenize(ids) == text


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "<|im_start|>\udc80", "\ud83d\ude00"])
def test_a_lone_surrogate_is_refused(text):
    with pytest.raises(TokenizerError, match=r"lone surrogate U\+D"):
        TOKENIZER.encode(text, add_special=False, parse_special=True)


def by_definition(letters, ranks):
    """The definition of byte-pair merging, word for word."""
    symbols = list(letters)
    while True:
        pairs = [(ranks[f"{a} {b}"], i) for i, (a, b) in enumerate(pairwise(symbols)) if f"{a} {b}" in ranks]
        if not pairs:
            return symbols
        _, first = min(pairs)
        symbols[first : first + 2] = [symbols[first] + symbols[first + 1]]


@settings(deadline=None)
@given(st.data())
def test_merging_follows_the_definition(data):
    parts = st.text("abc", min_size=1, max_size=4)
    lines = data.draw(st.lists(st.tuples(parts, parts).map(" ".join), max_size=30, unique=True))
    ranks = {line: rank for rank, line in enumerate(lines)}
    letters = data.draw(st.text("abc", max_size=40))
    assert merge(letters, ranks, " ") == by_definition(letters, ranks)
