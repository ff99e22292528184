"""`bloomery-conformance`: holds an engine, an op set or a server against the definition, and reports."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import FrameType, ModuleType

from bloomery.conformance.commands import UsageError
from bloomery.conformance.finding import Check, Effort
from bloomery.conformance.fixtures import FixtureError
from bloomery.conformance.oracle import OracleError
from bloomery.conformance.recording import RecordingError
from bloomery.conformance.reports.report import NOTHING_RAN, PASSED, Report, Result
from bloomery.conformance.runner import Limits, run_checks
from bloomery.conformance.selection import SelectionError, selection
from bloomery.interface.coverage import CoverageError
from bloomery.interface.engine import EngineError
from bloomery.interface.files.gguf import ModelFileError
from bloomery.interface.registry import UnknownNameError
from bloomery.interface.tokenizer import TokenizerError

NAME = "bloomery-conformance"
COMMANDS: Mapping[str, str] = {
    "all": "the reference: its parts, ops and seats, and a server that serves it (what runs when no command is named)",
    "parts": "block formats, tokenizers and the sampler, which every engine and server stands on",
    "ops": "an op set against the reference, op by op",
    "seat": "an engine against recorded models, or on a file of yours",
    "serve": "a running server against recordings or another server, and the laws of serving",
    "record": "take recordings of a running server",
    "diff": "compare two recordings",
    "bisect": "name the first op at which two engines part",
}
INTERRUPTED = 130
_REFUSALS = (
    UsageError,
    SelectionError,
    RecordingError,
    FixtureError,
    OracleError,
    UnknownNameError,
    ModelFileError,
    CoverageError,
    TokenizerError,
    EngineError,
    OSError,
)


class _Terminated(BaseException):
    """SIGTERM, which ends the run as Ctrl-C does."""


def say(line: str) -> None:
    """Print a line on stderr, under the command's name; a stderr that is gone is no reason to stop."""
    with contextlib.suppress(OSError, ValueError):
        print(f"{NAME}: {line}", file=sys.stderr, flush=True)


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name.ljust(width)}  {summary}" for name, summary in COMMANDS.items()]
    return "\n".join(
        [
            f"usage: {NAME} [COMMAND] [options]",
            "",
            "Hold an engine, an op set or a server against the definition and learn where it parts.",
            "",
            "commands:",
            *lines,
            "",
            f"`{NAME} COMMAND --help` lists a command's options.",
            "Exit codes: 0 something was checked and conforms, 1 something does not, 2 usage or nothing ran.",
            "",
        ]
    )


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e9:
        raise ValueError
    return value


