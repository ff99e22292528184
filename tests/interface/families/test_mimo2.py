"""The `mimo2` reader: the layers it makes of the fixtures, and a refusal by name for each thing that is wrong."""

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

from bloomery.conformance.fixtures import mimo2
from bloomery.conformance.fixtures.gguf_writer import Tensor, write_gguf
from bloomery.interface import coverage
from bloomery.interface.files.gguf import ModelFileError
from bloomery.interface.spec import Dense, Gqa, LayerSpec, ModelDescription, Moe, Plain, Rope, WeightRef
from tests.interface.families.described import described, of_fixture

FUSED, SPLIT = mimo2.SHAPES["mimo2-a"], mimo2.SHAPES["mimo2-b"]
# Small enough to be written for every refusal: dense alone, and routed in its last layer.
ONE = dataclasses.replace(SPLIT, layers="E", draft=False)
TWO = dataclasses.replace(SPLIT, layers="eW", draft=False)

Tensors = Iterable[Tensor]


@functools.cache
def drawn(shape: mimo2.Shape) -> tuple[Tensor, ...]:
    return tuple(mimo2.tensors(shape, "f32"))


def describe(
    folder: Path,
    shape: mimo2.Shape,
    changes: dict[str, Any] | None = None,
    tensors: Callable[[Tensors], Tensors] = lambda tensors: tensors,
) -> ModelDescription:
    """Read and check a shape's file with some keys changed (None leaves one out) and its tensors passed through."""
    path = folder / "a.gguf"
    keys = mimo2.metadata(shape, "f32") | {f"mimo2.{name}": value for name, value in (changes or {}).items()}
    write_gguf(path, {key: value for key, value in keys.items() if value is not None}, tensors(drawn(shape)))
    return described(path)


def mixers(description: ModelDescription) -> list[Gqa]:
    found = [layer.mixer for layer in description.spec.layers]
    assert all(isinstance(mixer, Gqa) for mixer in found)
    return found  # type: ignore[return-value]


def test_a_fixture_with_fused_rows() -> None:
    description = of_fixture("mimo2-a-q4km")
    spec = description.spec
    assert (spec.architecture, spec.n_vocab, spec.n_embd, spec.n_ctx_train) == ("mimo2", 365, 256, 2048)
    assert spec.norm_eps == pytest.approx(1e-5)
    everywhere = Gqa(
        n_head=8, n_head_kv=1, head_dim=48, value_dim=32, rope=Rope(n_dims=16, base=5e6, style="neox"),
        scale=1 / math.sqrt(48), qk_norm_eps=None, output_scale=float(np.float32(0.707)),
    )  # fmt: skip
    windowed = dataclasses.replace(
        everywhere, n_head_kv=4, rope=Rope(n_dims=16, base=1e3, style="neox"), window=16, sinks=True
    )
    dense = Dense(n_ff=256)
    routed = Moe(n_expert=5, n_expert_used=2, n_ff=256, score="sigmoid", selection_bias=True)
    plain = Plain(norm_eps=spec.norm_eps)
    assert spec.layers == (
        LayerSpec(mixer=everywhere, ffn=dense, residual=plain),
        LayerSpec(mixer=windowed, ffn=routed, residual=plain),
        LayerSpec(mixer=everywhere, ffn=routed, residual=plain),
    )
    weights = description.weights
    assert weights["output"].tensor == "output.weight"
    rows = "blk.1.attn_qkv.weight"
    assert weights["blk.1.attn_q"] == WeightRef(tensor=rows, shape=(384, 256), rows=(0, 384))
    assert weights["blk.1.attn_k"] == WeightRef(tensor=rows, shape=(192, 256), rows=(384, 576))
    assert weights["blk.1.attn_v"] == WeightRef(tensor=rows, shape=(128, 256), rows=(576, 704))
    assert weights["blk.2.attn_v"].rows == (432, 464)
    assert weights["blk.1.attn_output"].shape == (256, 256)
    assert weights["blk.1.attn_sinks"] == WeightRef(tensor="blk.1.attn_sinks.weight", shape=(8,))
    assert description.unread == frozenset()


