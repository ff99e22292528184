"""New texts against the real tokenizer of llama.cpp each time it is asked for."""

import os
import secrets
from pathlib import Path
from random import Random

import pytest

from bloomery.conformance.fixtures.pair_vocabulary import VARIANTS, pair_text
from bloomery.interface.files.gguf import open_gguf
from bloomery.interface.tokenizer import load_tokenizer
from tests.interface.tokenizer.hard_texts import hard_text

pytestmark = pytest.mark.oracle

# A folder of GGUF files with real vocabularies, as llama.cpp's sources have them under models/.
REAL_VOCABULARIES = os.environ.get("BLOOMERY_VOCABULARIES", "")


def assert_equal(path, random, make_text, n_texts, seed):
    from tools.llama_vocabulary import LlamaVocabulary

    tokenizer = load_tokenizer(open_gguf(path).metadata)
    spellings = [tokenizer.token_text(i) for i in sorted(tokenizer.special_ids)][:100] or ["<s>"]
    with LlamaVocabulary(path) as llama:
        assert llama.eog_ids() == tokenizer.eog_ids
        pieces = [llama.piece(i) for i in range(llama.n_vocab)]
        assert pieces == [tokenizer.token_to_piece(i) for i in range(tokenizer.n_vocab)]
        for _ in range(n_texts):
            text = make_text(random, spellings)
            flags = {"add_special": random.random() < 0.5, "parse_special": random.random() < 0.5}
            assert tokenizer.encode(text, **flags) == llama.encode(text, **flags), (seed, text, flags)


@pytest.mark.parametrize("name", VARIANTS)
def test_new_texts_in_every_kind_of_vocabulary(name, tmp_path):
    from tools.llama_vocabulary import write_vocabulary

    path = tmp_path / "vocabulary.gguf"
    write_vocabulary(path, VARIANTS[name]())
    seed = secrets.randbelow(1 << 32)
    assert_equal(path, Random(seed), lambda random, _: pair_text(random), 500, seed)


@pytest.mark.skipif(not REAL_VOCABULARIES, reason="BLOOMERY_VOCABULARIES names no folder of vocabularies")
def test_new_texts_in_real_vocabularies():
    checked = 0
    for path in sorted(Path(REAL_VOCABULARIES).glob("*.gguf")):
        if open_gguf(path).metadata.get("tokenizer.ggml.model") in {"gpt2", "llama", "gemma4"}:
            seed = secrets.randbelow(1 << 32)
            assert_equal(path, Random(seed), hard_text, 500, seed)
            checked += 1
    assert checked
