"""`qwen3`: dense Qwen3. Grouped-query attention with per-head query and key norms, NeoX rope, SwiGLU."""

from __future__ import annotations

import math

from bloomery.interface.families.count import read_count
from bloomery.interface.families.heads import read_heads, read_n_vocab
from bloomery.interface.families.positive import read_positive
from bloomery.interface.families.rope import read_rope
from bloomery.interface.families.unserved import refuse_unserved
from bloomery.interface.families.weights import standard_weights
from bloomery.interface.files.gguf import GgufFile, ModelFileError
from bloomery.interface.spec import Dense, FeedForward, Gqa, LayerSpec, ModelDescription, ModelSpec, Plain


def read(file: GgufFile) -> ModelDescription:
    """The spec and weight table of a `qwen3` file.  Raises ModelFileError naming a missing or impossible key."""
    return describe(file, Dense(n_ff=read_count(file, "qwen3.feed_forward_length")))


def describe(file: GgufFile, ffn: FeedForward) -> ModelDescription:
    """A Qwen3 decoder whose every layer has the given feed-forward; the keys' prefix is the file's architecture."""
    refuse_unserved(file)
    arch = file.get_str("general.architecture")
    n_embd = read_count(file, f"{arch}.embedding_length")
    heads = read_heads(file, n_embd)
    if (size := read_count(file, f"{arch}.rope.dimension_count", heads.head_dim)) != heads.head_dim:
        raise ModelFileError(f"{file.path}: {arch}.rope.dimension_count is {size}, but a head is {heads.head_dim} wide")
    n_ctx_train = read_count(file, f"{arch}.context_length")
    eps = read_positive(file, f"{arch}.attention.layer_norm_rms_epsilon")
    layer = LayerSpec(
        mixer=Gqa(
            **heads._asdict(),
            rope=read_rope(file, n_dims=heads.head_dim, style="neox", n_ctx_train=n_ctx_train),
            scale=1.0 / math.sqrt(heads.head_dim),
            qk_norm_eps=eps,
            biases=frozenset({"attn_q", "attn_k", "attn_v"} if "blk.0.attn_q.bias" in file.tensors else ()),
        ),
        ffn=ffn,
        residual=Plain(norm_eps=eps),
    )
    spec = ModelSpec(
        architecture=arch,
        n_vocab=read_n_vocab(file),
        n_embd=n_embd,
        n_ctx_train=n_ctx_train,
        norm_eps=eps,
        layers=(layer,) * read_count(file, f"{arch}.block_count", most=4096),
    )
    return ModelDescription(spec=spec, weights=standard_weights(spec, file.tensors))
