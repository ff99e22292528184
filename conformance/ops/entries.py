"""One entry an op of `OpSet`: what its cases are drawn from, what each output must be, and what kind of op it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from hypothesis import strategies as st

from bloomery.conformance.ops import (
    attention_definitions,
    definitions,
    draws,
    product_definitions,
    recurrent_definitions,
    state_draws,
)
from bloomery.conformance.ops.case import OpCase
from bloomery.conformance.ops.definitions import Definition
from bloomery.conformance.ops.values import WEIGHT_FORMATS

Cases: TypeAlias = Callable[[str], st.SearchStrategy[OpCase]]


@dataclass(frozen=True)
class Entry:
    """How one op is judged.

    formats: what its matrix may be stored as, each a check of its own; ("",) for an op without a matrix.  rows: the
    arrays whose first axis is the tokens, for ops that compute a row from that row alone; empty for others.  changes:
    the arguments that it changes, whose content is judged behind what it returns.  rounds: how many rounds of cases
    are drawn where no budget says otherwise; more for an op with many parts that a fault may hide in.
    """

    cases: Cases
    define: Definition
    formats: tuple[str, ...] = ("",)
    rows: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    rounds: int = 3


_state = state_draws
_plain, _products = definitions, product_definitions
_attention, _recurrent = attention_definitions, recurrent_definitions

ENTRIES: Mapping[str, Entry] = MappingProxyType(
    {
        "from_host": Entry(draws.from_host, _plain.from_host),
        "to_host": Entry(draws.to_host, _plain.to_host),
        "embed": Entry(draws.embed, _plain.embed, formats=WEIGHT_FORMATS),
        "take_rows": Entry(draws.take_rows, _plain.take_rows),
        "add": Entry(draws.add, _plain.add, rows=("a", "b")),
        "scale": Entry(draws.scale, _plain.scale, rows=("x",)),
        "rms_norm": Entry(draws.rms_norm, _plain.rms_norm, rows=("x",), rounds=6),
        "l2_norm": Entry(draws.l2_norm, _plain.l2_norm, rows=("x",)),
        "linear": Entry(draws.linear, _products.linear, formats=WEIGHT_FORMATS, rows=("x",)),
        "split_heads": Entry(draws.split_heads, _plain.split_heads),
        "merge_heads": Entry(draws.merge_heads, _plain.merge_heads),
        "split": Entry(draws.split, _plain.split),
        "concat": Entry(draws.concat, _plain.concat),
        "rope": Entry(draws.rope, _plain.rope, rows=("x", "positions"), rounds=6),
        "append": Entry(_state.append, _plain.append, changes=("cache",)),
        "attention": Entry(_state.attention, _attention.attention, rows=("q", "slots", "cells", "chosen"), rounds=12),
        "select_blocks": Entry(_state.select_blocks, _attention.select_blocks, rows=("q", "slots", "cells"), rounds=6),
        "causal_conv": Entry(_state.causal_conv, _recurrent.causal_conv, changes=("state",), rounds=6),
        "log_decay": Entry(_state.log_decay, _recurrent.log_decay, rows=("x",)),
        "delta_rule": Entry(_state.delta_rule, _recurrent.delta_rule, changes=("state",), rounds=6),
        "ssm_scan": Entry(_state.ssm_scan, _recurrent.ssm_scan, changes=("state",), rounds=6),
        "previous": Entry(_state.previous, _recurrent.previous, changes=("state",)),
        "read_state": Entry(_state.read_state, _recurrent.read_state),
        "sigmoid_gate": Entry(draws.sigmoid_gate, _plain.sigmoid_gate, rows=("x", "gate")),
        "swiglu": Entry(draws.swiglu, _plain.swiglu, rows=("gate", "up")),
        "geglu": Entry(draws.geglu, _plain.geglu, rows=("gate", "up")),
        "swiglu_oai": Entry(draws.swiglu_oai, _plain.swiglu_oai, rows=("gate", "up")),
        "squared_relu": Entry(draws.squared_relu, _plain.squared_relu, rows=("x",)),
        "route": Entry(draws.route, _plain.route, rows=("logits",), rounds=6),
        "expert_linear": Entry(
            draws.expert_linear, _products.expert_linear, formats=WEIGHT_FORMATS, rows=("x", "experts")
        ),
        "combine_experts": Entry(draws.combine_experts, _plain.combine_experts, rows=("y", "weights")),
    }
)
"""By the op's name; `tests/conformance/test_op_checks.py` holds it to `OpSet`, op for op."""
