"""Text reduced to one byte a character that says its Unicode class, for pre-tokenizers to match on.

An ASCII character stays itself; any other becomes LETTER, NUMBER, SPACE or OTHER. The patterns of pre-tokenizers then
are byte patterns: exact for the Unicode version of llama.cpp, and the same length as the text. (llama.cpp does the same
in unicode.cpp, `unicode_regex_split`.)
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from bloomery.interface.tokenizer.errors import TokenizerError
from bloomery.interface.tokenizer.unicode_ranges import LETTERS, NUMBERS, WHITE_SPACE

LETTER = 0x80
NUMBER = 0x81
SPACE = 0x82
OTHER = 0x83


def classify(text: str) -> bytes:
    """One class byte for each character of `text`. TokenizerError if it cannot be written as UTF-8."""
    if text.isascii():
        return text.encode("ascii")
    try:
        code_points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"the text has the lone surrogate U+{ord(text[error.start]):04X} at character {error.start}, "
            "which no UTF-8 text can have"
        ) from None
    classes: bytes = _class_of_code_point()[code_points].tobytes()
    return classes


@cache
def _class_of_code_point() -> npt.NDArray[np.uint8]:
    """`[0x110000]`"""
    table = np.full(0x110000, OTHER, dtype=np.uint8)
    for ranges, unicode_class in ((LETTERS, LETTER), (NUMBERS, NUMBER), (WHITE_SPACE, SPACE)):
        for entry in ranges.split():
            first, _, last = entry.partition("-")
            table[int(first, 16) : int(last or first, 16) + 1] = unicode_class
    table[:0x80] = np.arange(0x80)
    return table
