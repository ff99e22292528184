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


@dataclass(frozen=True, kw_only=True)
class StateBytes:
    """What a sequence's state takes: for each of its positions, and once, whatever its length."""

    per_cell: int
    per_sequence: int

    def of(self, n_parallel: int, per_slot: int) -> int:
        """The bytes of all slots."""
        return n_parallel * (per_slot * self.per_cell + self.per_sequence)

    def most(self, n_parallel: int, room: int, limit: int) -> int:
        """The most positions a slot can have in `room` bytes for all slots, up to `limit`; 0 when none fit."""
        left = room // n_parallel - self.per_sequence
        if left < 0:
            return 0
        return min(limit, left // self.per_cell) if self.per_cell else limit


def count_slots(slot_ctx: int | None, *, n_ctx_train: int, state: StateBytes, available: int, most: int) -> int:
    """How many slots memory holds, up to `most`, each with one request's context: `slot_ctx`, or the model's limit.

    It is the largest count that choose_context gives that context, and 1 where it does not even give it to one slot.
    """
    room = available // 2 if slot_ctx is None else available
    one = state.of(1, n_ctx_train if slot_ctx is None else slot_ctx)
    return max(1, min(most, room // one)) if one else most


def choose_context(
    asked: int | None,
    *,
    slot_ctx: int | None = None,
    n_parallel: int,
    n_ctx_train: int,
    state: StateBytes,
    available: int,
) -> Context:
    """The context of `n_parallel` slots on a model trained for `n_ctx_train` positions.

    asked: the total of all slots, or None.  slot_ctx: the positions of each slot, or None; with neither the start
    chooses.  available: bytes of memory a process may take. Unset, all slots' states together take at most half of it,
    as the weights need memory too: the model's limit if that fits, else the largest multiple of 1,024 that does, down
    to 4,096. What is set is never cut; a total is split evenly. Raises ContextError.
    """
    if slot_ctx is not None:
        return _each(slot_ctx, n_parallel, n_ctx_train, state, available)
    if asked is not None:
        return _split(asked, n_parallel, n_ctx_train, state, available)
    fitting = state.most(n_parallel, available // 2, n_ctx_train)
    if fitting == n_ctx_train:
        return Context(rule="target", per_slot=n_ctx_train, n_parallel=n_parallel, limit=n_ctx_train)
    per_slot = fitting // STEP * STEP
    if per_slot < FLOOR:
        least = min(FLOOR, n_ctx_train)
        raise ContextError(
            f"a context of {least} positions on each of {n_parallel} slots takes {state.of(n_parallel, least)} bytes,"
            f" more than half of the {available} bytes of memory that are available; name a smaller total with"
            " --ctx-size, or fewer slots with --parallel"
        )
    return Context(rule="fitted", per_slot=per_slot, n_parallel=n_parallel, limit=n_ctx_train)


def _split(asked: int, n_parallel: int, n_ctx_train: int, state: StateBytes, available: int) -> Context:
    per_slot = asked // n_parallel
    if per_slot < 1:
        raise ContextError(f'--ctx-size "{asked}": {n_parallel} slots cannot share {asked} positions')
    if per_slot > n_ctx_train:
        raise ContextError(
            f'--ctx-size "{asked}": each of {n_parallel} slots would get {per_slot} positions, and the model is trained'
            f" for {n_ctx_train}; the most is {n_ctx_train * n_parallel}"
        )
    needed = state.of(n_parallel, per_slot)
    if needed > available:
        most = n_parallel * state.most(n_parallel, available, n_ctx_train)
        remedy = f"the most that fits is {most}" if most else "not one position fits: name fewer slots with --parallel"
        raise ContextError(
            f'--ctx-size "{asked}" takes {needed} bytes, and {available} bytes of memory are available; {remedy}'
        )
    return Context(rule="set", per_slot=per_slot, n_parallel=n_parallel, limit=n_ctx_train)


def _each(per_slot: int, n_parallel: int, n_ctx_train: int, state: StateBytes, available: int) -> Context:
    if per_slot > n_ctx_train:
        raise ContextError(
            f'--slot-ctx "{per_slot}": the model is trained for {n_ctx_train} positions, which is the most'
        )
    needed = state.of(n_parallel, per_slot)
    if needed > available:
        most = state.most(n_parallel, available, n_ctx_train)
        fewer = "name fewer slots with --parallel"
        remedy = f"the most that fits is {most}, or {fewer}" if most else f"not one position fits: {fewer}"
        raise ContextError(
            f'--slot-ctx "{per_slot}" on each of {n_parallel} slots takes {needed} bytes, and {available} bytes of'
            f" memory are available; {remedy}"
        )
    return Context(rule="set", per_slot=per_slot, n_parallel=n_parallel, limit=n_ctx_train)
