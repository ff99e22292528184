"""The `minimax-m3` reader: the spec it makes of the fixtures, and a refusal by name for each thing that is wrong."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bloomery.conformance.fixtures import fixture, minimax_m3
from bloomery.conformance.fixtures.gguf_writer import Tensor, write_gguf
from bloomery.interface import coverage
from bloomery.interface.files.gguf import ModelFileError
from bloomery.interface.spec import (
    BlockSelector,
    Dense,
    Gqa,
    LayerSpec,
    ModelDescription,
    Moe,
    Plain,
    Rope,
    SharedExpert,
    WeightRef,
)
from tests.interface.families.described import described

SHAPE = minimax_m3.SHAPES["minimaxm3-b"]


@functools.cache
def drawn(*, fused: bool) -> Mapping[str, Tensor]:
    shape = dataclasses.replace(SHAPE, fused=fused)
    return {tensor.name: tensor for tensor in minimax_m3.tensors(shape, "f32")}


def describe(
    folder: Path,
    changes: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Tensor | None] | None = None,
    *,
    fused: bool = True,
) -> ModelDescription:
    """Read and check the shape's file with some keys and tensors replaced or added, or, where None, left out."""
    changed = {f"minimax-m3.{key}": value for key, value in (changes or {}).items()}
    keys = {key: value for key, value in (minimax_m3.metadata(SHAPE, "f32") | changed).items() if value is not None}
    stored = [tensor for tensor in {**drawn(fused=fused), **(tensors or {})}.values() if tensor is not None]
    path = folder / "a.gguf"
    write_gguf(path, keys, stored)
    return described(path)


@pytest.mark.parametrize("recipe", ["f32", "q8_0"])
def test_a_fixture_that_chooses_blocks(recipe: str) -> None:
    description = described(fixture(f"minimaxm3-b-{recipe}"))
    spec, weights = description.spec, description.weights
    assert (spec.architecture, spec.n_vocab, spec.n_embd, spec.n_ctx_train) == ("minimax-m3", 365, 96, 2048)
    eps = spec.norm_eps
    assert eps == pytest.approx(1e-5)
    rope = Rope(n_dims=16, base=1e4, style="neox")
    full = Gqa(
        n_head=6, n_head_kv=2, head_dim=32, value_dim=32, rope=rope, scale=1 / math.sqrt(32), qk_norm_eps=eps,
    )  # fmt: skip
    selector = BlockSelector(head_dim=32, rope=rope, norm_eps=eps, block=4, n_chosen=3, n_local=2)
    experts = Moe(
        n_expert=5, n_expert_used=3, n_ff=64, activation="oai", score="sigmoid", selection_bias=True, normalised=False,
        weights_scale=1.0, shared=SharedExpert(n_ff=128, gated=False),
    )  # fmt: skip
    plain = Plain(norm_eps=eps)
    leading = LayerSpec(mixer=full, ffn=Dense(n_ff=160, activation="oai"), residual=plain)
    others = LayerSpec(mixer=dataclasses.replace(full, selector=selector), ffn=experts, residual=plain)
    assert spec.layers == (leading, leading, others, others)
    assert weights["blk.2.attn_k"] == WeightRef(tensor="blk.2.attn_qkv.weight", shape=(64, 96), rows=(192, 256))
    assert weights["blk.3.indexer.q_proj"] == WeightRef(tensor="blk.3.indexer.q_proj.weight", shape=(64, 96))
    assert weights["blk.3.indexer.k_proj"].shape == (32, 96)
    assert weights["blk.3.exp_probs_b.bias"] == WeightRef(tensor="blk.3.exp_probs_b.bias", shape=(5,))
    assert weights["blk.3.ffn_down_shexp"].shape == (96, 128)
    assert "blk.1.indexer.q_proj" not in weights
    assert description.unread == frozenset()


