"""Requests in, events out: one thread drives the engine for all of them.

Requests wait in one queue and run in slots. In every round each busy slot contributes its next inputs, one id of an
answer or a piece of a prompt, and one engine pass computes them all; so running answers advance together, and a long
prompt delays them by at most one pass. A pass holds at most `n_ubatch` rows, the answers' rows first, and always at
least one of a prompt that waits.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from bloomery.interface.engine import EngineError, Rows, Span
from bloomery.server import metrics, request_log
from bloomery.server.answer import Answer
from bloomery.server.errors import ApiError, invalid_request, unavailable
from bloomery.server.events import Failure, Finish
from bloomery.server.generation import Generation
from bloomery.server.model import ServedModel
from bloomery.server.request_log import RequestCounts
from bloomery.server.slot import Running, Slot, SlotView, common_prefix
from bloomery.server.stream import Stream

# A slot is chosen by its prefix only when that spares more than this share of the prompt, as in llama-server; a shorter
# one (a common first turn marker) is no reason to overwrite somebody's conversation.
_LEAST_SHARED = 0.1


class Scheduler:
    """The queue, the slots and the engine thread. Every method may be called from any thread."""

    def __init__(
        self,
        model: ServedModel,
        *,
        n_parallel: int,
        queue_depth: int,
        log: Callable[[str], None],
        on_failure: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`log` gets each request's lines.

        `on_failure` is told, once, why the engine cannot go on.  `clock` counts seconds.
        """
        self._model = model
        self._engine = model.engine
        self._queue_depth = queue_depth
        self._log = log
        self._on_failure = on_failure
        self._clock = clock
        self._n_ctx = self._engine.options.n_ctx
        self._slots = [Slot(index, self._engine.sequence(), self._n_ctx) for index in range(n_parallel)]
        self._task_ids = itertools.count()
        self._uses = itertools.count()
        self._counters = metrics.Counters()
        # The lock guards the queue, which slot runs what, the counters, and the two reasons to admit nothing.
        self._changed = threading.Condition()
        self._waiting: deque[Stream] = deque()
        self._answers: dict[Stream, Answer] = {}
        self._stopping: str | None = None
        self._failed: str | None = None
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)

    @property
    def failed(self) -> str | None:
        """Why the engine cannot go on, None while it can."""
        return self._failed

    def start(self) -> None:
        """Start the engine thread; called once."""
        self._thread.start()

    def submit(self, generation: Generation) -> Stream:
        """Queue a generation.

        Raises ApiError: 400 when the prompt is empty, holds an id that is not of the vocabulary, leaves no room in a
        slot's context, or asks for a sampling that cannot be; 503 when the queue is full, the server is stopping or the
        engine failed.
        """
        return self.submit_all([generation])[0]

    def submit_all(self, generations: Sequence[Generation]) -> list[Stream]:
        """Queue several generations, all of them or none.  Raises ApiError as `submit` does."""
        answers = [self._answer(generation) for generation in generations]
        with self._changed:
            self._admit(len(generations))
            streams = [Stream(next(self._task_ids), generation, self._cancelled) for generation in generations]
            self._answers.update(zip(streams, answers, strict=True))
            self._waiting.extend(streams)
            self._changed.notify_all()
        return streams

    def stop(self, cause: str, timeout: float = 5.0) -> bool:
        """Admit nothing more, end what runs with an error, and close the engine.

        Returns whether the engine thread ended within `timeout` seconds; it ends between two passes.
        """
        with self._changed:
            if self._stopping is None:
                self._stopping = cause
            self._changed.notify_all()
        if self._thread.ident is None:
            self._end()
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def slots(self) -> list[SlotView]:
        """The slots as they are now."""
        return [slot.view() for slot in self._slots]

    def metrics(self) -> tuple[metrics.Metric, ...]:
        """What /metrics shows now."""
        with self._changed:
            now = self._clock()
            load = metrics.Load(
                running=tuple(slot.counts(now) for slot in self._slots if slot.running is not None),
                waiting=len(self._waiting),
                n_past=sum(slot.sequence.n_past for slot in self._slots),
                n_cells=self._n_ctx * len(self._slots),
            )
            return metrics.table(self._counters, load)

    # Admission, on the routes' threads.

    def _answer(self, generation: Generation) -> Answer:
        n_prompt, n_vocab = len(generation.prompt), self._engine.spec.n_vocab
        if not n_prompt:
            raise invalid_request("the prompt is empty", "prompt")
        if not 0 <= min(generation.prompt) <= max(generation.prompt) < n_vocab:
            foreign = next(token for token in generation.prompt if not 0 <= token < n_vocab)
            raise invalid_request(f"invalid token id {foreign}: the vocabulary has {n_vocab} ids", "prompt")
        if n_prompt >= self._n_ctx:
            raise ApiError(
                400,
                "exceed_context_size_error",
                f"request ({n_prompt} tokens) exceeds the available context size ({self._n_ctx} tokens),"
                " try increasing it",
                extra={"n_prompt_tokens": n_prompt, "n_ctx": self._n_ctx},
            )
        try:
            return Answer(generation, self._model.tokenizer, n_vocab)
        except ValueError as error:
            raise invalid_request(str(error)) from error

    def _admit(self, n: int) -> None:
        """Raise ApiError unless `n` more generations may queue."""
        if self._failed is not None:
            raise unavailable(_failing(self._failed))
        if self._stopping is not None:
            raise unavailable(_stopping(self._stopping))
        waiting, n_slots = len(self._waiting), len(self._slots)
        room = n_slots + self._queue_depth - waiting - sum(slot.running is not None for slot in self._slots)
        if n <= room:
            return
        if n > 1:
            raise unavailable(f"the request needs {n} places and {max(room, 0)} are free", retry_after=1)
        raise unavailable(
            f"every one of the {n_slots} slots is busy and {waiting} requests wait, the queue's depth", retry_after=1
        )

    def _cancelled(self, stream: Stream) -> None:
        """Take a cancelled stream out of the queue; one that runs is ended by the engine thread after its pass."""
        with self._changed:
            if stream not in self._waiting:
                return
            self._waiting.remove(stream)
            self._drop(stream, "cancel")

    def _drop(self, stream: Stream, reason: request_log.Reason) -> None:
        """Book and log a stream that never ran; the lock is held."""
        del self._answers[stream]
        stream.leave()
        generation = stream.generation
        counts = RequestCounts(
            n_prompt=len(generation.prompt),
            n_reused=0,
            n_evaluated=0,
            prompt_s=0.0,
            n_decoded=0,
            generated_s=0.0,
            n_past=0,
            n_ctx=self._n_ctx,
        )
        self._log(request_log.ended(stream.task_id, generation.choice, generation.endpoint, counts, reason))

    # The engine thread.

    def _work(self) -> None:
        try:
            while self._await_work():
                self._round()
        except Exception as error:
            with self._changed:
                self._failed = f"{type(error).__name__}: {error}"
            self._end()
            if self._on_failure is not None:
                self._on_failure(self._failed)
        else:
            self._end()

    def _await_work(self) -> bool:
        """Wait until a generation wants a pass; False when the server stops."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._stopping is not None
                    or bool(self._waiting)
                    or any(slot.running is not None for slot in self._slots)
                )
            )
            return self._stopping is None

    def _round(self) -> None:
        for slot in self._slots:
            self._release_if_cancelled(slot)
        for slot, running in self._assign():
            self._begin(slot, running)
        planned = self._plan()
        if not planned:
            return
        began = self._clock()
        width = sum(slot.running is not None and not slot.running.in_prompt for slot, _ in planned)
        for slot, span, rows in self._pass(planned):
            self._advance(slot, span, rows)
        with self._changed:
            self._counters.book_pass(len(planned), width, self._clock() - began)

    def _assign(self) -> list[tuple[Slot, Running]]:
        """Give idle slots to waiting streams, the longest waiting first; one that wants a busy slot is passed over."""
        assigned = []
        with self._changed:
            for stream in list(self._waiting):
                slot = self._choose(stream.generation)
                if slot is not None:
                    self._waiting.remove(stream)
                    running = Running(stream=stream, answer=self._answers.pop(stream), began=self._clock())
                    slot.take(running, next(self._uses))
                    assigned.append((slot, running))
        return assigned

    def _choose(self, generation: Generation) -> Slot | None:
        """The idle slot of the longest common prefix, else the least recently used.

        As in llama-server, the last of equally old slots is taken, and a slot that is asked for is counted modulo the
        slots there are (llama.cpp `tools/server/server-context.cpp`, get_available_slot and get_slot_by_id).
        """
        idle = [slot for slot in self._slots if slot.running is None]
        if generation.id_slot >= 0:
            idle = [slot for slot in idle if slot.index == generation.id_slot % len(self._slots)]
        if not idle:
            return None
        if generation.cache_prompt and len(idle) > 1:
            shared = [common_prefix(slot.sequence.ids, generation.prompt) for slot in idle]
            if max(shared) > _LEAST_SHARED * len(generation.prompt):
                return idle[shared.index(max(shared))]
        return min(reversed(idle), key=lambda slot: slot.last_used)

    def _begin(self, slot: Slot, running: Running) -> None:
        began = self._clock()
        try:
            slot.reuse()
        except EngineError as error:
            self._fail(slot, str(error))
            return
        running.began = self._clock()
        running.cache_s = running.began - began
        if running.generation.return_progress:
            running.stream.emit(running.progress(running.began))

    def _plan(self) -> list[tuple[Slot, Span]]:
        """The next inputs of every busy slot: all answers' ids, then prompts in the order of their requests."""
        busy = [(slot, slot.running) for slot in self._slots if slot.running is not None]
        planned = [(slot, slot.span(1)) for slot, running in busy if not running.in_prompt]
        room = max(1, self._engine.options.n_ubatch - len(planned))
        prompts = [(running.stream.task_id, slot) for slot, running in busy if running.in_prompt]
        for _, slot in sorted(prompts, key=lambda prompt: prompt[0]):
            if room > 0:
                span = slot.span(room)
                room -= len(span.ids)
                planned.append((slot, span))
        return planned

    def _pass(self, planned: list[tuple[Slot, Span]]) -> list[tuple[Slot, Span, Rows]]:
        """Run one pass; a slot whose span the engine refuses is failed, and the others go on without it."""
        try:
            rows = self._engine.run([span for _, span in planned])
        except EngineError as error:
            if len(planned) == 1:
                self._fail(planned[0][0], str(error))
                return []
            # A call that raises has changed no sequence, so each slot goes again alone to show whose fault it was.
            return [done for one in planned for done in self._pass([one])]
        return [(slot, span, row) for (slot, span), row in zip(planned, rows, strict=True)]

    def _advance(self, slot: Slot, span: Span, rows: Rows) -> None:
        """Take up what a pass computed for a slot."""
        running = slot.running
        if running is None or self._release_if_cancelled(slot):
            return
        now = self._clock()
        if running.in_prompt:
            running.n_evaluated += len(span.ids)
            if running.generation.return_progress:
                running.stream.emit(running.progress(now))
            if not span.wanted:
                return
            running.first_id_at = now
        try:
            token = running.answer.advance(rows.logits(0), context_full=slot.sequence.n_past + 1 >= slot.n_ctx)
        except ValueError as error:
            self._fail(slot, str(error))
            return
        running.last_id_at = now
        running.following = token.id
        running.stream.emit(token)
        stop_type = running.answer.stop_type
        if stop_type is not None:
            self._release(slot, slot.finish(stop_type, now), request_log.REASONS[stop_type])
        elif running.generated_s >= request_log.EVERY_SECONDS * (running.lines + 1):
            running.lines = int(running.generated_s // request_log.EVERY_SECONDS)
            generation = running.generation
            self._log(
                request_log.generating(running.stream.task_id, generation.choice, generation.endpoint, slot.counts(now))
            )

    def _fail(self, slot: Slot, message: str) -> None:
        """End one generation with an error of the server; the others go on."""
        self._release(slot, Failure(code=500, type="server_error", message=message), "error")

    def _release_if_cancelled(self, slot: Slot) -> bool:
        running = slot.running
        if running is None or not running.stream.cancelled:
            return False
        self._release(slot, None, "cancel")
        return True

    def _release(self, slot: Slot, last: Finish | Failure | None, reason: request_log.Reason) -> None:
        """Free a slot; all of it is booked and logged before the client can see the last event."""
        running = slot.running
        if running is None:
            return
        counts = slot.counts(self._clock())
        with self._changed:
            slot.running = None
            self._counters.book_request(counts, running.cache_s)
        stream = running.stream
        self._log(
            request_log.ended(stream.task_id, stream.generation.choice, stream.generation.endpoint, counts, reason)
        )
        stream.leave()
        if last is not None:
            stream.emit(last)

    def _end(self) -> None:
        """End everything that runs or waits, for the reason that is set, and close the engine."""
        if self._failed is not None:
            running = Failure(code=500, type="server_error", message=f"the engine failed: {self._failed}")
            waiting = Failure(code=503, type="unavailable_error", message=_failing(self._failed))
        else:
            message = _stopping(self._stopping or "stop")
            running = waiting = Failure(code=503, type="unavailable_error", message=message)
        for slot in self._slots:
            self._release(slot, running, "error")
        with self._changed:
            left = list(self._waiting)
            self._waiting.clear()
            for stream in left:
                self._drop(stream, "error")
        for stream in left:
            stream.emit(waiting)
        self._engine.close()


def _stopping(cause: str) -> str:
    return f"the server is shutting down ({cause}); no new request is admitted"


def _failing(reason: str) -> str:
    return f"the engine failed and the server is stopping: {reason}"