def _count(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 1024:
        raise ValueError
    return value


_positive.__name__ = "positive number"
_count.__name__ = "count"


def _add_common(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("options of every command")
    cpus = len(os.sched_getaffinity(0))
    group.add_argument(
        "-k", metavar="EXPRESSION", help='run the checks whose "subject name" it matches: "norm and not f16"'
    )
    group.add_argument("--list", action="store_true", help="list the checks instead of running them")
    group.add_argument("--seed", type=int, default=0, help="of everything drawn (default: %(default)s)")
    group.add_argument(
        "--budget", type=_positive, metavar="SECONDS", help="for the whole run, shared out over its checks"
    )
    group.add_argument(
        "--timeout", type=_positive, metavar="SECONDS", default=600.0,
        help="after which a check has failed to end (default: %(default)g)",
    )  # fmt: skip
    group.add_argument(
        "-j", "--jobs", type=_count, metavar="N", default=min(cpus, 8), help="checks at once (default: %(default)s)"
    )
    group.add_argument("--junit", type=Path, metavar="FILE", help="write the report as JUnit XML")
    group.add_argument("--html", type=Path, metavar="FILE", help="write the report as one HTML page")
    group.add_argument(
        "--replays", type=Path, metavar="DIR", default=Effort().replays,
        help="where failing cases are saved (default: %(default)s)",
    )  # fmt: skip
    group.add_argument("--quiet", "-q", action="store_true", help="no progress on stderr")


def _read(argv: Sequence[str]) -> tuple[str, ModuleType, argparse.Namespace]:
    """The command's name, its module and its arguments; argparse exits with 2 where they make no sense."""
    named = bool(argv) and argv[0] in COMMANDS
    name = argv[0] if named else "all"
    module = import_module(f"bloomery.conformance.commands.{name}")
    parser = argparse.ArgumentParser(
        prog=f"{NAME} {name}" if named else NAME,
        description=(module.__doc__ or "").strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_common(parser)
    module.add_arguments(parser)
    rest = list(argv[1:] if named else argv)
    if not named and rest and not rest[0].startswith("-"):
        parser.error(f"no command is named {rest[0]}; there are {', '.join(COMMANDS)}")
    return name, module, parser.parse_args(rest)


def _checks(name: str, module: ModuleType, arguments: argparse.Namespace) -> list[Check]:
    if hasattr(module, "checks"):
        listed: list[Check] = module.checks(arguments)
    else:
        # A command that is one piece of work is one check, so that an engine's crash in it is a finding too.
        listed = [Check(subject=name, name="run", run=lambda _effort: module.run(arguments))]
    matches = selection(arguments.k) if arguments.k is not None else lambda _name: True
    return [check for check in listed if matches(f"{check.subject} {check.name}")]


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends what runs inside as Ctrl-C does, so that no process of a check outlives a cancelled job."""

    def terminate(_number: int, _frame: FrameType | None) -> None:
        raise _Terminated

    try:
        previous = signal.signal(signal.SIGTERM, terminate)
        # A shell's background job ignores it, and then nothing could interrupt a run but killing it.
        interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    except ValueError:
        # Only the main thread of a process has signals.
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
        signal.signal(signal.SIGINT, interrupt)


class _Progress:
    """A line on stderr for each check that ended: on a terminal the same one again and again."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        self._total = total
        self._quiet = quiet
        self._ended = 0
        # A stderr that is closed is none.
        self._terminal = sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty()

    def __call__(self, result: Result) -> None:
        self._ended += 1
        if self._quiet:
            return
        name = f"{result.subject}: {result.name}".encode("unicode_escape").decode()
        line = f"[{self._ended}/{self._total}] {name} {result.verdict} ({result.seconds:.1f} s)"
        with contextlib.suppress(OSError, ValueError):
            if self._terminal:
                room = shutil.get_terminal_size().columns - 1
                print(f"\r\x1b[K{line[:room]}", end="", file=sys.stderr, flush=True)
            else:
                print(line, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the terminal's line empty."""
        if not self._quiet and self._terminal and self._ended:
            with contextlib.suppress(OSError, ValueError):
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _refuse_unwritable(flag: str, file: Path | None) -> None:
    """A report that cannot be written is known before the run, not after it."""
    if file is None:
        return
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise UsageError(f"{flag} {file}: not a file in a folder that is there")
    if not os.access(file if file.exists() else file.absolute().parent, os.W_OK):
        raise UsageError(f"{flag} {file}: cannot be written")


def _run(arguments: argparse.Namespace, checks: list[Check], argv: Sequence[str]) -> Report:
    started = datetime.datetime.now(datetime.UTC)
    began = time.monotonic()
    progress = _Progress(len(checks), quiet=arguments.quiet)
    try:
        results = run_checks(
            checks,
            Effort(seed=arguments.seed, replays=arguments.replays),
            Limits(jobs=arguments.jobs, budget=arguments.budget, timeout=arguments.timeout),
            progress,
        )
    finally:
        progress.end()
    return Report(
        command=shlex.join([NAME, *argv]),
        version=version("bloomery"),
        seed=arguments.seed,
        started=started.replace(tzinfo=None).isoformat(timespec="seconds"),
        seconds=time.monotonic() - began,
        results=results,
    )


def _write(report: Report, arguments: argparse.Namespace) -> None:
    if arguments.junit is not None:
        from bloomery.conformance.reports.junit import junit_report

        arguments.junit.write_bytes(junit_report(report))
    if arguments.html is not None:
        from bloomery.conformance.reports.html import html_report

        arguments.html.write_text(html_report(report), encoding="utf-8", errors="backslashreplace")


def _print_report(report: Report) -> None:
    from bloomery.conformance.reports.terminal import terminal_report

    paint = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    _print(terminal_report(report, width=shutil.get_terminal_size((100, 24)).columns, paint=paint))


def _print(text: str) -> None:
    """Text on stdout, whatever its encoding; a reader that has gone away is no error."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except BrokenPipeError:
        # The interpreter flushes stdout once more at its end, which must find somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0 conforms, 1 does not, 2 usage or nothing ran, 130 interrupted."""
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] in (["--help"], ["-h"]):
        _print(_overview())
        return PASSED
    if given[:1] == ["--version"]:
        _print(f"{NAME} {version('bloomery')}")
        return PASSED
    try:
        with _terminable():
            name, module, arguments = _read(given)
            return _main(name, module, arguments, given)
    except _REFUSALS as error:
        say(str(error))
        return NOTHING_RAN
    except ModuleNotFoundError as error:
        if error.name != "hypothesis":
            raise
        say("the cases are drawn with hypothesis: pip install 'bloomery[conformance]'")
        return NOTHING_RAN
    except (KeyboardInterrupt, _Terminated):
        say("interrupted; what ran was stopped and nothing is reported")
        return INTERRUPTED


def _main(name: str, module: ModuleType, arguments: argparse.Namespace, argv: Sequence[str]) -> int:
    _refuse_unwritable("--junit", arguments.junit)
    _refuse_unwritable("--html", arguments.html)
    if arguments.replays.exists() and not (arguments.replays.is_dir() and os.access(arguments.replays, os.W_OK)):
        raise UsageError(f"--replays {arguments.replays}: not a folder that can be written to")
    checks = _checks(name, module, arguments)
    if not checks:
        because = f"-k {arguments.k!r} selects none of them" if arguments.k is not None else "there are none"
        say(f"no check to run: {because}; `{NAME} {name} --list` lists the checks")
        return NOTHING_RAN
    if arguments.list:
        _print("\n".join(f"{check.subject} {check.name}" for check in checks))
        return PASSED
    report = _run(arguments, checks, argv)
    _write(report, arguments)
    _print_report(report)
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