def test_a_fixture_whose_blocks_are_all_chosen() -> None:
    spec = described(fixture("minimaxm3-a-f32")).spec
    assert [type(layer.ffn) for layer in spec.layers] == [Dense, Moe]
    mixer, ffn = spec.layers[1].mixer, spec.layers[1].ffn
    assert isinstance(mixer, Gqa) and mixer.selector is not None
    assert mixer.selector.block * mixer.selector.n_chosen == spec.n_ctx_train == 2048
    assert isinstance(ffn, Moe) and (ffn.normalised, ffn.weights_scale, ffn.n_ff) == (True, 2.0, 256)


def test_what_a_file_may_leave_out(tmp_path: Path) -> None:
    optional = ("leading_dense_block_count", "expert_weights_norm", "rope.freq_base")
    with pytest.raises(coverage.CoverageError, match=r"blk\.0\.indexer\.q_proj\.weight is missing"):
        describe(tmp_path, dict.fromkeys(optional))
    left_out = {"rope.freq_base": None, "attention.value_length": None, "expert_weights_scale": 0.0}
    spec = describe(tmp_path, left_out).spec
    assert isinstance(spec.layers[0].mixer, Gqa)
    assert spec.layers[0].mixer.rope == Rope(n_dims=16, base=1e4, style="neox")
    turned = describe(tmp_path, {"rope.dimension_count": None}).spec.layers[0].mixer
    assert isinstance(turned, Gqa) and turned.rope is not None and turned.rope.n_dims == 32


def test_projections_may_lie_apart_and_have_biases(tmp_path: Path) -> None:
    sizes = {"attn_q": 192, "attn_k": 64, "attn_v": 64}
    names = {f"blk.{layer}.{name}.bias": n for layer in range(SHAPE.n_layer) for name, n in sizes.items()}
    biases = {name: Tensor(name, np.ones(n, np.float32)) for name, n in names.items()}
    apart = describe(tmp_path, tensors=biases, fused=False)
    assert apart.weights["blk.3.attn_k"] == WeightRef(tensor="blk.3.attn_k.weight", shape=(64, 96))
    assert apart.weights["blk.3.attn_v.bias"] == WeightRef(tensor="blk.3.attn_v.bias", shape=(64,))


REQUIRED = (
    "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.layer_norm_rms_epsilon", "attention.indexer.head_count", "attention.indexer.key_length",
    "attention.indexer.top_k", "attention.indexer.block_size", "attention.indexer.local_blocks", "expert_count",
    "expert_used_count", "expert_feed_forward_length", "expert_shared_count", "expert_gating_func",
)  # fmt: skip


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_key_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=rf"minimax-m3\.{name}.*missing"):
        describe(tmp_path, {name: None})


