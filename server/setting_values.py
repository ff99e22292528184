"""Readers of the values of flags and levers: from a text to the setting, or a ValueError that says what is taken."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, TypeAlias

from bloomery.interface import catalog
from bloomery.server.seats import BY_WORD, served_seats

MAX_REQUESTS = 64
Slots: TypeAlias = int | Literal["auto"]
_BYTES = re.compile(r"([0-9]+(?:_[0-9]+)*)([MG]?)", re.ASCII)
_UNITS = {"": 1, "M": 1 << 20, "G": 1 << 30}


def count(lo: int, hi: int) -> Callable[[str], int]:
    """A reader of a whole number from lo to hi, written in base 10 without sign or leading zero."""

    def read(text: str) -> int:
        # A text of many digits is refused before Python converts it.
        if not (text.isascii() and text.isdigit() and len(text) <= 10) or (text[0] == "0" and text != "0"):
            raise ValueError(f"it takes a whole number from {lo} to {hi}")
        if not lo <= int(text) <= hi:
            raise ValueError(f"it takes {lo} to {hi}")
        return int(text)

    return read


def text(value: str) -> str:
    """A reader of any text but the empty one."""
    if not value:
        raise ValueError("it takes a text that is not empty")
    return value


def byte_count(value: str) -> int:
    """A reader of a number of bytes, MiB (`38M`) or GiB (`38G`), up to 2^63 - 1 bytes."""
    found = _BYTES.fullmatch(value)
    if not found or len(found[1]) > 24:
        raise ValueError("it takes bytes, or a whole number of MiB or GiB with an M or G suffix")
    size = int(found[1]) * _UNITS[found[2]]
    if size >= 1 << 63:
        raise ValueError("it takes fewer than 2^63 bytes")
    return size


def slots(value: str) -> Slots:
    """A reader of `--parallel`."""
    return "auto" if value == "auto" else count(1, MAX_REQUESTS)(value)


def model_word(value: str) -> str:
    """A reader of `--model`: the word of a seat that is served, or of a model of the catalog."""
    served = [seat.word for seat in served_seats()]
    if value in served or value in catalog.words():
        return value
    known = f"it takes a seat ({', '.join(served)}) or a model of the catalog ({', '.join(catalog.words())})"
    seat, _, variant = value.partition(":")
    if seat in BY_WORD and variant:
        raise ValueError(f"downloading {value} is not part of this version yet; name the file with -m")
    if seat in BY_WORD:
        raise ValueError(f"the seat {seat} is not part of this version yet; {known}")
    raise ValueError(f"{known}; a model file is named with -m")
