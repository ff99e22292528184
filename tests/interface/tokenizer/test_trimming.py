"""White space beside special tokens that trim it, by llama.cpp's rules of model names."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomery.interface.tokenizer import load_tokenizer
from bloomery.interface.tokenizer.special import SpecialMatcher
from bloomery.interface.tokenizer.trimming import Trimming

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = range(1, 5)
SPECIAL = {"<unk>": UNKNOWN, "<s>": CONTROL, "</s>": CONTROL, "<|end|>": CONTROL, "<|endoftext|>": CONTROL}
SPECIAL |= {"<mask>": CONTROL, "[MASK]": CONTROL, "\n\n": USER_DEFINED}


def load(pre="gpt-2", **keys):
    letters = [*"abcdefgh<>|/[]MASKskmendoftxtu", "Ġ", "Ċ", "ĉ"]
    texts = dict.fromkeys(letters, NORMAL) | SPECIAL
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": list(texts),
        "tokenizer.ggml.token_type": np.array(list(texts.values()), np.int32),
        "tokenizer.ggml.merges": ["q q"],
    }
    return load_tokenizer(metadata | {key.replace("__", "."): value for key, value in keys.items()})


def shown(tokenizer, text, **flags):
    ids = tokenizer.encode(text, **({"add_special": False, "parse_special": True} | flags))
    return [tokenizer.token_to_piece(i).decode() for i in ids]


@pytest.mark.parametrize("name", ["Phi-3-mini", "my phi3 model", "PHI-3"])
def test_specials_of_phi_3_take_the_white_space_after_them(name):
    tokenizer = load(general__name=name)
    assert shown(tokenizer, " <|end|> \n\ta") == [" ", "<|end|>", "a"]
    assert shown(tokenizer, "</s> <|end|>  <|end|>") == ["</s>", "<|end|>", "<|end|>"]
    # The exceptions.
    assert shown(tokenizer, "<unk> <s> <|endoftext|> a") == ["<unk>", " ", "<s>", " ", "<|endoftext|>", " ", "a"]
    # The longer spelling is found first, and its white space is gone when the other is looked for.
    assert shown(tokenizer, "<|end|>\n\na") == ["<|end|>", "a"]
    assert shown(tokenizer, "a\n\n <|end|>") == ["a", "\n\n", "<|end|>"]


def test_no_white_space_is_taken_beyond_ascii_or_where_specials_are_text():
    tokenizer = load(general__name="phi-3")
    ids = tokenizer.encode("<|end|>\u3000", add_special=False, parse_special=True)
    assert ids == [tokenizer.special_id("<|end|>")]  # The vocabulary has none of the bytes of U+3000.
    assert "".join(shown(tokenizer, "<|end|> a", parse_special=False)) == "<|end|> a"


@pytest.mark.parametrize(
    ("mask", "keys"),
    [
        ("<mask>", {"pre": "jina-v2-de"}),
        ("<mask>", {"pre": "jina-v2-code"}),
        ("<mask>", {"general__architecture": "nomic-bert-moe"}),
        ("<mask>", {"general__architecture": "jina-bert-v3"}),
        ("[MASK]", {"general__name": "Modern-BERT base"}),
    ],
)
def test_masks_take_the_white_space_before_them(mask, keys):
    assert shown(load(**keys), f"a \n\t{mask} b") == ["a", mask, " ", "b"]


def test_other_models_keep_white_space():
    assert shown(load(general__name="phi-4"), "a <mask> <|end|> b") == ["a", " ", "<mask>", " ", "<|end|>", " ", "b"]


@given(st.text("ab <|", max_size=40))
def test_one_trimming_spelling_is_a_regular_expression(text):
    spelling, left, right = "<|", frozenset({0}), frozenset({0})
    for trimming, pattern in ((Trimming(left=left), r" *<\|"), (Trimming(right=right), r"<\| *")):
        found = SpecialMatcher([(spelling, 0)], trimming).find(text)
        assert [(start, end) for start, end, _ in found] == [match.span() for match in re.finditer(pattern, text)]
