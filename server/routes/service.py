"""What every route shares: the model, the scheduler, and what a request may ask of them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from importlib.metadata import version

from bloomery.server.chat.facts import TemplateFacts
from bloomery.server.field_types import Limits
from bloomery.server.model import ServedModel
from bloomery.server.scheduler import Scheduler

BUILD = f"bloomery-{version('bloomery')}"


@dataclass(frozen=True, kw_only=True)
class Service:
    """A served model.

    facts: what its chat template does.  queue_depth: how many requests may wait.
    started: when the server began, in Unix seconds.
    """

    model: ServedModel
    facts: TemplateFacts
    scheduler: Scheduler
    queue_depth: int
    started: int = field(default_factory=lambda: int(time.time()))

    @property
    def limits(self) -> Limits:
        """What a request's fields are checked against."""
        return Limits(
            n_vocab=self.model.tokenizer.n_vocab,
            n_parallel=self.model.n_parallel,
            max_choices=self.model.n_parallel + self.queue_depth,
        )
