"""Another reader of the same model: the `mimo_v2_flash` of transformers, with the fixtures' weights.

It needs `torch` and `transformers`, which nothing else here does: without them the tests are skipped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bloomery.conformance.fixtures import mimo2
from bloomery.conformance.fixtures.catalog import write_random
from bloomery.conformance.fixtures.vocabulary import vocabulary
from bloomery.conformance.recorder import random_prompt
from bloomery.interface.engine import Span
from tests.reference.test_engine import open_engine

pytestmark = pytest.mark.real

Floats = npt.NDArray[np.float32]

N = 100
# The other reader has sinks in every layer with a window and in no other, and twice the KV heads there.
SHAPES = (
    dataclasses.replace(mimo2.SHAPES["mimo2-a"], layers="eWWe", n_head_kv=(2, 4)),
    dataclasses.replace(mimo2.SHAPES["mimo2-b"], layers="eWeW", n_head_kv=(3, 6), draft=False),
)
_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_sinks.weight": "self_attn.sinks",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "ffn_gate_inp.weight": "mlp.gate.weight",
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
    "ffn_down_exps.weight": "mlp.experts.down_proj",
}


def config_of(shape: mimo2.Shape) -> dict[str, Any]:
    """The other reader's configuration."""
    # It cuts the product with the width of a head off to a whole number.
    part = (shape.n_rot + 0.5) / shape.key_dim
    windowed = [letter.lower() == mimo2.WINDOWED for letter in shape.layers]
    return {
        "vocab_size": len(vocabulary()), "hidden_size": shape.n_embd, "intermediate_size": shape.n_ff,
        "num_hidden_layers": len(shape.layers), "num_attention_heads": shape.n_head,
        "num_key_value_heads": shape.n_head_kv[0], "head_dim": shape.key_dim, "v_head_dim": shape.value_dim,
        "rms_norm_eps": shape.norm_eps, "sliding_window": shape.window, "attention_value_scale": shape.value_scale,
        "layer_types": ["sliding_attention" if yes else "full_attention" for yes in windowed],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": part}
            for kind, base in (
                ("full_attention", shape.rope_base), ("sliding_attention", shape.local_base or 10000.0)
            )
        },
        "n_routed_experts": shape.experts.n_expert, "num_experts_per_tok": shape.experts.n_used,
        "moe_intermediate_size": shape.experts.n_ff, "norm_topk_prob": True,
    }  # fmt: skip


def state_of(shape: mimo2.Shape) -> Iterator[tuple[str, Floats]]:
    """The other reader's names and shapes of the fixture's weights."""
    weights = {tensor.name: tensor.values for tensor in mimo2.tensors(shape, "f32")}
    yield "model.embed_tokens.weight", weights["token_embd.weight"]
    yield "model.norm.weight", weights["output_norm.weight"]
    yield "lm_head.weight", weights["output.weight"]
    for i, letter in enumerate(shape.layers):
        at, block = f"model.layers.{i}", f"blk.{i}."
        own = {name.removeprefix(block): values for name, values in weights.items() if name.startswith(block)}
        if shape.fused:
            n_head_kv = shape.n_head_kv[letter.lower() == mimo2.WINDOWED]
            ends = np.cumsum([shape.n_head * shape.key_dim, n_head_kv * shape.key_dim])
            for name, rows in zip("qkv", np.split(own.pop("attn_qkv.weight"), ends), strict=True):
                own[f"attn_{name}.weight"] = rows
        if "ffn_gate_exps.weight" in own:
            both = np.concatenate([own.pop(f"ffn_{name}_exps.weight") for name in ("gate", "up")], axis=1)
            yield f"{at}.mlp.experts.gate_up_proj", both
        for name, values in own.items():
            yield f"{at}.{_NAMES[name]}", values


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_transformers_says_the_same(shape: mimo2.Shape, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.MiMoV2FlashForCausalLM(transformers.MiMoV2FlashConfig(**config_of(shape))).eval()
    model.load_state_dict({name: torch.from_numpy(np.array(values)) for name, values in state_of(shape)})
    ids = random_prompt(5, N)
    with torch.no_grad():
        theirs = model(torch.tensor([ids]), use_cache=False).logits[0].double().numpy()
    write_random(tmp_path / "a.gguf", shape, "f32")
    engine = open_engine(tmp_path / "a.gguf", n_ctx=N)
    [rows] = engine.run([Span(sequence=engine.sequence(), ids=ids, wanted=range(N))])
    ours = np.stack([rows.logits(i) for i in range(N)])
    engine.close()
    difference = np.abs(ours - theirs).max()
    assert difference < 2e-4, f"logits differ by {difference:.2g}"
