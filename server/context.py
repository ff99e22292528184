"""How many positions each slot gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

STEP = 1024
FLOOR = 4096


class ContextError(ValueError):
    """A context that cannot be served; the message says what it takes and what there is."""


Rule: TypeAlias = Literal["target", "fitted", "set"]


@dataclass(frozen=True, kw_only=True)
class Context:
    """The positions of one slot, and what chose them: the model's limit, what fits the memory, or what was asked."""

    rule: Rule
    per_slot: int
    n_parallel: int
    limit: int

    def line(self) -> str:
        """The start line."""
        return (
            f"ctx rule={self.rule} ctx={self.per_slot} slots={self.n_parallel}"
            f" total={self.per_slot * self.n_parallel} limit={self.limit}"
        )


def choose_context(
    asked: int | None, *, n_parallel: int, n_ctx_train: int, bytes_per_cell: int, available: int
) -> Context:
    """The context of `n_parallel` slots on a model trained for `n_ctx_train` positions.

    asked: the total of all slots, or None to choose.  bytes_per_cell: the state of one position of one sequence.
    available: bytes of memory a process may take. Unset, all slots' states together take at most half of it, as the
    weights need memory too: the model's limit if that fits, else the largest multiple of 1,024 that does, down to
    4,096. A set total is split evenly, and is never cut. Raises ContextError.
    """
    if asked is not None:
        return _split(asked, n_parallel, n_ctx_train, bytes_per_cell, available)
    fitting = available // 2 // (n_parallel * bytes_per_cell)
    if n_ctx_train <= fitting:
        return Context(rule="target", per_slot=n_ctx_train, n_parallel=n_parallel, limit=n_ctx_train)
    per_slot = fitting // STEP * STEP
    if per_slot < FLOOR:
        least = min(FLOOR, n_ctx_train)
        raise ContextError(
            f"a context of {least} positions on each of {n_parallel} slots takes"
            f" {least * n_parallel * bytes_per_cell} bytes, more than half of the {available} bytes of memory that are"
            " available; name a smaller total with --ctx-size, or fewer slots with --parallel"
        )
    return Context(rule="fitted", per_slot=per_slot, n_parallel=n_parallel, limit=n_ctx_train)


def _split(asked: int, n_parallel: int, n_ctx_train: int, bytes_per_cell: int, available: int) -> Context:
    per_slot = asked // n_parallel
    if per_slot < 1:
        raise ContextError(f'--ctx-size "{asked}": {n_parallel} slots cannot share {asked} positions')
    if per_slot > n_ctx_train:
        raise ContextError(
            f'--ctx-size "{asked}": each of {n_parallel} slots would get {per_slot} positions, and the model is trained'
            f" for {n_ctx_train}; the most is {n_ctx_train * n_parallel}"
        )
    needed = per_slot * n_parallel * bytes_per_cell
    if needed > available:
        raise ContextError(
            f'--ctx-size "{asked}" takes {needed} bytes, and {available} bytes of memory are available;'
            f" the most that fits is {available // bytes_per_cell}"
        )
    return Context(rule="set", per_slot=per_slot, n_parallel=n_parallel, limit=n_ctx_train)
