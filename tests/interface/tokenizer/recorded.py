"""The recordings of a real llama-server's tokenizer, and the tokenizers of their vocabularies."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from typing import Any

import numpy as np

from bloomery.conformance.recording import RECORDINGS
from bloomery.interface.tokenizer import Tokenizer, load_tokenizer

FOLDER = RECORDINGS / "parts"
NAMES = ("chatml", "overlapping", "sentencepiece", "gemma4")


def metadata_of(name: str) -> dict[str, Any]:
    """A recorded vocabulary as the GGUF reader gives it."""
    return as_read(json.loads((FOLDER / name / "vocabulary.json").read_text()))


def as_read(metadata: dict[str, Any]) -> dict[str, Any]:
    """Metadata with its arrays of numbers as the GGUF reader gives them."""
    arrays = {"tokenizer.ggml.token_type": np.int32, "tokenizer.ggml.scores": np.float32}
    return metadata | {key: np.array(metadata[key], dtype) for key, dtype in arrays.items() if key in metadata}


@cache
def tokenizer_of(name: str) -> Tokenizer:
    return load_tokenizer(metadata_of(name))


@cache
def manifest_of(name: str) -> dict[str, Any]:
    """The manifest, after a check that the files are the recorded ones."""
    manifest = json.loads((FOLDER / name / "manifest.json").read_text())
    assert manifest["format"] == "bloomery-tokenizer-recording"
    assert manifest["version"] == 1
    for file_name, digest in manifest["sha256"].items():
        assert hashlib.sha256((FOLDER / name / file_name).read_bytes()).hexdigest() == digest, file_name
    return dict(manifest)


@cache
def cases_of(name: str, kind: str) -> list[dict[str, Any]]:
    """The cases of one kind; as many as the manifest says."""
    lines = (FOLDER / name / "cases.jsonl").read_text().splitlines()
    cases = [case for case in map(json.loads, lines) if case["kind"] == kind]
    assert len(cases) == manifest_of(name)["counts"].get(kind, 0)
    return cases