@pytest.mark.parametrize("name", [name for name in REQUIRED if name != "expert_gating_func"])
def test_zero_is_named(name: str, tmp_path: Path) -> None:
    zero = 0.0 if name.endswith("epsilon") else 0
    with pytest.raises(ModelFileError, match=rf"minimax-m3\.{name}.* is 0"):
        describe(tmp_path, {name: zero})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"block_count": 5000}, "block_count.* is 5000"),
        ({"leading_dense_block_count": 5}, "leading_dense_block_count 5 is more than block_count 4"),
        ({"attention.head_count": 5}, "head_count 5 is not a multiple of head_count_kv 2"),
        ({"attention.head_count_kv": [2, 2, 2, 2]}, "head_count_kv.* of type arr"),
        ({"attention.value_length": 16}, "value_length is 16, but .*key_length"),
        ({"attention.layer_norm_rms_epsilon": math.nan}, "layer_norm_rms_epsilon.* is nan"),
        ({"rope.dimension_count": 15}, "dimension_count 15 is odd"),
        ({"rope.dimension_count": 34}, "dimension_count 34 is more than the 32 of an attention head"),
        ({"attention.indexer.key_length": 8}, "dimension_count 16 is more than the 8 of an index head"),
        ({"attention.indexer.head_count": 3}, "indexer.head_count 3 must be head_count_kv 2"),
        ({"attention.indexer.local_blocks": 4}, "indexer.local_blocks 4 is more than the 3 of indexer.top_k"),
        ({"attention.indexer.block_size": "wide"}, "block_size.* is of type str"),
        ({"attention.indexer.top_k": 1 << 24}, "top_k.* is 16777216; it must be from 1 to 4096"),
        ({"attention.indexer.block_size": 1 << 24}, "block_size.* is 16777216; it must be from 1 to 65536"),
        ({"expert_used_count": 6}, "expert_used_count 6 is more than minimax-m3.expert_count 5"),
        ({"expert_feed_forward_length": [64, 64]}, "expert_feed_forward_length.* of type arr"),
        ({"expert_gating_func": 1}, "expert_gating_func is 1; this version computes 2"),
        ({"expert_group_count": 2}, "expert_group_count is 2"),
        ({"expert_weights_scale": -1.0}, "expert_weights_scale is -1"),
        ({"expert_weights_scale": math.inf}, "expert_weights_scale is inf"),
    ],
)
def test_keys_that_cannot_be_are_named(changes: Mapping[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=told):
        describe(tmp_path, changes)


@pytest.mark.parametrize(
    "name",
    [
        "output_norm.weight", "blk.0.ffn_gate.weight", "blk.1.attn_norm.weight", "blk.1.attn_q_norm.weight",
        "blk.2.ffn_norm.weight", "blk.2.indexer.q_proj.weight", "blk.2.indexer.k_proj.weight",
        "blk.2.indexer.q_norm.weight", "blk.2.indexer.k_norm.weight", "blk.3.ffn_gate_inp.weight",
        "blk.3.exp_probs_b.bias", "blk.3.ffn_down_exps.weight", "blk.3.ffn_up_shexp.weight", "blk.3.attn_output.weight",
    ],
)  # fmt: skip
def test_a_tensor_that_is_missing_or_of_another_shape_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(coverage.CoverageError, match=f"{name} is missing"):
        describe(tmp_path, tensors={name: None})
    narrower = dataclasses.replace(drawn(fused=True)[name], values=drawn(fused=True)[name].values[:-1])
    with pytest.raises(coverage.CoverageError, match=f"{name} has the shape"):
        describe(tmp_path, tensors={name: narrower})


@pytest.mark.parametrize("name", ["output.weight", "token_embd.weight"])
def test_a_missing_head_or_embedding_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=f"the tensor {name} is missing"):
        describe(tmp_path, tensors={name: None})


def test_a_tensor_that_nothing_here_reads_is_named(tmp_path: Path) -> None:
    name = "blk.0.indexer.q_proj.weight"
    added = dataclasses.replace(drawn(fused=True)["blk.2.indexer.q_proj.weight"], name=name)
    with pytest.raises(coverage.CoverageError, match=f"nothing reads the tensor {name}"):
        describe(tmp_path, tensors={name: added})


def test_a_scale_beside_a_weight_is_refused_by_name(tmp_path: Path) -> None:
    name = "blk.0.attn_output.scale"
    with pytest.raises(ModelFileError, match=rf"the tensor {name} scales a weight.*NVFP4"):
        describe(tmp_path, tensors={name: Tensor(name, np.ones(1, np.float32))})


@given(
    key=st.sampled_from([*REQUIRED, "leading_dense_block_count", "expert_weights_norm", "rope.dimension_count"]),
    value=st.one_of(st.integers(0, 2**32 - 1), st.floats(width=32), st.text(max_size=5), st.booleans(),
                    st.lists(st.integers(-1, 300), min_size=1, max_size=9)),
)  # fmt: skip
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_strange_value_is_a_model_or_a_refusal(tmp_path: Path, key: str, value: Any) -> None:
    try:
        description = describe(tmp_path, {key: value})
    except (ModelFileError, coverage.CoverageError) as error:
        assert str(tmp_path) in str(error)
        return
    assert len(description.spec.layers) == SHAPE.n_layer
