"""`bloomery-chat`: a chat in the terminal, or one answer to what stands on standard input."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from types import FrameType
from typing import TextIO

from bloomery.interface.quoted import one_line
from bloomery.server.api_keys import read_key_list
from bloomery.server.console.client import Address, ChatError, Message, ServerGoneError, ask, read_address
from bloomery.server.console.own_server import NotServingError, own_server

_NAME = "bloomery-chat"
_MAX_INPUT_BYTES = 1 << 26
_INTERRUPTED = 130
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
# What a model writes must not steer the terminal: every control character but tab and line feed is shown as a mark.
_CONTROLS = dict.fromkeys({*range(0x20), *range(0x7F, 0xA0)} - {0x09, 0x0A}, "\N{REPLACEMENT CHARACTER}")

_USAGE = """\
usage: bloomery-chat --url URL [--api-key KEY] [--system TEXT]
       bloomery-chat [--system TEXT] (-m PATH | --model demo) [flags of bloomery-serve]

Chats in a terminal. When standard input is no terminal, it is the one question, and the answer goes to standard output.

  --url URL
      a running server, such as http://127.0.0.1:8080; without it a server is started for this chat and ends with it
  --api-key KEY [LLAMA_API_KEY]
      the key that a running server asks for
  --system TEXT
      the system message
  --version
      print the version and exit
  --help, -h
      print this text and exit; bloomery-serve --help lists the flags of a server

