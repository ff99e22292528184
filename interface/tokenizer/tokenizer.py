"""A model's tokenizer: text to ids and ids to text, equal to llama-tokenize and llama-server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Protocol

from bloomery.interface.tokenizer.errors import TokenizerError
from bloomery.interface.tokenizer.roles import Roles
from bloomery.interface.tokenizer.special import SpecialMatcher, search_order
from bloomery.interface.tokenizer.vocabulary import Attribute, Vocabulary


class TextModel(Protocol):
    """How a kind of vocabulary (byte-pair, SentencePiece, ...) treats text in which no special token is left."""

    def encode(self, text: str) -> list[int]:
        """The ids of plain text. TokenizerError if it cannot be written as UTF-8."""

    def piece(self, token_id: int) -> bytes:
        """The bytes a token stands for, control tokens included."""


class Tokenizer:
    """Encodes and decodes with one vocabulary. Immutable but for caches, so threads may share it."""

    def __init__(self, vocabulary: Vocabulary, roles: Roles, model: TextModel) -> None:
        self._vocabulary = vocabulary
        self._roles = roles
        self._model = model
        self._pieces: list[bytes | None] = [None] * len(vocabulary)

    @property
    def n_vocab(self) -> int:
        """Tokens of the vocabulary; ids are 0..n_vocab - 1."""
        return len(self._vocabulary)

    @property
    def role_ids(self) -> Mapping[str, int]:
        """The id of each role the vocabulary has: bos, eos, eot, eom, unk, sep, pad, mask, fim_pre, fim_suf, ..."""
        return self._roles.ids

    @property
    def bos_id(self) -> int | None:
        """Begin of text."""
        return self._roles.ids.get("bos")

    @property
    def eos_id(self) -> int | None:
        """End of text."""
        return self._roles.ids.get("eos")

    @property
    def eot_id(self) -> int | None:
        """End of a turn."""
        return self._roles.ids.get("eot")

    @property
    def pad_id(self) -> int | None:
        """Padding."""
        return self._roles.ids.get("pad")

    @property
    def add_bos(self) -> bool:
        """Whether a prompt with `add_special` begins with BOS."""
        return self._roles.add_bos

    @property
    def add_eos(self) -> bool:
        """Whether a prompt with `add_special` ends with EOS."""
        return self._roles.add_eos

    @property
    def eog_ids(self) -> frozenset[int]:
        """The tokens that end an answer."""
        return self._roles.eog_ids

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The control, user-defined and unknown tokens: those whose spelling in a prompt can become one id."""
        return frozenset(
            i for i, attributes in enumerate(self._vocabulary.attributes) if attributes & Attribute.SPECIAL
        )

    def is_control(self, token_id: int) -> bool:
        """Whether a token is a control token, which text of an answer does not show."""
        return self._vocabulary.is_a(self._checked(token_id), Attribute.CONTROL)

    def special_id(self, text: str) -> int | None:
        """The special token spelled `text`, None if there is none."""
        token_id = self._vocabulary.ids.get(text)
        return token_id if token_id is not None and self._vocabulary.is_a(token_id, Attribute.SPECIAL) else None

    def token_text(self, token_id: int) -> str:
        """A token's text as the vocabulary has it, byte alphabet and all; bytes that are not UTF-8 are surrogates."""
        return self._vocabulary.texts[self._checked(token_id)]

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """The ids llama_tokenize gives for `text`.

        `add_special` adds BOS and EOS where the vocabulary asks for them. `parse_special` makes tokens of the spellings
        of control tokens; those of user-defined tokens become tokens in any case.
        TokenizerError if the text has a lone surrogate.
        """
        matcher = self._special_matcher if parse_special else self._user_defined_matcher
        return self._encode_runs([(text, matcher)], add_special=add_special)

    def encode_spans(self, spans: Iterable[tuple[str, bool]], *, add_special: bool) -> list[int]:
        """The ids of one prompt made of pieces `(text, parse_special)`, in order.

        A special token is recognised only where its spelling lies within pieces that say so; in the other pieces every
        spelling, of user-defined tokens too, is plain text. Plain text is encoded across piece boundaries as if
        they were not there: only special tokens divide it.
        TokenizerError if the text has a lone surrogate.
        """
        runs = groupby(((text, parse) for text, parse in spans if text), key=itemgetter(1))
        return self._encode_runs(
            (("".join(text for text, _ in run), self._special_matcher if parse else None) for parse, run in runs),
            add_special=add_special,
        )

    def token_to_piece(self, token_id: int, *, special: bool = True) -> bytes:
        """The bytes a token adds to a text (llama_token_to_piece).

        Control and unknown tokens give their spelling with `special`, nothing without; user-defined tokens always give
        theirs. The bytes of one token may be a part of a character.
        """
        if not special and self._vocabulary.is_a(self._checked(token_id), Attribute.CONTROL | Attribute.UNKNOWN):
            return b""
        piece = self._pieces[self._checked(token_id)]
        if piece is None:
            piece = self._pieces[token_id] = self._model.piece(token_id)
        return piece

    def detokenize(self, ids: Sequence[int], *, special: bool = True) -> str:
        """The text of ids as llama-server's /detokenize answers it: joined pieces, U+FFFD for what is not UTF-8."""
        return b"".join(self.token_to_piece(i, special=special) for i in ids).decode("utf-8", "replace")

    @cached_property
    def _search_order(self) -> list[int]:
        return search_order(self._vocabulary, sorted(self.special_ids))

    @cached_property
    def _special_matcher(self) -> SpecialMatcher:
        return SpecialMatcher((self._vocabulary.texts[i], i) for i in self._search_order)

    @cached_property
    def _user_defined_matcher(self) -> SpecialMatcher:
        attributes = self._vocabulary.attributes
        hidden = Attribute.CONTROL | Attribute.UNKNOWN
        return SpecialMatcher((self._vocabulary.texts[i], i) for i in self._search_order if not attributes[i] & hidden)

    def _encode_runs(self, runs: Iterable[tuple[str, SpecialMatcher | None]], *, add_special: bool) -> list[int]:
        ids: list[int] = []
        if add_special and self.add_bos and self.bos_id is not None:
            ids.append(self.bos_id)
        plain: list[str] = []
        for text, matcher in runs:
            position = 0
            for occurrence in matcher.find(text) if matcher is not None else ():
                plain.append(text[position : occurrence.start])
                ids += self._model.encode("".join(plain))
                plain.clear()
                ids.append(occurrence.token_id)
                position = occurrence.end
            plain.append(text[position:])
        ids += self._model.encode("".join(plain))
        if add_special and self.add_eos and self.eos_id is not None:
            ids.append(self.eos_id)
        return ids

    def _checked(self, token_id: int) -> int:
        if not 0 <= token_id < len(self._vocabulary):
            raise TokenizerError(f"token id {token_id} is outside the vocabulary of {len(self._vocabulary)} tokens")
        return token_id
