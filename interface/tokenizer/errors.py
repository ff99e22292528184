"""The one error of this package."""

from __future__ import annotations


class TokenizerError(ValueError):
    """A vocabulary that cannot be used, a text that cannot be encoded, or an id that is outside the vocabulary.

    The message names the metadata key (or the id, or the place in the text), the value found and what is accepted.
    """
