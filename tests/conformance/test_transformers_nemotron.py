"""Another reader of the same model: the `nemotron_h` of transformers, with the fixtures' weights.

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

from bloomery.conformance.fixtures import nemotron
from bloomery.conformance.fixtures.catalog import write_random
from bloomery.conformance.fixtures.vocabulary import vocabulary
from bloomery.conformance.recorder import random_prompt
from bloomery.interface.engine import Span
from tests.reference.test_engine import open_engine

pytestmark = pytest.mark.real

Weights = dict[str, npt.NDArray[np.float32]]

# Longer than a chunk of its scan.
N, CHUNK = 100, 32
_WORDS = {nemotron.MAMBA: "linear_attention", nemotron.ATTENTION: "full_attention"}


def _latent() -> nemotron.Shape:
    """The latent fixture as far as the other reader can have it: all blocks' experts alike, and no block for drafts."""
    shape = nemotron.SHAPES["nemotronmoe-b"]
    assert shape.experts is not None
    alike = dataclasses.replace(shape.experts, last_n_used=shape.experts.n_used, last_n_ff=shape.experts.n_ff)
    return dataclasses.replace(shape, experts=alike, draft=False)


SHAPES = (nemotron.SHAPES["nemotron-a"], nemotron.SHAPES["nemotronmoe-a"], _latent())


def config_of(shape: nemotron.Shape) -> dict[str, Any]:
    """The other reader's configuration."""
    feed_forward = "moe" if shape.experts else "mlp"
    config = {
        "vocab_size": len(vocabulary()), "hidden_size": shape.n_embd, "tie_word_embeddings": shape.tied,
        "layers_block_type": [_WORDS.get(kind, feed_forward) for kind in shape.blocks],
        "num_attention_heads": shape.n_head, "num_key_value_heads": shape.n_head_kv, "head_dim": shape.head_dim,
        "intermediate_size": shape.n_ff, "ssm_state_size": shape.d_state, "mamba_num_heads": shape.ssm_heads,
        "mamba_head_dim": shape.ssm_head_dim, "n_groups": shape.ssm_groups, "conv_kernel": shape.conv_kernel,
        "chunk_size": CHUNK, "layer_norm_epsilon": shape.norm_eps, "use_mamba_kernels": False,
    }  # fmt: skip
    if shape.experts:
        config |= {
            "n_routed_experts": shape.experts.n_expert, "num_experts_per_tok": shape.experts.n_used,
            "moe_intermediate_size": shape.experts.n_ff, "moe_latent_size": shape.experts.n_latent,
            "moe_shared_expert_intermediate_size": shape.experts.n_ff_shared,
            "routed_scaling_factor": shape.experts.weights_scale, "norm_topk_prob": True,
        }  # fmt: skip
    return config


def state_of(shape: nemotron.Shape, weights: Weights) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """The other reader's names and shapes of the fixture's weights."""
    plain = {
        "ssm_in.weight": "in_proj.weight", "ssm_conv1d.bias": "conv1d.bias", "ssm_dt.bias": "dt_bias",
        "ssm_out.weight": "out_proj.weight", "attn_q.weight": "q_proj.weight", "attn_k.weight": "k_proj.weight",
        "attn_v.weight": "v_proj.weight", "attn_output.weight": "o_proj.weight", "ffn_up.weight": "up_proj.weight",
        "ffn_down.weight": "down_proj.weight", "ffn_gate_inp.weight": "gate.weight",
        "exp_probs_b.bias": "gate.e_score_correction_bias", "ffn_up_exps.weight": "experts.up_proj",
        "ffn_down_exps.weight": "experts.down_proj", "ffn_latent_down.weight": "fc1_latent_proj.weight",
        "ffn_latent_up.weight": "fc2_latent_proj.weight", "ffn_up_shexp.weight": "shared_experts.up_proj.weight",
        "ffn_down_shexp.weight": "shared_experts.down_proj.weight",
    }  # fmt: skip
    yield "model.embeddings.weight", weights["token_embd.weight"]
    yield "model.norm_f.weight", weights["output_norm.weight"]
    yield "lm_head.weight", weights.get("output.weight", weights["token_embd.weight"])
    for i in range(len(shape.blocks)):
        at, block = f"model.layers.{i}", f"blk.{i}."
        for tensor, values in weights.items():
            name = tensor.removeprefix(block)
            if name == tensor:
                continue
            if name in plain:
                yield f"{at}.mixer.{plain[name]}", values
            elif name == "attn_norm.weight":
                yield f"{at}.norm.weight", values
            elif name == "ssm_conv1d.weight":
                yield f"{at}.mixer.conv1d.weight", values[:, None]
            elif name == "ssm_norm.weight":
                yield f"{at}.mixer.norm.weight", values.reshape(-1)
            elif name == "ssm_a":
                yield f"{at}.mixer.A_log", np.log(-values.reshape(-1))
            elif name == "ssm_d":
                yield f"{at}.mixer.D", values.reshape(-1)
            else:
                raise AssertionError(f"nothing reads {tensor}")


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_transformers_says_the_same(shape: nemotron.Shape, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.NemotronHForCausalLM(transformers.NemotronHConfig(**config_of(shape))).eval()
    weights = {tensor.name: tensor.values for tensor in nemotron.tensors(shape, "f32")}
    state = {name: torch.from_numpy(np.array(values)) for name, values in state_of(shape, weights)}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    ids = random_prompt(5, N)
    with torch.no_grad():
        theirs = model(torch.tensor([ids]), use_cache=False, logits_to_keep=0).logits[0].double().numpy()
    write_random(tmp_path / "a.gguf", shape, "f32")
    engine = open_engine(tmp_path / "a.gguf", n_ctx=N)
    [rows] = engine.run([Span(sequence=engine.sequence(), ids=ids, wanted=range(N))])
    ours = np.stack([rows.logits(i) for i in range(N)])
    engine.close()
    difference = np.abs(ours - theirs).max()
    assert difference < 2e-4, f"logits differ by {difference:.2g}"
