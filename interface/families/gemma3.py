"""`gemma3`: Gemma 3, text only. Local and global layers in turn, norms on both sides of each block, GELU gates."""

from __future__ import annotations

import dataclasses
import math

from bloomery.interface.families.count import read_count
from bloomery.interface.families.heads import read_heads, read_n_vocab
from bloomery.interface.families.positive import read_positive
from bloomery.interface.families.rope import read_rope
from bloomery.interface.families.unserved import refuse_unserved
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
    refuse_unserved(file)
    n_embd = read_count(file, "gemma3.embedding_length")
    n_layer = read_count(file, "gemma3.block_count", most=4096)
    heads = read_heads(file, n_embd)
    if file.get_float("gemma3.final_logit_softcapping", 0.0):
        raise ModelFileError(f"{file.path}: gemma3.final_logit_softcapping is set, which this version does not compute")
    n_ctx_train = read_count(file, "gemma3.context_length")
    eps = read_positive(file, "gemma3.attention.layer_norm_rms_epsilon")
    n_dims = read_count(file, "gemma3.rope.dimension_count", heads.head_dim)
    if n_dims > heads.head_dim:
        raise ModelFileError(
            f"{file.path}: gemma3.rope.dimension_count {n_dims} is more than a head's {heads.head_dim}"
        )
    everywhere = Gqa(
        **heads._asdict(),
        rope=read_rope(file, n_dims=n_dims, style="neox", n_ctx_train=n_ctx_train),
        scale=1.0 / math.sqrt(n_embd / heads.n_head if n_layer == _LAYERS_OF_27B else heads.head_dim),
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
    ffn = Dense(n_ff=read_count(file, "gemma3.feed_forward_length"), activation="gelu")
    spec = ModelSpec(
        architecture="gemma3",
        n_vocab=read_n_vocab(file),
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
