"""Another reader of the same model: the `qwen3_5` and `qwen3_5_moe` of transformers, with the fixtures' weights.

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
from scipy.special import log_softmax

from bloomery.conformance.fixtures import qwen35
from bloomery.conformance.fixtures.catalog import write_random
from bloomery.conformance.fixtures.vocabulary import vocabulary
from bloomery.conformance.recorder import random_prompt
from bloomery.interface.engine import Span
from tests.reference.test_engine import open_engine

pytestmark = pytest.mark.real

Floats = npt.NDArray[np.float32]

# Longer than a chunk of its delta rule, which is 64.
N = 100
# Several value heads to each of several key heads, so that their order matters.  The other reader has no draft layer.
# Under the root of the delta rule's keys it adds 1e-6 even where norms add 1e-5, as those of `qwen35-b` do: too little
# to show.
SHAPES = (
    qwen35.SHAPES["qwen35-a"],
    qwen35.SHAPES["qwen35-b"],
    dataclasses.replace(qwen35.SHAPES["qwen35moe-a"], n_head_k=2),
    dataclasses.replace(qwen35.SHAPES["qwen35moe-b"], n_head_v=6),
)
_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_qkv.weight": "linear_attn.in_proj_qkv.weight",
    "attn_gate.weight": "linear_attn.in_proj_z.weight",
    "ssm_alpha.weight": "linear_attn.in_proj_a.weight",
    "ssm_beta.weight": "linear_attn.in_proj_b.weight",
    "ssm_conv1d.weight": "linear_attn.conv1d.weight",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_a": "linear_attn.A_log",
    "ssm_norm.weight": "linear_attn.norm.weight",
    "ssm_out.weight": "linear_attn.out_proj.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "ffn_gate_inp.weight": "mlp.gate.weight",
    "ffn_gate_up_exps.weight": "mlp.experts.gate_up_proj",
    "ffn_down_exps.weight": "mlp.experts.down_proj",
    "ffn_gate_inp_shexp.weight": "mlp.shared_expert_gate.weight",
    "ffn_gate_shexp.weight": "mlp.shared_expert.gate_proj.weight",
    "ffn_up_shexp.weight": "mlp.shared_expert.up_proj.weight",
    "ffn_down_shexp.weight": "mlp.shared_expert.down_proj.weight",
}


def config_of(shape: qwen35.Shape) -> dict[str, Any]:
    """The other reader's configuration."""
    config: dict[str, Any] = {
        "vocab_size": len(vocabulary()), "hidden_size": shape.n_embd, "tie_word_embeddings": shape.tied,
        "num_hidden_layers": len(shape.recurrent), "num_attention_heads": shape.n_head,
        "num_key_value_heads": shape.n_head_kv, "head_dim": shape.head_dim, "rms_norm_eps": shape.norm_eps,
        "layer_types": ["linear_attention" if yes else "full_attention" for yes in shape.recurrent],
        "rope_parameters": {
            "rope_type": "default", "rope_theta": shape.rope_base, "mrope_interleaved": True,
            "mrope_section": list(shape.sections[:3]),
            # It cuts the product with the width of a head off to a whole number.
            "partial_rotary_factor": (2 * sum(shape.sections) + 0.5) / shape.head_dim,
        },
        "linear_conv_kernel_dim": shape.conv_kernel, "linear_key_head_dim": shape.state,
        "linear_value_head_dim": shape.state, "linear_num_key_heads": shape.n_head_k,
        "linear_num_value_heads": shape.n_head_v, "attn_implementation": "eager",
    }  # fmt: skip
    if shape.experts is None:
        return config | {"intermediate_size": shape.n_ff}
    return config | {
        "num_experts": shape.experts.n_expert, "num_experts_per_tok": shape.experts.n_used,
        "moe_intermediate_size": shape.n_ff, "shared_expert_intermediate_size": shape.experts.n_ff_shared,
        "experts_implementation": "eager",
    }  # fmt: skip


