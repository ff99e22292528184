"""A setting somebody named, and the refusal of a start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


class SettingsError(ValueError):
    """A start that is refused; the message is a sentence a line, each naming the flag, file or variable."""


@dataclass(frozen=True)
class Given:
    """A setting somebody named: its value, the spelling of the flag or the variable that named it, and its text."""

    value: Any
    source: str
    text: str = field(repr=False)
