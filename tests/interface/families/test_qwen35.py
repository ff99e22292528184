"""The readers of `qwen35` and `qwen35moe`: the spec they make of the fixtures, and what they refuse by name."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bloomery.conformance.fixtures import fixture, qwen35
from bloomery.conformance.fixtures.gguf_writer import Tensor, write_gguf
from bloomery.interface import coverage, registry
from bloomery.interface.files.gguf import ModelFileError, open_gguf
from bloomery.interface.spec import (
    DeltaRule,
    Dense,
    Gqa,
    ModelDescription,
    Moe,
    NextN,
    Plain,
    Rope,
    SharedExpert,
    WeightRef,
)
from bloomery.reference.ops import NumpyOps

SHAPES = ("qwen35-b", "qwen35moe-b")


@functools.cache
def tensors_of(name: str) -> Mapping[str, Tensor]:
    return {tensor.name: tensor for tensor in qwen35.tensors(qwen35.SHAPES[name], "f32")}


def written(
    folder: Path, name: str, keys: Mapping[str, Any], tensors: Mapping[str, Tensor | None] | None = None
) -> Path:
    """The fixture with some keys (by their end) replaced, added, or, where None, left out; likewise its tensors, of
    which only those that a reader looks for are there when none is named."""
    shape = qwen35.SHAPES[name]
    changed = {f"{shape.architecture}.{key}": value for key, value in keys.items()}
    metadata = {key: value for key, value in (qwen35.metadata(shape, "f32") | changed).items() if value is not None}
    stored: dict[str, Tensor | None] = {**tensors_of(name), **(tensors or {})}
    if tensors is None:
        stored = {sought: stored[sought] for sought in ("token_embd.weight", "blk.0.attn_norm.weight")}
    path = folder / "model.gguf"
    write_gguf(path, metadata, [tensor for tensor in stored.values() if tensor is not None])
    return path


def described(path: Path) -> ModelDescription:
    with open_gguf(path) as file:
        return registry.family(file.get_str("general.architecture"))(file)


def checked(path: Path) -> ModelDescription:
    """The description, once the file was found to hold all of it."""
    file = open_gguf(path)
    description = registry.family(file.get_str("general.architecture"))(file)
    coverage.check(file, description, dir(NumpyOps))
    return description


@pytest.mark.parametrize("name", qwen35.SHAPES)
def test_every_fixture_is_covered(name: str) -> None:
    assert checked(fixture(f"{name}-f32")).unread == frozenset()


def test_a_dense_fixture_with_a_list_of_layers() -> None:
    description = checked(fixture("qwen35-b-f32"))
    spec = description.spec
    eps = spec.norm_eps
    assert (spec.architecture, spec.n_vocab, spec.n_embd, spec.n_ctx_train) == ("qwen35", 365, 96, 2048)
    assert eps == pytest.approx(1e-5) and spec.nextn is None
    attention = Gqa(
        n_head=3, n_head_kv=1, head_dim=64, value_dim=64, scale=1 / 8, qk_norm_eps=eps, gated=True,
        rope=Rope(n_dims=24, base=1e4, style="neox", sections=(4, 4, 4, 0)),
    )  # fmt: skip
    delta_rule = DeltaRule(n_head_k=2, n_head_v=6, head_dim=32, conv_kernel=3, norm_eps=eps)
    assert [layer.mixer for layer in spec.layers] == [attention, delta_rule, delta_rule]
    assert {layer.ffn for layer in spec.layers} == {Dense(n_ff=160)}
    assert {layer.residual for layer in spec.layers} == {Plain(norm_eps=eps)}
    weights = description.weights
    assert weights["output"].tensor == "token_embd.weight"
    assert weights["blk.0.attn_q"] == WeightRef(tensor="blk.0.attn_q.weight", shape=(2 * 3 * 64, 96))
    assert weights["blk.1.attn_qkv"] == WeightRef(tensor="blk.1.attn_qkv.weight", shape=(2 * 64 + 192, 96))
    assert weights["blk.1.ssm_a"] == WeightRef(tensor="blk.1.ssm_a", shape=(6,))
    assert weights["blk.1.ssm_dt.bias"].tensor == "blk.1.ssm_dt.bias"
    assert weights["blk.2.ffn_norm"].tensor == "blk.2.post_attention_norm.weight"


def test_a_dense_fixture_with_an_interval_and_a_draft_layer_that_borrows() -> None:
    description = checked(fixture("qwen35-a-f32"))
    spec, weights = description.spec, description.weights
    assert [type(layer.mixer) for layer in spec.layers] == [DeltaRule, DeltaRule, Gqa]
    assert spec.nextn == NextN(layer=spec.layers[2], norm_eps=spec.norm_eps)
    assert weights["nextn.eh_proj"] == WeightRef(tensor="blk.3.nextn.eh_proj.weight", shape=(256, 512))
    borrowed = {name: weights[f"nextn.{name}"].tensor for name in ("embed", "head", "norm")}
    assert borrowed == {"embed": "token_embd.weight", "head": "output.weight", "norm": "output_norm.weight"}
    assert weights["nextn.attn_q"].tensor == "blk.3.attn_q.weight"
    assert weights["nextn.ffn_norm"].tensor == "blk.3.post_attention_norm.weight"


def test_a_routed_fixture_with_fused_experts_and_a_draft_layer_of_its_own() -> None:
    description = checked(fixture("qwen35moe-b-f32"))
    spec, weights = description.spec, description.weights
    experts = Moe(n_expert=5, n_expert_used=3, n_ff=32, shared=SharedExpert(n_ff=96, gated=True))
    assert {layer.ffn for layer in spec.layers} == {experts}
    assert spec.nextn is not None and spec.nextn.layer.ffn == experts
    assert isinstance(spec.nextn.layer.mixer, Gqa)
    fused = "blk.0.ffn_gate_up_exps.weight"
    assert weights["blk.0.ffn_gate_exps"] == WeightRef(tensor=fused, shape=(5, 32, 64), rows=(0, 32))
    assert weights["blk.0.ffn_up_exps"] == WeightRef(tensor=fused, shape=(5, 32, 64), rows=(32, 64))
    assert weights["blk.0.ffn_gate_inp_shexp"].shape == (1, 64)
    own = {name: weights[f"nextn.{name}"].tensor for name in ("embed", "head", "norm")}
    assert own == {
        "embed": "blk.3.nextn.embed_tokens.weight",
        "head": "blk.3.nextn.shared_head_head.weight",
        "norm": "blk.3.nextn.shared_head_norm.weight",
    }


def test_widths_of_experts_that_a_file_leaves_out(tmp_path: Path) -> None:
    keys = {"expert_feed_forward_length": None, "expert_shared_feed_forward_length": None, "feed_forward_length": 96}
    ffn = described(written(tmp_path, "qwen35moe-b", keys)).spec.layers[0].ffn
    assert isinstance(ffn, Moe)
    assert (ffn.n_ff, ffn.shared) == (32, SharedExpert(n_ff=96, gated=True))


def test_layers_alternate_by_four_where_a_file_is_silent(tmp_path: Path) -> None:
    keys = {"attention.recurrent_layers": None, "block_count": 9, "nextn_predict_layers": 1}
    spec = described(written(tmp_path, "qwen35-b", keys)).spec
    assert [isinstance(layer.mixer, Gqa) for layer in spec.layers] == [False, False, False, True] * 2
    assert spec.nextn is not None and isinstance(spec.nextn.layer.mixer, Gqa)


@pytest.mark.parametrize(("value", "kind"), [(True, DeltaRule), (False, Gqa)])
def test_one_truth_value_for_all_layers(value: bool, kind: type, tmp_path: Path) -> None:
    spec = described(written(tmp_path, "qwen35-b", {"attention.recurrent_layers": value})).spec
    assert {type(layer.mixer) for layer in spec.layers} == {kind}


def test_an_embedding_head_is_known_and_not_run(tmp_path: Path) -> None:
    head = Tensor("cls.output.weight", np.zeros((4, 96), np.float32))
    assert checked(written(tmp_path, "qwen35-b", {}, {head.name: head})).unread == {head.name}


NEEDED = (
    "block_count", "context_length", "embedding_length", "attention.head_count",
    "attention.layer_norm_rms_epsilon", "rope.dimension_sections", "ssm.conv_kernel", "ssm.state_size",
    "ssm.group_count", "ssm.time_step_rank", "ssm.inner_size",
)  # fmt: skip
OWN = {"qwen35-b": ("feed_forward_length",), "qwen35moe-b": ("expert_count", "expert_used_count")}
OF_BOTH = [(name, key) for name in SHAPES for key in (*NEEDED, *OWN[name])]


@pytest.mark.parametrize(("name", "key"), OF_BOTH)
def test_a_missing_key_is_named(name: str, key: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=rf"{name.partition('-')[0]}\.{key}"):
        described(written(tmp_path, name, {key: None}))


@pytest.mark.parametrize("wrong", [0, 1 << 31, "many", 0.0, math.inf])
@pytest.mark.parametrize(("name", "key"), OF_BOTH)
def test_an_impossible_value_is_named(name: str, key: str, wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=rf"{name.partition('-')[0]}\.{key}"):
        described(written(tmp_path, name, {key: wrong}))


@pytest.mark.parametrize(
    ("name", "keys", "told"),
    [
        *((name, {"attention.head_count_kv": 2, "attention.head_count": 3}, "head_count 3 is not a multiple of .* 2")
          for name in SHAPES),
        ("qwen35-b", {"attention.value_length": 32}, "value_length is 32.*64"),
        ("qwen35-b", {"rope.dimension_count": 66}, "dimension_count 66 is more than a head's 64"),
        ("qwen35-b", {"rope.dimension_count": 23}, "dimension_count 23 is odd"),
        ("qwen35-b", {"rope.dimension_sections": [4, 4, 4]}, r"sections \[4, 4, 4\]"),
        ("qwen35-b", {"rope.dimension_sections": [0, 0, 0, 0]}, r"sections \[0, 0, 0, 0\]"),
        ("qwen35-b", {"rope.dimension_sections": [4, -4, 4, 4]}, r"sections \[4, -4"),
        ("qwen35-b", {"rope.dimension_sections": [6, 3, 3, 0]}, r"sections \[6, 3, 3, 0\].*12 pairs"),
        ("qwen35-b", {"rope.dimension_sections": [4.9, 4.9, 4.9, 0.9]}, r"dimension_sections.* array of float32"),
        ("qwen35-b", {"rope.dimension_sections": [math.nan] * 4}, r"dimension_sections.* array of float32"),
        ("qwen35-b", {"rope.dimension_sections": [4, 4, 3, 1]}, r"sections \[4, 4, 3, 1\]"),
        ("qwen35-b", {"ssm.group_count": 4}, "time_step_rank 6 .*multiple.*group_count 4"),
        ("qwen35-b", {"ssm.inner_size": 191}, "inner_size is 191, but 6 value heads.* 192 wide"),
        ("qwen35-b", {"attention.recurrent_layers": [True, False]}, r"recurrent_layers.* 2 entries.*3 layers"),
        ("qwen35-b", {"attention.recurrent_layers": [0.5, 0.5, 1.0]}, "recurrent_layers.*float32"),
        ("qwen35-b", {"nextn_predict_layers": 1}, "recurrent_layers.*makes the draft layer recurrent"),
        ("qwen35-b", {"nextn_predict_layers": 2}, "nextn_predict_layers is 2"),
        ("qwen35-b", {"nextn_predict_layers": 1, "block_count": 1}, "nextn_predict_layers is 1; of 1 blocks"),
        ("qwen35-b", {"full_attention_interval": 0, "attention.recurrent_layers": None}, "full_attention_interval.* 0"),
        ("qwen35moe-b", {"expert_used_count": 6}, "expert_used_count 6.*expert_count 5"),
        ("qwen35moe-b", {"expert_feed_forward_length": 0}, "expert_feed_forward_length"),
        ("qwen35moe-b", {"expert_shared_feed_forward_length": 0}, "expert_shared_feed_forward_length"),
    ],
)  # fmt: skip
def test_keys_that_contradict_are_named(name: str, keys: Mapping[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=told):
        described(written(tmp_path, name, keys))


def test_a_draft_layer_without_its_model_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "qwen35moe-b", {}, {"blk.0.attn_norm.weight": None})
    with pytest.raises(ModelFileError, match="draft layer without its model"):
        described(path)


def test_a_tensor_that_scales_a_weight_is_refused(tmp_path: Path) -> None:
    scale = Tensor("blk.0.attn_q.scale", np.ones(1, np.float32))
    with pytest.raises(ModelFileError, match=r"blk\.0\.attn_q\.scale"):
        described(written(tmp_path, "qwen35-b", {}, {scale.name: scale}))


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("qwen35-b", "blk.1.ssm_a"), ("qwen35-b", "blk.1.ssm_dt.bias"), ("qwen35-b", "blk.1.attn_gate.weight"),
        ("qwen35-b", "blk.0.attn_q.weight"), ("qwen35-b", "blk.0.post_attention_norm.weight"),
        ("qwen35moe-b", "blk.3.nextn.eh_proj.weight"), ("qwen35moe-b", "blk.3.attn_q.weight"),
        ("qwen35moe-b", "blk.2.ffn_gate_inp_shexp.weight"),
    ],
)  # fmt: skip
def test_a_tensor_that_is_missing_or_has_another_shape_is_named(name: str, tensor: str, tmp_path: Path) -> None:
    with pytest.raises(coverage.CoverageError, match=rf"{tensor} is missing"):
        checked(written(tmp_path, name, {}, {tensor: None}))
    with pytest.raises(coverage.CoverageError, match=rf"{tensor} has the shape \[3\]"):
        checked(written(tmp_path, name, {}, {tensor: Tensor(tensor, np.ones(3, np.float32))}))


@given(
    key=st.sampled_from(
        [*OF_BOTH, *(("qwen35-b", key) for key in ("nextn_predict_layers", "full_attention_interval"))]
    ),
    value=st.one_of(
        st.integers(0, 2**32 - 1),
        st.floats(width=32),
        st.text(max_size=5),
        st.booleans(),
        st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=6),
        st.lists(st.booleans(), min_size=1, max_size=6),
    ),
)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_strange_value_is_a_spec_or_a_refusal(tmp_path: Path, key: tuple[str, str], value: Any) -> None:
    name, end = key
    try:
        spec = described(written(tmp_path, name, {end: value})).spec
    except ModelFileError as error:
        assert name.partition("-")[0] in str(error) or "draft layer" in str(error)
        return
    assert 0 < len(spec.layers) <= 4096
