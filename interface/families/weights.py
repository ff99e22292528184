"""The table of named weights that llama.cpp's naming gives: `blk.<i>.<weight>.weight`, one tensor a weight."""

from __future__ import annotations

from collections.abc import Container

from bloomery.interface.layers.model import layer_weights
from bloomery.interface.spec import ModelSpec, WeightRef


def tensor_of(weight: str) -> str:
    """The tensor's name for a program's weight name: a bias is spelled out, everything else is a `.weight`."""
    return weight if weight.endswith(".bias") else f"{weight}.weight"


def standard_weights(spec: ModelSpec, tensors: Container[str]) -> dict[str, WeightRef]:
    """Every weight the spec's programs ask for, by llama.cpp's names.

    A file without `output.weight` ties the head to the embedding. A fused `attn_qkv` stands for the query, key and
    value rows in that order when the file has it. Nothing is checked here: `coverage` compares the table to the file.
    """
    table = (spec.n_vocab, spec.n_embd)
    weights = {
        "token_embd": WeightRef(tensor="token_embd.weight", shape=table),
        "output_norm": WeightRef(tensor="output_norm.weight", shape=(spec.n_embd,)),
        "output": WeightRef(tensor="output.weight" if "output.weight" in tensors else "token_embd.weight", shape=table),
    }
    for i, layer in enumerate(spec.layers):
        asked = layer_weights(layer, spec.n_embd)
        fused = f"blk.{i}.attn_qkv.weight" in tensors
        start = 0
        for name, shape in asked.items():
            full = f"blk.{i}.{name}"
            if fused and name in {"attn_q", "attn_k", "attn_v"}:
                weights[full] = WeightRef(
                    tensor=f"blk.{i}.attn_qkv.weight", shape=shape, rows=(start, start + shape[0])
                )
                start += shape[0]
            else:
                weights[full] = WeightRef(tensor=tensor_of(full), shape=shape)
    return weights
