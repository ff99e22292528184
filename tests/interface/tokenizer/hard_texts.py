"""Texts that tokenizers disagree on, drawn from a seeded generator."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from random import Random

SPACES = list(" \t\n\r\x0b\x0c\x85\xa0\u1680\u180e\u2000\u2003\u200a\u200b\u2028\u2029\u202f\u205f\u2060\u3000\ufeff")
SPACES += ["  ", "   ", "\n\n", "\r\n", " \n", "\n "]
SCRIPTS = [
    *(
        "Hello",
        "world",
        "camelCase",
        "snake_case",
        "THE",
        "naïve",
        "cafe\u0301",
        "Straße",
        "İstanbul",
        "ǅ",
        "ﬁn",
        "ſtatiſ",
    ),
    *(
        "привет",
        "γειά",
        "שלום",
        "مرحبا",
        "नमस्ते",
        "বাংলা",
        "ไทย",
        "ភាសា",
        "မြန်မာ",
        "한국어",
        "日本語",
        "カタカナ",
        "中文",
        "𠀀𠮷",
    ),
]
CONTRACTIONS = [
    "'s",
    "'T",
    "'re",
    "'RE",
    "'lL",
    "'Ve",
    "'m",
    "'D",
    "'ſ",
    "'",
    "''",
    "’s",
    "don't",
    "o'clock",
    "'r",
    "'l",
]
DIGITS = ["0", "12", "1234567890", "٠١٢", "०१२", "൧", "፩", "༣", "Ⅷ", "½", "²", "①", "𝟘𝟙", "七", "〇", "1,234.5", "0x1F"]
EMOJI = ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇰🇷", "🇰", "❤️", "☺", "\u200d", "\ufe0f", "🏴\U000e0067\U000e007f"]
PUNCTUATION = [
    *"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
    "...",
    "—",
    "“",
    "»",
    "。",
    "！",
    "€",
    "₩",
    "™",
    "→",
    "∑",
    "</",
    "==",
]
MARKS = ["\u0301", "\u0308", "\u20d7", "\u093c", "\u0e31", "\u05b0", "\u064b", "\u3099", "\u0300\u0316", "\U0001d165"]
CONTROLS = [*map(chr, range(32)), *"\x7f\x80\x9f\xad\u200e\u202e\ufffd\uffff\ue000\U0010ffff"]
# Letters and digits of Unicode 15.1 and later, and the code points beside them.
EDGES = [
    *"\u0378\ua7cb\u1c89\u0c5c\u19da\u3007\u3021\ua6e6\uff10\uff21\uff9e\u30fc\u0e33",
    *"\U0002ebf0\U0002ee5d\U0002ee5e\U000323af\U000323b0\U000105c0\U00010d40\U00016d40\U00011f00\U0001fbf0",
]
POOLS = (SPACES, SCRIPTS, CONTRACTIONS, DIGITS, EMOJI, PUNCTUATION, MARKS, CONTROLS, EDGES)

# How often each pool, and the special spellings, are drawn from; a text follows one row.
WEIGHTS = (
    (6, 8, 2, 3, 2, 4, 1, 1, 1, 3),
    (9, 10, 1, 1, 1, 2, 0, 0, 0, 1),
    (1, 1, 1, 1, 1, 1, 1, 1, 1, 1),
    (10, 2, 1, 1, 0, 3, 1, 2, 1, 1),
    (2, 2, 1, 2, 6, 2, 4, 1, 1, 1),
    (1, 2, 0, 1, 0, 1, 0, 0, 0, 8),
    (1, 4, 9, 2, 0, 1, 1, 0, 0, 1),
)


def hard_text(random: Random, spellings: Sequence[str], longest: int = 30) -> str:
    """One text of 1 to `longest` parts; `spellings` are special tokens, of which halves are drawn as well."""
    weights = random.choice(WEIGHTS)
    parts = []
    for _ in range(random.randint(1, random.choice((2, 6, longest)))):
        pool = random.choices((*POOLS, spellings), weights)[0]
        part = random.choice(pool)
        chance = random.random()
        if pool is spellings and chance < 0.2:
            cut = random.randint(0, len(part))
            part = part[:cut] if chance < 0.1 else part[cut:]
        elif chance < 0.08:
            part *= random.randint(2, 9)
        elif chance < 0.12:
            part = part.upper()
        elif chance < 0.16:
            part = chr(random.choice((random.randrange(0xD800), random.randrange(0xE000, 0x110000))))
        parts.append(part)
    text = "".join(parts)
    return text if random.random() < 0.9 else unicodedata.normalize(random.choice(("NFC", "NFD")), text)
