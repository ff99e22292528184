"""Tokenizers against recorded ids, pieces and texts of a real llama-server's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from bloomery.conformance.finding import Check, Effort, Finding
from bloomery.conformance.fixtures.pair_vocabulary import VARIANTS, variant_digest
from bloomery.conformance.parts.recordings import PARTS, Json, cases_of, manifest_of
from bloomery.conformance.reports.report import first_few
from bloomery.interface.tokenizer import StreamDecoder, Tokenizer, TokenizerError, load_tokenizer, piece_json

VOCABULARIES = ("chatml", "overlapping", "sentencepiece", "gemma4")
REPEATED = "repeated merges"
_MOST_SENTENCES = 8

# What is wrong, one sentence at a time.
Sentences = Iterator[str]


def checks() -> list[Check]:
    """Every kind of question about each recorded vocabulary, and one check a pre-tokenizer's name."""
    found = []
    for name in VOCABULARIES:
        for kind, ask in _QUESTIONS.items():
            if manifest_of(PARTS / name)["counts"].get(kind):
                run = partial(_asked, name, kind, ask)
                found.append(Check(subject=f"tokenizer {name}", name=kind, run=run))
    found.append(Check(subject=f"tokenizer {VOCABULARIES[0]}", name=REPEATED, run=_repeated_merges))
    recorded = manifest_of(PARTS / "pairs")["variants"]
    return found + [Check(subject="pre-tokenizer", name=name, run=partial(_cuts, name)) for name in recorded]


def as_read(metadata: Json) -> Json:
    """Metadata with its arrays of numbers as the GGUF reader gives them."""
    arrays = {"tokenizer.ggml.token_type": np.int32, "tokenizer.ggml.scores": np.float32}
    return metadata | {key: np.array(metadata[key], dtype) for key, dtype in arrays.items() if key in metadata}


def _encode(tokenizer: Tokenizer, case: Json) -> Sentences:
    for flags, wanted in case["ids"].items():
        ids = tokenizer.encode(case["text"], add_special=flags[0] == "1", parse_special=flags[1] == "1")
        if ids != wanted:
            asked = f"{case['text']!r} (add_special {flags[0]}, parse_special {flags[1]})"
            yield f"{asked} is {ids}, llama-server's {wanted}"


def _pieces(tokenizer: Tokenizer, case: Json) -> Sentences:
    for token, wanted in enumerate(case["pieces"]):
        piece = piece_json(tokenizer.token_to_piece(token))
        if piece != wanted:
            yield f"the piece of id {token} is {piece!r}, llama-server's {wanted!r}"


def _detokenize(tokenizer: Tokenizer, case: Json) -> Sentences:
    text = tokenizer.detokenize(case["ids"])
    if text != case["text"]:
        yield f"{case['ids']} are {text!r}, llama-server's {case['text']!r}"


def _stream(tokenizer: Tokenizer, case: Json) -> Sentences:
    decoder = StreamDecoder(tokenizer)
    chunks = [decoder.feed(token) for token in case["ids"]]
    if list(filter(None, chunks)) != list(filter(None, case["chunks"])):
        yield f"{case['ids']} are streamed as {chunks}, by llama-server as {case['chunks']}"
    whole = "".join(chunks) + decoder.flush()
    if whole != case["content"]:
        yield f"{case['ids']} are {whole!r} in all, llama-server's {case['content']!r}"


_QUESTIONS: dict[str, Callable[[Tokenizer, Json], Sentences]] = {
    "encode": _encode,
    "pieces": _pieces,
    "detokenize": _detokenize,
    "stream": _stream,
}


def _asked(name: str, kind: str, ask: Callable[[Tokenizer, Json], Sentences], _effort: Effort) -> Iterator[Finding]:
    cases = cases_of(PARTS / name, kind)
    try:
        tokenizer = load_tokenizer(as_read(json.loads((PARTS / name / "vocabulary.json").read_text())))
        wrong = [sentence for case in cases for sentence in ask(tokenizer, case)]
    except TokenizerError as error:
        wrong = [str(error)]
    yield Finding(
        subject=f"tokenizer {name}",
        check=kind,
        measured={"cases": float(len(cases))},
        wrong=first_few(wrong, _MOST_SENTENCES),
    )


def _repeated_merges(_effort: Effort) -> Iterator[Finding]:
    """Of a merge that is listed twice the first place counts: all merges once more, the last first, change no id."""
    name = VOCABULARIES[0]
    metadata = as_read(json.loads((PARTS / name / "vocabulary.json").read_text()))
    merges = metadata["tokenizer.ggml.merges"]
    cases = cases_of(PARTS / name, "encode")
    try:
        tokenizer = load_tokenizer(metadata | {"tokenizer.ggml.merges": [*merges, *reversed(merges)]})
        wrong = [sentence for case in cases for sentence in _encode(tokenizer, case)]
    except TokenizerError as error:
        wrong = [str(error)]
    yield Finding(
        subject=f"tokenizer {name}",
        check=REPEATED,
        measured={"cases": float(len(cases))},
        wrong=first_few(wrong, _MOST_SENTENCES),
    )


def _cuts(name: str, _effort: Effort) -> Iterator[Finding]:
    """The recorded texts in a vocabulary in which any two neighbours join, so that ids show every cut."""
    manifest = manifest_of(PARTS / "pairs")
    texts = json.loads((PARTS / "pairs" / "texts.json").read_text())
    with np.load(PARTS / "pairs" / "ids.npz") as arrays:
        rows = np.split(arrays["ids"], np.cumsum(arrays["lengths"], dtype=np.int64)[:-1])
        row_of = arrays["row_of"][:, list(manifest["variants"]).index(name)]
    if name not in VARIANTS or variant_digest(VARIANTS[name]()) != manifest["variants"][name]:
        raise ValueError(f"the vocabulary of {name} is another one than was recorded; record it again")
    try:
        tokenizer = load_tokenizer(as_read(VARIANTS[name]()))
        wrong = [
            sentence
            for number, text in enumerate(texts)
            for sentence in _cut(tokenizer, number, text, rows[row_of[number]].tolist())
        ]
    except TokenizerError as error:
        wrong = [str(error)]
    yield Finding(
        subject="pre-tokenizer",
        check=name,
        measured={"texts": float(len(texts))},
        wrong=first_few(wrong, _MOST_SENTENCES),
    )


def _cut(tokenizer: Tokenizer, number: int, text: str, wanted: list[int]) -> Sentences:
    # Every other text was recorded with special tokens, parsed and added.
    special = number % 2 == 0
    ids = tokenizer.encode(text, add_special=special, parse_special=special)
    if ids != wanted:
        yield f"{text!r} is {ids}, llama.cpp's {wanted}"
