"""The expressions of llama.cpp's pre-tokenizers (llama-vocab.cpp, `llm_tokenizer_bpe`), by the names it has for them.

Most are one alternation over classes: contractions, words, numbers, punctuation, white space. Where llama.cpp has an
alternation worked out by hand (unicode.cpp, `unicode_regex_split_custom`), the pattern here says what that code does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bloomery.interface.tokenizer.pretokenize import PreTokenizer, by_character, by_class

# Members of a character class: the ASCII characters, and the class byte of all others.
_LETTER = r"A-Za-z\x80"
_NUMBER = r"0-9\x81"
_SPACE = r"\t-\r \x82"
_MARK = r"\x84"
_PUNCTUATION = r"!-#%-*,-/:;?@\[-\]_{}\x85"
_SYMBOL = r"$+<=>^`|~\x86"
# llama.cpp knows no case beyond ASCII: every other letter is both.
_UPPER = r"A-Z\x80"
_LOWER = r"a-z\x80"

_CONTRACTION = r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
_WORD = rf"[^\r\n{_LETTER}{_NUMBER}]?[{_LETTER}]+"  # Letters, with one space or mark before them.
_DIGIT = rf"[{_NUMBER}]"
_THREE_DIGITS = rf"[{_NUMBER}]{{1,3}}"
_DIGITS = rf"[{_NUMBER}]+"
# Punctuation, symbols, marks and all else, with the line's end.
_OTHERS = rf" ?[^{_SPACE}{_LETTER}{_NUMBER}]+[\r\n]*"
_OTHERS_OR_PATH = rf" ?[^{_SPACE}{_LETTER}{_NUMBER}]+[\r\n/]*"
_LINES = rf"[{_SPACE}]*[\r\n]+"  # White space up to the last line end of the run.
# White space but for the last one, which goes with the next word; then whatever is left.
_SPACES = (rf"[{_SPACE}]+(?![^{_SPACE}])", rf"[{_SPACE}]+")


def _cased(upper: str, lower: str, suffix: str) -> tuple[str, str]:
    """Words whose small letters come after their capitals, those with a small letter first."""
    before = rf"[^\r\n{_LETTER}{_NUMBER}]?"
    return (rf"{before}[{upper}]*[{lower}]+{suffix}", rf"{before}[{upper}]+[{lower}]*{suffix}")


def _one(*alternatives: str) -> PreTokenizer:
    return PreTokenizer((by_class(*alternatives),))


_GPT2_STAGE = by_class(
    r"'(?:[stmd]|re|ve|ll)", rf" ?[{_LETTER}]+", rf" ?[{_NUMBER}]+", rf" ?[^{_SPACE}{_LETTER}{_NUMBER}]+", *_SPACES
)
_QWEN2_STAGE = by_class(_CONTRACTION, _WORD, _DIGIT, _OTHERS, _LINES, *_SPACES)
_DIGIT_STAGE = by_class(_DIGIT)
_DIGITS_STAGE = by_class(_DIGITS)
_THREE_DIGITS_STAGE = by_class(_THREE_DIGITS)
_THREE_ASCII_DIGITS_STAGE = by_character("[0-9]{3}")
_LINE_STAGE = by_character(r"[^\n]+", r"\n+")

GPT2 = PreTokenizer((_GPT2_STAGE,))
QWEN2 = PreTokenizer((_QWEN2_STAGE,))
QWEN35 = _one(
    _CONTRACTION,
    rf"[^\r\n{_LETTER}{_NUMBER}]?[{_LETTER}{_MARK}]+",
    _DIGIT,
    rf" ?[^{_SPACE}{_LETTER}{_MARK}{_NUMBER}]+[\r\n]*",
    _LINES,
    *_SPACES,
)
LLAMA3 = _one(_CONTRACTION, _WORD, _THREE_DIGITS, _OTHERS, _LINES, *_SPACES)
JAIS2 = _one(
    _CONTRACTION,
    _WORD,
    _THREE_DIGITS,
    _OTHERS,
    _LINES,
    *(rf"[{_SPACE}]{{{size}}}(?![^{_SPACE}])" for size in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2")),
    rf"[{_SPACE}]",
)
UFAKZEKA = _one(_WORD, _DIGIT, _OTHERS, _LINES, *_SPACES)
SEED_CODER = _one(_CONTRACTION, _WORD, _DIGIT, rf" ?[^{_SPACE}{_LETTER}{_NUMBER}\r\n]+", _LINES, *_SPACES)
EXAONE_MOE = _one(
    _CONTRACTION,
    # Several words that are one space apart are one word here.
    rf"[^\r\n{_LETTER}{_NUMBER}]?[{_LETTER}](?:[{_LETTER}{_MARK}]+| [{_LETTER}])*+",
    _DIGIT,
    rf" ?[^{_SPACE}{_LETTER}{_NUMBER}]+[\r\n/]?",
    rf"[{_SPACE}]*[\r\n]",
    *_SPACES,
)
GPT4O = _one(*_cased(_UPPER, _LOWER, f"(?:{_CONTRACTION})?"), _THREE_DIGITS, _OTHERS_OR_PATH, _LINES, *_SPACES)
TEKKEN = _one(*_cased(_UPPER, _LOWER, ""), _DIGIT, _OTHERS_OR_PATH, _LINES, *_SPACES)
GRANITE_EMB_MULTI = _one(
    *_cased(_UPPER + _MARK, _LOWER + _MARK, f"(?:{_CONTRACTION})?"), _THREE_DIGITS, _OTHERS_OR_PATH, _LINES, *_SPACES
)
# Where llama.cpp has the categories of capital and small letters, every letter is both.
_ANY_CASE = _cased(_LETTER + _MARK, _LETTER + _MARK, f"(?:{_CONTRACTION})?")

STARCODER = PreTokenizer((_DIGIT_STAGE, _GPT2_STAGE))
FALCON = PreTokenizer((by_class(rf"[{_PUNCTUATION}$+<=>^~|`]+"), _GPT2_STAGE, _THREE_ASCII_DIGITS_STAGE))
DEFAULT = PreTokenizer((by_class(rf"[{_PUNCTUATION}$+<=>^~|]+"), _GPT2_STAGE, _DIGITS_STAGE, _THREE_ASCII_DIGITS_STAGE))
LAGUNA = PreTokenizer((_LINE_STAGE, _QWEN2_STAGE))
MINICPM5 = PreTokenizer((_THREE_DIGITS_STAGE, by_class(_CONTRACTION, _WORD, _DIGITS, _OTHERS, _LINES, *_SPACES)))
CHAMELEON = PreTokenizer(
    (
        by_character("<sentinel:[0-9]+>"),
        by_character("IMGIMG[A-I]{1,4}Z"),
        by_character(r"[\t\n]|    |  "),
        _DIGIT_STAGE,
        by_class(rf"[{_PUNCTUATION}!-/:-@\[-`{{-~]"),
        _GPT2_STAGE,
    )
)
# The stops of several scripts, at which BLOOM's words end.
_BLOOM_STAGE = by_character(
    r" ?[^(|.,!?)\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
    r"\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c]+"
)
BLOOM = PreTokenizer((_BLOOM_STAGE,))
VIKING = PreTokenizer((_BLOOM_STAGE, _DIGIT_STAGE))

# Ideographs, hiragana and katakana.
_IDEOGRAPHS = r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_ASCII_WORD = r"[!-/:-@\[-`{-~][A-Za-z]+"  # ASCII letters with the punctuation mark before them.
_MARKED_WORD = rf"[^\r\n{_LETTER}{_PUNCTUATION}{_SYMBOL}]?[{_LETTER}{_MARK}]+"
_MARKS_OF_TEXT = rf" ?[{_PUNCTUATION}{_SYMBOL}]+"
_DEEPSEEK3_STAGE = by_class(_ASCII_WORD, _MARKED_WORD, rf"{_MARKS_OF_TEXT}[\r\n]*", _LINES, *_SPACES)

DEEPSEEK3 = PreTokenizer((_THREE_DIGITS_STAGE, by_character(_IDEOGRAPHS), _DEEPSEEK3_STAGE))
SPARK2_5 = PreTokenizer(
    (
        _THREE_DIGITS_STAGE,
        by_character(_IDEOGRAPHS),
        by_class(_ASCII_WORD, _MARKED_WORD, _MARKS_OF_TEXT, r"[\r\n]", *_SPACES),
        _DIGIT_STAGE,
    )
)
YOUTU = PreTokenizer(
    (
        by_character(
            r"[\uac00-\ud7a3\u3131-\u318e]+",
            r"[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+",
            r"[\u3105-\u312f]+",
            _IDEOGRAPHS,
        ),
        by_class(*_ANY_CASE, _DIGIT, _OTHERS_OR_PATH, _LINES, *_SPACES),
    )
)
# Everything from Samaritan to the first ideograph, less the white space in it, and the ideographs and Hangul.
_EASTERN = by_character(
    r"[\u4e00-\u9fa5\u0800-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e\u2060-\u2fff\u3001-\u4e00"
    r"\uac00-\ud7ff]+"
)
_ANY_SPACE = r"[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
_LINE_END_STAGE = by_character(r"[\r\n]")
# Letters that have two cases, as an early Unicode version had them.
_CASED_LETTERS = (
    r"A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    r"\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556"
    r"\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    r"\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    r"\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    r"\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    r"\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    r"\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    r"\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    r"\U000118a0-\U000118df\U0001e900-\U0001e943"
)


def _spaces_at_the_end(_text: str, classes: bytes, start: int, end: int) -> Iterator[int]:
    """The white space that ends a piece is cut off it."""
    before = start + len(classes[start:end].rstrip(b"\t\n\v\f\r \x82"))
    if start < before < end:
        yield before
    yield end


DEEPSEEK_LLM = PreTokenizer(
    (
        _LINE_END_STAGE,
        by_character(rf"{_ANY_SPACE}?[{_CASED_LETTERS}]+"),
        by_character(rf"{_ANY_SPACE}?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3001\u3002]+"),
        _spaces_at_the_end,
        _EASTERN,
        _DIGITS_STAGE,
    )
)
DEEPSEEK_CODER = PreTokenizer(
    (
        _LINE_END_STAGE,
        by_class(rf"[{_SPACE}]?[{_LETTER}]+"),
        by_class(rf"[{_SPACE}]?[{_PUNCTUATION}]+"),
        _EASTERN,
        _DIGIT_STAGE,
    )
)

_DIGIT_RUN = re.compile(_DIGITS.encode("ascii"))


def _digits_by_three(_text: str, classes: bytes, start: int, end: int) -> Iterator[int]:
    """Digits in groups of three counted from the right; the leftmost group stays with the text before it."""
    for run in _DIGIT_RUN.finditer(classes, start, end):
        first, last = run.span()
        yield from range(first + ((last - first) % 3 or 3), last + 1, 3)
        start = last
    if start < end:
        yield end


AFMOE = PreTokenizer(
    (
        _digits_by_three,
        by_character(
            r"[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f"
            r"\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
        ),
        _DEEPSEEK3_STAGE,
    )
)
TINY_AYA = PreTokenizer((_digits_by_three, by_class(*_ANY_CASE, _THREE_DIGITS, _OTHERS_OR_PATH, _LINES, *_SPACES)))

_ASCII_DIGIT_RUN = re.compile(rb"[0-9]+")


def _ascii_digits_by_three(_text: str, classes: bytes, start: int, end: int) -> Iterator[int]:
    """A cut wherever a multiple of three ASCII digits, and no more, follows."""
    for run in _ASCII_DIGIT_RUN.finditer(classes, start, end):
        first, last = run.span()
        yield from (place for place in range(first + (last - first) % 3, last, 3) if place > start)
    yield end


SUPERBPE = PreTokenizer((_DIGITS_STAGE, _ascii_digits_by_three))

_HAN = r"\x87"
_HAN_OTHER = r"\x88"
KIMI_K2 = PreTokenizer(
    (
        by_class(
            rf"[{_HAN}{_HAN_OTHER}]+",
            rf"[^\r\n{_LETTER}{_NUMBER}{_HAN}]?[{_LETTER}]+(?:{_CONTRACTION})?",
            _THREE_DIGITS,
            rf" ?[^{_SPACE}{_LETTER}{_NUMBER}{_HAN}]+[\r\n]*",
            _LINES,
            *_SPACES,
        ),
    ),
    han=True,
)
