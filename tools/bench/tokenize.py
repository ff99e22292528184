"""Speed of encoding beside llama_tokenize and Hugging Face's tokenizers, and of opening a vocabulary, in one run.

    python -m tools.bench.tokenize VOCABULARY.gguf ... [--megabytes 1] [--rounds 3]

Needs the `oracle` extra, and the `train` extra for the comparison with tokenizers. All sides encode the same English,
code and Korean text on one thread, in turns, and the best round of each counts, in processor time. "new" is a tokenizer
that has seen no word before, "again" one that has seen the text. "same" says whether ids are equal to llama.cpp's.
English and code are the interpreter's own library; Korean is made of random words. Opening is measured in a process of
its own: processor seconds and megabytes from the file to the first ids.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import tokenizers

from bloomery.interface.files.gguf import open_gguf
from bloomery.interface.tokenizer import Tokenizer, load_tokenizer
from tools.llama_vocabulary import LlamaVocabulary

_OPENING = r"""
import re, sys, time
from pathlib import Path
{imports}
def most(): return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024
before = most()
started = time.process_time()
{opening}
seconds = time.process_time() - started
print(f"{{seconds:.2f}} {{most() - before:.0f}}")
"""
_OURS = (
    "from bloomery.interface.files.gguf import open_gguf\nfrom bloomery.interface.tokenizer import load_tokenizer",
    "load_tokenizer(open_gguf(sys.argv[1]).metadata).encode('a <s>', add_special=True, parse_special=True)",
)
_THEIRS = (
    "from tools.llama_vocabulary import LlamaVocabulary",
    "LlamaVocabulary(sys.argv[1]).encode('a <s>', add_special=True, parse_special=True)",
)
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# The expressions that the makers of these vocabularies give to tokenizers.
_EXPRESSIONS = {
    "qwen2": rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}",
    "llama-bpe": rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}",
    "gpt-2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
}


def _hugging_face(metadata: Mapping[str, Any]) -> tokenizers.Tokenizer | None:
    """The vocabulary in tokenizers; None for a kind that is not worth rebuilding here."""
    pre, model = metadata.get("tokenizer.ggml.pre"), metadata["tokenizer.ggml.model"]
    if model not in {"gpt2", "gemma4"} or (model == "gpt2" and pre not in _EXPRESSIONS):
        return None
    vocabulary = {text: token_id for token_id, text in enumerate(metadata["tokenizer.ggml.tokens"])}
    # A line is parted at the first space after its first character.
    lines = [(line[0], *line[1:].split(" ", 1)) for line in metadata["tokenizer.ggml.merges"]]
    merges = [(first + left, right) for first, left, right in lines]
    if model == "gemma4":
        rebuilt = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges, byte_fallback=True, fuse_unk=True))
        rebuilt.normalizer = tokenizers.normalizers.Replace(" ", "\u2581")
        return rebuilt
    rebuilt = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges, ignore_merges=pre == "llama-bpe"))
    rebuilt.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(_EXPRESSIONS[pre]), "isolated"),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return rebuilt


def _sources() -> Iterator[str]:
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        yield path.read_text(errors="ignore")


def _docstrings(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            yield text


def _korean(random: Random) -> Iterator[str]:
    syllables = [chr(0xAC00 + int(random.random() ** 3 * 3000) * 3) for _ in range(1500)]
    words = ["".join(random.choices(syllables, k=random.randint(1, 4))) for _ in range(20000)]
    while True:
        yield words[int(random.random() ** 3 * len(words))] + random.choice((" ", " ", " ", " ", ". ", ", ", "\n"))


def _cut(parts: Iterator[str], n_bytes: int) -> str:
    """The first `n_bytes` of the parts, over again if they are fewer."""
    data = b""
    for part in parts:
        data += part.encode()
        if len(data) >= n_bytes:
            break
    data *= -(-n_bytes // len(data))
    return data[:n_bytes].decode(errors="ignore")


def _best(n_rounds: int, *acts: Callable[[], object]) -> list[float]:
    """The least seconds of each act, which run in turns."""
    best = [float("inf")] * len(acts)
    for _ in range(n_rounds):
        for place, act in enumerate(acts):
            started = time.process_time()
            act()
            best[place] = min(best[place], time.process_time() - started)
    return best


def _compare(path: Path, texts: Mapping[str, str], n_rounds: int) -> None:
    metadata = open_gguf(path).metadata
    hugging_face = _hugging_face(metadata)
    with LlamaVocabulary(path) as llama:
        for name, text in texts.items():
            print(f"{name:8}{_speeds(metadata, llama, hugging_face, text, n_rounds)}", flush=True)


def _speeds(
    metadata: Mapping[str, Any],
    llama: LlamaVocabulary,
    hugging_face: tokenizers.Tokenizer | None,
    text: str,
    n_rounds: int,
) -> str:
    def ours(tokenizer: Tokenizer) -> list[int]:
        return tokenizer.encode(text, add_special=False, parse_special=True)

    def theirs() -> list[int]:
        return llama.encode(text, add_special=False, parse_special=True)

    new = [load_tokenizer(metadata) for _ in range(n_rounds)]
    known = load_tokenizer(metadata)
    same = "yes" if ours(known) == theirs() else "NO"
    acts: list[Callable[[], object]] = [lambda: ours(new.pop()), lambda: ours(known), theirs]
    if hugging_face is not None:
        acts.append(lambda: hugging_face.encode(text, add_special_tokens=False))
    size = len(text.encode()) / 1e6
    first, again, llamas, *other = (size / seconds for seconds in _best(n_rounds, *acts))
    ratio = f"{other[0]:8.2f}{first / other[0]:7.2f}" if other else f"{'-':>8}{'-':>7}"
    return f"{first:8.2f}{again:8.2f}{llamas:8.2f}{first / llamas:7.2f}{ratio}  {same}"


def _opened(path: Path, imports: str, opening: str) -> str:
    script = _OPENING.format(imports=imports, opening=opening)
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, check=True, text=True)
    seconds, megabytes = done.stdout.split()
    return f"{seconds} s, {megabytes} MB"


def main() -> None:
    """Prints a table for each vocabulary; speeds are in megabytes a second."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("vocabularies", nargs="+", type=Path)
    parser.add_argument("--megabytes", type=float, default=1.0, help="of each text")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    n_bytes = int(arguments.megabytes * 1e6)
    texts = {
        "English": _cut((text + "\n" for source in _sources() for text in _docstrings(source)), n_bytes),
        "code": _cut(_sources(), n_bytes),
        "Korean": _cut(_korean(Random(1)), n_bytes),
    }
    for path in arguments.vocabularies:
        print(f"{path.name}: opened in {_opened(path, *_OURS)}; llama.cpp {_opened(path, *_THEIRS)}")
        print(f"{'MB/s':8}{'new':>8}{'again':>8}{'llama':>8}{'ratio':>7}{'hf':>8}{'ratio':>7}  same")
        _compare(path, texts, arguments.rounds)


if __name__ == "__main__":
    main()
