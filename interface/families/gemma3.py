"""`gemma3`: Gemma 3, text only. Local and global layers in turn, norms on both sides of each block, GELU gates."""

from __future__ import annotations

import dataclasses
import math

from bloomery.interface.families.count import read_count
from bloomery.interface.families.positive import read_positive
from bloomery.interface.families.rope import read_rope
from bloomery.interface.families.weights import standard_weights
from bloomery.interface.files.gguf import GgufFile, ModelFileError
from bloomery.interface.spec import Dense, Gqa, LayerSpec, ModelDescription, ModelSpec, Rope, Sandwich

# Every sixth layer sees all cells; the others see a window and turn by a base of their own, without context scaling.
_PERIOD = 6
_LOCAL_BASE = 10000.0
# The 27B model alone scales queries by the width a head would have if all heads shared n_embd.
_LAYERS_OF_27B = 62


def read(file: GgufFile) -> ModelDescription:
    """The spec and weight table of a `gemma3` file.  Raises ModelFileError naming a missing or impossible key.

    Source: llama.cpp src/models/gemma3.cpp and its hyperparameters; Gemma 3 Technical Report (2025).
    """
    n_embd = read_count(file, "gemma3.embedding_length")
    n_layer = read_count(file, "gemma3.block_count", most=4096)
    n_head = read_count(file, "gemma3.attention.head_count")
    n_head_kv = read_count(file, "gemma3.attention.head_count_kv", n_head)
    if n_head % n_head_kv:
        raise ModelFileError(
            f"{file.path}: gemma3.attention.head_count {n_head} is not a multiple of head_count_kv {n_head_kv}"
        )
    head_dim = read_count(file, "gemma3.attention.key_length", n_embd // n_head)
    if (size := read_count(file, "gemma3.attention.value_length", head_dim)) != head_dim:
        raise ModelFileError(f"{file.path}: gemma3.attention.value_length is {size}, but the keys' is {head_dim}")
    if file.get_float("gemma3.final_logit_softcapping", 0.0):
        raise ModelFileError(f"{file.path}: gemma3.final_logit_softcapping is set, which this version does not compute")
    n_ctx_train = read_count(file, "gemma3.context_length")
    eps = read_positive(file, "gemma3.attention.layer_norm_rms_epsilon")
    n_dims = read_count(file, "gemma3.rope.dimension_count", head_dim)
    if n_dims > head_dim:
        raise ModelFileError(f"{file.path}: gemma3.rope.dimension_count {n_dims} is more than a head's {head_dim}")
    everywhere = Gqa(
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim=head_dim,
        rope=read_rope(file, n_dims=n_dims, style="neox", n_ctx_train=n_ctx_train),
        scale=1.0 / math.sqrt(n_embd / n_head if n_layer == _LAYERS_OF_27B else head_dim),
        qk_norm_eps=eps,
    )
    local = everywhere
    if "gemma3.attention.sliding_window" in file.metadata:
        base = read_positive(file, "gemma3.rope.freq_base_swa", _LOCAL_BASE)
        local = dataclasses.replace(
            everywhere,
            rope=Rope(n_dims=n_dims, base=base, style="neox"),
            window=read_count(file, "gemma3.attention.sliding_window"),
        )
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFileError(f"{file.path}: the tensor token_embd.weight is missing")
    ffn = Dense(n_ff=read_count(file, "gemma3.feed_forward_length"), activation="gelu")
    spec = ModelSpec(
        architecture="gemma3",
        n_vocab=embedding.shape[0],
        n_embd=n_embd,
        n_ctx_train=n_ctx_train,
        norm_eps=eps,
        layers=tuple(
            LayerSpec(
                mixer=everywhere if i % _PERIOD == _PERIOD - 1 else local, ffn=ffn, residual=Sandwich(norm_eps=eps)
            )
            for i in range(n_layer)
        ),
        embedding_scale=math.sqrt(n_embd),
    )
    return ModelDescription(spec=spec, weights=standard_weights(spec, file.tensors))
