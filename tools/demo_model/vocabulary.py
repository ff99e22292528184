"""The demo model's own byte-level BPE: trained on the corpus, encoded the way llama.cpp's `qwen2` pre-tokenizer does.

One rule is added while merges are learned: no merge joins a leading space or mark with a capital letter. A name is
then spelled by the same tokens in running text (` Seoul`) and in JSON (`"Seoul"`), and copying it from a question into
a tool call is copying tokens, which a small model learns quickly.

The pattern is the public `qwen2` one (llama.cpp, src/llama-vocab.cpp, LLAMA_VOCAB_PRE_TYPE_QWEN2); the byte alphabet
is GPT-2's (Radford et al. 2019): printable bytes stand for themselves, the others move to code points from 256 on.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from string import ascii_uppercase

import regex
from tqdm import tqdm

PRE_TOKENIZER = regex.compile(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
CONTROL = [END_OF_TEXT, TURN_START, TURN_END]
USER_DEFINED = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
SPECIALS = regex.compile("(" + "|".join(regex.escape(text) for text in CONTROL + USER_DEFINED) + ")")


def _byte_alphabet() -> list[str]:
    """The character that stands for each byte 0..255."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(moved)) for byte in range(256)]


BYTE_CHARACTERS = _byte_alphabet()


def spell(text: str) -> str:
    """The text's UTF-8 bytes in the byte alphabet."""
    return "".join(BYTE_CHARACTERS[byte] for byte in text.encode("utf-8"))


@dataclass
class Vocabulary:
    """Tokens by id (bytes, merged tokens, specials) and the merges in order of rank."""

    merges: list[tuple[str, str]]
    tokens: list[str] = field(init=False)
    _ids: dict[str, int] = field(init=False, repr=False)
    _ranks: dict[tuple[str, str], int] = field(init=False, repr=False)
    _known: dict[str, list[int]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        merged = [left + right for left, right in self.merges]
        self.tokens = list(dict.fromkeys([*BYTE_CHARACTERS, *merged, *CONTROL, *USER_DEFINED]))
        self._ids = {token: number for number, token in enumerate(self.tokens)}
        self._ranks = {pair: rank for rank, pair in enumerate(self.merges)}

    def id_of(self, special: str) -> int:
        """The id of a special token."""
        return self._ids[special]

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, special tokens included wherever they are spelled."""
        ids: list[int] = []
        for part in SPECIALS.split(text):
            if part in self._ids and SPECIALS.fullmatch(part):
                ids.append(self._ids[part])
            else:
                for word in PRE_TOKENIZER.findall(part):
                    ids.extend(self._encode_word(word))
        return ids

    def _encode_word(self, word: str) -> list[int]:
        known = self._known.get(word)
        if known is not None:
            return known
        pieces = list(spell(word))
        while len(pieces) > 1:
            unmergeable = len(self._ranks)
            ranks = [self._ranks.get(pair, unmergeable) for pair in itertools.pairwise(pieces)]
            best = min(ranks)
            if best == unmergeable:
                break
            at = ranks.index(best)
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        ids = [self._ids[piece] for piece in pieces]
        if len(self._known) < 100_000:
            self._known[word] = ids
        return ids


def _may_merge(left: str, right: str) -> bool:
    """Keep what precedes a capital letter apart from it."""
    return right[0] not in ascii_uppercase or left[-1] in ascii_uppercase


def train(texts: Iterable[str], size: int) -> Vocabulary:
    """Learn a vocabulary of `size` tokens in all, by joining the most frequent pair again and again.

    Ties go to the pair that sorts first, so the result depends on nothing but the texts. A pair seen fewer than three
    times is not worth a token: the vocabulary may come out smaller.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        for part in SPECIALS.split(text):
            if not SPECIALS.fullmatch(part):
                counts.update(PRE_TOKENIZER.findall(part))
    words = [list(spell(word)) for word in counts]
    weights = list(counts.values())
    pairs: Counter[tuple[str, str]] = Counter()
    where: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for number, word in enumerate(words):
        for pair in itertools.pairwise(word):
            pairs[pair] += weights[number]
            where[pair].add(number)

    merges: list[tuple[str, str]] = []
    wanted = size - len(BYTE_CHARACTERS) - len(CONTROL) - len(USER_DEFINED)
    for _ in tqdm(range(wanted), desc="vocabulary", unit="merge", mininterval=1):
        allowed = ((count, pair) for pair, count in pairs.items() if count > 2 and _may_merge(*pair))
        count, best = min(allowed, key=lambda item: (-item[0], item[1]), default=(0, ("", "")))
        if count == 0:
            break
        joined = best[0] + best[1]
        merges.append(best)
        for number in sorted(where.pop(best)):
            word, weight = words[number], weights[number]
            for pair in itertools.pairwise(word):
                pairs[pair] -= weight
            at = 0
            while at + 1 < len(word):
                if (word[at], word[at + 1]) == best:
                    word[at : at + 2] = [joined]
                at += 1
            for pair in itertools.pairwise(word):
                pairs[pair] += weight
                where[pair].add(number)
        pairs.pop(best, None)
    return Vocabulary(merges)
