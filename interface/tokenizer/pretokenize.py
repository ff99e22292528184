"""Pre-tokenizers: how text is cut into words before merging, by the name a file gives in `tokenizer.ggml.pre`.

Each is a byte pattern over the classes of unicode_classes.py that matches every character of a text. The names and the
expressions are those of llama.cpp (llama-vocab.cpp, `llm_tokenizer_bpe`), where \\p{L} is a letter, \\p{N} a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType

from bloomery.interface.tokenizer.errors import TokenizerError
from bloomery.interface.tokenizer.metadata_keys import PREFIX
from bloomery.interface.tokenizer.unicode_classes import classify

# Members of a character class: the ASCII characters, and the class byte of all others.
_LETTER = r"A-Za-z\x80"
_NUMBER = r"0-9\x81"
_SPACE = r"\t-\r \x82"


@dataclass(frozen=True)
class PreTokenizer:
    """Cuts text into the words that no merge crosses."""

    pattern: re.Pattern[bytes]

    def words(self, text: str) -> Iterator[str]:
        """The words of `text`; joined, they are the text. TokenizerError on a lone surrogate."""
        start = 0
        for match in self.pattern.finditer(classify(text)):
            end = match.end()
            yield text[start:end]
            start = end


def _first_of(*alternatives: str) -> PreTokenizer:
    return PreTokenizer(re.compile("|".join(alternatives).encode("ascii")))


_QWEN2 = _first_of(
    r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])",  # A contraction, in any case.
    rf"[^\r\n{_LETTER}{_NUMBER}]?[{_LETTER}]+",  # Letters, with one space or mark before them.
    rf"[{_NUMBER}]",  # Each digit alone.
    rf" ?[^{_SPACE}{_LETTER}{_NUMBER}]+[\r\n]*",  # Punctuation, symbols, marks and all else, with the line's end.
    rf"[{_SPACE}]*[\r\n]+",  # White space up to the last line end of the run.
    rf"[{_SPACE}]+(?![^{_SPACE}])",  # White space but for the last one, which goes with the next word.
    rf"[{_SPACE}]+",
)

PRE_TOKENIZERS = MappingProxyType(dict.fromkeys(("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2"), _QWEN2))


def find_pre_tokenizer(name: str | None) -> PreTokenizer:
    """The pre-tokenizer of that name. TokenizerError if the file names none or one that is not known."""
    supported = ", ".join(PRE_TOKENIZERS)
    if name is None:
        raise TokenizerError(f"{PREFIX}pre is missing; supported are {supported}")
    if name not in PRE_TOKENIZERS:
        raise TokenizerError(f"{PREFIX}pre is {name!r}; supported are {supported}")
    return PRE_TOKENIZERS[name]
