"""Special tokens that take the white space beside them out of a prompt.

The flags are not in GGUF files. llama.cpp sets them by the names of a model, its architecture and its pre-tokenizer
(llama-vocab.cpp, the end of `load`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bloomery.interface.tokenizer.metadata_keys import PREFIX
from bloomery.interface.tokenizer.vocabulary import Attribute, Vocabulary

# What is trimmed: the white space of C's `isspace`.
WHITE_SPACE = " \t\n\v\f\r"


@dataclass(frozen=True)
class Trimming:
    """The ids that take white space on their left, and those that take it on their right."""

    left: frozenset[int] = frozenset()
    right: frozenset[int] = frozenset()


def trimming_of(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> Trimming:
    """The flags of a file; `vocabulary` has the attributes that roles gave it."""
    name = _text(metadata, "general.name").lower()
    pre = _text(metadata, f"{PREFIX}pre")
    architecture = _text(metadata, "general.architecture")
    if any(part in pre for part in ("jina-v2-de", "jina-v2-es", "jina-v2-code", "mmbert")) or any(
        part in architecture for part in ("nomic-bert-moe", "jina-bert-v3")
    ):
        return Trimming(left=_ids(vocabulary, "<mask>"))
    if "phi-3" in name or "phi3" in name:
        special = {*vocabulary.with_any(Attribute.SPECIAL), *_ids(vocabulary, "</s>")}
        return Trimming(right=frozenset(special - _ids(vocabulary, "<unk>", "<s>", "<|endoftext|>")))
    if "modern-bert" in name:
        return Trimming(left=_ids(vocabulary, "[MASK]"))
    return Trimming()


def _text(metadata: Mapping[str, Any], key: str) -> str:
    value = metadata.get(key)
    return value if isinstance(value, str) else ""


def _ids(vocabulary: Vocabulary, *texts: str) -> frozenset[int]:
    return frozenset(vocabulary.ids[text] for text in texts if text in vocabulary.ids)
