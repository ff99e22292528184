"""Cutting text where nothing is joined: the ids are those of the text that was not cut."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomery.interface.tokenizer import TokenizerError, load_tokenizer
from bloomery.interface.tokenizer.bpe import merge_ranks
from bloomery.interface.tokenizer.merging import merge
from bloomery.interface.tokenizer.seams import Seams, split
from bloomery.interface.tokenizer.unicode_classes import code_points
from tests.interface.tokenizer.recorded import tokenizer_of

letters = "ab▁é"
parts = st.text(letters, min_size=1, max_size=3)
merge_lists = st.lists(st.tuples(parts, parts).map(" ".join), max_size=20, unique=True)


def stretches(seams, text):
    return list(split(text, seams.cuts(code_points(text))))


@given(merge_lists, st.text(letters, max_size=40))
def test_merges_do_not_cross_a_cut(merges, text):
    ranks = merge_ranks(merges)
    words = stretches(Seams.of_merges(merges), text)
    assert "".join(words) == text
    assert [symbol for word in words for symbol in merge(word, ranks, " ")] == merge(text, ranks, " ")


@given(st.lists(st.text(letters, min_size=1, max_size=4), max_size=20, unique=True), st.text(letters, max_size=40))
def test_tokens_do_not_cross_a_cut(tokens, text):
    ranks = {token: rank // 2 for rank, token in enumerate(tokens)}
    words = stretches(Seams.inside(tokens), text)
    assert "".join(words) == text
    assert [symbol for word in words for symbol in merge(word, ranks, "")] == merge(text, ranks, "")


def test_a_text_is_cut_where_no_merge_has_a_seam():
    assert stretches(Seams.of_merges(["▁ a", "▁a b"]), "▁ab▁ab") == ["▁ab", "▁ab"]
    assert stretches(Seams.inside(["▁a", "ab"]), "▁ab▁ab") == ["▁ab", "▁ab"]
    assert stretches(Seams.inside([]), "") == []


class CountingRanks:
    """Ranks that count how often they are asked."""

    def __init__(self, ranks):
        self.ranks = ranks
        self.asked = 0

    def get(self, key, default, /):
        self.asked += 1
        return self.ranks.get(key, default)


@pytest.mark.parametrize("joint", [" ", ""])
@pytest.mark.parametrize("unit", ["a", "ab", "▁"])
def test_merging_asks_a_few_times_a_letter(unit, joint):
    """Each join asks twice, and there are fewer joins than letters; a quadratic loop would ask far more often."""
    n = 131072
    tokens = [unit[0] * size for size in (2, 4, 8, 16)] + ["ab", "abab", "abababab"]
    halves = [(token[: len(token) // 2], token[len(token) // 2 :]) for token in tokens]
    ranks = CountingRanks({f"{left}{joint}{right}": rank for rank, (left, right) in enumerate(halves)})
    symbols = merge((unit * n)[:n], ranks, joint)
    assert "".join(symbols) == (unit * n)[:n]
    assert ranks.asked < 3 * n


@pytest.mark.parametrize("name", ["sentencepiece", "gemma4"])
@pytest.mark.parametrize("unit", ["a", " ", "7", "\n", "é", "가", "😀", "<|im_end|>", "<think>", "ab \n", "\u0301"])
def test_long_runs_come_back(name, unit):
    tokenizer = tokenizer_of(name)
    text = unit * (131072 // len(unit))
    ids = tokenizer.encode(text, add_special=False, parse_special=True)
    assert tokenizer.detokenize(ids).removeprefix(" ") == text.removeprefix(" ")


def test_equal_scores_join_from_the_left():
    tokens = ["<unk>", "<s>", "</s>", "a", "aa", "▁"]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.zeros(len(tokens), np.float32),
        "tokenizer.ggml.token_type": np.array([2, 3, 3, 1, 1, 1], np.int32),
    }
    tokenizer = load_tokenizer(metadata)
    assert tokenizer.encode("aaa", add_special=True, parse_special=False) == [1, 5, 4, 3]
    assert load_tokenizer(metadata | {"tokenizer.ggml.add_space_prefix": False}).encode(
        "aaa", add_special=False, parse_special=False
    ) == [4, 3]
    with pytest.raises(TokenizerError, match=r"U\+00E9 is no token, and the vocabulary has no <0xC3>"):
        tokenizer.encode("é", add_special=False, parse_special=False)
    with pytest.raises(TokenizerError, match=r"lone surrogate U\+D800"):
        tokenizer.encode("a\ud800", add_special=False, parse_special=False)


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (np.zeros(2, np.float32), "scores has 2 entries for 4 tokens"),
        (np.array([0, 0, np.nan, 0], np.float32), r"scores\[2\] is not a number"),
        ("none", "scores must be an array of numbers"),
    ],
)
def test_scores_that_cannot_be_used(scores, message):
    metadata = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": [*"abcd"], "tokenizer.ggml.scores": scores}
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(metadata)


def test_neighbours_of_a_cut_are_in_no_token():
    tokens = ["▁the", "he", "th"]
    text = "▁the▁the"
    inside = {pair for token in tokens for pair in pairwise(token)}
    words = stretches(Seams.inside(tokens), text)
    assert all((left[-1], right[0]) not in inside for left, right in pairwise(words))
