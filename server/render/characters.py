"""Where the ids of a generation end a character."""

from __future__ import annotations

from bloomery.interface.tokenizer import Tokenizer, complete_length
from bloomery.server.events import Token


class Characters:
    """Follows the bytes of a generation's ids: a stream has no event for an id in the middle of a character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._pending = b""

    def whole_after(self, token: Token) -> bool:
        """Whether an event belongs after this id; true for one that releases text, and for one that shows none."""
        self._pending += self._tokenizer.token_to_piece(token.id, special=True)
        if complete_length(self._pending) < len(self._pending):
            return bool(token.text)
        self._pending = b""
        return True
