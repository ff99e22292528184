"""The stderr lines about a request: one when it ends, and one every 30 s while it generates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from bloomery.server.events import StopType

Reason: TypeAlias = Literal["eos", "stop", "length", "cancel", "error"]

EVERY_SECONDS = 30.0
REASONS: dict[StopType, Reason] = {"eos": "eos", "word": "stop", "limit": "length"}


@dataclass(frozen=True, kw_only=True)
class RequestCounts:
    """What a request has cost so far.

    n_prompt: the prompt's ids, `n_reused` of them taken from the slot's sequence and `n_evaluated` computed in
    `prompt_s` seconds.  n_decoded: the generated ids; `generated_s` are the seconds since the first of them.
    n_past: ids in the slot's sequence, which holds at most n_ctx.
    """

    n_prompt: int
    n_reused: int
    n_evaluated: int
    prompt_s: float
    n_decoded: int
    generated_s: float
    n_past: int
    n_ctx: int


def _rate(count: int, seconds: float) -> str:
    return f"{count / seconds:.1f}" if seconds > 0 and count > 0 else "-"


def _subject(task_id: int, choice: int | None, endpoint: str) -> str:
    return f"request {task_id}{'' if choice is None else f' {choice}'} {endpoint}"


def _generated(counts: RequestCounts) -> str:
    # The first id comes out of the prompt's last row, so the seconds hold one step less than there are ids.
    rate = _rate(counts.n_decoded - 1, counts.generated_s)
    return f"{counts.n_decoded} ids in {counts.generated_s:.2f} s, {rate} ids/s"


def ended(task_id: int, choice: int | None, endpoint: str, counts: RequestCounts, reason: Reason) -> str:
    """The line of a request that ended; `choice` is the index among several choices, None when there is one."""
    return (
        f"{_subject(task_id, choice, endpoint)}: prompt {counts.n_prompt} ids ({counts.n_reused} reused)"
        f" in {counts.prompt_s:.2f} s, {_rate(counts.n_evaluated, counts.prompt_s)} ids/s;"
        f" generated {_generated(counts)}; stop {reason}; ctx {counts.n_past}/{counts.n_ctx}"
    )


def generating(task_id: int, choice: int | None, endpoint: str, counts: RequestCounts) -> str:
    """The line of a request that has been generating for another `EVERY_SECONDS`."""
    return (
        f"{_subject(task_id, choice, endpoint)}: generating, {_generated(counts)}; ctx {counts.n_past}/{counts.n_ctx}"
    )
