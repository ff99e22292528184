"""From a GGUF file's metadata to its tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from bloomery.interface.quoted import quoted
from bloomery.interface.tokenizer.bpe import BytePairModel
from bloomery.interface.tokenizer.errors import TokenizerError
from bloomery.interface.tokenizer.metadata_keys import PREFIX, read_flag, read_scores, read_strings, read_text
from bloomery.interface.tokenizer.metaspace import SentencePieceModel, SpacedPairModel
from bloomery.interface.tokenizer.pre_names import find_pre_kind
from bloomery.interface.tokenizer.roles import Presumed, assign_roles
from bloomery.interface.tokenizer.tokenizer import TextModel, Tokenizer
from bloomery.interface.tokenizer.trimming import trimming_of
from bloomery.interface.tokenizer.vocabulary import Vocabulary, read_vocabulary

# llama.cpp presumes token 11 where a byte-pair file names no BOS or no EOS.
_BYTE_PAIR_ENDS = MappingProxyType({"bos": 11, "eos": 11})
_SENTENCE_PIECE_ENDS = MappingProxyType({"bos": 1, "eos": 2, "unk": 0})


def load_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that the `tokenizer.ggml.*` keys of a GGUF file describe.

    `metadata` has strings, ints, floats and bools as Python's own, arrays of numbers as one-dimensional NumPy arrays,
    and arrays of strings as sequences of str; one that has the methods `raws` and `joined` (`StringArray`) gives its
    strings as the bytes in the file.
    Of the file's other keys the names of the model and its architecture matter (see trimming.py).
    TokenizerError names the key that is missing, of another type, out of range or not supported.
    """
    model = read_text(metadata, "model")
    if model is None or model not in _LOADERS:
        found = "missing" if model is None else quoted(model)
        raise TokenizerError(f"{PREFIX}model is {found}; supported are {', '.join(_LOADERS)}")
    return _LOADERS[model](metadata)


def _load_byte_pair(metadata: Mapping[str, Any]) -> Tokenizer:
    name = read_text(metadata, "pre")
    if name in _SPACED_PAIR_LOADERS:
        return _SPACED_PAIR_LOADERS[name](metadata)
    kind = find_pre_kind(name)
    vocabulary = read_vocabulary(metadata)
    # llama.cpp lets a file of this one name have no merge list.
    merges = [] if name == "kimi-k2" and f"{PREFIX}merges" not in metadata else read_strings(metadata, "merges")
    model = BytePairModel(vocabulary, merges, kind.pre_tokenizer, ignore_merges=kind.ignore_merges)
    ends = {role: token_id for role, token_id in _BYTE_PAIR_ENDS.items() if role != "bos" or kind.presumed_bos}
    return _tokenizer(metadata, vocabulary, model, Presumed(ends, add_bos=kind.add_bos))


def _load_spaced_pair(
    metadata: Mapping[str, Any], presumed: Presumed, *, whole: bool, words: bool = False
) -> Tokenizer:
    vocabulary = read_vocabulary(metadata)
    merges = read_strings(metadata, "merges")
    model = SpacedPairModel(vocabulary, merges, whole_line_ends=whole, by_words=words)
    return _tokenizer(metadata, vocabulary, model, presumed)


def _load_sentence_piece(metadata: Mapping[str, Any]) -> Tokenizer:
    vocabulary = read_vocabulary(metadata)
    space_prefix = read_flag(metadata, "add_space_prefix")
    model = SentencePieceModel(
        vocabulary, read_scores(metadata, len(vocabulary)), space_prefix=space_prefix is None or space_prefix
    )
    return _tokenizer(metadata, vocabulary, model, Presumed(_SENTENCE_PIECE_ENDS, add_bos=True))


def _tokenizer(metadata: Mapping[str, Any], vocabulary: Vocabulary, model: TextModel, presumed: Presumed) -> Tokenizer:
    roles = assign_roles(metadata, vocabulary, presumed)
    return Tokenizer(vocabulary, roles, model, trimming_of(metadata, vocabulary))


_Loader = Callable[[Mapping[str, Any]], Tokenizer]

_GEMMA4 = partial(_load_spaced_pair, whole=True)
_SPACED_PAIR_LOADERS: Mapping[str | None, _Loader] = MappingProxyType(
    {
        **dict.fromkeys(
            ("gemma4", "granite-embed-multi-311m"),
            partial(_GEMMA4, presumed=Presumed(_BYTE_PAIR_ENDS, always_bos=True)),
        ),
        "mmbert": partial(_load_spaced_pair, presumed=Presumed(_BYTE_PAIR_ENDS), whole=True, words=True),
        "sarvam-moe": partial(_load_spaced_pair, presumed=Presumed(_BYTE_PAIR_ENDS), whole=False),
    }
)
_LOADERS: Mapping[str, _Loader] = MappingProxyType(
    {
        "gpt2": _load_byte_pair,
        "llama": _load_sentence_piece,
        "gemma4": partial(_GEMMA4, presumed=Presumed({}, always_bos=True)),
    }
)
