"""A model's tokenizer: text to ids and ids to text, equal to llama-tokenize and llama-server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Protocol

from bloomery.interface.tokenizer.errors import TokenizerError
from bloomery.interface.tokenizer.roles import Roles
from bloomery.interface.tokenizer.special import SpecialMatcher, is_harmless, search_order
from bloomery.interface.tokenizer.trimming import Trimming
from bloomery.interface.tokenizer.vocabulary import Attribute, Vocabulary


class TextModel(Protocol):
    """How a kind of vocabulary (byte-pair, SentencePiece, ...) treats text in which no special token is left."""

    def encode(self, text: str, avoided: Set[int] = frozenset()) -> list[int]:
        """The ids of plain text, with none of `avoided`. TokenizerError if it cannot be encoded."""

    def piece(self, token_id: int) -> bytes:
        """The bytes a token stands for, control tokens included."""


class Tokenizer:
    """Encodes and decodes with one vocabulary. Immutable but for caches, so threads may share it."""

    def __init__(
        self, vocabulary: Vocabulary, roles: Roles, model: TextModel, trimming: Trimming | None = None
    ) -> None:
        self._trimming = trimming or Trimming()
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
        return frozenset(self._vocabulary.with_any(Attribute.SPECIAL))

    @cached_property
    def structural_ids(self) -> frozenset[int]:
        """The special tokens but for user-defined ones of a single character or of white space alone.

        Those are how a vocabulary writes ordinary text, so text of a client has them too.
        """
        return self.special_ids - self._harmless_ids

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
        TokenizerError if the text has a lone surrogate or a character that no token can spell.
        """
        matcher = self._special_matcher if parse_special else self._user_defined_matcher
        return self._added(self._encode_divided(text, matcher, frozenset()), add_special=add_special)

    def encode_spans(self, spans: Iterable[tuple[str, bool]], *, add_special: bool) -> list[int]:
        """The ids of one prompt made of pieces `(text, parse_special)`, in order.

        A structural token (see `structural_ids`) is recognised only where its spelling lies within pieces that say so;
        in the other pieces it is plain text, and no joining of its parts makes it either. Plain text is encoded across
        piece boundaries as if they were not there: only special tokens divide it.
        TokenizerError if the text has a lone surrogate or a character that no token can spell.
        """
        runs = [
            ("".join(text for text, _ in run), parse)
            for parse, run in groupby(((text, parse) for text, parse in spans if text), key=itemgetter(1))
        ]
        if len(runs) == 1 and runs[0][1]:
            return self.encode(runs[0][0], add_special=add_special, parse_special=True)
        ids: list[int] = []
        plain: list[str] = []
        for text, parse in runs:
            position = 0
            for occurrence in self._structural_matcher.find(text) if parse else ():
                plain.append(text[position : occurrence.start])
                ids += self._encode_plain(plain)
                plain.clear()
                ids.append(occurrence.token_id)
                position = occurrence.end
            plain.append(text[position:])
        ids += self._encode_plain(plain)
        return self._added(ids, add_special=add_special)

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
    def _harmless_ids(self) -> frozenset[int]:
        user_defined = self._vocabulary.with_any(Attribute.USER_DEFINED)
        hidden = Attribute.CONTROL | Attribute.UNKNOWN
        return frozenset(
            i for i in user_defined if is_harmless(self._vocabulary.texts[i]) and not self._vocabulary.is_a(i, hidden)
        )

    @cached_property
    def _search_order(self) -> list[int]:
        return search_order(self._vocabulary, sorted(self.special_ids))

    def _matcher(self, ids: Iterable[int]) -> SpecialMatcher:
        return SpecialMatcher(((self._vocabulary.texts[i], i) for i in ids), self._trimming)

    @cached_property
    def _special_matcher(self) -> SpecialMatcher:
        return self._matcher(self._search_order)

    @cached_property
    def _user_defined_matcher(self) -> SpecialMatcher:
        hidden = Attribute.CONTROL | Attribute.UNKNOWN
        return self._matcher(i for i in self._search_order if not self._vocabulary.is_a(i, hidden))

    @cached_property
    def _structural_matcher(self) -> SpecialMatcher:
        return self._matcher(i for i in self._search_order if i in self.structural_ids)

    @cached_property
    def _harmless_matcher(self) -> SpecialMatcher:
        return self._matcher(i for i in self._search_order if i in self._harmless_ids)

    def _encode_plain(self, pieces: Sequence[str]) -> list[int]:
        """The ids of a stretch of a prompt in which no structural token is."""
        return self._encode_divided("".join(pieces), self._harmless_matcher, self.structural_ids)

    def _encode_divided(self, text: str, matcher: SpecialMatcher, avoided: Set[int]) -> list[int]:
        ids: list[int] = []
        position = 0
        for start, end, token_id in matcher.find(text):
            ids += self._model.encode(text[position:start], avoided)
            ids.append(token_id)
            position = end
        ids += self._model.encode(text[position:], avoided)
        return ids

    def _added(self, ids: list[int], *, add_special: bool) -> list[int]:
        """The ids between BOS and EOS, where they are to be added."""
        if add_special and self.add_bos and self.bos_id is not None:
            ids.insert(0, self.bos_id)
        if add_special and self.add_eos and self.eos_id is not None:
            ids.append(self.eos_id)
        return ids

    def _checked(self, token_id: int) -> int:
        if not 0 <= token_id < len(self._vocabulary):
            raise TokenizerError(f"token id {token_id} is outside the vocabulary of {len(self._vocabulary)} tokens")
        return token_id
