"""Mamba-2: a selective state space behind a short causal convolution, gated and then normed by groups."""

from __future__ import annotations

from collections.abc import Mapping

from bloomery.interface.batch import Batch, PerSequence
from bloomery.interface.layers.program import Program
from bloomery.interface.ops import Array, OpSet, Weight
from bloomery.interface.spec import Mamba2


def run(
    ops: OpSet, kind: Mamba2, weights: Mapping[str, Weight], state: Mapping[str, Array], x: Array, batch: Batch
) -> Array:
    """Project, convolve, scan, gate, norm each group, project back."""
    lanes = (batch.slots, batch.read_lanes, batch.write_lanes)
    n_inner, n_bc = kind.n_head * kind.head_dim, kind.n_group * kind.d_state
    gate, mixed, dt = ops.split(ops.linear(x, weights["ssm_in"]), (n_inner, n_inner + 2 * n_bc, kind.n_head))
    mixed = ops.causal_conv(mixed, weights["ssm_conv1d"], weights["ssm_conv1d.bias"], state["conv"], *lanes)
    u, b, c = ops.split(mixed, (n_inner, n_bc, n_bc))
    y = ops.ssm_scan(
        ops.split_heads(u, kind.n_head),
        ops.split_heads(b, kind.n_group),
        ops.split_heads(c, kind.n_group),
        dt,
        weights["ssm_dt.bias"],
        weights["ssm_a"],
        weights["ssm_d"],
        state["scan"],
        *lanes,
    )
    groups = ops.split_heads(ops.swiglu(gate, ops.merge_heads(y)), kind.n_group)
    normed = ops.rms_norm(groups, weights["ssm_norm"], eps=kind.norm_eps)
    return ops.linear(ops.merge_heads(normed), weights["ssm_out"])


def ops_of(_kind: Mamba2) -> frozenset[str]:
    """All of `run`'s."""
    moving = {"split", "split_heads", "merge_heads"}
    return frozenset({"linear", "causal_conv", "ssm_scan", "swiglu", "rms_norm"} | moving)


def weights_of(kind: Mamba2, n_embd: int) -> dict[str, tuple[int, ...]]:
    """One projection for gate, convolved channels and steps; the taps, the newest last; decay, skip and norms."""
    n_inner = kind.n_head * kind.head_dim
    n_conv = n_inner + 2 * kind.n_group * kind.d_state
    return {
        "ssm_in": (n_inner + n_conv + kind.n_head, n_embd),
        "ssm_conv1d": (n_conv, kind.conv_kernel),
        "ssm_conv1d.bias": (n_conv,),
        "ssm_dt.bias": (kind.n_head,),
        "ssm_a": (kind.n_head, 1),
        "ssm_d": (kind.n_head, 1),
        "ssm_norm": (kind.n_group, n_inner // kind.n_group),
        "ssm_out": (n_embd, n_inner),
    }


def state_of(kind: Mamba2) -> dict[str, PerSequence]:
    """The convolution's last inputs, and each head's state."""
    n_conv = kind.n_head * kind.head_dim + 2 * kind.n_group * kind.d_state
    return {
        "conv": PerSequence((kind.conv_kernel - 1, n_conv)),
        "scan": PerSequence((kind.n_head, kind.head_dim, kind.d_state)),
    }


PROGRAM = Program(run=run, ops=ops_of, weights=weights_of, state=state_of)
