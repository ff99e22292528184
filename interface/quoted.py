"""Text from a file as it may stand in a message or a log line: on one line, without control characters, not long."""

from __future__ import annotations

_SHOWN = 80


def quoted(text: str) -> str:
    """The text in quotes, escaped, and cut when it is long."""
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}..."


def one_line(text: str) -> str:
    """The text as it is where it is short and printable, or else quoted."""
    return text if len(text) <= _SHOWN and text.isprintable() else quoted(text)
