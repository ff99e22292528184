"""New texts against a real llama-server each time it is asked for."""

import secrets
from random import Random

import pytest

from tests.interface.tokenizer.hard_texts import hard_text
from tests.interface.tokenizer.recorded import NAMES, metadata_of, tokenizer_of

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("name", NAMES)
def test_new_texts_give_the_servers_ids(name, tmp_path):
    from bloomery.conformance.oracle import Oracle, OracleSettings
    from tests.interface.tokenizer.record_vectors import write_model

    metadata = metadata_of(name)
    metadata["tokenizer.ggml.token_type"] = metadata["tokenizer.ggml.token_type"].tolist()
    model = tmp_path / f"{name}.gguf"
    write_model(model, metadata, {})
    tokenizer = tokenizer_of(name)
    spellings = [tokenizer.token_text(i) for i in sorted(tokenizer.special_ids)]
    seed = secrets.randbelow(1 << 32)
    random = Random(seed)
    with Oracle(model, OracleSettings(configuration="strict")) as server:
        for _ in range(1000):
            text = hard_text(random, spellings)
            flags = {"add_special": random.random() < 0.5, "parse_special": random.random() < 0.5}
            expected = server.post("/tokenize", {"content": text, **flags})["tokens"]
            assert tokenizer.encode(text, **flags) == expected, (seed, text, flags)
