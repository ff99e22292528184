"""From a GGUF file's metadata to its tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from bloomery.interface.tokenizer.bpe import BytePairModel
from bloomery.interface.tokenizer.errors import TokenizerError
from bloomery.interface.tokenizer.metadata_keys import PREFIX, read_strings, read_text
from bloomery.interface.tokenizer.pretokenize import find_pre_tokenizer
from bloomery.interface.tokenizer.roles import assign_roles
from bloomery.interface.tokenizer.tokenizer import Tokenizer
from bloomery.interface.tokenizer.vocabulary import read_vocabulary


def load_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that the `tokenizer.ggml.*` keys of a GGUF file describe.

    `metadata` has strings, ints, floats and bools as Python's own, arrays of numbers as one-dimensional NumPy arrays,
    and arrays of strings as sequences of str; one that has a method `raws` gives its strings as the bytes in the file.
    TokenizerError names the key that is missing, of another type, out of range or not supported.
    """
    model = read_text(metadata, "model")
    if model is None or model not in _LOADERS:
        found = "missing" if model is None else repr(model)
        raise TokenizerError(f"{PREFIX}model is {found}; supported are {', '.join(_LOADERS)}")
    return _LOADERS[model](metadata)


def _load_byte_pair(metadata: Mapping[str, Any]) -> Tokenizer:
    pre_tokenizer = find_pre_tokenizer(read_text(metadata, "pre"))
    vocabulary = read_vocabulary(metadata)
    # llama.cpp presumes the token 11 for both where a file names neither.
    roles = assign_roles(metadata, vocabulary, {"bos": 11, "eos": 11})
    return Tokenizer(vocabulary, roles, BytePairModel(vocabulary, read_strings(metadata, "merges"), pre_tokenizer))


_LOADERS: Mapping[str, Callable[[Mapping[str, Any]], Tokenizer]] = MappingProxyType({"gpt2": _load_byte_pair})
