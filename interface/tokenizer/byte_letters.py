"""Byte-level vocabularies: each of the 256 bytes is written as one visible character.

Printable Latin-1 bytes stand for themselves; the others, in order, are U+0100 and up, so that a space reads "Ġ" and a
newline "Ċ". The scheme is GPT-2's (Radford et al. 2019, encoder.py), and `unicode_byte_to_utf8` in llama.cpp.
"""

from __future__ import annotations

import codecs


def _letters() -> str:
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in visible else next(hidden)) for byte in range(256))


LETTERS = _letters()
_BYTE_OF_LETTER = codecs.charmap_build(LETTERS)


def to_letters(data: bytes) -> str:
    """The characters that stand for the bytes, one each."""
    return codecs.charmap_decode(data, "strict", LETTERS)[0]


def to_bytes(text: str) -> bytes:
    """The bytes that the characters stand for.

    A character that stands for none gives "[UNK_BYTE_0x<its UTF-8 in hexadecimal><the whole text>]", which is what
    llama.cpp shows (llama-vocab.cpp, `llama_decode_text`); a byte that was not UTF-8 counts as U+FFFD there.
    """
    try:
        return codecs.charmap_encode(text, "strict", _BYTE_OF_LETTER)[0]
    except UnicodeEncodeError:
        return b"".join(_byte_or_note(letter, text) for letter in text)


def _byte_or_note(letter: str, text: str) -> bytes:
    byte = LETTERS.find(letter)
    if byte >= 0:
        return bytes([byte])
    code = ("\ufffd" if "\ud800" <= letter <= "\udfff" else letter).encode()
    return b"[UNK_BYTE_0x" + code.hex().encode() + text.encode("utf-8", "surrogateescape") + b"]"
