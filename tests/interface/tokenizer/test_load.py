"""Loading: what a file may say, what it must say, and how a refusal names the key."""

import numpy as np
import pytest

from bloomery.interface.tokenizer import TokenizerError, load_tokenizer
from tests.interface.tokenizer.recorded import metadata_of

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def load(special=(), **keys):
    """A tokenizer of 16 letters and these special tokens (text, type), with keys under tokenizer.ggml."""
    tokens = [*"abcdefghijklmnop", *(text for text, _ in special)]
    types = [NORMAL] * 16 + [kind for _, kind in special]
    metadata = {
        "model": "gpt2",
        "pre": "qwen2",
        "tokens": tokens,
        "merges": ["a b"],
        "token_type": np.array(types, "i4"),
    }
    metadata |= keys
    return load_tokenizer({f"tokenizer.ggml.{key}": value for key, value in metadata.items() if value is not None})


@pytest.mark.parametrize("pre", ["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2"])
def test_names_of_the_same_pre_tokenizer(pre):
    assert load(pre=pre).encode("abc", add_special=False, parse_special=True) == [ord("a") - 97, 1, 2]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model": None}, r"tokenizer\.ggml\.model is missing; supported are gpt2"),
        ({"model": "bert"}, r"tokenizer\.ggml\.model is 'bert'; supported are gpt2, llama, gemma4"),
        ({"model": 3}, r"tokenizer\.ggml\.model must be a string, but is int 3"),
        ({"pre": "whitespace"}, r"tokenizer\.ggml\.pre is 'whitespace'; supported are qwen2, .*sarvam-moe"),
        ({"tokens": None}, r"tokenizer\.ggml\.tokens is missing"),
        ({"tokens": []}, r"tokenizer\.ggml\.tokens is empty"),
        ({"tokens": "abc"}, r"tokenizer\.ggml\.tokens must be an array of strings"),
        ({"tokens": ["a", 1]}, r"tokenizer\.ggml\.tokens\[1\] must be a string, but is int 1"),
        ({"tokens": np.arange(3)}, r"tokenizer\.ggml\.tokens must be an array of strings, but is an array of int64"),
        ({"tokens": ["a", "b", "a"], "token_type": None}, r"tokenizer\.ggml\.tokens has 'a' twice, as 0 and as 2"),
        ({"merges": None}, r"tokenizer\.ggml\.merges is missing"),
        ({"token_type": np.ones(3, "i4")}, r"tokenizer\.ggml\.token_type has 3 entries for 16 tokens"),
        ({"token_type": np.ones(16)}, r"tokenizer\.ggml\.token_type must be an array of integers"),
        ({"token_type": np.full(16, BYTE)}, r"tokenizer\.ggml\.tokens\[0\] is a byte token spelled 'a', not <0xNN>"),
        ({"bos_token_id": 16}, r"tokenizer\.ggml\.bos_token_id is 16, but the vocabulary has the ids 0\.\.15"),
        ({"eos_token_id": -1}, r"tokenizer\.ggml\.eos_token_id is -1"),
        ({"eot_token_id": "x"}, r"tokenizer\.ggml\.eot_token_id must be a token id, but is str 'x'"),
        ({"padding_token_id": True}, r"tokenizer\.ggml\.padding_token_id must be a token id"),
        ({"add_bos_token": 1}, r"tokenizer\.ggml\.add_bos_token must be a bool, but is int 1"),
    ],
)
def test_refusals_name_the_key_and_the_value(keys, message):
    with pytest.raises(TokenizerError, match=message):
        load(**keys)


def test_begin_of_text_cannot_be_added_where_there_is_none():
    with pytest.raises(TokenizerError, match=r"add_bos_token is true, but tokenizer\.ggml\.bos_token_id is missing"):
        load(tokens=["a"], token_type=None, add_bos_token=True)


def test_begin_of_text_that_a_name_adds_must_be_there():
    with pytest.raises(TokenizerError, match=r"the tokenizer adds BOS, but tokenizer\.ggml\.bos_token_id is missing"):
        load(pre="tekken", tokens=["a"], token_type=None)
    with pytest.raises(TokenizerError, match=r"the tokenizer adds BOS, but tokenizer\.ggml\.bos_token_id is missing"):
        load(model="gemma4")


@pytest.mark.parametrize(
    ("keys", "bos_id", "add_bos"),
    [
        ({"pre": "pixtral"}, 11, True),
        ({"pre": "pixtral", "add_bos_token": False}, 11, False),
        ({"pre": "glm4"}, None, False),
        ({"pre": "glm4", "bos_token_id": 3}, 3, False),
        ({"pre": "deepseek-v3"}, 11, False),
        ({"pre": "gemma4", "add_bos_token": False}, 11, True),
        ({"pre": "mmbert"}, 11, False),
        ({"model": "gemma4", "bos_token_id": 3, "add_bos_token": False}, 3, True),
        ({"model": "llama"}, 1, True),
        ({"model": "llama", "add_bos_token": False}, 1, False),
    ],
)
def test_what_is_presumed_of_begin_of_text(keys, bos_id, add_bos):
    tokenizer = load(**keys)
    assert (tokenizer.bos_id, tokenizer.add_bos) == (bos_id, add_bos)


@pytest.mark.parametrize("pre", [None, ""])
def test_a_file_that_names_no_words_has_the_default_ones(pre):
    tokens = [*"ab12!", "12", "b!"]
    keys = {"tokens": tokens, "token_type": None, "merges": ["1 2", "b !"]}
    flags = {"add_special": False, "parse_special": False}
    assert load(pre=pre, **keys).encode("ab!12", **flags) == load(pre="default", **keys).encode("ab!12", **flags)


