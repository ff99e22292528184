"""Text reduced to one byte a character that says its Unicode class, for pre-tokenizers to match on.

An ASCII character stays itself; any other becomes LETTER, NUMBER, SPACE, MARK, PUNCTUATION, SYMBOL or OTHER. The
patterns of pre-tokenizers then are byte patterns: exact for the Unicode version of llama.cpp, and the same length as
the text. (llama.cpp does the same in unicode.cpp, `unicode_regex_split`.)
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from bloomery.interface.tokenizer import unicode_ranges
from bloomery.interface.tokenizer.errors import TokenizerError

LETTER = 0x80
NUMBER = 0x81
SPACE = 0x82
OTHER = 0x83
MARK = 0x84
PUNCTUATION = 0x85
SYMBOL = 0x86
# Han characters where a pre-tokenizer tells them apart, letters and others.
HAN_LETTER = 0x87
HAN_OTHER = 0x88

_CLASSES = (
    (unicode_ranges.LETTERS, LETTER),
    (unicode_ranges.NUMBERS, NUMBER),
    (unicode_ranges.MARKS, MARK),
    (unicode_ranges.PUNCTUATION, PUNCTUATION),
    (unicode_ranges.SYMBOLS, SYMBOL),
    (unicode_ranges.WHITE_SPACE, SPACE),
)


def classify(text: str, *, han: bool = False) -> bytes:
    """One class byte for each character of `text`; with `han`, Han characters have their own.

    TokenizerError if the text cannot be written as UTF-8.
    """
    if text.isascii():
        return text.encode("ascii")
    classes: bytes = _class_of_code_point(han)[code_points(text)].tobytes()
    return classes


def code_points(text: str) -> npt.NDArray[np.uint32]:
    """The code points of `text`. TokenizerError if it cannot be written as UTF-8."""
    try:
        return np.frombuffer(text.encode("utf-32-le"), dtype="<u4").astype(np.uint32, copy=False)
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"the text has the lone surrogate U+{ord(text[error.start]):04X} at character {error.start}, "
            "which no UTF-8 text can have"
        ) from None


@cache
def _class_of_code_point(han: bool) -> npt.NDArray[np.uint8]:
    """`[0x110000]`"""
    table = np.full(0x110000, OTHER, dtype=np.uint8)
    for ranges, unicode_class in _CLASSES:
        for first, last in _parsed(ranges):
            table[first : last + 1] = unicode_class
    table[:0x80] = np.arange(0x80)
    if han:
        for first, last in _parsed(unicode_ranges.HAN):
            block = table[first : last + 1]
            block[:] = np.where(block == LETTER, HAN_LETTER, HAN_OTHER)
    return table


def _parsed(ranges: str) -> list[tuple[int, int]]:
    pairs = (entry.partition("-") for entry in ranges.split())
    return [(int(first, 16), int(last or first, 16)) for first, _, last in pairs]
