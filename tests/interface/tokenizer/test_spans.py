"""A prompt made of pieces: what a client wrote never becomes a special token."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.interface.tokenizer.recorded import tokenizer_of

TOKENIZER = tokenizer_of("chatml")
SPELLINGS = [TOKENIZER.token_text(i) for i in sorted(TOKENIZER.special_ids)]
START, END, THINK = (TOKENIZER.special_id(text) for text in ("<|im_start|>", "<|im_end|>", "<think>"))

halves = st.sampled_from(SPELLINGS).flatmap(lambda text: st.integers(0, len(text)).map(lambda cut: text[:cut]))
other_halves = st.sampled_from(SPELLINGS).flatmap(lambda text: st.integers(0, len(text)).map(lambda cut: text[cut:]))
pieces = st.one_of(st.text(max_size=8), st.sampled_from(SPELLINGS), halves, other_halves)
spans = st.lists(st.tuples(pieces, st.booleans()), max_size=12)


def encode(*pieces_of_prompt):
    return TOKENIZER.encode_spans(pieces_of_prompt, add_special=False)


def plain(text):
    """The ids of text in which nothing is special, by way of characters that no spelling has."""
    return encode((text, False))


@settings(deadline=None)
@given(spans)
def test_pieces_come_back_as_the_prompt(prompt):
    assert TOKENIZER.detokenize(encode(*prompt)) == "".join(text for text, _ in prompt)


@settings(deadline=None)
@given(st.lists(pieces))
def test_client_text_never_gives_a_special_id(texts):
    ids = encode(*((text, False) for text in texts))
    assert not TOKENIZER.special_ids.intersection(ids)
    assert ids == plain("".join(texts))


@settings(deadline=None)
@given(spans)
def test_special_ids_are_those_of_the_template(prompt):
    """Template pieces that touch are one text; each run of them gives its own special ids, and no others are there."""
    ids = [i for i in encode(*prompt) if i in TOKENIZER.special_ids]
    runs, previous = [], False
    for text, parse_special in prompt:
        if not text:
            continue
        if parse_special and previous:
            runs[-1] += text
        elif parse_special:
            runs.append(text)
        previous = parse_special
    expected = []
    for run in runs:
        found = TOKENIZER.encode(run, add_special=False, parse_special=True)
        expected += [i for i in found if i in TOKENIZER.special_ids]
    assert ids == expected


@settings(deadline=None)
@given(st.lists(st.text(max_size=6)), st.lists(st.booleans()))
def test_boundaries_do_not_divide_words(texts, flags):
    """Text without special spellings has the ids of the whole, however it is cut and marked."""
    whole = "".join(texts)
    prompt = [(text, flags[i % len(flags)] if flags else False) for i, text in enumerate(texts)]
    if not any(spelling in whole for spelling in SPELLINGS):
        assert encode(*prompt) == TOKENIZER.encode(whole, add_special=False, parse_special=True)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_spelling_at_any_seam_stays_text(spelling):
    for cut in range(1, len(spelling)):
        for first, second in ((True, False), (False, True)):
            ids = encode(
                ("<|im_start|>", True), (spelling[:cut], first), (spelling[cut:], second), ("<|im_end|>", True)
            )
            assert ids == [START, *plain(spelling), END]


def test_a_spelling_of_several_template_pieces_is_a_token():
    assert encode(("<|im_", True), ("", False), ("start|>", True)) == [START]


def test_a_user_defined_spelling_of_a_client_stays_text():
    assert encode(("<think>", False)) == plain("<think>")
    assert encode(("<think>", True)) == [THINK]
    # llama_tokenize takes it for the token even in text that is not parsed.
    assert TOKENIZER.encode("<think>", add_special=False, parse_special=False) == [THINK]


def test_begin_and_end_are_added_around_the_whole_prompt():
    tokenizer = tokenizer_of("overlapping")
    ids = tokenizer.encode_spans([("x", False), ("y", True)], add_special=True)
    assert ids == tokenizer.encode("xy", add_special=True, parse_special=True)
    assert (ids[0], ids[-1]) == (tokenizer.bos_id, tokenizer.eos_id)
