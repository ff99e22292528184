"""What stands between a feed-forward's projections, for dense layers and experts alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bloomery.interface.ops import Array, OpSet
from bloomery.interface.spec import Activation

# The op of each activation; those of one argument have no gate projection.
GATED: Mapping[Activation, str] = {"silu": "swiglu", "gelu": "geglu", "oai": "swiglu_oai"}
UNGATED: Mapping[Activation, str] = {"relu2": "squared_relu"}


def activation_op(activation: Activation) -> str:
    """The op's name."""
    return {**GATED, **UNGATED}[activation]


def activated(ops: OpSet, activation: Activation, project: Callable[[str], Array]) -> Array:
    """The inner row: `project("gate")` and `project("up")` through the activation, or the latter alone."""
    op = getattr(ops, activation_op(activation))
    y: Array = op(project("gate"), project("up")) if activation in GATED else op(project("up"))
    return y


def projections(activation: Activation) -> tuple[str, ...]:
    """The projections into the inner width."""
    return ("gate", "up") if activation in GATED else ("up",)
