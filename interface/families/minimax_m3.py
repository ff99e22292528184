"""`minimax-m3`: MiniMax-M3. Full attention and dense feed-forwards first, then chosen blocks and routed experts."""

from __future__ import annotations

import dataclasses
import math

from bloomery.interface.families.count import read_count
from bloomery.interface.families.heads import Heads, read_heads, read_n_vocab
from bloomery.interface.families.positive import read_positive
from bloomery.interface.families.rope import read_rope
from bloomery.interface.families.unserved import refuse_unserved
from bloomery.interface.families.weights import standard_weights
from bloomery.interface.files.gguf import GgufFile, ModelFileError
from bloomery.interface.spec import (
    BlockSelector,
    Dense,
    Gqa,
    LayerSpec,
    ModelDescription,
    ModelSpec,
    Moe,
    Plain,
    Rope,
    SharedExpert,
)

_ARCH = "minimax-m3"
# `expert_gating_func` of a router that scores by sigmoid.
_SIGMOID = 2
# More blocks than any model reads, and larger ones: a row's choice takes memory for the one and time for the other.
_MOST_CHOSEN, _MOST_CELLS = 4096, 65536


def read(file: GgufFile) -> ModelDescription:
    """The spec and weight table of a `minimax-m3` file.

    Raises ModelFileError naming a missing or impossible key, a missing head, or a tensor that scales another.

    Source: llama.cpp src/models/minimax-m3.cpp.
    """
    refuse_unserved(file)
    if "output.weight" not in file.tensors:
        raise ModelFileError(f"{file.path}: the tensor output.weight is missing; a {_ARCH} head is never the embedding")
    n_embd = read_count(file, f"{_ARCH}.embedding_length")
    n_layer = read_count(file, f"{_ARCH}.block_count", most=4096)
    n_dense = file.get_u32(f"{_ARCH}.leading_dense_block_count", 0)
    if n_dense > n_layer:
        raise _wrong(file, f"leading_dense_block_count {n_dense} is more than block_count {n_layer}")
    heads = read_heads(file, n_embd)
    n_ctx_train = read_count(file, f"{_ARCH}.context_length")
    eps = read_positive(file, f"{_ARCH}.attention.layer_norm_rms_epsilon")
    n_dims = read_count(file, f"{_ARCH}.rope.dimension_count", heads.head_dim)
    rope = read_rope(file, n_dims=n_dims, style="neox", n_ctx_train=n_ctx_train)
    selector = _selector(file, heads, rope, eps)
    for name, width in (("attention head", heads.head_dim), ("index head", selector.head_dim)):
        if n_dims > width:
            raise _wrong(file, f"rope.dimension_count {n_dims} is more than the {width} of an {name}")
    biases = ("attn_q", "attn_k", "attn_v")
    full = Gqa(
        **heads._asdict(),
        rope=rope,
        scale=1.0 / math.sqrt(heads.head_dim),
        qk_norm_eps=eps,
        biases=frozenset(biases if "blk.0.attn_q.bias" in file.tensors else ()),
    )
    plain = Plain(norm_eps=eps)
    dense = Dense(n_ff=read_count(file, f"{_ARCH}.feed_forward_length"), activation="oai")
    leading = LayerSpec(mixer=full, ffn=dense, residual=plain)
    others = LayerSpec(mixer=dataclasses.replace(full, selector=selector), ffn=_experts(file), residual=plain)
    spec = ModelSpec(
        architecture=_ARCH,
        n_vocab=read_n_vocab(file),
        n_embd=n_embd,
        n_ctx_train=n_ctx_train,
        norm_eps=eps,
        layers=(leading,) * n_dense + (others,) * (n_layer - n_dense),
    )
    return ModelDescription(spec=spec, weights=standard_weights(spec, file.tensors))


def _selector(file: GgufFile, heads: Heads, rope: Rope, eps: float) -> BlockSelector:
    prefix = f"{_ARCH}.attention.indexer"
    if (n_head := read_count(file, f"{prefix}.head_count")) != heads.n_head_kv:
        raise _wrong(file, f"attention.indexer.head_count {n_head} must be head_count_kv {heads.n_head_kv}, one each")
    n_chosen = read_count(file, f"{prefix}.top_k", most=_MOST_CHOSEN)
    n_local = read_count(file, f"{prefix}.local_blocks")
    if n_local > n_chosen:
        raise _wrong(file, f"attention.indexer.local_blocks {n_local} is more than the {n_chosen} of indexer.top_k")
    return BlockSelector(
        head_dim=read_count(file, f"{prefix}.key_length"),
        rope=rope,
        norm_eps=eps,
        block=read_count(file, f"{prefix}.block_size", most=_MOST_CELLS),
        n_chosen=n_chosen,
        n_local=n_local,
    )


def _experts(file: GgufFile) -> Moe:
    n_expert, n_used = (read_count(file, f"{_ARCH}.expert_{name}") for name in ("count", "used_count"))
    if n_used > n_expert:
        raise _wrong(file, f"expert_used_count {n_used} is more than {_ARCH}.expert_count {n_expert}")
    if (score := file.get_u32(f"{_ARCH}.expert_gating_func")) != _SIGMOID:
        raise _wrong(file, f"expert_gating_func is {score}; this version computes {_SIGMOID}, the sigmoid")
    if (n_group := file.get_u32(f"{_ARCH}.expert_group_count", 0)) > 1:
        raise _wrong(file, f"expert_group_count is {n_group}; this version chooses among all experts only")
    scale = file.get_float(f"{_ARCH}.expert_weights_scale", 0.0)
    if not (scale >= 0 and math.isfinite(scale)):
        raise _wrong(file, f"expert_weights_scale is {scale}; it must be 0 or a positive number")
    n_ff = read_count(file, f"{_ARCH}.expert_feed_forward_length")
    return Moe(
        n_expert=n_expert,
        n_expert_used=n_used,
        n_ff=n_ff,
        activation="oai",
        score="sigmoid",
        selection_bias=True,
        normalised=file.get_bool(f"{_ARCH}.expert_weights_norm", False),
        weights_scale=scale or 1.0,
        shared=SharedExpert(n_ff=n_ff * read_count(file, f"{_ARCH}.expert_shared_count"), gated=False),
    )


def _wrong(file: GgufFile, fact: str) -> ModelFileError:
    return ModelFileError(f"{file.path}: {_ARCH}.{fact}")
