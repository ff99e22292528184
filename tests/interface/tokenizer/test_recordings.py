"""Every recorded answer of the real tokenizer. tools/record_tokenizer.py makes the recordings anew."""

import pytest

from bloomery.interface.tokenizer import StreamDecoder, piece_json
from tests.interface.tokenizer.recorded import NAMES, cases_of, tokenizer_of

FLAGS = [(add_special, parse_special) for add_special in (False, True) for parse_special in (False, True)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("add_special", "parse_special"), FLAGS)
def test_texts_give_the_recorded_ids(name, add_special, parse_special):
    tokenizer = tokenizer_of(name)
    cases = cases_of(name, "encode")
    assert len(cases) > 250
    for case in cases:
        ids = tokenizer.encode(case["text"], add_special=add_special, parse_special=parse_special)
        assert ids == case["ids"][f"{add_special:d}{parse_special:d}"], case["text"]


@pytest.mark.parametrize("name", NAMES)
def test_tokens_have_the_recorded_pieces(name):
    tokenizer = tokenizer_of(name)
    (case,) = cases_of(name, "pieces")
    assert [piece_json(tokenizer.token_to_piece(i)) for i in range(tokenizer.n_vocab)] == case["pieces"]


@pytest.mark.parametrize("name", NAMES)
def test_ids_give_the_recorded_text(name):
    tokenizer = tokenizer_of(name)
    for case in cases_of(name, "detokenize"):
        assert tokenizer.detokenize(case["ids"]) == case["text"], case["ids"]


def test_answers_are_cut_where_the_server_cuts_them():
    """llama-server drops an unfinished character at the end of a stream that its whole answer has; ours is flushed."""
    tokenizer = tokenizer_of("chatml")
    for case in cases_of("chatml", "stream"):
        decoder = StreamDecoder(tokenizer)
        chunks = [decoder.feed(token_id) for token_id in case["ids"]]
        assert list(filter(None, chunks)) == list(filter(None, case["chunks"])), case["ids"]
        assert "".join(chunks) + decoder.flush() == case["content"]


def test_an_answers_whole_text_is_its_pieces():
    tokenizer = tokenizer_of("chatml")
    for case in cases_of("chatml", "stream"):
        assert tokenizer.detokenize(case["ids"], special=False) == case["content"]
