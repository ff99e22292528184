"""The text of `--help`, for every seat together or for one."""

from __future__ import annotations

from collections.abc import Iterator

from bloomery.server.flags import ACTIONS, FLAGS, Flag
from bloomery.server.levers import LEVERS
from bloomery.server.seats import Seat, served_seats


def usage(seat: Seat | None = None) -> str:
    """What `--help` prints; with a seat, what that seat's does."""
    return "\n".join([*(_general() if seat is None else _of_seat(seat)), ""])


def _general() -> Iterator[str]:
    yield from ("usage: bloomery-serve (-m PATH | --model demo) [flags]", "")
    yield from _flags()
    yield from (
        "",
        "seats (the file's architecture picks one; --model SEAT asks for it, --model SEAT --help tells more):",
    )
    for seat in served_seats():
        yield f"  {seat.word:<10} {seat.models}"


def _of_seat(seat: Seat) -> Iterator[str]:
    yield from (f"usage: bloomery-serve --model {seat.word} -m PATH [flags]", "")
    yield from (f"serves {seat.models}: files of general.architecture {', '.join(seat.architectures)}", "")
    yield from _flags()
    yield from ("", "levers, as environment variables:")
    for lever in LEVERS:
        if lever.applied_by(seat.word):
            yield from (f"  {lever.name}={lever.value}", f"      {lever.unset}; {lever.help}")


def _flags() -> Iterator[str]:
    for flag in FLAGS:
        variable = f" [{flag.env}]" if flag.env else ""
        yield from (f"  {', '.join(flag.spellings)} {flag.value}{variable}", f"      {default(flag)}{flag.help}")
    for action in ACTIONS:
        yield from (f"  {', '.join(action.spellings)}", f"      {action.help}")


def default(flag: Flag) -> str:
    """The words before a flag's help that say its default, where it has one."""
    return "" if flag.default in (None, ()) else f"default {flag.default}; "
