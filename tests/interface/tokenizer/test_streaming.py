"""Streams: the pieces joined are the whole, and no piece holds a part of a character."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.interface.tokenizer import StreamDecoder, complete_length
from tests.interface.tokenizer.recorded import NAMES, tokenizer_of

TOKENIZER = tokenizer_of("chatml")
START = TOKENIZER.special_id("<|im_start|>")

any_ids = st.lists(st.integers(0, TOKENIZER.n_vocab - 1))
# The recorded vocabulary has the 256 bytes first, so an id below 256 is the byte of that value.
only_bytes = st.one_of(st.binary(), st.text().map(str.encode)).map(list)


@settings(deadline=None)
@given(st.one_of(any_ids, only_bytes), st.booleans())
def test_a_stream_is_the_whole(ids, special):
    decoder = StreamDecoder(TOKENIZER, special)
    chunks = [decoder.feed(token_id) for token_id in ids]
    assert "".join(chunks) + decoder.flush() == TOKENIZER.detokenize(ids, special=special)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data(), special=st.booleans())
def test_a_stream_is_the_whole_in_every_kind_of_vocabulary(name, data, special):
    tokenizer = tokenizer_of(name)
    ids = data.draw(st.lists(st.integers(0, tokenizer.n_vocab - 1)))
    decoder = StreamDecoder(tokenizer, special)
    chunks = [decoder.feed(token_id) for token_id in ids]
    assert "".join(chunks) + decoder.flush() == tokenizer.detokenize(ids, special=special)


@settings(deadline=None)
@given(st.text(), st.booleans())
def test_valid_text_streams_without_a_replacement_character(text, merged):
    encoded = TOKENIZER.encode(text, add_special=False, parse_special=False)
    decoder = StreamDecoder(TOKENIZER)
    chunks = [decoder.feed(token_id) for token_id in (encoded if merged else text.encode())]
    assert decoder.flush() == ""
    assert "".join(chunks) == text


@settings(deadline=None)
@given(st.text(min_size=1))
def test_a_character_is_complete_with_its_last_byte(text):
    data = text.encode()
    last = len(text[-1].encode())
    assert complete_length(data) == len(data)
    for missing in range(1, last):
        assert complete_length(data[:-missing]) == len(data) - last


def test_preserved_tokens_are_shown_where_others_are_not():
    end = TOKENIZER.special_id("<|im_end|>")
    decoder = StreamDecoder(TOKENIZER, preserved={START})
    assert decoder.feed(START) + decoder.feed(end) == "<|im_start|>"


def test_flushing_twice_gives_nothing_more():
    decoder = StreamDecoder(TOKENIZER)
    assert decoder.feed(0xE2) == ""
    assert decoder.flush() == "\ufffd"
    assert decoder.flush() == ""
