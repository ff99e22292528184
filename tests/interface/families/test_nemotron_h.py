"""The `nemotron_h` reader: the blocks it makes of the fixtures, and a refusal by name for each thing that is wrong."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bloomery.conformance.fixtures import nemotron
from bloomery.conformance.fixtures.gguf_writer import Tensor, write_gguf
from bloomery.interface import coverage
from bloomery.interface.files.gguf import ModelFileError
from bloomery.interface.spec import (
    Dense,
    Gqa,
    LayerSpec,
    Mamba2,
    ModelDescription,
    Moe,
    Plain,
    SharedExpert,
    WeightRef,
)
from tests.interface.families.described import described, of_fixture

DENSE, ROUTED = nemotron.SHAPES["nemotron-b"], nemotron.SHAPES["nemotronmoe-b"]


@functools.cache
def drawn(shape: nemotron.Shape) -> tuple[Tensor, ...]:
    return tuple(nemotron.tensors(shape, "f32"))


def describe(
    folder: Path,
    shape: nemotron.Shape,
    changes: dict[str, Any] | None = None,
    tensors: Callable[[Iterable[Tensor]], Iterable[Tensor]] = lambda tensors: tensors,
) -> ModelDescription:
    """Read and check a shape's file with some keys changed (None leaves one out) and its tensors passed through."""
    path = folder / "a.gguf"
    keys = nemotron.metadata(shape, "f32") | {f"{shape.architecture}.{k}": v for k, v in (changes or {}).items()}
    kept = {key: value for key, value in keys.items() if value is not None}
    write_gguf(path, kept, tensors(drawn(shape)))
    return described(path)


def kinds(description: ModelDescription) -> list[type]:
    """What each block is; every block is one thing."""
    found = []
    for layer in description.spec.layers:
        [kind] = [kind for kind in (layer.mixer, layer.ffn) if kind is not None]
        found.append(type(kind))
    return found


def test_a_dense_fixture() -> None:
    description = of_fixture("nemotron-b-f32")
    spec = description.spec
    assert (spec.architecture, spec.n_vocab, spec.n_embd, spec.n_ctx_train) == ("nemotron_h", 365, 96, 2048)
    assert spec.norm_eps == pytest.approx(1e-6)
    assert kinds(description) == [Gqa, Mamba2, Dense, Dense, Mamba2, Mamba2, Gqa, Dense]
    plain = Plain(norm_eps=spec.norm_eps)
    attention = Gqa(
        n_head=6, n_head_kv=3, head_dim=32, value_dim=32, rope=None, scale=1 / math.sqrt(32), qk_norm_eps=None,
        biases=frozenset({"attn_q", "attn_k", "attn_v", "attn_output"}),
    )  # fmt: skip
    mamba = Mamba2(n_head=6, head_dim=16, n_group=1, d_state=16, conv_kernel=3, norm_eps=spec.norm_eps)
    dense = Dense(n_ff=160, activation="relu2", biases=frozenset({"ffn_up", "ffn_down"}))
    assert spec.layers[0] == LayerSpec(mixer=attention, ffn=None, residual=plain)
    assert spec.layers[1] == LayerSpec(mixer=mamba, ffn=None, residual=plain)
    assert spec.layers[2] == LayerSpec(mixer=None, ffn=dense, residual=plain)
    weights = description.weights
    assert weights["output"].tensor == "token_embd.weight"
    assert weights["blk.2.ffn_norm"] == WeightRef(tensor="blk.2.attn_norm.weight", shape=(96,))
    assert weights["blk.1.ssm_in"] == WeightRef(tensor="blk.1.ssm_in.weight", shape=(2 * 96 + 2 * 16 + 6, 96))
    assert weights["blk.1.ssm_conv1d"] == WeightRef(tensor="blk.1.ssm_conv1d.weight", shape=(128, 3))
    assert weights["blk.1.ssm_a"] == WeightRef(tensor="blk.1.ssm_a", shape=(6, 1))
    assert weights["blk.1.ssm_norm"] == WeightRef(tensor="blk.1.ssm_norm.weight", shape=(1, 96))
    assert description.unread == frozenset()


def test_a_routed_fixture_with_a_latent_width_and_a_draft_block() -> None:
    description = of_fixture("nemotronmoe-b-q8_0")
    spec = description.spec
    assert spec.architecture == "nemotron_h_moe"
    assert kinds(description) == [Mamba2, Moe, Gqa, Mamba2, Moe, Mamba2]
    first = Moe(
        n_expert=6, n_expert_used=3, n_ff=96, activation="relu2", score="sigmoid", selection_bias=True,
        normalised=True, weights_scale=1.5, shared=SharedExpert(n_ff=64, gated=False), n_latent=64,
    )  # fmt: skip
    assert spec.layers[1].ffn == first
    assert spec.layers[4].ffn == dataclasses.replace(first, n_expert_used=2, n_ff=64)
    assert description.weights["blk.1.ffn_up_exps"].shape == (6, 96, 64)
    assert description.weights["blk.4.ffn_down_exps"].shape == (6, 64, 64)
    assert spec.nextn is None
    assert all(name.startswith("blk.6.") for name in description.unread) and len(description.unread) == 18
    assert not any(ref.tensor in description.unread for ref in description.weights.values())


