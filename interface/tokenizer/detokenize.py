"""Text of an answer while it is being generated: whole characters only, cut where llama-server cuts."""

from __future__ import annotations

from collections.abc import Container
from typing import Protocol


class PieceSource(Protocol):
    """What gives a token's bytes: a Tokenizer."""

    def token_to_piece(self, token_id: int, *, special: bool = True) -> bytes:
        """The bytes a token adds to a text."""


def complete_length(data: bytes) -> int:
    """The bytes of `data` before a character whose bytes are not all there yet; all of them if there is none.

    Only the count of bytes after a lead byte is looked at, not what they are (llama.cpp, server-common.cpp,
    `validate_utf8`): a lead byte that is followed by other characters is waited on for as long.
    """
    size = len(data)
    for back in range(1, min(4, size) + 1):
        lead = data[size - back]
        needed = 4 if lead & 0xF8 == 0xF0 else 3 if lead & 0xF0 == 0xE0 else 2 if lead & 0xE0 == 0xC0 else 1
        if back < needed:
            return size - back
    return size


class StreamDecoder:
    """Turns the ids of one answer into text, token by token.

    The texts that `feed` and `flush` return, joined, are the whole answer. A character whose bytes come in several
    tokens is returned with the last of them. Bytes that are no UTF-8 become U+FFFD, as in llama-server's JSON.
    """

    def __init__(
        self, tokenizer: PieceSource, special: bool = False, *, preserved: Container[int] = frozenset()
    ) -> None:
        """`special` shows control tokens; `preserved` are ids to show even without (preserved_tokens in llama.cpp)."""
        self._tokenizer = tokenizer
        self._special = special
        self._preserved = preserved
        self._pending = b""

    def feed(self, token_id: int) -> str:
        """The text that is complete with this token; "" while a character is waited for."""
        special = self._special or token_id in self._preserved
        self._pending += self._tokenizer.token_to_piece(token_id, special=special)
        if complete_length(self._pending) < len(self._pending):
            return ""
        return self.flush()

    def flush(self) -> str:
        """What is held back, at the end of an answer: U+FFFD for a character that was not finished, else ""."""
        text = self._pending.decode("utf-8", "replace")
        self._pending = b""
        return text


def piece_json(piece: bytes) -> str | list[int]:
    """A token's bytes as /tokenize shows them with `with_pieces`: text, or a list of bytes where they are not UTF-8.

    llama-server takes a sequence for a character by its lead and continuation bytes alone (server-common.cpp,
    `is_valid_utf8`); one that passes that and is none after all is shown as U+FFFD.
    """
    position = 0
    while position < len(piece):
        lead = piece[position]
        if lead < 0x80:
            size = 1
        elif lead & 0xE0 == 0xC0:
            size = 2
        elif lead & 0xF0 == 0xE0:
            size = 3
        elif lead & 0xF8 == 0xF0:
            size = 4
        else:
            return list(piece)
        continuation = piece[position + 1 : position + size]
        if len(continuation) < size - 1 or any(byte & 0xC0 != 0x80 for byte in continuation):
            return list(piece)
        position += size
    return piece.decode("utf-8", "replace")
