"""Drafts: guesses of a sequence's next ids, which the model then verifies in one span.

Every source of guesses (ids seen before, the model's own draft layer, a model beside it) has this one protocol. A
caller feeds `last` and the proposed ids in a span with the proposals on trial, picks its own id from each row in
order, and keeps as many inputs as were its picks; so a draft changes how many passes a reply takes, and no id of it.
What a source remembers of a sequence is kept in step by the engine or taken from the sequence's ids: there is nothing
to tell it.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from bloomery.interface.engine import Sequence


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What may follow `last` in a sequence: at most `n` ids.

    last: the sequence's next input, which is not in its state yet.
    """

    sequence: Sequence
    last: int
    n: int


class DraftSource(Protocol):
    """Where proposals come from."""

    @property
    def name(self) -> str:
        """What counters call it: "mtp", "lookup" ..."""

    def propose(self, asks: Items[Ask]) -> list[tuple[int, ...]]:
        """A proposal an ask, each of 0 to `n` ids; no sequence's state changes.

        Raises EngineError when a sequence was released, has a pending trial or is another engine's.
        """


@runtime_checkable
class Drafting(Protocol):
    """What an engine also is when it can draft by itself."""

    @property
    def draft_source(self) -> DraftSource | None:
        """The model's own draft; None when it has none, or when `EngineOptions.draft` did not ask for it."""
