"""Every pre-tokenizer and kind of vocabulary against recorded ids of llama.cpp (tools/record_tokenizer.py)."""

import json
from functools import cache
from itertools import combinations

import numpy as np
import pytest

from bloomery.conformance.fixtures.pair_vocabulary import VARIANTS, variant_digest
from bloomery.interface.tokenizer import load_tokenizer
from bloomery.interface.tokenizer.pre_names import PRE_KINDS
from tests.interface.tokenizer.recorded import FOLDER, as_read, manifest_of

MANIFEST = manifest_of("pairs")
COLUMNS = {name: column for column, name in enumerate(MANIFEST["variants"])}


@cache
def recorded():
    """The texts, the distinct rows of ids, and which row each text has in each variant."""
    texts = json.loads((FOLDER / "pairs" / "texts.json").read_text())
    with np.load(FOLDER / "pairs" / "ids.npz") as arrays:
        rows = np.split(arrays["ids"], np.cumsum(arrays["lengths"], dtype=np.int64)[:-1])
        row_of = arrays["row_of"]
    assert len(texts) == len(row_of) == MANIFEST["counts"]["encode"] > 900
    return texts, [row.tolist() for row in rows], row_of


def test_every_name_is_recorded():
    assert COLUMNS.keys() == VARIANTS.keys()


@pytest.mark.parametrize("name", VARIANTS)
def test_texts_give_the_recorded_ids(name):
    metadata = VARIANTS[name]()
    assert variant_digest(metadata) == MANIFEST["variants"][name], "record again: the vocabulary is another one"
    tokenizer = load_tokenizer(as_read(metadata))
    texts, rows, row_of = recorded()
    for number, text in enumerate(texts):
        special = number % 2 == 0
        ids = tokenizer.encode(text, add_special=special, parse_special=special)
        assert ids == rows[row_of[number, COLUMNS[name]]], text


def test_the_texts_tell_all_pre_tokenizers_apart():
    """Recordings in which two different rules look the same would not show one taken for the other."""
    _, _, row_of = recorded()
    kinds = {}
    for name, column in COLUMNS.items():
        if name in PRE_KINDS:
            kind = PRE_KINDS[name]
            kinds.setdefault((kind.pre_tokenizer, kind.ignore_merges, kind.add_bos), column)
    for (one, first), (other, second) in combinations(kinds.items(), 2):
        assert (row_of[:, first] != row_of[:, second]).any(), (one, other)
