"""Vocabularies in which any two neighbours of an alphabet join, so that ids show where a text was cut.

In the ids of a stretch that was not cut no two single characters stand side by side: they would have been joined. The
alphabet has what pre-tokenizers tell apart. A few tokens that no merge makes show where a whole word is looked up.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import cache, partial
from random import Random
from typing import Any

from bloomery.interface.tokenizer.pre_names import METASPACE_NAMES, PRE_KINDS

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

ALPHABET = (
    "abstmdrevlASTLRE"
    "éſΣǅЖаא中一龥ぁー가ㄱㄅᄀกเǀ\ufa6e\uff71Ａ\U00010400\U00020000"
    "\u0301\u093f123٣Ⅷ²"
    "'.,!?\"#([/-_\\{|~$+<=`;—、。…।“！€→😀"
    " \t\n\r\x0b\xa0\u3000\u2028\u1680"
    "\x00\x1c\x7f\u200b\u200d\u0378\ue000"
)
GROUPS = (
    ALPHABET[:16],
    ALPHABET[:40],
    ALPHABET[40:46],
    "123",
    "'",
    " ",
    " \n",
    "\n\r",
    " \t\n\r\x0b\xa0\u3000\u2028\u1680",
    "'.,!?\"#([/-_\\{|~$+<=`;—、。…।“！€→😀",
    "\u0301\u093f\x00\x1c\x7f\u200b\u200d\u0378\ue000",
    ALPHABET,
)
WHOLE_WORDS = ("aaa", " aa", "111", "!!!", "\n\n\n", "éé!", "abt")
SPECIAL = {
    "<|s|>": CONTROL,
    "<|endoftext|>": CONTROL,
    "<mask>": CONTROL,
    "</s>": CONTROL,
    "<unk>": UNKNOWN,
    "<u>": USER_DEFINED,
    "\n\n": USER_DEFINED,
    "   ": USER_DEFINED,
}


def letters_of(data: bytes) -> str:
    """Bytes in GPT-2's byte alphabet."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return "".join(chr(byte) if byte in visible else chr(0x100 + hidden.index(byte)) for byte in data)


def byte_pairs(pre: str) -> dict[str, Any]:
    """Tokens over the byte alphabet: bytes, the characters of ALPHABET, and any two of these."""
    return _byte_pairs() | {"tokenizer.ggml.pre": pre}


@cache
def _byte_pairs() -> dict[str, Any]:
    characters = [letters_of(character.encode()) for character in ALPHABET]
    merges = {}
    for character in characters:
        for size in range(1, len(character)):
            merges[character[:size], character[size]] = character[: size + 1]
    merges |= _shuffled_pairs(characters)
    letters = [letters_of(bytes([byte])) for byte in range(256)]
    ordinary = [*letters, *merges.values(), *(letters_of(word.encode()) for word in WHOLE_WORDS)]
    return _metadata("gpt2", [], ordinary, merges)


def spaced_pairs(model: str, **more: str | bool) -> dict[str, Any]:
    """Tokens as SentencePiece has them: `<0xNN>`, the characters of ALPHABET but for a few, and any two of them.

    `more` are other keys, with two underscores for a dot.
    """
    return _spaced_pairs(model) | {key.replace("__", "."): value for key, value in more.items()}


@cache
def _spaced_pairs(model: str) -> dict[str, Any]:
    characters = [character.replace(" ", "\u2581") for character in ALPHABET if character not in "\x1cЖ😀"]
    merges = _shuffled_pairs(characters)
    ordinary = [*characters, *merges.values(), *(word.replace(" ", "\u2581") for word in WHOLE_WORDS)]
    return _metadata(model, [f"<0x{byte:02X}>" for byte in range(256)], ordinary, merges)


VARIANTS: dict[str, Callable[[], dict[str, Any]]] = {
    **{name: partial(byte_pairs, name) for name in PRE_KINDS},
    **{name: partial(spaced_pairs, "gpt2", tokenizer__ggml__pre=name) for name in METASPACE_NAMES},
    "model gemma4": partial(spaced_pairs, "gemma4"),
    "model llama": partial(spaced_pairs, "llama"),
    "model llama without a space before": partial(
        spaced_pairs, "llama", tokenizer__ggml__add_space_prefix=False, tokenizer__ggml__add_eos_token=True
    ),
    "model llama that trims": partial(spaced_pairs, "llama", general__name="A Phi-3 of ours"),
}


def variant_digest(metadata: dict[str, Any]) -> str:
    """The SHA-256 of a vocabulary."""
    return hashlib.sha256(json.dumps(metadata, sort_keys=True).encode()).hexdigest()


def pair_text(random: Random, longest: int = 40) -> str:
    """One text of runs over the groups of ALPHABET, with special spellings and contractions between them."""
    parts = []
    for _ in range(random.randint(1, random.choice((3, 8, longest)))):
        chance = random.random()
        if chance < 0.06:
            spelling = random.choice(tuple(SPECIAL))
            parts.append(spelling[random.randint(0, 1) * (chance < 0.02) :])
        elif chance < 0.12:
            parts.append(random.choice(("'s", "'T", "'re", "'LL", "'vE", "'d", *WHOLE_WORDS)))
        else:
            group = random.choice(GROUPS)
            parts.append("".join(random.choice(group) for _ in range(random.choice((1, 1, 1, 2, 3, 5)))))
    return "".join(parts)


def _shuffled_pairs(characters: list[str]) -> dict[tuple[str, str], str]:
    pairs = [(left, right) for left in characters for right in characters]
    Random(7).shuffle(pairs)
    return {(left, right): left + right for left, right in pairs}


def _metadata(
    model: str, fallback: list[str], ordinary: list[str], merges: dict[tuple[str, str], str]
) -> dict[str, Any]:
    texts = {"<pad>": CONTROL, "<s>": CONTROL, "<e>": CONTROL} | dict.fromkeys(fallback, BYTE)
    texts |= {text: NORMAL for text in ordinary if text and "\0" not in text and text not in texts}
    texts |= SPECIAL
    random = Random(8)
    return {
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.tokens": list(texts),
        "tokenizer.ggml.token_type": list(texts.values()),
        # Few different scores, so that equal ones meet.
        "tokenizer.ggml.scores": [float(random.randrange(-300, 0)) for _ in texts],
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in merges if "\0" not in left + right],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