def test_what_a_file_may_leave_out(tmp_path: Path) -> None:
    left_out = ("attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon")
    dense = describe(
        tmp_path,
        dataclasses.replace(DENSE, head_dim=16, bias=False),
        {**dict.fromkeys(left_out), "attention.scale": 0.0},
    ).spec
    mixer = dense.layers[0].mixer
    assert isinstance(mixer, Gqa) and (mixer.head_dim, mixer.scale, mixer.biases) == (16, 0.25, frozenset())
    assert dense.norm_eps == pytest.approx(1e-6)
    # The width of one expert, where a file tells what all chosen ones have together.
    shape = dataclasses.replace(nemotron.SHAPES["nemotronmoe-b"], n_ff=192, draft=False)
    experts = dataclasses.replace(shape.experts, n_used=2, last_n_used=2, n_ff=96, last_n_ff=96)  # type: ignore[type-var]
    shape = dataclasses.replace(shape, experts=experts)
    keys = ("expert_feed_forward_length", "expert_weights_scale", "expert_weights_norm")
    ffn = describe(tmp_path, shape, dict.fromkeys(keys)).spec.layers[1].ffn
    assert isinstance(ffn, Moe) and (ffn.n_ff, ffn.weights_scale, ffn.normalised) == (96, 1.0, False)


def test_one_number_stands_for_all_blocks(tmp_path: Path) -> None:
    shape = dataclasses.replace(DENSE, blocks="***")
    changes = {"attention.head_count_kv": 3, "attention.head_count": [6, 6, 6]}
    spec = describe(tmp_path, shape, changes).spec
    assert len(set(spec.layers)) == 1


MISSING = (
    "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank",
    "ssm.group_count",
)  # fmt: skip


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_key_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=rf"nemotron_h\.{name}.*missing"):
        describe(tmp_path, DENSE, {name: None})


@pytest.mark.parametrize("name", ["expert_used_count", "expert_shared_feed_forward_length"])
def test_a_missing_key_of_experts_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=rf"nemotron_h_moe\.{name}.*missing"):
        describe(tmp_path, ROUTED, {name: None})


def test_a_file_without_any_epsilon_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"layer_norm_rms_epsilon.*missing"):
        describe(tmp_path, DENSE, dict.fromkeys(["attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"]))


@pytest.mark.parametrize(
    ("shape", "changes", "told"),
    [
        (DENSE, {"feed_forward_length": [160, 160]}, "feed_forward_length' has 2 numbers for 8 layers"),
        (DENSE, {"attention.head_count_kv": [3] * 9}, "head_count_kv' has 9 numbers for 8 layers"),
        (DENSE, {"feed_forward_length": [0, 0, -160, 160, 0, 0, 0, 160]}, "feed_forward_length' has the number -160"),
        (DENSE, {"feed_forward_length": [0.0] * 8}, "feed_forward_length' is an array of float32"),
        (DENSE, {"feed_forward_length": "wide"}, "feed_forward_length.* is of type str"),
        (DENSE, {"attention.head_count_kv": [4, 0, 0, 0, 0, 0, 3, 0]}, r"head_count 6 of block 0 .* head_count_kv 4"),
        (DENSE, {"attention.head_count": 0}, "head_count.* is 0"),
        (DENSE, {"attention.head_count": [6, 0, 0, 0, 0, 0, 0, 0]}, "head_count 0 of block 6"),
        (DENSE, {"attention.value_length": 16}, "value_length is 16, but a key is 32 wide"),
        (DENSE, {"attention.scale": math.nan}, "attention.scale is nan"),
        (DENSE, {"attention.scale": 0.5}, "attention.scale is 0.5; llama-server ignores it"),
        (
            DENSE,
            {"nextn_predict_layers": 1},
            "blk.7 is a draft block, but the tensor blk.7.nextn.eh_proj.weight is miss",
        ),
        (DENSE, {"attention.layer_norm_rms_epsilon": 0.0}, "layer_norm_rms_epsilon.* is 0.0"),
        (DENSE, {"ssm.inner_size": 97}, "inner_size 97 is not a multiple of ssm.time_step_rank 6"),
        (DENSE, {"ssm.group_count": 4}, "time_step_rank 6 is not a multiple of ssm.group_count 4"),
        (DENSE, {"ssm.state_size": 0}, "state_size.* is 0"),
        (DENSE, {"ssm.conv_kernel": 0}, "conv_kernel.* is 0"),
        (DENSE, {"block_count": 5000}, "block_count.* is 5000"),
        (DENSE, {"nextn_predict_layers": 8}, "nextn_predict_layers 8 leaves none of the 8 blocks"),
        (ROUTED, {"expert_used_count": 7}, r"expert_used_count 7 of block 1 is not in 1\.\.6"),
        (ROUTED, {"expert_used_count": [0] * 7}, r"expert_used_count 0 of block 1 is not in 1\.\.6"),
        (ROUTED, {"expert_feed_forward_length": [0] * 7}, "expert_feed_forward_length 0 .* of block 1"),
        (ROUTED, {"expert_shared_feed_forward_length": [0] * 7}, "expert_shared_feed_forward_length 0 of block 1"),
        (ROUTED, {"expert_group_count": 4}, "expert_group_count is 4"),
        (ROUTED, {"expert_weights_scale": -1.0}, "expert_weights_scale is -1"),
    ],
)
def test_keys_that_cannot_be_are_named(
    shape: nemotron.Shape, changes: dict[str, Any], told: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelFileError, match=told):
        describe(tmp_path, shape, changes)