def grouped(shape: qwen35.Shape) -> list[int]:
    """The file's value heads in the order of the other reader, which has those of a key head side by side."""
    return [int(head) for head in np.arange(shape.n_head_v).reshape(-1, shape.n_head_k).T.flat]


def turned(shape: qwen35.Shape, name: str, values: Floats, heads: list[int]) -> Floats:
    """The other reader's values and shape of a block's tensor, value heads in the order of `heads`."""

    def reordered(rows: Floats) -> Floats:
        return rows.reshape(shape.n_head_v, -1, *rows.shape[1:])[heads].reshape(rows.shape)

    n_qk = 2 * shape.n_head_k * shape.state
    match name:
        case "attn_qkv.weight":
            return np.concatenate([values[:n_qk], reordered(values[n_qk:])])
        case "ssm_conv1d.weight":
            return np.concatenate([values[:n_qk], reordered(values[n_qk:])])[:, None]
        case "attn_gate.weight" | "ssm_alpha.weight" | "ssm_beta.weight" | "ssm_dt.bias":
            return reordered(values)
        case "ssm_a":
            return np.log(-reordered(values))
        case "ssm_out.weight":
            return reordered(values.T).T
        case "ffn_gate_inp_shexp.weight":
            return values[None]
        case "attn_norm.weight" | "post_attention_norm.weight" | "attn_q_norm.weight" | "attn_k_norm.weight":
            # It keeps what these differ from 1 by.
            return values - 1
        case _:
            return values


def state_of(shape: qwen35.Shape, heads: list[int]) -> Iterator[tuple[str, Floats]]:
    """The other reader's names and values of the fixture's weights, value heads in the order of `heads`."""
    weights = {tensor.name: tensor.values for tensor in qwen35.tensors(shape, "f32")}
    yield "model.embed_tokens.weight", weights["token_embd.weight"]
    yield "model.norm.weight", weights["output_norm.weight"] - 1
    yield "lm_head.weight", weights.get("output.weight", weights["token_embd.weight"])
    for i in range(len(shape.recurrent)):
        block = f"blk.{i}."
        own = {name.removeprefix(block): values for name, values in weights.items() if name.startswith(block)}
        if "ffn_gate_exps.weight" in own:
            both = [own.pop(f"ffn_{name}_exps.weight") for name in ("gate", "up")]
            own["ffn_gate_up_exps.weight"] = np.concatenate(both, axis=1)
        for name, values in own.items():
            yield f"model.layers.{i}.{_NAMES[name]}", turned(shape, name, values, heads)


def log_probabilities_of_transformers(shape: qwen35.Shape, heads: list[int], ids: list[int]) -> Floats:
    """[len(ids), vocabulary]: what the other reader says comes next at each place."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    family = "Qwen3_5Moe" if shape.experts else "Qwen3_5"
    config = getattr(transformers, f"{family}TextConfig")(**config_of(shape))
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    model.load_state_dict({name: torch.from_numpy(np.array(values)) for name, values in state_of(shape, heads)})
    with torch.no_grad():
        logits = model(torch.tensor([ids]), use_cache=False).logits[0]
    return log_softmax(logits.double().numpy(), axis=-1)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_transformers_says_the_same(shape: qwen35.Shape, tmp_path: Path) -> None:
    ids = random_prompt(5, N)
    theirs = log_probabilities_of_transformers(shape, grouped(shape), ids)
    write_random(tmp_path / "a.gguf", shape, "f32")
    engine = open_engine(tmp_path / "a.gguf", n_ctx=N)
    [rows] = engine.run([Span(sequence=engine.sequence(), ids=ids, wanted=range(N))])
    ours = log_softmax(np.stack([rows.logits(i) for i in range(N)]), axis=-1)
    engine.close()
    difference = np.abs(ours - theirs).max()
    assert difference < 2e-4, f"log-probabilities differ by {difference:.2g}"

    # Value heads in the file's own order belong to the wrong key heads, and that shows.
    mistaken = log_probabilities_of_transformers(shape, list(range(shape.n_head_v)), ids)
    assert np.abs(ours - mistaken).max() > 0.1
