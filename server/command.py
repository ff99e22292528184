"""`bloomery-serve`: from the command line to a listening server, and to its end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from queue import SimpleQueue
from types import FrameType

from bloomery.interface.coverage import CoverageError
from bloomery.interface.engine import EngineError
from bloomery.interface.files.gguf import ModelFileError
from bloomery.interface.registry import UnknownNameError
from bloomery.interface.tokenizer import TokenizerError
from bloomery.server.app import make_app
from bloomery.server.auth import ApiKeys
from bloomery.server.chat.template import ChatTemplateError
from bloomery.server.context import ContextError
from bloomery.server.given import SettingsError
from bloomery.server.model import ServedModel, load_model
from bloomery.server.scheduler import Scheduler
from bloomery.server.settings import HINT, Settings, help_seat, read_settings
from bloomery.server.transport import HttpServer, TransportSettings, serve
from bloomery.server.usage import usage

ENGINE_FAILED = 70
REFUSALS = (
    ModelFileError,
    CoverageError,
    TokenizerError,
    ChatTemplateError,
    ContextError,
    UnknownNameError,
    EngineError,
    OSError,
)
_ENGINE_STOP_SECONDS = 5.0
# After an engine failure the server answers 503 for as long, so that clients learn of it before their connection ends.
_FAILURE_SECONDS = 2.0


class _InterruptedStart(BaseException):
    """A signal before the server listened."""


def say(line: str) -> None:
    """Print a line on stderr, under the program's name; a stderr that is gone is no reason to stop serving."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"bloomery-serve: {line}\n")
        sys.stderr.flush()


@dataclass(frozen=True)
class _Cause:
    """Why the server ends: a signal's name, or what the engine failed of."""

    text: str
    engine_failed: bool


class _Shutdown:
    """What ends the server: the first signal in order, a second one at once; or the failure of the engine."""

    def __init__(self) -> None:
        self.exit_code = 0
        self._signalled = False
        self._thread: threading.Thread | None = None
        # A signal handler may put into this queue whatever the interrupted thread was doing.
        self._causes: SimpleQueue[_Cause | None] = SimpleQueue()

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM inside; only the main thread can, and elsewhere they are left alone."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def listening(self, server: HttpServer, scheduler: Scheduler) -> None:
        """From now on there is something to end in order."""
        self._thread = threading.Thread(target=self._end, args=(server, scheduler), name="shutdown", daemon=True)
        self._thread.start()

    def ended(self) -> None:
        """Wait until what was begun to end the server is done."""
        if self._thread is not None:
            self._causes.put(None)
            self._thread.join()

    def on_failure(self, reason: str) -> None:
        """The engine cannot go on."""
        self._causes.put(_Cause(reason, engine_failed=True))

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self._signalled:
            # Not even the locks of stderr are waited for here.
            os.write(2, f"bloomery-serve: {name} is the second signal; terminating at once\n".encode())
            os._exit(1)
        self._signalled = True
        if self._thread is None:
            raise _InterruptedStart(name)
        self._causes.put(_Cause(name, engine_failed=False))

    def _end(self, server: HttpServer, scheduler: Scheduler) -> None:
        """Wait for a cause and end the server for it; the engine first, so that clients get its last events."""
        cause = self._causes.get()
        if cause is None:
            return
        if cause.engine_failed:
            self.exit_code = ENGINE_FAILED
            say(f"the engine failed; the server stops instead of serving it\n  error: {cause.text}")
            time.sleep(_FAILURE_SECONDS)
            server.close()
            return
        ended = scheduler.stop(cause.text, _ENGINE_STOP_SECONDS)
        server.close()
        late = "" if ended else f"; the engine thread did not end within {_ENGINE_STOP_SECONDS:.0f} s"
        say(f"shutdown ({cause.text}){late}")
        if not ended:
            # Native code may still run on that thread, and the interpreter must not be taken down around it.
            os._exit(0)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0 for an orderly stop, 1 for a refused start, 70 for a failed engine."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if "--version" in arguments:
        print(f"bloomery-serve {version('bloomery')}")
        return 0
    if "--list-devices" in arguments:
        # No engine of this version places a model on a device, whatever the machine has.
        print("Available devices:\n  (none)")
        return 0
    shutdown = _Shutdown()
    with shutdown.signals():
        try:
            if "--help" in arguments or "-h" in arguments:
                print(usage(help_seat(arguments)), end="")
                return 0
            settings = read_settings(arguments, os.environ, say)
            if "--levers" in arguments:
                print(*settings.lever_lines, sep="\n")
                return 0
            if not arguments and settings.model_file is None:
                print(usage(), end="", file=sys.stderr)
            model = load_model(settings, say)
            with contextlib.closing(model.file):
                return _serve(model, settings, shutdown)
        except _InterruptedStart as cause:
            say(f"shutdown ({cause})")
            return 0
        except SettingsError as error:
            for sentence in (*str(error).splitlines(), HINT):
                say(sentence)
            return 1
        except REFUSALS as error:
            say(str(error))
            return 1
        except MemoryError:
            say("the machine has not enough memory to load this model; a smaller --ctx-size takes less")
            return 1


def _serve(model: ServedModel, settings: Settings, shutdown: _Shutdown) -> int:
    queue_depth = settings.waiting(model.n_parallel)
    scheduler = Scheduler(
        model,
        n_parallel=model.n_parallel,
        queue_depth=queue_depth,
        log=say,
        on_failure=shutdown.on_failure,
    )
    scheduler.start()
    transport = TransportSettings(
        host=settings.host,
        port=settings.port,
        keys=ApiKeys(settings.api_keys),
        admitted=model.n_parallel + queue_depth,
        log=say,
    )

    def on_listening(server: HttpServer) -> None:
        shutdown.listening(server, scheduler)
        say(f"listening on {server.url}")

    try:
        serve(make_app(model, scheduler, settings), transport, on_listening)
    except OSError as error:
        say(error.strerror or str(error))
        return 1
    finally:
        shutdown.ended()
        scheduler.stop("the server ended")
    return shutdown.exit_code
