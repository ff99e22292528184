"""The gated delta rule behind a short causal convolution, normed and gated a head."""

from __future__ import annotations

import math
from collections.abc import Mapping

from bloomery.interface.batch import Batch, PerSequence
from bloomery.interface.layers.program import Program
from bloomery.interface.ops import Array, OpSet, Weight
from bloomery.interface.spec import DeltaRule


def run(
    ops: OpSet, kind: DeltaRule, weights: Mapping[str, Weight], state: Mapping[str, Array], x: Array, batch: Batch
) -> Array:
    """Project, convolve, norm queries and keys, run the rule, norm each head, gate, project back."""
    lanes = (batch.slots, batch.read_lanes, batch.write_lanes)
    mixed = ops.causal_conv(ops.linear(x, weights["attn_qkv"]), weights["ssm_conv1d"], None, state["conv"], *lanes)
    n_k, n_v = kind.n_head_k * kind.head_dim, kind.n_head_v * kind.head_dim
    q, k, v = ops.split(mixed, (n_k, n_k, n_v))
    y = ops.delta_rule(
        ops.l2_norm(ops.split_heads(q, kind.n_head_k), eps=kind.norm_eps),
        ops.l2_norm(ops.split_heads(k, kind.n_head_k), eps=kind.norm_eps),
        ops.split_heads(v, kind.n_head_v),
        ops.log_decay(ops.linear(x, weights["ssm_alpha"]), weights["ssm_dt.bias"], weights["ssm_a"]),
        ops.linear(x, weights["ssm_beta"]),
        state["rule"],
        *lanes,
        scale=1.0 / math.sqrt(kind.head_dim),
    )
    gate = ops.split_heads(ops.linear(x, weights["attn_gate"]), kind.n_head_v)
    y = ops.swiglu(gate, ops.rms_norm(y, weights["ssm_norm"], eps=kind.norm_eps))
    return ops.linear(ops.merge_heads(y), weights["ssm_out"])


def ops_of(_kind: DeltaRule) -> frozenset[str]:
    """All of `run`'s."""
    moving = {"split", "split_heads", "merge_heads"}
    return frozenset({"linear", "causal_conv", "l2_norm", "log_decay", "delta_rule", "rms_norm", "swiglu"} | moving)


def weights_of(kind: DeltaRule, n_embd: int) -> dict[str, tuple[int, ...]]:
    """The projections, the convolution's taps, oldest first, and the vectors of the decay."""
    n_v = kind.n_head_v * kind.head_dim
    n_conv = 2 * kind.n_head_k * kind.head_dim + n_v
    return {
        "attn_qkv": (n_conv, n_embd),
        "attn_gate": (n_v, n_embd),
        "ssm_conv1d": (n_conv, kind.conv_kernel),
        "ssm_dt.bias": (kind.n_head_v,),
        "ssm_a": (kind.n_head_v,),
        "ssm_beta": (kind.n_head_v, n_embd),
        "ssm_alpha": (kind.n_head_v, n_embd),
        "ssm_norm": (kind.head_dim,),
        "ssm_out": (n_embd, n_v),
    }


def state_of(kind: DeltaRule) -> dict[str, PerSequence]:
    """The convolution's last inputs, and each head's matrix, value by key."""
    n_conv = (2 * kind.n_head_k + kind.n_head_v) * kind.head_dim
    return {
        "conv": PerSequence((kind.conv_kernel - 1, n_conv)),
        "rule": PerSequence((kind.n_head_v, kind.head_dim, kind.head_dim)),
    }


PROGRAM = Program(run=run, ops=ops_of, weights=weights_of, state=state_of)
