"""A vocabulary: the text and the attributes of each token."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from bloomery.interface.quoted import quoted
from bloomery.interface.tokenizer.errors import TokenizerError
from bloomery.interface.tokenizer.metadata_keys import PREFIX, read_integers, read_strings


class Attribute:
    """Bits that say what a token is, with the values of llama.cpp's llama_token_attr. A token may have several."""

    UNDEFINED: Final = 0
    UNKNOWN: Final = 1
    UNUSED: Final = 2
    NORMAL: Final = 4
    CONTROL: Final = 8
    USER_DEFINED: Final = 16
    BYTE: Final = 32
    # Those whose spelling in a prompt can become the one token.
    SPECIAL: Final = CONTROL | USER_DEFINED | UNKNOWN


# The numbers of `tokenizer.ggml.token_type`, by index; every other number is an undefined token.
_ATTRIBUTE_OF_TYPE = (
    Attribute.UNDEFINED,
    Attribute.NORMAL,
    Attribute.UNKNOWN,
    Attribute.CONTROL,
    Attribute.USER_DEFINED,
    Attribute.UNUSED,
    Attribute.BYTE,
)

_BYTE_SPELLING = re.compile("<0x[0-9A-Fa-f]{2}>")


@dataclass(frozen=True)
class Vocabulary:
    """`texts[id]` is a token's text as stored, `ids[text]` its inverse, `attributes[id]` its `Attribute` bits."""

    texts: list[str]
    ids: dict[str, int]
    attributes: bytearray

    def __len__(self) -> int:
        return len(self.texts)

    def is_a(self, token_id: int, attributes: int) -> bool:
        """Whether the token has any of the attributes."""
        return bool(self.attributes[token_id] & attributes)

    def with_any(self, attributes: int) -> list[int]:
        """The ids of the tokens that have any of the attributes, in order."""
        found: list[int] = np.flatnonzero(np.frombuffer(self.attributes, np.uint8) & attributes).tolist()
        return found

    def fallback_byte(self, token_id: int) -> int:
        """The byte that a token of the byte kind, spelled `<0xNN>`, stands for."""
        return int(self.texts[token_id][3:5], 16)

    def stored_bytes(self, token_id: int) -> bytes:
        """A token's text as its bytes in the file."""
        return self.texts[token_id].encode("utf-8", "surrogateescape")


def read_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """The vocabulary of `tokenizer.ggml.tokens` and `tokenizer.ggml.token_type`.

    As in llama.cpp (llama-vocab.cpp, `load`): without types every token is a normal one, and a token without text is
    called `[EMPTY_<id>]`. Two tokens of one text are refused (llama.cpp aborts on them).
    """
    texts = read_strings(metadata, "tokens")
    if not texts:
        raise TokenizerError(f"{PREFIX}tokens is empty")
    if not all(texts):
        texts = [text or f"[EMPTY_{token_id}]" for token_id, text in enumerate(texts)]
    ids = dict(zip(texts, range(len(texts)), strict=True))
    if len(ids) != len(texts):
        first = next(token_id for token_id, text in enumerate(texts) if ids[text] != token_id)
        raise TokenizerError(f"{PREFIX}tokens has {quoted(texts[first])} twice, as {first} and as {ids[texts[first]]}")
    vocabulary = Vocabulary(texts, ids, _read_attributes(metadata, len(texts)))
    for token_id in vocabulary.with_any(Attribute.BYTE):
        if not _BYTE_SPELLING.fullmatch(texts[token_id]):
            spelling = quoted(texts[token_id])
            raise TokenizerError(f"{PREFIX}tokens[{token_id}] is a byte token spelled {spelling}, not <0xNN>")
    return vocabulary


def _read_attributes(metadata: Mapping[str, Any], n_vocab: int) -> bytearray:
    types = read_integers(metadata, "token_type")
    if types is None:
        return bytearray([Attribute.NORMAL]) * n_vocab
    if len(types) < n_vocab:
        raise TokenizerError(f"{PREFIX}token_type has {len(types)} entries for {n_vocab} tokens")
    types = types[:n_vocab]
    known = (types >= 0) & (types < len(_ATTRIBUTE_OF_TYPE))
    indices = np.where(known, types, 0).astype(np.uint8)
    return bytearray(np.array(_ATTRIBUTE_OF_TYPE, dtype=np.uint8)[indices].tobytes())