def without(name: str) -> Callable[[Iterable[Tensor]], Iterable[Tensor]]:
    return lambda tensors: (tensor for tensor in tensors if tensor.name != name)


def narrower(name: str) -> Callable[[Iterable[Tensor]], Iterable[Tensor]]:
    def cut(tensor: Tensor) -> Tensor:
        values = tensor.values[:-1] if len(tensor.values) > 1 else tensor.values[:, :-1]
        return dataclasses.replace(tensor, values=values) if tensor.name == name else tensor

    return lambda tensors: map(cut, tensors)


def beside(name: str) -> Callable[[Iterable[Tensor]], Iterable[Tensor]]:
    return lambda tensors: (*tensors, Tensor(name, np.ones(1, np.float32)))


@pytest.mark.parametrize(
    "name",
    [
        "output_norm.weight", "blk.0.attn_q.weight", "blk.1.attn_norm.weight", "blk.1.ssm_in.weight",
        "blk.1.ssm_conv1d.weight", "blk.1.ssm_conv1d.bias", "blk.1.ssm_dt.bias", "blk.1.ssm_a", "blk.1.ssm_d",
        "blk.1.ssm_norm.weight", "blk.1.ssm_out.weight", "blk.2.attn_norm.weight", "blk.2.ffn_up.weight",
    ],
)  # fmt: skip
def test_a_tensor_that_is_missing_or_of_another_shape_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(coverage.CoverageError, match=f"{name} is missing"):
        describe(tmp_path, DENSE, tensors=without(name))
    with pytest.raises(coverage.CoverageError, match=f"{name} has the shape"):
        describe(tmp_path, DENSE, tensors=narrower(name))


@pytest.mark.parametrize("name", ["exp_probs_b.bias", "ffn_latent_up.weight", "ffn_up_shexp.weight"])
def test_a_tensor_of_experts_that_is_missing_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(coverage.CoverageError, match=f"blk.4.{name} is missing"):
        describe(tmp_path, ROUTED, tensors=without(f"blk.4.{name}"))


def test_a_missing_embedding_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"token_embd\.weight is missing"):
        describe(tmp_path, DENSE, tensors=without("token_embd.weight"))


def test_a_kind_of_layer_that_nothing_here_reads_is_named(tmp_path: Path) -> None:
    with pytest.raises(coverage.CoverageError, match=r"nothing reads the tensor blk\.2\.ffn_gate\.weight"):
        describe(tmp_path, DENSE, tensors=beside("blk.2.ffn_gate.weight"))


def test_a_scale_beside_a_weight_is_refused_by_name_but_for_a_draft_block(tmp_path: Path) -> None:
    for name in ("blk.1.ssm_in.scale", "blk.1.ssm_in.input_scale"):
        with pytest.raises(ModelFileError, match=rf"the tensor {name} scales a weight.*NVFP4"):
            describe(tmp_path, DENSE, tensors=beside(name))
    assert "blk.6.attn_q.scale" in describe(tmp_path, ROUTED, tensors=beside("blk.6.attn_q.scale")).unread


@given(
    key=st.sampled_from([*MISSING, "expert_used_count", "expert_count", "moe_latent_size", "nextn_predict_layers"]),
    value=st.one_of(st.integers(0, 2**32 - 1), st.floats(width=32), st.text(max_size=5), st.booleans(),
                    st.lists(st.integers(-1, 300), min_size=1, max_size=9)),
)  # fmt: skip
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_strange_value_is_the_same_model_or_a_refusal(tmp_path: Path, key: str, value: Any) -> None:
    shape = dataclasses.replace(ROUTED, blocks="MF*", draft=False)
    try:
        description = describe(tmp_path, shape, {key: value})
    except (ModelFileError, coverage.CoverageError) as error:
        assert str(tmp_path) in str(error)
        return
    assert kinds(description) == [Mamba2, Moe, Gqa]
