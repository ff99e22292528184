"""A slot: one resident sequence, and the generation that runs on it."""

from __future__ import annotations

from dataclasses import dataclass

from bloomery.interface.engine import Sequence, Span
from bloomery.server.answer import Answer
from bloomery.server.events import Finish, PromptProgress, StopType, Timings
from bloomery.server.generation import Generation
from bloomery.server.request_log import RequestCounts
from bloomery.server.stream import Stream

_COMPARED_AT_ONCE = 512


def common_prefix(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """How many ids both begin with."""
    shorter = min(len(left), len(right))
    at = 0
    while at < shorter and left[at : at + _COMPARED_AT_ONCE] == right[at : at + _COMPARED_AT_ONCE]:
        at += _COMPARED_AT_ONCE
    at = min(at, shorter)
    while at < shorter and left[at] == right[at]:
        at += 1
    return at


@dataclass(frozen=True, kw_only=True)
class SlotView:
    """What /slots shows of one slot.

    task_id and generation are those of the request that runs, else of the last one; -1 and None before the first.
    n_past: ids in the slot's sequence.  The other counts are those of the running request: n_reused ids of its prompt
    were there already and n_evaluated are computed so far; n_remain is -1 without a limit.
    """

    id: int
    n_ctx: int
    is_processing: bool
    task_id: int
    generation: Generation | None
    n_past: int
    n_reused: int = 0
    n_evaluated: int = 0
    n_decoded: int = 0
    n_remain: int = -1
    has_next_token: bool = False
    has_new_line: bool = False


@dataclass(kw_only=True)
class Running:
    """A generation in a slot, and the clock readings of its parts, in seconds.

    n_reused: prompt ids the sequence held already; n_evaluated: those computed since.  `following` is the picked id
    that the next pass computes, None while the prompt is not done.  `lines` counts the "generating" lines printed.
    """

    stream: Stream
    answer: Answer
    began: float
    cache_s: float = 0.0
    n_reused: int = 0
    n_evaluated: int = 0
    following: int | None = None
    first_id_at: float | None = None
    last_id_at: float = 0.0
    lines: int = 0

    @property
    def generation(self) -> Generation:
        return self.stream.generation

    @property
    def in_prompt(self) -> bool:
        return self.first_id_at is None

    def next_ids(self, room: int) -> tuple[int, ...]:
        """The next inputs: the last picked id, or up to `room` ids of the prompt."""
        if self.following is not None:
            return (self.following,)
        done = self.n_reused + self.n_evaluated
        return self.generation.prompt[done : done + room]

    def progress(self, now: float) -> PromptProgress:
        """The prompt so far."""
        return PromptProgress(
            total=len(self.generation.prompt),
            cache=self.n_reused,
            processed=self.n_reused + self.n_evaluated,
            time_ms=1e3 * (now - self.began),
        )

    def prompt_s(self, now: float) -> float:
        """Seconds the prompt has taken: up to the first id, or so far."""
        return max(0.0, (now if self.first_id_at is None else self.first_id_at) - self.began)

    @property
    def generated_s(self) -> float:
        """Seconds from the first generated id to the last one."""
        if self.first_id_at is None:
            return 0.0
        # An answer that failed on its first row has no last id.
        return max(0.0, self.last_id_at - self.first_id_at)


class Slot:
    """One place for a running generation. Only the engine thread touches its sequence."""

    def __init__(self, index: int, sequence: Sequence, n_ctx: int) -> None:
        self.index = index
        self.sequence = sequence
        self.n_ctx = n_ctx
        self.running: Running | None = None
        self.last_used = -1
        self._last: tuple[int, Generation] | None = None

    def take(self, running: Running, use: int) -> None:
        """Begin a generation; `use` counts up with every generation of the server."""
        self.running = running
        self.last_used = use
        self._last = (running.stream.task_id, running.generation)

    def reuse(self) -> None:
        """Cut the sequence back to what the running generation's prompt shares with it.

        At least the prompt's last id is computed again, as its row picks the first id. Raises EngineError.
        """
        running = self._busy()
        shared = 0
        if running.generation.cache_prompt:
            prompt = running.generation.prompt
            shared = min(common_prefix(self.sequence.ids, prompt), len(prompt) - 1)
        running.n_reused = self.sequence.keep(shared)

    def span(self, room: int) -> Span:
        """The next inputs of the running generation; a prompt's rows are wanted only where they pick an id."""
        running = self._busy()
        ids = running.next_ids(room)
        ends_prompt = running.n_reused + running.n_evaluated + len(ids) == len(running.generation.prompt)
        wanted = (-1,) if running.following is not None or ends_prompt else ()
        return Span(sequence=self.sequence, ids=ids, wanted=wanted)

    def counts(self, now: float) -> RequestCounts:
        """What the running generation has cost so far."""
        running = self._busy()
        return RequestCounts(
            n_prompt=len(running.generation.prompt),
            n_reused=running.n_reused,
            n_evaluated=running.n_evaluated,
            prompt_s=running.prompt_s(now),
            n_decoded=running.answer.n_decoded,
            generated_s=running.generated_s,
            n_past=self.sequence.n_past,
            n_ctx=self.n_ctx,
        )

    def finish(self, stop_type: StopType, now: float) -> Finish:
        """The ending event of the running generation."""
        running = self._busy()
        answer = running.answer
        return Finish(
            stop_type=stop_type,
            text=answer.remainder(),
            stopping_word=answer.stopping_word,
            id_slot=self.index,
            n_prompt=len(running.generation.prompt),
            n_decoded=answer.n_decoded,
            n_past=self.sequence.n_past,
            truncated=answer.truncated,
            has_new_line=answer.has_new_line,
            timings=Timings(
                cache_n=running.n_reused,
                prompt_n=running.n_evaluated,
                prompt_ms=1e3 * running.prompt_s(now),
                predicted_n=answer.n_decoded,
                predicted_ms=1e3 * running.generated_s,
                cache_ms=1e3 * running.cache_s,
            ),
        )

    def view(self) -> SlotView:
        """The slot as /slots shows it; may be asked from any thread."""
        running = self.running
        task_id, generation = self._last or (-1, None)
        if running is None:
            return SlotView(
                id=self.index,
                n_ctx=self.n_ctx,
                is_processing=False,
                task_id=task_id,
                generation=generation,
                n_past=self.sequence.n_past,
            )
        answer = running.answer
        limit = running.generation.n_predict
        return SlotView(
            id=self.index,
            n_ctx=self.n_ctx,
            is_processing=True,
            task_id=running.stream.task_id,
            generation=running.generation,
            n_past=self.sequence.n_past,
            n_reused=running.n_reused,
            n_evaluated=running.n_evaluated,
            n_decoded=answer.n_decoded,
            n_remain=-1 if limit < 0 else limit - answer.n_decoded,
            has_next_token=answer.stop_type is None,
            has_new_line=answer.has_new_line,
        )

    def _busy(self) -> Running:
        if self.running is None:
            raise RuntimeError(f"slot {self.index} runs nothing")
        return self.running