In a terminal, Ctrl-C ends an answer, or the chat at the prompt; Ctrl-D ends the chat.
"""


class _Refused(Exception):  # noqa: N818  A refusal is an answer, not a fault.
    """The command line or the input cannot be used; the message is a sentence."""


@dataclass(frozen=True, kw_only=True)
class _Options:
    """url: None to start a server with `flags`."""

    url: str | None
    system: str | None
    flags: tuple[str, ...] = field(repr=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0, 1 for what failed or was refused, 130 when Ctrl-C ended it."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if "--version" in arguments:
        _write(f"{_NAME} {version('bloomery')}\n")
        return 0
    if "--help" in arguments or "-h" in arguments:
        _write(_USAGE)
        return 0
    try:
        with _termination():
            options = _read(arguments)
            _check_open(sys.stdin, "input")
            _check_open(sys.stdout, "output")
            question = None if sys.stdin.isatty() else _standard_input()
            with _server(options) as server:
                messages: list[Message] = []
                if options.system is not None:
                    messages.append({"role": "system", "content": options.system})
                if question is None:
                    return _chat(server, messages)
                _stream(server, [*messages, {"role": "user", "content": question}])
                return 0
    except NotServingError as ended:
        return ended.code
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has enough of it; nothing more is to be flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (_Refused, ChatError) as error:
        _say(str(error))
        return 1


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _say(line: str) -> None:
    sys.stderr.write(f"{_NAME}: {line.translate(_CONTROLS)}\n")
    sys.stderr.flush()


@contextlib.contextmanager
def _termination() -> Iterator[None]:
    """Let SIGTERM end the command as an exception does, so that a server it started ends too."""

    def on_signal(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _read(arguments: Sequence[str]) -> _Options:
    given: dict[str, str] = {}
    flags: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument not in {"--url", "--system"}:
            flags.append(argument)
            continue
        value = next(rest, None)
        if not value:
            raise _Refused(f"{argument} needs a value; --help lists the flags")
        if argument in given:
            raise _Refused(f"{argument} is given twice; name it once")
        given[argument] = value
    return _Options(url=given.get("--url"), system=given.get("--system"), flags=tuple(flags))


@contextlib.contextmanager
def _server(options: _Options) -> Iterator[Address]:
    if options.url is None:
        with own_server(options.flags, sys.stderr) as server:
            yield server
        return
    key = os.environ.get("LLAMA_API_KEY")
    source = "LLAMA_API_KEY"
    match options.flags:
        case ():
            pass
        case ("--api-key", given):
            key, source = given, "--api-key"
        case ("--api-key", *_):
            raise _Refused("--api-key needs one value beside --url")
        case (argument, *_):
            shown = one_line(argument.partition("=")[0])
            raise _Refused(f"{shown} is a flag of a server, and --url names one that runs; leave one of them out")
    try:
        first = None if key is None else read_key_list(key)[0].secret
    except ValueError as error:
        raise _Refused(f"{source}: {error}") from None
    if first is not None and not (first.isascii() and first.isprintable()):
        raise _Refused(f"{source}: a key is sent in a header, which holds printable ASCII")
    try:
        address = read_address(options.url, first)
    except ValueError as error:
        raise _Refused(f'--url "{one_line(options.url)}": {error}') from None
    yield address


def _check_open(stream: TextIO | None, name: str) -> None:
    """Refuse a standard stream that a shell closed."""
    if stream is None:
        raise _Refused(f"standard {name} is closed")


def _standard_input() -> str:
    data = sys.stdin.buffer.read(_MAX_INPUT_BYTES + 1)
    if len(data) > _MAX_INPUT_BYTES:
        raise _Refused(f"standard input has more than {_MAX_INPUT_BYTES} bytes")
    try:
        question = data.decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise _Refused(f"byte {error.start} of standard input, 0x{data[error.start]:02X}, is not UTF-8") from None
    if not question.strip():
        raise _Refused("standard input holds no question")
    return question


def _chat(server: Address, messages: list[Message]) -> int:
    """Ask for questions and answer them until the input ends."""
    with contextlib.suppress(ImportError):
        # With it, input() can edit a line and bring back earlier ones.
        import readline  # noqa: F401
    while True:
        try:
            question = input("> ")
        except EOFError:
            _write("\n")
            return 0
        if not question.strip():
            continue
        messages.append({"role": "user", "content": question})
        said: list[str] = []
        try:
            _stream(server, messages, said)
        except KeyboardInterrupt:
            _write("\n")
        except ServerGoneError:
            raise
        except ChatError as error:
            _say(str(error))
        if said:
            messages.append({"role": "assistant", "content": "".join(said)})
        else:
            messages.pop()


def _stream(server: Address, messages: Sequence[Message], said: list[str] | None = None) -> None:
    """Print an answer as it comes; `said` gets its text, piece by piece, even when it is interrupted.

    A terminal shows the reasoning dimmed; elsewhere only the answer is written.
    """
    terminal = sys.stdout.isatty()
    output = _Output(sys.stdout, terminal)
    reason = ""
    with contextlib.closing(ask(server, messages)) as pieces, output:
        try:
            for piece in pieces:
                if piece.kind == "finish":
                    reason = piece.text
                elif piece.kind == "content":
                    if said is not None:
                        said.append(piece.text)
                    output.write(piece.text, dim=False)
                elif terminal:
                    output.write(piece.text, dim=True)
        except ServerGoneError as error:
            raise ServerGoneError(f"{server}: {error}") from None
    if reason == "length":
        _say("the answer ends at the limit of tokens or of the context")


class _Output:
    """An answer on its way to a stream, which it leaves undimmed and at the beginning of a line."""

    def __init__(self, stream: TextIO, terminal: bool) -> None:
        self._stream = stream
        self._terminal = terminal
        self._dim = False
        self._last = "\n"

    def __enter__(self) -> _Output:
        return self

    def __exit__(self, *_: object) -> None:
        if self._dim:
            self._stream.write(_PLAIN)
        if self._last != "\n":
            self._stream.write("\n")
        self._stream.flush()

    def write(self, text: str, *, dim: bool) -> None:
        if dim != self._dim:
            self._stream.write(_DIM if dim else f"{_PLAIN}\n")
            self._dim = dim
        self._stream.write(text.translate(_CONTROLS) if self._terminal else text)
        self._stream.flush()
        self._last = text[-1]
