"""`qwen3`: dense Qwen3. Grouped-query attention with per-head query and key norms, NeoX rope, SwiGLU."""

from __future__ import annotations

import math

from bloomery.interface.families.count import read_count
from bloomery.interface.families.positive import read_positive
from bloomery.interface.families.rope import read_rope
from bloomery.interface.families.weights import standard_weights
from bloomery.interface.files.gguf import GgufFile, ModelFileError
from bloomery.interface.spec import Dense, FeedForward, Gqa, LayerSpec, ModelDescription, ModelSpec, Plain


def read(file: GgufFile) -> ModelDescription:
    """The spec and weight table of a `qwen3` file.  Raises ModelFileError naming a missing or impossible key."""
    return describe(file, Dense(n_ff=read_count(file, "qwen3.feed_forward_length")))


def describe(file: GgufFile, ffn: FeedForward) -> ModelDescription:
    """A Qwen3 decoder whose every layer has the given feed-forward; the keys' prefix is the file's architecture.

    The key and value width of a head is read, never derived: it is not `n_embd / n_head` in most sizes.
    """
    arch = file.get_str("general.architecture")
    n_embd = read_count(file, f"{arch}.embedding_length")
    n_head = read_count(file, f"{arch}.attention.head_count")
    n_head_kv = read_count(file, f"{arch}.attention.head_count_kv", n_head)
    if n_head % n_head_kv:
        raise ModelFileError(
            f"{file.path}: {arch}.attention.head_count {n_head} is not a multiple of head_count_kv {n_head_kv}"
        )
    head_dim = read_count(file, f"{arch}.attention.key_length", n_embd // n_head)
    for key in ("attention.value_length", "rope.dimension_count"):
        if (size := read_count(file, f"{arch}.{key}", head_dim)) != head_dim:
            raise ModelFileError(
                f"{file.path}: {arch}.{key} is {size}, but {arch}.attention.key_length"
                f" ({head_dim} where the file has none) must be equal to it"
            )
    n_ctx_train = read_count(file, f"{arch}.context_length")
    eps = read_positive(file, f"{arch}.attention.layer_norm_rms_epsilon")
    layer = LayerSpec(
        mixer=Gqa(
            n_head=n_head,
            n_head_kv=n_head_kv,
            head_dim=head_dim,
            rope=read_rope(file, n_dims=head_dim, style="neox", n_ctx_train=n_ctx_train),
            scale=1.0 / math.sqrt(head_dim),
            qk_norm_eps=eps,
            bias="blk.0.attn_q.bias" in file.tensors,
        ),
        ffn=ffn,
        residual=Plain(norm_eps=eps),
    )
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFileError(f"{file.path}: the tensor token_embd.weight is missing")
    spec = ModelSpec(
        architecture=arch,
        n_vocab=embedding.shape[0],
        n_embd=n_embd,
        n_ctx_train=n_ctx_train,
        norm_eps=eps,
        layers=(layer,) * read_count(file, f"{arch}.block_count", most=4096),
    )
    return ModelDescription(spec=spec, weights=standard_weights(spec, file.tensors))
