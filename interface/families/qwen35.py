"""`qwen35`: Qwen3.5 and Qwen3.6, dense. Gated delta rule in most layers, gated attention in the others, and perhaps a
draft layer behind the last."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from bloomery.interface.families.count import read_count
from bloomery.interface.families.heads import read_heads, read_n_vocab
from bloomery.interface.families.per_layer import read_flags
from bloomery.interface.families.positive import read_positive
from bloomery.interface.families.rope import read_rope
from bloomery.interface.families.unserved import refuse_unserved
from bloomery.interface.families.weights import standard_weights
from bloomery.interface.files.gguf import GgufFile, ModelFileError
from bloomery.interface.spec import (
    DeltaRule,
    Dense,
    FeedForward,
    Gqa,
    LayerSpec,
    ModelDescription,
    ModelSpec,
    NextN,
    Plain,
    Rope,
)

_MOST_BLOCKS = 4096
# A projection of the last hidden row to an embedding, which a reply in text does not use.
_EMBEDDING_HEAD = frozenset({"cls.output.weight", "cls.output.bias"})


def read(file: GgufFile) -> ModelDescription:
    """The spec and weight table of a `qwen35` file.  Raises ModelFileError naming a missing or impossible key."""
    return describe(file, Dense(n_ff=read_count(file, "qwen35.feed_forward_length")))


def describe(file: GgufFile, ffn: FeedForward) -> ModelDescription:
    """A Qwen3.5 decoder whose every layer has the given feed-forward; the keys' prefix is the file's architecture.

    Raises ModelFileError.  Source: llama.cpp src/models/qwen35.cpp, qwen35moe.cpp and delta-net-base.cpp.
    """
    arch = file.get_str("general.architecture")
    n_block = read_count(file, f"{arch}.block_count", most=_MOST_BLOCKS)
    n_draft = file.get_u32(f"{arch}.nextn_predict_layers", 0)
    if n_draft > 1 or n_draft >= n_block:
        raise ModelFileError(
            f"{file.path}: {arch}.nextn_predict_layers is {n_draft}; of {n_block} blocks at most one, behind the"
            " others, may be a draft layer"
        )
    if n_draft and "blk.0.attn_norm.weight" not in file.tensors:
        raise ModelFileError(
            f"{file.path}: the file holds a draft layer without its model (there is no blk.0.attn_norm.weight);"
            " serve a file that holds both"
        )
    refuse_unserved(file)
    n_embd = read_count(file, f"{arch}.embedding_length")
    n_ctx_train = read_count(file, f"{arch}.context_length")
    eps = read_positive(file, f"{arch}.attention.layer_norm_rms_epsilon")
    heads = read_heads(file, n_embd)
    attention = Gqa(
        **heads._asdict(),
        rope=_read_rope(file, arch, heads.head_dim, n_ctx_train),
        scale=1.0 / math.sqrt(heads.head_dim),
        qk_norm_eps=eps,
        gated=True,
    )
    delta_rule = _read_delta_rule(file, arch, eps)
    recurrent = _read_recurrent(file, arch, n_block, n_draft)
    layers = [
        LayerSpec(mixer=delta_rule if yes else attention, ffn=ffn, residual=Plain(norm_eps=eps)) for yes in recurrent
    ]
    spec = ModelSpec(
        architecture=arch,
        n_vocab=read_n_vocab(file),
        n_embd=n_embd,
        n_ctx_train=n_ctx_train,
        norm_eps=eps,
        layers=tuple(layers[: n_block - n_draft]),
        nextn=NextN(layer=layers[-1], norm_eps=eps) if n_draft else None,
    )
    weights = standard_weights(spec, file.tensors, {"ffn_norm": "post_attention_norm"})
    return ModelDescription(spec=spec, weights=weights, unread=_EMBEDDING_HEAD & file.tensors.keys())


def _read_rope(file: GgufFile, arch: str, head_dim: int, n_ctx_train: int) -> Rope:
    """The rotation of a part of each head, whose pairs take turns between a position's components."""
    n_dims = read_count(file, f"{arch}.rope.dimension_count", head_dim)
    if n_dims > head_dim:
        raise ModelFileError(f"{file.path}: {arch}.rope.dimension_count {n_dims} is more than a head's {head_dim}")
    rope = read_rope(file, n_dims=n_dims, style="neox", n_ctx_train=n_ctx_train)
    key = f"{arch}.rope.dimension_sections"
    listed = file.get_numbers(key)
    if listed.dtype.kind not in "iu":
        raise ModelFileError(f"{file.path}: the key {key!r} is an array of {listed.dtype}, not of whole numbers")
    sections = [int(pairs) for pairs in listed]
    # The fourth component is 0 where the others are the place in a text, so no pair may turn by it.
    pairs = range(n_dims // 2)
    if (
        len(sections) != 4
        or not all(0 <= one <= n_dims for one in sections)
        or not sum(sections)
        or any(j % sum(sections) >= 3 * sections[j % sum(sections) % 3] for j in pairs)
    ):
        raise ModelFileError(
            f"{file.path}: {key} {sections[:8]} does not share the {len(pairs)} pairs of a head out to the first three"
            " of four components, every third pair to each"
        )
    t, h, w, e = sections
    return dataclasses.replace(rope, sections=(t, h, w, e))


def _read_delta_rule(file: GgufFile, arch: str, eps: float) -> DeltaRule:
    """The `ssm` keys, as this architecture means them."""
    conv_kernel, head_dim, n_head_k, n_head_v, n_inner = (
        read_count(file, f"{arch}.ssm.{name}")
        for name in ("conv_kernel", "state_size", "group_count", "time_step_rank", "inner_size")
    )
    if n_head_v % n_head_k:
        raise ModelFileError(
            f"{file.path}: {arch}.ssm.time_step_rank {n_head_v} (value heads) is not a multiple of"
            f" {arch}.ssm.group_count {n_head_k} (key heads)"
        )
    if n_inner != n_head_v * head_dim:
        raise ModelFileError(
            f"{file.path}: {arch}.ssm.inner_size is {n_inner}, but {n_head_v} value heads"
            f" ({arch}.ssm.time_step_rank) of {arch}.ssm.state_size {head_dim} are {n_head_v * head_dim} wide"
        )
    return DeltaRule(n_head_k=n_head_k, n_head_v=n_head_v, head_dim=head_dim, conv_kernel=conv_kernel, norm_eps=eps)


def _read_recurrent(file: GgufFile, arch: str, n_block: int, n_draft: int) -> Sequence[bool]:
    """Whether each block has the delta rule: as the file lists it, or all but every n-th; a draft layer never has."""
    key = f"{arch}.attention.recurrent_layers"
    if key not in file.metadata:
        interval = read_count(file, f"{arch}.full_attention_interval", 4)
        return [i < n_block - n_draft and (i + 1) % interval != 0 for i in range(n_block)]
    if file.metadata.type_of(key) == "bool":
        recurrent: Sequence[bool] = [file.get_bool(key)] * n_block
    else:
        recurrent = read_flags(file, key, n_block)
    if n_draft and recurrent[-1]:
        raise ModelFileError(f"{file.path}: the key {key!r} makes the draft layer recurrent, and it is attention")
    return recurrent