def test_a_fixture_with_split_rows_and_a_draft_layer() -> None:
    description = of_fixture("mimo2-b-f32")
    spec = description.spec
    assert spec.nextn is None and len(spec.layers) == 4
    found = mixers(description)
    assert [mixer.window for mixer in found] == [None, 8, 8, None]
    assert [mixer.n_head_kv for mixer in found] == [2, 3, 3, 2]
    assert [mixer.sinks for mixer in found] == [False, True, False, True]
    assert {mixer.output_scale for mixer in found} == {1.0}
    # A file without a base of their own turns layers with a window by 10,000, whatever the others' base is.
    assert [mixer.rope.base for mixer in found if mixer.rope] == [5e5, 1e4, 1e4, 5e5]
    assert {(mixer.head_dim, mixer.value_dim, mixer.scale) for mixer in found} == {(24, 16, 1 / math.sqrt(24))}
    assert [type(layer.ffn) for layer in spec.layers] == [Dense, Moe, Moe, Moe]
    assert description.weights["blk.1.attn_v"] == WeightRef(tensor="blk.1.attn_v.weight", shape=(48, 64))
    assert description.weights["blk.0.attn_v"] == WeightRef(tensor="blk.0.attn_v.weight", shape=(32, 64))
    assert len(description.unread) == 11
    assert all(name.startswith("blk.4.") for name in description.unread)
    assert not any(ref.tensor in description.unread for ref in description.weights.values())


def test_what_a_file_may_leave_out(tmp_path: Path) -> None:
    shape = dataclasses.replace(ONE, n_head_kv=(4, 4), n_head=4, key_dim=16)
    left_out = ("attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.dimension_count",
                "rope.freq_base", "expert_count", "expert_used_count", "expert_feed_forward_length")  # fmt: skip
    [mixer] = mixers(describe(tmp_path, shape, dict.fromkeys(left_out)))
    assert (mixer.n_head_kv, mixer.head_dim, mixer.value_dim) == (4, 16, 16)
    assert mixer.rope == Rope(n_dims=16, base=1e4, style="neox")
    # A trunk alone still counts the draft layers of the file it was cut from.
    trunk = describe(tmp_path, dataclasses.replace(TWO, draft=True), tensors=without_any("blk.2."))
    assert len(trunk.spec.layers) == 2 and trunk.unread == frozenset()
    [*_, routed] = describe(tmp_path, TWO, tensors=without("blk.1.exp_probs_b.bias")).spec.layers
    assert isinstance(routed.ffn, Moe) and not routed.ffn.selection_bias


def test_arrays_and_numbers_say_the_same(tmp_path: Path) -> None:
    plain = describe(tmp_path, TWO).spec
    changes = {
        "attention.head_count": [6, 6],
        "feed_forward_length": [96, 0],
        "expert_feed_forward_length": [0, 32],
        "attention.sliding_window_pattern": [0, 7],
        "attention.value_scale": 1.0,
        "expert_weights_scale": 1.0,
        "expert_weights_norm": True,
        "expert_group_count": 1,
        "rope.dimension_count_swa": 8,
    }
    assert describe(tmp_path, TWO, changes).spec == plain


def test_a_linear_scale_is_that_of_layers_without_a_window(tmp_path: Path) -> None:
    found = mixers(describe(tmp_path, TWO, {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}))
    assert [mixer.rope.freq_scale for mixer in found if mixer.rope] == [0.25, 1.0]


