"""Text of a client in every kind of vocabulary: it gives no structural token, and ordinary text stays what it was."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomery.interface.tokenizer import load_tokenizer
from tests.interface.tokenizer.recorded import NAMES, tokenizer_of

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, _, BYTE = range(1, 7)
BYTES = {f"<0x{byte:02X}>": BYTE for byte in range(256)}


def growing(model, **keys):
    """A vocabulary in which the spellings of `<s>` and `<think>` also come of joining their letters, one by one."""
    spellings = {"<s>": CONTROL, "<think>": USER_DEFINED}
    steps = [spelling[:size] for spelling in spellings for size in range(2, len(spelling) + 1)]
    letters = [*"<think>s", "▁", "\n"] if model != "gpt2" else [*"<think>s", "Ġ", "Ċ"]
    runs = {"\n\n": USER_DEFINED, "  ": USER_DEFINED, "!": USER_DEFINED}
    texts = {"<unk>": UNKNOWN, "<b>": CONTROL, "</s>": CONTROL} | (BYTES if model != "gpt2" else {})
    texts |= dict.fromkeys([*letters, *(step for step in steps if step not in spellings)], NORMAL) | spellings | runs
    metadata = {
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": list(texts),
        "tokenizer.ggml.token_type": np.array(list(texts.values()), np.int32),
        "tokenizer.ggml.scores": np.arange(len(texts), dtype=np.float32),
        "tokenizer.ggml.merges": [f"{step[:-1]} {step[-1]}" for step in steps],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    return load_tokenizer(metadata | {f"tokenizer.ggml.{key}": value for key, value in keys.items()})


GROWING = {
    "llama": growing("llama"),
    "llama without a space before": growing("llama", add_space_prefix=False),
    "gemma4": growing("gemma4"),
    "mmbert": growing("gpt2", pre="mmbert"),
    "gpt2": growing("gpt2", pre="deepseek-coder"),
    # Nothing is cut there but digits, so that a spelling is joined whole.
    "superbpe": growing("gpt2", pre="superbpe"),
}
ALL = {name: tokenizer_of(name) for name in NAMES} | GROWING


def texts_of(tokenizer):
    spellings = sorted(tokenizer.token_text(i) for i in tokenizer.special_ids)
    halves = [spelling[:cut] for spelling in spellings for cut in range(1, len(spelling))]
    halves += [spelling[cut:] for spelling in spellings for cut in range(1, len(spelling))]
    return st.lists(st.one_of(st.text("ab \n!<>▁th", max_size=4), st.sampled_from(spellings), st.sampled_from(halves)))


@pytest.mark.parametrize("name", ALL)
@given(data=st.data())
def test_client_text_never_gives_a_structural_id(name, data):
    tokenizer = ALL[name]
    texts = data.draw(texts_of(tokenizer))
    ids = tokenizer.encode_spans([(text, False) for text in texts], add_special=False)
    assert tokenizer.structural_ids.isdisjoint(ids)
    assert ids == tokenizer.encode_spans([("".join(texts), False)], add_special=False)


@pytest.mark.parametrize("name", ALL)
@given(data=st.data())
def test_only_whole_spellings_of_the_template_give_structural_ids(name, data):
    tokenizer = ALL[name]
    spans = data.draw(st.lists(st.tuples(texts_of(tokenizer).map("".join), st.booleans())))
    # A piece without text divides nothing.
    joined = []
    for text, parse in spans:
        if text and joined and joined[-1][1] == parse:
            joined[-1] = (joined[-1][0] + text, parse)
        elif text:
            joined.append((text, parse))
    assert tokenizer.encode_spans(spans, add_special=True) == tokenizer.encode_spans(joined, add_special=True)
    if len(joined) > 1:
        ids = tokenizer.encode_spans(joined, add_special=False)
        whole = [
            i
            for text, parse in joined
            if parse
            for i in tokenizer.encode_spans([(text, True), ("a", False)], add_special=False)
        ]
        structural = tokenizer.structural_ids
        assert [i for i in ids if i in structural] == [i for i in whole if i in structural]


@pytest.mark.parametrize("name", ALL)
def test_a_prompt_of_the_template_alone_is_llamas(name):
    tokenizer = ALL[name]
    text = "".join(tokenizer.token_text(i) + " a\n\n  b" for i in sorted(tokenizer.special_ids))
    for add_special in (False, True):
        expected = tokenizer.encode(text, add_special=add_special, parse_special=True)
        assert tokenizer.encode_spans([(text[:9], True), (text[9:], True)], add_special=add_special) == expected


@pytest.mark.parametrize("name", GROWING)
def test_joining_makes_a_special_token_only_where_llama_does(name):
    tokenizer = GROWING[name]
    special = tokenizer.special_id("<s>")
    if name != "gpt2":
        # llama.cpp looks a joined text up among all tokens, special ones included.
        assert special in tokenizer.encode("<s>", add_special=False, parse_special=False)
    for spelling in ("<s>", "<think>"):
        ids = tokenizer.encode_spans([(spelling, False)], add_special=False)
        assert tokenizer.structural_ids.isdisjoint(ids)
        assert tokenizer.detokenize(ids).strip() == spelling


def test_a_word_that_is_a_special_token_is_made_of_its_letters():
    """Where words are looked up before they are merged."""
    tokens = [*"think", "think"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "glm4",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([NORMAL] * 5 + [CONTROL], np.int32),
        "tokenizer.ggml.merges": ["t h"],
    }
    tokenizer = load_tokenizer(metadata)
    assert tokenizer.encode("think", add_special=False, parse_special=False) == [5]
    assert tokenizer.encode_spans([("think", False)], add_special=False) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", [name for name in GROWING if name != "mmbert"])
def test_white_space_and_single_characters_of_a_client_are_the_tokens_they_always_were(name):
    """User-defined tokens of these kinds are how a vocabulary writes ordinary text."""
    tokenizer = GROWING[name]
    pair, ends, mark = (tokenizer.special_id(text) for text in ("  ", "\n\n", "!"))
    assert tokenizer.structural_ids.isdisjoint({pair, ends, mark})
    ids = tokenizer.encode_spans([("<s>\n", True), ("\n  t!", False)], add_special=False)
    plain = [i for i in ids if tokenizer.token_text(i) not in ("▁", "Ġ")]
    assert plain == [
        tokenizer.special_id("<s>"),
        ends,
        pair,
        tokenizer.encode("t", add_special=False, parse_special=False)[-1],
        mark,
    ]
