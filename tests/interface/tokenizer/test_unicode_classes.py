"""The Unicode classes that pre-tokenizers split by: those of version 15.1, whatever Python's are."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.interface.tokenizer.pre_names import PRE_KINDS
from bloomery.interface.tokenizer.unicode_classes import (
    LETTER,
    MARK,
    NUMBER,
    OTHER,
    PUNCTUATION,
    SPACE,
    SYMBOL,
    classify,
)

# White_Space in PropList.txt; str.isspace() has U+001C..U+001F as well, which are no white space there.
WHITE_SPACE = (
    "\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
BEYOND_ASCII = [chr(code) for code in range(0x80, 0x110000) if not 0xD800 <= code < 0xE000]


def expected(character):
    if character in WHITE_SPACE:
        return SPACE
    classes = {"L": LETTER, "N": NUMBER, "M": MARK, "P": PUNCTUATION, "S": SYMBOL}
    return classes.get(unicodedata.category(character)[0], OTHER)


def test_every_assigned_character_has_pythons_class():
    """No character of Python 3.11's Unicode 14 has changed its class since; a newer Python knows more characters."""
    known = unicodedata.unidata_version.split(".") <= ["15", "1", "0"]
    classes = classify("".join(BEYOND_ASCII))
    differing = {
        character
        for character, found in zip(BEYOND_ASCII, classes, strict=True)
        if found != expected(character) and unicodedata.category(character) != "Cn"
    }
    if known:
        assert not differing
    else:
        assert all(classify(character)[0] == OTHER for character in differing)


@pytest.mark.parametrize(
    ("character", "unicode_class"),
    [
        ("\U0002ebf0", LETTER),  # First of the ideographs that came with 15.1.
        ("\U0002ee5d", LETTER),
        ("\U0002ee5e", OTHER),
        ("\ua7cb", OTHER),  # A letter since 16.0.
        ("\U00010d40", OTHER),  # A digit since 16.0.
        ("\u0301", MARK),
        ("\u2014", PUNCTUATION),
        ("\u20a9", SYMBOL),
        ("²", NUMBER),
        ("Ⅷ", NUMBER),
        ("〇", NUMBER),
        ("七", LETTER),
        ("\u180e", OTHER),  # White space before Unicode 6.3.
        ("\u200b", OTHER),
    ],
)
def test_the_version_is_15_1(character, unicode_class):
    assert classify(character) == bytes([unicode_class])


def test_ascii_is_itself():
    text = "".join(map(chr, range(128)))
    assert classify(text) == classify(text + "é")[:128] == text.encode()


@pytest.mark.parametrize("pre_tokenizer", [kind.pre_tokenizer for kind in PRE_KINDS.values()], ids=PRE_KINDS)
@settings(deadline=None)
@given(text=st.text())
def test_words_joined_are_the_text(pre_tokenizer, text):
    words = list(pre_tokenizer.words(text))
    assert "".join(words) == text
    assert all(words)


DISTINCT = {kind.pre_tokenizer: name for name, kind in PRE_KINDS.items()}


@pytest.mark.parametrize("pre_tokenizer", DISTINCT, ids=DISTINCT.values())
@pytest.mark.parametrize(
    "unit", ["a", "A", " ", "\t", "7", "\n", "é", "가", "😀", "\u0301", "!", "\x00", "a b ", "/\n"]
)
def test_long_runs_are_cut_without_going_over_them_again(pre_tokenizer, unit):
    """An expression that tried every place of a run from every other one would not come to an end here."""
    for text in (unit * (131072 // len(unit)), unit * (131072 // len(unit)) + "b"):
        assert sum(map(len, pre_tokenizer.words(text))) == len(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("don't DON'T donſ't'ſ", ["don", "'t", " DON", "'T", " donſ", "'t", "'ſ"]),
        ("a1234b", ["a", "1", "2", "3", "4", "b"]),
        ("x  y\u3000\u3000z", ["x", " ", " y", "\u3000", "\u3000z"]),
        ("x \r\n \n y", ["x", " \r\n \n", " y"]),
        ("a,\r\n\nb  ", ["a", ",\r\n\n", "b", "  "]),
        ("cafe\u0301s", ["cafe", "\u0301s"]),
        ("...a ...!b", ["...", "a", " ...!", "b"]),
        ("\x1c\x1da\x1db", ["\x1c\x1d", "a", "\x1db"]),
    ],
)
def test_words_of_qwen2(text, words):
    assert list(PRE_KINDS["qwen2"].pre_tokenizer.words(text)) == words