MISSING = (
    "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.layer_norm_rms_epsilon", "attention.sliding_window", "attention.sliding_window_pattern",
    "expert_count", "expert_used_count", "expert_feed_forward_length",
)  # fmt: skip


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_key_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=rf"mimo2\.{name}.*missing"):
        describe(tmp_path, TWO, {name: None})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"block_count": 5000}, "block_count.* is 5000"),
        ({"nextn_predict_layers": 2}, "nextn_predict_layers 2 leaves none of the 2 blocks"),
        ({"attention.head_count_kv": [2, 3, 3]}, "head_count_kv' has 3 numbers for 2 layers"),
        ({"attention.head_count_kv": [2, 4]}, "head_count 6 of layer 1 is not a multiple of its head_count_kv 4"),
        ({"attention.head_count_kv": [2, 0]}, "head_count_kv of layer 1 is 0"),
        ({"attention.head_count_kv": [-2, 3]}, "head_count_kv' has the number -2"),
        ({"attention.head_count": [0, 6]}, "head_count of layer 0 is 0"),
        ({"attention.head_count": 0}, "head_count.* is 0"),
        ({"attention.key_length": 0}, "key_length.* is 0"),
        ({"attention.value_length_swa": 32}, "attention.value_length_swa is 32, but attention.value_length is 16"),
        ({"attention.key_length_swa": 32}, "attention.key_length_swa is 32, but attention.key_length is 24"),
        ({"rope.dimension_count_swa": 4}, "rope.dimension_count_swa is 4, but rope.dimension_count is 8"),
        ({"rope.dimension_count": 7}, "rope.dimension_count 7 is odd"),
        ({"rope.dimension_count": 26}, "rope.dimension_count 26 is more than a head's 24"),
        ({"rope.freq_base_swa": 0.0}, "freq_base_swa.* is 0.0"),
        ({"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}, "rope.scaling is YaRN's"),
        ({"rope.scaling.attn_factor": 2.0}, "rope.scaling .* has an attn_factor"),
        ({"attention.layer_norm_rms_epsilon": math.nan}, "layer_norm_rms_epsilon.* is nan"),
        ({"attention.value_scale": 0.0}, "value_scale.* is 0.0"),
        ({"attention.sliding_window": 0}, "sliding_window.* is 0"),
        ({"attention.sliding_window_pattern": [0, 1, 1]}, "sliding_window_pattern' has 3 entries of int32"),
        ({"attention.sliding_window_pattern": [0.0, 1.0]}, "sliding_window_pattern' has 2 entries of float32"),
        ({"attention.sliding_window_pattern": 6}, "sliding_window_pattern.* is of type u32"),
        ({"feed_forward_length": [0, 96]}, "feed_forward_length of layer 0 is 0"),
        ({"expert_feed_forward_length": [32, 0]}, "expert_feed_forward_length of layer 1 is 0"),
        ({"expert_used_count": 9}, "expert_used_count 9 is more than mimo2.expert_count 8"),
        ({"expert_used_count": 0}, "expert_used_count.* is 0"),
        ({"expert_weights_scale": 2.5}, "expert_weights_scale is 2.5; llama-server ignores it"),
        ({"expert_weights_norm": False}, "expert_weights_norm is false"),
        ({"expert_gating_func": 1}, "expert_gating_func is 1"),
        ({"expert_group_count": 4}, "expert_group_count is 4"),
    ],
)
def test_keys_that_cannot_be_are_named(changes: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=told):
        describe(tmp_path, TWO, changes)


