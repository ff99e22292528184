"""What a route holds of a running generation: its events as they come, and the way to end it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from bloomery.server.events import Event, Failure, Finish
from bloomery.server.generation import Generation


class Stream:
    """The events of one generation, made by the engine thread and read by one other thread.

    A stream is exhausted once its `Finish` or `Failure` was read, or once it was cancelled.
    """

    def __init__(self, task_id: int, generation: Generation, on_cancel: Callable[[Stream], None]) -> None:
        self.task_id = task_id
        self.generation = generation
        self.cancelled = False
        self._on_cancel = on_cancel
        self._events: deque[Event] = deque()
        self._ended = False
        self._left = False
        self._when_left: list[Callable[[], None]] = []
        self._arrived = threading.Condition()

    @property
    def exhausted(self) -> bool:
        """Whether no event will come any more."""
        return self.cancelled or (self._ended and not self._events)

    def get(self, timeout: float | None = None) -> Event | None:
        """The next event; None when none came within `timeout` seconds, or when the stream is exhausted.

        A `timeout` of None waits as long as it takes.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._arrived:
            while not self._events and not self.exhausted:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._arrived.wait(left)
            return None if self.cancelled else self._events.popleft() if self._events else None

    def __iter__(self) -> Iterator[Event]:
        while (event := self.get()) is not None:
            yield event

    def cancel(self) -> None:
        """End the generation because nobody wants it any more; idempotent, and nothing after the end."""
        with self._arrived:
            if self.cancelled or self._ended:
                return
            self.cancelled = True
            self._events.clear()
            self._arrived.notify_all()
        self._on_cancel(self)

    def emit(self, event: Event) -> None:
        """Add an event; the engine thread's part. An ending event ends the stream, and nothing follows one."""
        with self._arrived:
            if self.cancelled or self._ended:
                return
            self._ended = isinstance(event, Finish | Failure)
            self._events.append(event)
            self._arrived.notify_all()

    def when_left(self, call: Callable[[], None]) -> None:
        """Have `call` called once the engine has left the generation: at once when it has."""
        with self._arrived:
            if not self._left:
                self._when_left.append(call)
                return
        call()

    def leave(self) -> None:
        """Nothing is computed for the generation any more; the scheduler's part, once, before an ending event."""
        with self._arrived:
            self._left = True
        for call in self._when_left:
            call()
