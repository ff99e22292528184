"""What the benchmark derives from a file and from its rounds."""

from __future__ import annotations

import os

from bloomery.conformance.fixtures import fixture
from bloomery.interface import registry
from bloomery.interface.files.gguf import open_gguf
from bloomery.interface.spec import Gqa, Moe
from tools.bench.machine import machine, peak_memory
from tools.bench.speed import _side, weights_read


def test_a_token_reads_its_experts_and_every_other_matrix_but_the_embedding() -> None:
    path = fixture("qwen3moe-a-f32")
    with open_gguf(path) as file:
        spec = registry.family("qwen3moe")(file).spec
    expected = spec.n_vocab * spec.n_embd
    for layer in spec.layers:
        assert isinstance(layer.mixer, Gqa) and isinstance(layer.ffn, Moe)
        heads = 2 * layer.mixer.n_head + 2 * layer.mixer.n_head_kv
        experts = layer.ffn.n_expert + 3 * layer.ffn.n_expert_used * layer.ffn.n_ff
        expected += spec.n_embd * (heads * layer.mixer.head_dim + experts)
    assert weights_read(path) == {"float32": 4 * expected, "stored": 4 * expected}


def test_weights_are_read_as_they_are_stored() -> None:
    read = weights_read(fixture("qwen3-a-q8_0"))
    # 34 bytes hold 32 weights; what is not a multiple of a block stays float32.
    assert 34 / 32 <= 4 * read["stored"] / read["float32"] < 1.2


def test_a_ratio_is_the_median_of_each_rounds_own() -> None:
    peers = [(100.0, 10.0), (10.0, 1.0), (90.0, 9.0)]
    ours = [(50.0, 2.0), (5.0, 0.5), (30.0, 3.0)]
    found = _side(ours, peers, 7)
    assert found["prompt"] == {"tokens_per_second": 30.0, "least": 5.0, "most": 50.0, "times_slower": 2.0}
    assert found["decode"] == {"tokens_per_second": 2.0, "least": 0.5, "most": 3.0, "times_slower": 3.0}
    assert found["peak_bytes"] == 7


def test_the_machine_is_described() -> None:
    described = machine()
    assert described["cpu"] and described["cores"] >= 1 and described["numpy"]
    assert peak_memory(os.getpid()) > 10e6
