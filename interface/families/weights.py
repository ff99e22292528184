"""The table of named weights that llama.cpp's naming gives: `blk.<i>.<weight>.weight`, one tensor a weight."""

from __future__ import annotations

from collections.abc import Container, Mapping

from bloomery.interface.layers.model import weights_by_layer
from bloomery.interface.spec import ModelSpec, WeightRef

# Weights whose tensors have no suffix.
_BARE = frozenset({"ssm_a", "ssm_d"})
# Tensors that hold the rows of several weights, in this order, when the file has them.
_FUSED: Mapping[str, tuple[str, ...]] = {
    "attn_qkv": ("attn_q", "attn_k", "attn_v"),
    "ffn_gate_up_exps": ("ffn_gate_exps", "ffn_up_exps"),
}
# The weights of a draft layer that have names of their own, and what stands in where the file leaves one out.
_NEXTN: Mapping[str, tuple[str, str | None]] = {
    "eh_proj": ("nextn.eh_proj", None),
    "enorm": ("nextn.enorm", None),
    "hnorm": ("nextn.hnorm", None),
    "norm": ("nextn.shared_head_norm", "output_norm"),
    "embed": ("nextn.embed_tokens", "token_embd"),
    "head": ("nextn.shared_head_head", "output"),
}


def tensor_of(weight: str) -> str:
    """The tensor's name for a program's weight name: a `.weight`, but for biases and the few that are spelled out."""
    return weight if weight.endswith(".bias") or weight.rpartition(".")[2] in _BARE else f"{weight}.weight"


def standard_weights(
    spec: ModelSpec, tensors: Container[str], renamed: Mapping[str, str] | None = None
) -> dict[str, WeightRef]:
    """Every weight the spec's programs ask for, by llama.cpp's names.

    A file without `output.weight` ties the head to the embedding. A fused `attn_qkv` stands for the query, key and
    value rows in that order when the file has it, and a fused `ffn_gate_up_exps` for each expert's gate and up rows.
    `renamed`: the family's own tensor names of weights. The draft layer's tensors are those of the block behind the
    last. Nothing is checked here: `coverage` compares the table to the file.
    """
    renamed = renamed or {}
    table = (spec.n_vocab, spec.n_embd)
    weights = {
        "token_embd": WeightRef(tensor="token_embd.weight", shape=table),
        "output_norm": WeightRef(tensor="output_norm.weight", shape=(spec.n_embd,)),
        "output": WeightRef(tensor="output.weight" if "output.weight" in tensors else "token_embd.weight", shape=table),
    }
    for i, (prefix, asked) in enumerate(weights_by_layer(spec)):
        block = f"blk.{i}"
        fused = {
            part: whole for whole, parts in _FUSED.items() if f"{block}.{whole}.weight" in tensors for part in parts
        }
        ends: dict[str, int] = {}
        for name, shape in asked.items():
            if prefix == "nextn" and name in _NEXTN:
                own, shared = _NEXTN[name]
                tensor = f"{block}.{own}.weight"
                weights[f"nextn.{name}"] = (
                    weights[shared]
                    if shared is not None and tensor not in tensors
                    else WeightRef(tensor=tensor, shape=shape)
                )
            elif name in fused:
                whole = fused[name]
                start = ends.get(whole, 0)
                ends[whole] = start + shape[-2]
                weights[f"{prefix}.{name}"] = WeightRef(
                    tensor=f"{block}.{whole}.weight", shape=shape, rows=(start, ends[whole])
                )
            else:
                tensor = tensor_of(f"{block}.{renamed.get(name, name)}")
                weights[f"{prefix}.{name}"] = WeightRef(tensor=tensor, shape=shape)
    return weights
