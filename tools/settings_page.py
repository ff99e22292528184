"""Write docs/settings.md from the tables that the server itself reads: `python -m tools.settings_page`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bloomery.server.flags import ACTIONS, FLAGS, REFUSED, Flag
from bloomery.server.levers import LEVERS, Lever
from bloomery.server.seats import served_seats

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"

_ORDER = """\
# Settings

A start needs a model and nothing else. This page is written by `python -m tools.settings_page` from the tables that the
server reads; `bloomery-serve --help` and `bloomery-serve --levers` print the same.

One setting can be named in five places. The first of them that names it wins, and a line at the start says what became
of every other one:

1. the command line, in any spelling of the flag;
2. the settings file of `--config FILE`;
3. llama-server's variable;
4. a lever, a variable whose name begins with `BLOOMERY_`;
5. the default.

API keys add up instead: the variable's, the file's or the command line's, and those of the key file together make one
set.
The model is never picked between two places: named twice, it ends the start.

## The settings file

One JSON object. A key is a flag's long name without its dashes, a value is the flag's as a string or a number, and a
list gives a flag that adds up once for each value:

```json
{"model-file": "/models/model.gguf", "ctx-size": 65536, "parallel": 2, "api-key-file": "/etc/bloomery/keys"}
```

A flag on the command line replaces its entry. So does one that sets the same thing another way: `--slot-ctx` and
`--ctx-size`, `-m` and a `--model` of the catalog. The line about an entry prints its value only where the table below
says so, and never a key.

## Flags
"""


def page() -> str:
    """The text of docs/settings.md."""
    return "\n".join([*_lines(), ""])


def _lines() -> Iterator[str]:
    yield _ORDER
    yield from _table(("flag", "value", "default", "variable", "printed from a file", "sets"), map(_flag, FLAGS))
    yield from ("", "In place of serving:", "")
    actions = ((_codes(action.spellings), _cell(action.help)) for action in ACTIONS)
    yield from _table(("flag", "does"), actions)
    yield from (
        "",
        "## Levers",
        "",
        "A set lever that nobody applies ends the start, and so does an unknown `BLOOMERY_` name.",
        "",
    )
    levers = (_lever(lever) for lever in LEVERS if lever.read is not None)
    yield from _table(("lever", "value", "when it is not set", "seats", "replaced by", "sets"), levers)
    yield from ("", "Known, and refused in this version:", "")
    refused = ((f"`{lever.name}`", _cell(lever.why)) for lever in LEVERS if lever.read is None)
    yield from _table(("lever", "why"), refused)
    yield from ("", "## Flags that end the start", "")
    flags = ((_codes(flag.spellings), f"`{flag.env}`" if flag.env else "", _cell(flag.why)) for flag in REFUSED)
    yield from _table(("flag", "variable", "it"), flags)
    yield from ("", "## Seats", "")
    seats = ((f"`{seat.word}`", seat.models, _codes(seat.architectures)) for seat in served_seats())
    yield from _table(("word of `--model`", "models", "`general.architecture`"), seats)


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _flag(flag: Flag) -> tuple[str, ...]:
    default = "" if flag.default in (None, ()) else f"`{flag.default}`"
    variable = f"`{flag.env}`" if flag.env else ""
    printed = "yes" if flag.shown else ""
    return _codes(flag.spellings), _cell(f"`{flag.value}`"), default, variable, printed, _cell(flag.help)


def _lever(lever: Lever) -> tuple[str, ...]:
    seats = "all" if lever.seats is None else _codes(lever.seats)
    flag = f"`{lever.flag}`" if lever.flag else ""
    return f"`{lever.name}`", _cell(f"`{lever.value}`"), lever.unset, seats, flag, _cell(lever.help)


def _codes(words: tuple[str, ...]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
