"""Another reader of the same model: the `minimax_m3_vl` text model of transformers, with the fixtures' weights.

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

from bloomery.conformance.fixtures import minimax_m3
from bloomery.conformance.fixtures.catalog import write_random
from bloomery.conformance.fixtures.vocabulary import vocabulary
from bloomery.conformance.recorder import random_prompt
from bloomery.interface.engine import Span
from tests.reference.test_engine import open_engine

pytestmark = pytest.mark.real

Weights = dict[str, npt.NDArray[np.float32]]

N = 100


def _normalised() -> minimax_m3.Shape:
    """The choosing fixture with the shares of experts as the other reader always has them."""
    shape = minimax_m3.SHAPES["minimaxm3-b"]
    experts = dataclasses.replace(shape.experts, normalised=True, weights_scale=1.5)
    return dataclasses.replace(shape, experts=experts, fused=False)


SHAPES = (minimax_m3.SHAPES["minimaxm3-a"], _normalised())


def config_of(shape: minimax_m3.Shape) -> dict[str, Any]:
    """The other reader's configuration."""
    n_sparse = shape.n_layer - shape.n_dense
    return {
        "vocab_size": len(vocabulary()), "hidden_size": shape.n_embd, "num_hidden_layers": shape.n_layer,
        "num_attention_heads": shape.n_head, "num_key_value_heads": shape.n_head_kv, "head_dim": shape.head_dim,
        "rms_norm_eps": shape.norm_eps, "dense_intermediate_size": shape.n_ff,
        "intermediate_size": shape.experts.n_ff,
        "shared_intermediate_size": shape.experts.n_ff * shape.experts.n_shared,
        "num_local_experts": shape.experts.n_expert, "num_experts_per_tok": shape.experts.n_used,
        "routed_scaling_factor": shape.experts.weights_scale, "index_n_heads": shape.n_head_kv,
        "index_head_dim": shape.index.head_dim, "index_block_size": shape.index.block,
        "index_topk_blocks": shape.index.n_chosen, "index_local_blocks": shape.index.n_local,
        "layer_types": ["full_attention"] * shape.n_dense + ["minimax_m3_sparse"] * n_sparse,
        "mlp_layer_types": ["dense"] * shape.n_dense + ["sparse"] * n_sparse, "rotary_dim": shape.n_rot,
        "bos_token_id": None, "eos_token_id": None,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": shape.rope_base,
            "partial_rotary_factor": shape.n_rot / shape.head_dim,
        },
    }  # fmt: skip


def state_of(shape: minimax_m3.Shape, weights: Weights) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """The other reader's names of the fixture's weights; it has norms less 1, and gates before ups in one matrix."""
    plain = {
        "attn_q.weight": "self_attn.q_proj.weight", "attn_k.weight": "self_attn.k_proj.weight",
        "attn_v.weight": "self_attn.v_proj.weight", "attn_output.weight": "self_attn.o_proj.weight",
        "indexer.q_proj.weight": "self_attn.indexer.q_proj.weight",
        "indexer.k_proj.weight": "self_attn.indexer.k_proj.weight", "ffn_down.weight": "mlp.down_proj.weight",
        "ffn_gate_inp.weight": "mlp.gate.weight", "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
        "ffn_down_exps.weight": "mlp.experts.down_proj", "ffn_down_shexp.weight": "mlp.shared_experts.down_proj.weight",
    }  # fmt: skip
    norms = {
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm", "indexer.q_norm": "self_attn.indexer.q_norm",
        "indexer.k_norm": "self_attn.indexer.k_norm",
    }  # fmt: skip
    gated = {
        "": "mlp.gate_up_proj.weight", "_exps": "mlp.experts.gate_up_proj",
        "_shexp": "mlp.shared_experts.gate_up_proj.weight",
    }  # fmt: skip
    yield "model.embed_tokens.weight", weights["token_embd.weight"]
    yield "model.norm.weight", weights["output_norm.weight"] - 1
    yield "lm_head.weight", weights["output.weight"]
    for i in range(shape.n_layer):
        at, block = f"model.layers.{i}", f"blk.{i}."
        own = {name.removeprefix(block): values for name, values in weights.items() if name.startswith(block)}
        yield from ((f"{at}.{theirs}", own.pop(name)) for name, theirs in plain.items() if name in own)
        for name, theirs in norms.items():
            if f"{name}.weight" in own:
                yield f"{at}.{theirs}.weight", own.pop(f"{name}.weight") - 1
        for suffix, theirs in gated.items():
            if f"ffn_gate{suffix}.weight" in own:
                both = [own.pop(f"ffn_{name}{suffix}.weight") for name in ("gate", "up")]
                yield f"{at}.{theirs}", np.concatenate(both, axis=-2)
        assert not own


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_transformers_says_the_same(shape: minimax_m3.Shape, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    reader = pytest.importorskip("transformers.models.minimax_m3_vl.modeling_minimax_m3_vl")
    config = reader.MiniMaxM3VLTextConfig(**config_of(shape), attn_implementation="eager")
    model = reader.MiniMaxM3VLForCausalLM(config).eval()
    weights = {tensor.name: tensor.values for tensor in minimax_m3.tensors(shape, "f32")}
    state = {name: torch.from_numpy(np.array(values)) for name, values in state_of(shape, weights)}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and not missing
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
