"""The settings of a start, read from the command line and the environment by the table of flags."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bloomery.interface import catalog
from bloomery.server.flags import BY_SPELLING, FLAGS, MAX_REQUESTS, NOT_YET, PLACEMENT, Flag

HINT = "--help lists the flags"


class SettingsError(ValueError):
    """A start that is refused; the message is a sentence that names the flag or the variable."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A start's settings, read and checked.

    `ctx_size` and `alias` are None when the start chooses; `given` has the names of the flags that somebody set.
    """

    model_file: str | None
    seat: str | None
    engine: str
    numerics: str
    host: str
    port: int
    ctx_size: int | None
    parallel: int
    queue_depth: int
    ubatch_size: int
    threads: int | None
    alias: str | None
    chat_template_file: str | None
    api_keys: tuple[str, ...] = field(repr=False)
    given: frozenset[str]


@dataclass(frozen=True)
class _Given:
    """A setting somebody named: its value, and the words that say where."""

    value: Any
    source: str


def _read(flag: Flag, value: str, source: str) -> _Given:
    try:
        return _Given(flag.read(value), source)
    except ValueError as error:
        shown = "" if flag.secret else f' "{value}"'
        raise SettingsError(f"{source}{shown}: {error}") from None


def _refusal(argument: str) -> str:
    """Why an argument that is no flag of ours ends the start. Nothing after a "=" is printed, as it may be a key."""
    name = argument.partition("=")[0]
    if name in BY_SPELLING:
        return f"{name}=...: a flag and its value are two arguments: {name} {BY_SPELLING[name].value}"
    if name in NOT_YET:
        return f"{name} is not part of this version yet"
    if name in PLACEMENT:
        return f"{name} places a model on cards, and the reference engine uses none; leave it out"
    if not name.startswith("-"):
        return f'unknown argument "{name}"; a model file is named with -m PATH'
    return f'unknown flag "{name}"'


def _command_line(argv: Sequence[str]) -> dict[str, list[_Given]]:
    given: dict[str, list[_Given]] = {}
    arguments = iter(argv)
    for argument in arguments:
        flag = BY_SPELLING.get(argument)
        if flag is None:
            raise SettingsError(_refusal(argument))
        value = next(arguments, None)
        if value is None or value in BY_SPELLING:
            raise SettingsError(f"{argument} needs a value: {argument} {flag.value}")
        if flag.name in given and not flag.adds:
            raise SettingsError(f"{flag.name} is given twice; name it once")
        given.setdefault(flag.name, []).append(_read(flag, value, argument))
    return given


def _environment(
    environ: Mapping[str, str], given: dict[str, list[_Given]], notice: Callable[[str], None]
) -> dict[str, list[_Given]]:
    """Read each flag's variable that the command line does not replace, and say what became of every variable."""
    by_variable = {flag.env: flag for flag in FLAGS if flag.env}
    found: dict[str, list[_Given]] = {}
    for variable in sorted(environ):
        flag = by_variable.get(variable)
        if flag is None:
            if variable.startswith("LLAMA_ARG_"):
                notice(f"{variable} is not read: it stands for no flag of this server")
        elif flag.name in given and not flag.adds:
            notice(f"{variable} is not read: {given[flag.name][0].source} on the command line replaces it")
        else:
            found[flag.name] = [_read(flag, environ[variable], variable)]
            notice(f"{variable} is read as {flag.name}" + ("" if flag.secret else f" {environ[variable]}"))
    return found


def _model(named: dict[str, list[_Given]], environ: Mapping[str, str]) -> tuple[str | None, str | None]:
    """The model file and the seat word, from the one place that names the model."""
    sources = [(given.value, f"{given.source} {given.value}") for given in named.get("--model-file", [])]
    seat = None
    for given in named.get("--model", []):
        if given.value in catalog.words():
            try:
                sources.append((str(catalog.path(given.value)), f"{given.source} {given.value}"))
            except FileNotFoundError as error:
                raise SettingsError(f"{given.source} {given.value}: {error}") from None
        else:
            seat = given.value
    if path := environ.get("BLOOMERY_REF_MODEL"):
        sources.append((path, f"BLOOMERY_REF_MODEL {path}"))
    if len({path for path, _ in sources}) > 1:
        raise SettingsError(f"the model is named twice: {' and '.join(words for _, words in sources)}; name one")
    return (sources[0][0] if sources else None), seat


def read_settings(argv: Sequence[str], environ: Mapping[str, str], notice: Callable[[str], None]) -> Settings:
    """The settings that the command line (without the program's name) and the variables make together.

    The command line replaces variables, except that keys add. `notice` gets one line for each variable, which never
    holds a key. Raises SettingsError naming the flag or variable that is unknown, given twice, or out of range.
    """
    line = _command_line(argv)
    variables = _environment(environ, line, notice)
    named = {name: variables.get(name, []) + line.get(name, []) for name in {*variables, *line}}
    values = {flag.name: named[flag.name][-1].value if flag.name in named else flag.default for flag in FLAGS}
    model_file, seat = _model(named, environ)
    slots = values["--parallel"]
    depth = values["--queue-depth"]
    if depth is None:
        depth = MAX_REQUESTS - slots
    elif slots + depth > MAX_REQUESTS:
        raise SettingsError(
            f'--queue-depth "{depth}": {slots} slots leave room for {MAX_REQUESTS - slots} waiting requests,'
            f" as the server holds {MAX_REQUESTS} at once"
        )
    keys = [key for name in ("--api-key", "--api-key-file") for given in named.get(name, []) for key in given.value]
    return Settings(
        model_file=model_file,
        seat=seat,
        engine=values["--engine"],
        numerics=values["--numerics"],
        host=values["--host"],
        port=values["--port"],
        ctx_size=values["--ctx-size"],
        parallel=slots,
        queue_depth=depth,
        ubatch_size=values["--ubatch-size"],
        threads=values["--threads"],
        alias=values["--alias"],
        chat_template_file=values["--chat-template-file"],
        api_keys=tuple(dict.fromkeys(keys)),
        given=frozenset(named),
    )