def without(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: (tensor for tensor in tensors if tensor.name != name)


def without_any(prefix: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: (tensor for tensor in tensors if not tensor.name.startswith(prefix))


def narrower(name: str) -> Callable[[Tensors], Tensors]:
    def cut(tensor: Tensor) -> Tensor:
        return dataclasses.replace(tensor, values=tensor.values[:-1]) if tensor.name == name else tensor

    return lambda tensors: map(cut, tensors)


def beside(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: (*tensors, Tensor(name, np.ones(1, np.float32)))


@pytest.mark.parametrize(
    "name",
    [
        "output_norm.weight", "blk.0.attn_norm.weight", "blk.0.attn_q.weight", "blk.1.attn_k.weight",
        "blk.1.attn_v.weight", "blk.1.attn_output.weight", "blk.0.ffn_norm.weight", "blk.0.ffn_gate.weight",
        "blk.0.ffn_up.weight", "blk.0.ffn_down.weight", "blk.1.ffn_gate_exps.weight", "blk.1.ffn_up_exps.weight",
        "blk.1.ffn_down_exps.weight",
    ],
)  # fmt: skip
def test_a_tensor_that_is_missing_or_of_another_shape_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(coverage.CoverageError, match=f"{name} is missing"):
        describe(tmp_path, TWO, tensors=without(name))
    with pytest.raises(coverage.CoverageError, match=f"{name} has the shape"):
        describe(tmp_path, TWO, tensors=narrower(name))


@pytest.mark.parametrize("name", ["blk.1.attn_sinks.weight", "blk.1.exp_probs_b.bias", "blk.1.ffn_gate_inp.weight"])
def test_a_tensor_of_a_part_that_not_all_layers_have_must_fit(name: str, tmp_path: Path) -> None:
    with pytest.raises(coverage.CoverageError, match=f"{name} has the shape"):
        describe(tmp_path, TWO, tensors=narrower(name))


def test_fused_rows_of_another_number_are_named(tmp_path: Path) -> None:
    shape = dataclasses.replace(TWO, fused=True)
    with pytest.raises(coverage.CoverageError, match=r"blk\.1\.attn_qkv\.weight has the shape \[263, 64\], not \[264"):
        describe(tmp_path, shape, tensors=narrower("blk.1.attn_qkv.weight"))


@pytest.mark.parametrize("name", ["output.weight", "token_embd.weight"])
def test_a_missing_table_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=f"{name} is missing"):
        describe(tmp_path, TWO, tensors=without(name))


def test_draft_layers_without_their_model_are_refused(tmp_path: Path) -> None:
    shape = dataclasses.replace(TWO, draft=True)
    with pytest.raises(ModelFileError, match=r"draft layers without their model.*blk\.0\.attn_norm\.weight"):
        describe(tmp_path, shape, tensors=lambda tensors: without_any("blk.0.")(without_any("blk.1.")(tensors)))


@pytest.mark.parametrize("name", ["blk.0.attn_q_norm.weight", "blk.1.ffn_up_shexp.weight", "blk.0.attn_q.bias"])
def test_a_kind_of_layer_that_nothing_here_reads_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(coverage.CoverageError, match=f"nothing reads the tensor {name}"):
        describe(tmp_path, TWO, tensors=beside(name))


def test_a_scale_beside_a_weight_is_refused_by_name_but_for_a_draft_layer(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"the tensor blk\.1\.attn_q\.scale scales a weight.*NVFP4"):
        describe(tmp_path, TWO, tensors=beside("blk.1.attn_q.scale"))
    draft = dataclasses.replace(TWO, draft=True)
    assert "blk.2.attn_q.scale" in describe(tmp_path, draft, tensors=beside("blk.2.attn_q.scale")).unread


@given(
    key=st.sampled_from([*MISSING, "attention.head_count_kv", "attention.key_length", "attention.value_scale",
                         "rope.dimension_count", "nextn_predict_layers"]),
    value=st.one_of(st.integers(0, 2**32 - 1), st.floats(width=32), st.text(max_size=5), st.booleans(),
                    st.lists(st.integers(-1, 300), min_size=1, max_size=3)),
)  # fmt: skip
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_strange_value_is_a_model_of_the_same_kind_or_a_refusal(tmp_path: Path, key: str, value: Any) -> None:
    try:
        description = describe(tmp_path, TWO, {key: value})
    except (ModelFileError, coverage.CoverageError) as error:
        assert str(tmp_path) in str(error)
        return
    assert [type(layer.ffn) for layer in description.spec.layers] == [Dense, Moe]
