"""Family readers: the spec they make of the fixtures, and the key they name when it is missing or impossible."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bloomery.interface import registry
from bloomery.interface.files.gguf import ModelFileError, open_gguf
from bloomery.interface.spec import Dense, Gqa, ModelDescription, Moe, Plain, Rope, Sandwich, WeightRef
from tests.interface.families.described import of_fixture

FAMILIES = ("qwen3", "qwen3moe", "gemma3")

# What each architecture's smallest file says. An int is written as INT32, so that it can be negative.
EVERYWHERE: Mapping[str, Any] = {
    "block_count": 7,
    "context_length": 64,
    "embedding_length": 16,
    "feed_forward_length": 6,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 8,
    "attention.value_length": 8,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 5e5,
    "rope.dimension_count": 8,
}
OWN: Mapping[str, Mapping[str, Any]] = {
    "qwen3": {},
    "qwen3moe": {"expert_count": 5, "expert_used_count": 2, "expert_feed_forward_length": 3},
    "gemma3": {"attention.sliding_window": 9, "rope.freq_base_swa": 2e3},
}
OPTIONAL = {
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.sliding_window",
    "expert_feed_forward_length",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.dimension_count",
}


def keys_of(family: str) -> dict[str, Any]:
    return {**EVERYWHERE, **OWN[family]}


def describe(
    folder: Path, family: str, keys: Mapping[str, Any], *, tensors: tuple[str, ...] = ("token_embd.weight",)
) -> ModelDescription:
    """Read a file of those keys (None leaves one out) and tensors."""
    path = folder / "a.gguf"
    writer = GGUFWriter(path, family)
    for name, value in keys.items():
        key = f"{family}.{name}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_int64(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
    for tensor in tensors:
        writer.add_tensor(tensor, np.zeros((20, 16), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_gguf(path) as file:
        return registry.family(family)(file)


def test_a_qwen3_fixture() -> None:
    description = of_fixture("qwen3-b-f32")
    spec = description.spec
    assert (spec.architecture, spec.n_vocab, spec.n_embd, spec.n_ctx_train) == ("qwen3", 365, 96, 512)
    assert spec.embedding_scale == 1.0
    assert len(spec.layers) == 3 and len(set(spec.layers)) == 1
    layer = spec.layers[0]
    assert layer.ffn == Dense(n_ff=160)
    assert layer.residual == Plain(norm_eps=spec.norm_eps)
    assert spec.norm_eps == pytest.approx(1e-5)
    mixer = layer.mixer
    assert (mixer.n_head, mixer.n_head_kv, mixer.head_dim, mixer.window, mixer.biases) == (6, 2, 32, None, frozenset())
    assert mixer.scale == 1 / math.sqrt(32)
    assert (mixer.rope.style, mixer.rope.n_dims, mixer.rope.base) == ("neox", 32, 1e4)
    assert (mixer.rope.freq_scale, mixer.rope.ext_factor, mixer.rope.n_ctx_orig) == (0.25, 1.0, 128)
    assert mixer.rope.magnitude == pytest.approx(1 + 0.1 * math.log(4))
    assert description.weights["output"].tensor == "token_embd.weight"
    assert description.weights["blk.2.attn_q"] == WeightRef(tensor="blk.2.attn_q.weight", shape=(192, 96))
    assert not any("post" in name for name in description.weights)


def test_a_qwen3moe_fixture() -> None:
    description = of_fixture("qwen3moe-b-q8_0")
    layer = description.spec.layers[2]
    assert layer.ffn == Moe(n_expert=6, n_expert_used=3, n_ff=96)
    assert layer.mixer.biases == {"attn_q", "attn_k", "attn_v"}
    assert layer.mixer.rope == Rope(n_dims=64, base=5e6, style="neox")
    assert description.weights["blk.0.attn_k.bias"].tensor == "blk.0.attn_k.bias"
    assert description.weights["blk.1.ffn_down_exps"].shape == (6, 128, 96)


def test_a_gemma3_fixture() -> None:
    description = of_fixture("gemma3-b-f32")
    spec = description.spec
    assert spec.embedding_scale == math.sqrt(96)
    windows = [layer.mixer.window for layer in spec.layers]
    assert windows == [11, 11, 11, 11, 11, None, 11, 11]
    local, everywhere = spec.layers[0].mixer, spec.layers[5].mixer
    assert local.rope == Rope(n_dims=32, base=2000.0, style="neox")
    assert everywhere.rope == Rope(n_dims=32, base=5e5, style="neox", freq_scale=1 / 8)
    assert local.scale == everywhere.scale == 1 / math.sqrt(32)
    assert {layer.ffn for layer in spec.layers} == {Dense(n_ff=160, activation="gelu")}
    assert {layer.residual for layer in spec.layers} == {Sandwich(norm_eps=spec.norm_eps)}
    assert description.weights["output"].tensor == "token_embd.weight"
    assert description.weights["blk.7.post_ffw_norm"] == WeightRef(tensor="blk.7.post_ffw_norm.weight", shape=(96,))


def test_gemma3_without_a_window_sees_everything_and_turns_alike(tmp_path: Path) -> None:
    spec = describe(tmp_path, "gemma3", keys_of("gemma3") | {"attention.sliding_window": None}).spec
    assert len(set(spec.layers)) == 1
    assert spec.layers[0].mixer.window is None and spec.layers[0].mixer.rope.base == 5e5


def test_gemma3_turns_local_layers_by_10000_where_the_file_is_silent(tmp_path: Path) -> None:
    spec = describe(tmp_path, "gemma3", keys_of("gemma3") | {"rope.freq_base_swa": None}).spec
    assert spec.layers[0].mixer.rope.base == 10000.0


def test_the_27b_gemma3_alone_scales_queries_by_the_width_of_a_share(tmp_path: Path) -> None:
    for n_layer, width in ((61, 8), (62, 4), (63, 8)):
        spec = describe(tmp_path, "gemma3", keys_of("gemma3") | {"block_count": n_layer}).spec
        assert {layer.mixer.scale for layer in spec.layers} == {1 / math.sqrt(width)}


def test_a_fused_projection_is_three_row_ranges(tmp_path: Path) -> None:
    weights = describe(
        tmp_path, "qwen3", keys_of("qwen3"), tensors=("token_embd.weight", "output.weight", "blk.3.attn_qkv.weight")
    ).weights
    assert weights["output"].tensor == "output.weight"
    assert [weights[f"blk.3.attn_{name}"].rows for name in "qkv"] == [(0, 32), (32, 48), (48, 64)]
    assert weights["blk.2.attn_q"].rows is None


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_file_may_leave_out(family: str, tmp_path: Path) -> None:
    spec = describe(tmp_path, family, {name: v for name, v in keys_of(family).items() if name not in OPTIONAL}).spec
    for layer in spec.layers:
        assert (layer.mixer.n_head_kv, layer.mixer.head_dim, layer.mixer.window) == (4, 4, None)
        assert layer.mixer.rope == Rope(n_dims=4, base=10000.0, style="neox")
        assert layer.ffn.n_ff == (3 if family == "qwen3moe" else 6)


# Where an expert's own width is told, the width of all together is not read.
READ = [(family, name) for family in FAMILIES for name in keys_of(family)]
READ.remove(("qwen3moe", "feed_forward_length"))


@pytest.mark.parametrize(("family", "name"), [key for key in READ if key[1] not in OPTIONAL])
def test_a_missing_key_is_named(family: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=rf"{family}\.{name}"):
        describe(tmp_path, family, keys_of(family) | {name: None})


@pytest.mark.parametrize("wrong", ["zero", "negative", "endless", "text"])
@pytest.mark.parametrize(("family", "name"), READ)
def test_an_impossible_value_is_named(family: str, name: str, wrong: str, tmp_path: Path) -> None:
    of_counts: Mapping[str, Any] = {"zero": 0, "negative": -1, "endless": 1 << 40, "text": "many"}
    of_sizes: Mapping[str, Any] = {"zero": 0.0, "negative": -1.0, "endless": math.inf, "text": "many"}
    values = of_sizes if isinstance(keys_of(family)[name], float) else of_counts
    with pytest.raises(ModelFileError, match=rf"{family}\.{name}"):
        describe(tmp_path, family, keys_of(family) | {name: values[wrong]})


@pytest.mark.parametrize(
    ("family", "changes", "told"),
    [
        *((family, {"attention.head_count": 5}, "head_count 5 is not a multiple of .*2") for family in FAMILIES),
        *((family, {"attention.value_length": 7}, "value_length is 7.*8") for family in FAMILIES),
        *((family, {"rope.scaling.type": "longrope"}, "'longrope'.*none, linear, yarn") for family in FAMILIES),
        *((family, {"rope.scaling.factor": -2.0}, "scaling.factor is -2") for family in FAMILIES),
        ("qwen3", {"rope.dimension_count": 6}, "dimension_count is 6.*8"),
        ("qwen3moe", {"expert_used_count": 6}, "expert_used_count 6.*expert_count 5"),
        ("gemma3", {"rope.dimension_count": 10}, "dimension_count 10 is more than a head's 8"),
        ("gemma3", {"rope.dimension_count": 7}, "dimension_count 7 is odd"),
        ("gemma3", {"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    ],
)  # fmt: skip
def test_keys_that_contradict_are_named(family: str, changes: Mapping[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=told):
        describe(tmp_path, family, {**keys_of(family), **changes})


@pytest.mark.parametrize("family", FAMILIES)
def test_a_missing_embedding_is_named(family: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"token_embd\.weight is missing"):
        describe(tmp_path, family, keys_of(family), tensors=("output.weight",))


def test_a_softcap_of_zero_is_none(tmp_path: Path) -> None:
    assert describe(tmp_path, "gemma3", keys_of("gemma3") | {"final_logit_softcapping": 0.0})


@given(
    key=st.sampled_from(READ),
    value=st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(width=32), st.text(max_size=5), st.booleans()),
)
@example(key=("gemma3", "attention.layer_norm_rms_epsilon"), value=math.nan)
@example(key=("gemma3", "rope.freq_base_swa"), value=math.inf)
@example(key=("qwen3", "attention.key_length"), value=2**23)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_strange_value_is_a_spec_or_a_refusal(tmp_path: Path, key: tuple[str, str], value: Any) -> None:
    family, name = key
    try:
        spec = describe(tmp_path, family, keys_of(family) | {name: value}).spec
    except ModelFileError as error:
        assert family in str(error)
        return
    for layer in spec.layers:
        assert isinstance(layer.mixer, Gqa)
        assert layer.mixer.scale > 0 and layer.mixer.n_head % layer.mixer.n_head_kv == 0
        assert 0 < layer.mixer.rope.base < math.inf and 0 < layer.residual.norm_eps < math.inf