def test_only_one_name_needs_no_merges():
    assert load(pre="kimi-k2", merges=None).encode("ab", add_special=False, parse_special=False) == [0, 1]


def test_a_token_error_is_a_value_error():
    assert issubclass(TokenizerError, ValueError)


def test_roles_by_metadata():
    tokenizer = load(bos_token_id=1, eos_token_id=np.uint32(2), eot_token_id=3, padding_token_id=4, add_eos_token=True)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.eot_id, tokenizer.pad_id) == (1, 2, 3, 4)
    assert (tokenizer.add_bos, tokenizer.add_eos) == (False, True)
    assert tokenizer.eog_ids == {2, 3}


def test_without_metadata_begin_and_end_are_token_11():
    tokenizer = load()
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.eot_id, tokenizer.pad_id) == (11, 11, None, None)
    assert tokenizer.eog_ids == {11}
    small = load(tokens=["a", "b"], token_type=None)
    assert (small.bos_id, small.eos_id, small.eog_ids) == (None, None, frozenset())


def test_ends_by_spelling_become_control_tokens():
    tokenizer = load([("<|im_end|>", NORMAL), ("<|endoftext|>", USER_DEFINED), ("</s>", NORMAL)], eos_token_id=0)
    assert tokenizer.eot_id == 16
    assert tokenizer.eog_ids == {0, 16, 17, 18}
    assert all(tokenizer.is_control(i) for i in (16, 17, 18))
    assert not tokenizer.is_control(0)


def test_fill_in_the_middle_marks_that_end_an_answer():
    special = [
        ("<|fim_pad|>", CONTROL),
        ("<|repo_name|>", CONTROL),
        ("<|file_sep|>", CONTROL),
        ("<|fim_prefix|>", NORMAL),
    ]
    tokenizer = load(special, eos_token_id=0)
    assert tokenizer.eog_ids == {0, 16, 17, 18}
    assert tokenizer.role_ids["fim_pre"] == 19
    assert tokenizer.is_control(19)


def test_a_deprecated_key_of_a_role_wins():
    assert load(fim_pre_token_id=1, prefix_token_id=2).role_ids["fim_pre"] == 2


def test_harmony_messages_end_without_ending_the_answer():
    special = [("<|end|>", CONTROL), ("<|return|>", CONTROL), ("<|call|>", CONTROL), ("<|channel|>", CONTROL)]
    tokenizer = load(special, eos_token_id=0)
    assert tokenizer.eog_ids == {0, 17, 18}
    assert tokenizer.token_to_piece(16, special=False) == b"<|end|>"
    assert tokenizer.token_to_piece(19, special=False) == b"<|channel|>"


def test_a_strike_through_tag_is_no_end_where_gemmas_marks_are():
    tokenizer = load([("</s>", NORMAL), ("<|tool_response>", CONTROL)], eos_token_id=0)
    assert tokenizer.eog_ids == {0, 17}
    assert not tokenizer.is_control(16)


def test_special_ids_are_control_user_defined_and_unknown_tokens():
    special = [("<c>", CONTROL), ("<u>", USER_DEFINED), ("<unk>", UNKNOWN), ("<spare>", UNUSED), ("<0x41>", BYTE)]
    tokenizer = load(special)
    assert tokenizer.special_ids == {16, 17, 18}
    assert tokenizer.special_id("<c>") == 16
    assert tokenizer.special_id("a") is None
    assert tokenizer.special_id("<missing>") is None


def test_pieces_of_each_kind_of_token():
    special = [("<c>", CONTROL), ("<u>", USER_DEFINED), ("<unk>", UNKNOWN), ("<spare>", UNUSED), ("<0x41>", BYTE)]
    tokenizer = load(special)
    assert [tokenizer.token_to_piece(i) for i in range(16, 21)] == [b"<c>", b"<u>", b"<unk>", b"", b"A"]
    assert [tokenizer.token_to_piece(i, special=False) for i in range(16, 21)] == [b"", b"<u>", b"", b"", b"A"]


def test_a_token_without_text_gets_a_name():
    assert load([("", NORMAL)]).token_text(16) == "[EMPTY_16]"


def test_a_text_ends_at_its_first_nul():
    assert load([("<c>\0more", CONTROL)]).token_text(16) == "<c>"


class StoredStrings(list):
    """What the GGUF reader gives: strings as bytes, too."""

    def raws(self):
        return [text.encode("utf-8", "surrogateescape") for text in self]

    def joined(self):
        return b"".join(b"\0" + raw for raw in self.raws())


def test_bytes_that_are_no_utf8_are_kept():
    tokens = StoredStrings(["a", "\udce2\udc82", "<\udcff>"])
    tokenizer = load(tokens=tokens, token_type=np.array([NORMAL, NORMAL, CONTROL]))
    assert tokenizer.token_to_piece(2) == b"<\xff>"
    assert tokenizer.token_to_piece(1) == b"[UNK_BYTE_0xefbfbd\xe2\x82]" * 2
    assert tokenizer.encode("<", add_special=False, parse_special=True) == []


@pytest.mark.parametrize("token_id", [-1, 427, 1 << 40])
def test_an_id_outside_the_vocabulary_is_refused(token_id):
    tokenizer = load_tokenizer(metadata_of("chatml"))
    for use in (
        tokenizer.token_to_piece,
        tokenizer.token_text,
        tokenizer.is_control,
        lambda i: tokenizer.detokenize([i]),
    ):
        with pytest.raises(TokenizerError, match=f"token id {token_id} is outside the vocabulary of 427 tokens"):
            use(token_id)
