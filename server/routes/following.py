"""From running generations to an HTTP answer, for as long as there is a client to answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

import falcon

from bloomery.server import sse
from bloomery.server.errors import ApiError, server_error
from bloomery.server.events import Event, Failure, Finish, PromptProgress, Token
from bloomery.server.generation import Generation
from bloomery.server.key_limits import PLACE, Place
from bloomery.server.render.json_text import CONTENT_TYPE, json_bytes
from bloomery.server.scheduler import Scheduler
from bloomery.server.stream import Stream

# How long a vanished client goes unnoticed while its request waits for an event.
POLL_SECONDS = 0.1

_LOG = logging.getLogger("bloomery.server")

Objects: TypeAlias = Iterator[list[dict[str, Any]]]
Render: TypeAlias = Callable[[int, PromptProgress | Token | Finish], list[dict[str, Any]]]


class ClientGoneError(Exception):
    """Nobody is left to answer."""


def start(req: falcon.Request, scheduler: Scheduler, generations: Sequence[Generation]) -> list[Stream]:
    """Queue a request's generations. Its key's place stays taken until the engine has left every one.

    Raises ApiError as `Scheduler.submit` does.
    """
    streams = scheduler.submit_all(generations)
    place: Place | None = req.env.get(PLACE)
    if place is not None:
        for stream in streams:
            place.hold()
            stream.when_left(place.release)
    return streams


def client_of(req: falcon.Request) -> Callable[[], bool]:
    """A question whether the request's client has gone. Without waitress below (in tests), it never has."""
    gone: Callable[[], bool] = req.env.get("waitress.client_disconnected", lambda: False)
    return gone


def follow(
    streams: Sequence[Stream], gone: Callable[[], bool]
) -> Iterator[tuple[int, PromptProgress | Token | Finish]]:
    """The events of a request's generations as they come, each with its choice's index.

    Raises the error a generation ended in, and ClientGoneError when `gone` says so between two events or while none
    comes. However it ends, and when it is closed before its end, no generation goes on.
    """
    try:
        for choice, event in _merged(streams, gone):
            if isinstance(event, Failure):
                raise ApiError(event.code, event.type, event.message)
            yield choice, event
    finally:
        for stream in streams:
            stream.cancel()


def _merged(streams: Sequence[Stream], gone: Callable[[], bool]) -> Iterator[tuple[int, Event]]:
    if len(streams) == 1:
        yield from ((0, event) for event in _polled(streams[0], gone))
        return
    arrived: SimpleQueue[tuple[int, Event | None]] = SimpleQueue()

    def pump(choice: int, stream: Stream) -> None:
        for event in stream:
            arrived.put((choice, event))
        arrived.put((choice, None))

    for choice, stream in enumerate(streams):
        threading.Thread(target=pump, args=(choice, stream), name=f"choice-{choice}", daemon=True).start()
    running = len(streams)
    while running:
        try:
            choice, event = arrived.get(timeout=POLL_SECONDS)
        except Empty:
            event = None
        else:
            running -= event is None
        if gone():
            raise ClientGoneError
        if event is not None:
            yield choice, event


def _polled(stream: Stream, gone: Callable[[], bool]) -> Iterator[Event]:
    while not stream.exhausted:
        event = stream.get(POLL_SECONDS)
        if gone():
            raise ClientGoneError
        if event is not None:
            yield event


def rendered(streams: Sequence[Stream], gone: Callable[[], bool], render: Render) -> Objects:
    """What each event adds to the answer; never nothing."""
    for choice, event in follow(streams, gone):
        if objects := render(choice, event):
            yield objects


def answer_whole(resp: falcon.Response, objects: Objects, join: Callable[[Iterable[dict[str, Any]]], Any]) -> None:
    """Answer with one JSON object, joined from everything the stream would have been."""
    resp.content_type = CONTENT_TYPE
    resp.data = json_bytes(join(each for some in objects for each in some))


def answer_streamed(resp: falcon.Response, objects: Objects, *, done: bool) -> None:
    """Answer with server-sent events, and `[DONE]` after them when `done`.

    Nothing is sent before the first event is there, so that a request that fails at once is answered by a plain error.
    """
    first = next(objects, [])
    resp.content_type = "text/event-stream"
    resp.set_header("X-Accel-Buffering", "no")
    resp.stream = _sse(first, objects, done)


def _sse(first: list[dict[str, Any]], rest: Objects, done: bool) -> Iterator[bytes]:
    try:
        yield b"".join(map(sse.event, first))
        for some in rest:
            yield b"".join(map(sse.event, some))
    except ClientGoneError:
        return
    except ApiError as error:
        yield sse.event(error.body())
        return
    except Exception:
        _LOG.exception("a stream ended in an unexpected error")
        yield sse.event(server_error("the server met an unexpected condition; its log has the details").body())
        return
    finally:
        # Closing the rendered events ends the generations, also when the client went away in the middle of a write.
        rest.close()  # type: ignore[attr-defined]
    if done:
        yield sse.DONE
