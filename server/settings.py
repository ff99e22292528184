"""The settings of a start, read from the command line, a settings file and the environment by the table of flags.

For one setting the command line wins over the file, the file over llama-server's variable, and the variable over a
lever; only keys add up. A line says what became of every entry and variable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from bloomery.interface import catalog
from bloomery.interface.quoted import one_line
from bloomery.server.api_keys import ApiKey, distinct
from bloomery.server.config_file import read_config
from bloomery.server.flags import (
    ACTION_SPELLINGS,
    BY_SPELLING,
    FLAGS,
    MOST_AUTO_SLOTS,
    REFUSED,
    REFUSED_BY_SPELLING,
    Flag,
)
from bloomery.server.given import Given, SettingsError
from bloomery.server.levers import lever_lines, read_levers
from bloomery.server.seats import BY_WORD, Seat
from bloomery.server.setting_values import MAX_REQUESTS, Slots

HINT = "--help lists the flags"
_BY_NAME = {flag.name: flag for flag in FLAGS}
_BY_VARIABLE = {flag.env: flag for flag in FLAGS if flag.env}
_REFUSED_BY_VARIABLE = {refused.env: refused for refused in REFUSED if refused.env}
# The words with which llama-server's variable of a switch leaves it off.
_OFF = frozenset({"off", "disabled", "false", "0"})
_SWITCHES = frozenset({"LLAMA_ARG_CPU_MOE"})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A start's settings, read and checked.

    `ctx_size`, `slot_ctx`, `threads` and `alias` are None when the start chooses; `queue_depth` is None for what the
    slots leave. `given` has the names of the flags that somebody set, and `levers` the values of the levers.
    """

    model_file: str | None
    seat: str | None
    engine: str
    numerics: str
    host: str
    port: int
    ctx_size: int | None
    slot_ctx: int | None
    parallel: Slots
    queue_depth: int | None
    ubatch_size: int
    threads: int | None
    alias: str | None
    chat_template_file: str | None
    api_keys: tuple[ApiKey, ...] = field(repr=False)
    given: frozenset[str]
    levers: Mapping[str, Any]
    lever_lines: tuple[str, ...] = field(repr=False)

    def waiting(self, n_parallel: int) -> int:
        """How many requests may wait beside `n_parallel` slots."""
        return MAX_REQUESTS - n_parallel if self.queue_depth is None else self.queue_depth


_Named = dict[str, list[Given]]


def _read(flag: Flag, value: str, source: str) -> Given:
    try:
        return Given(flag.read(value), source, value)
    except ValueError as error:
        shown = "" if flag.secret else f' "{one_line(value)}"'
        raise SettingsError(f"{source}{shown}: {error}") from None


def _refusal(argument: str) -> str:
    """Why an argument that is no flag of ours ends the start. Nothing after a "=" is printed, as it may be a key."""
    name = argument.partition("=")[0]
    if name in BY_SPELLING:
        return f"{name}=...: a flag and its value are two arguments: {name} {BY_SPELLING[name].value}"
    if name in REFUSED_BY_SPELLING:
        return f"{name} {REFUSED_BY_SPELLING[name].why}"
    if not name.startswith("-"):
        return f'unknown argument "{one_line(name)}"; a model file is named with -m PATH'
    return f'unknown flag "{one_line(name)}"'


def _command_line(argv: Sequence[str]) -> _Named:
    given: _Named = {}
    arguments = iter(argv)
    for argument in arguments:
        if argument in ACTION_SPELLINGS:
            continue
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


def _file(line: _Named, notice: Callable[[str], None]) -> _Named:
    """The settings file's entries that the command line does not replace; each gets a line."""
    if "--config" not in line:
        return {}
    path = line["--config"][0].value
    kept: _Named = {}
    for name, given in read_config(path).items():
        flag = _BY_NAME[name]
        key = name[2:]
        if (by := _replacement(flag, given, line)) is not None:
            notice(f"{path}: {key} is not read: {by} on the command line replaces it")
            continue
        kept[name] = given
        values = ", ".join(one_line(entry.text) for entry in given)
        notice(f"{path}: {key} is read as {name}" + (f" {values}" if flag.shown else ""))
    return kept


def _replacement(flag: Flag, given: list[Given], line: _Named) -> str | None:
    """The flag of the command line that sets what a file's entry sets, as it was spelled."""
    for name in (flag.name, flag.same):
        if name in line:
            return line[name][0].source
    if _names_model(flag.name, given):
        return next((found[0].source for name, found in line.items() if _names_model(name, found)), None)
    return None


def _names_model(name: str, given: list[Given]) -> bool:
    """Whether a flag names the model itself: the word of a seat does not."""
    return name == "--model-file" or (name == "--model" and given[0].value in catalog.words())


def _environment(environ: Mapping[str, str], given: _Named, notice: Callable[[str], None]) -> _Named:
    """Read each flag's variable that nothing named before replaces, and say what became of every variable."""
    found: _Named = {}
    for variable in sorted(environ):
        if variable in _REFUSED_BY_VARIABLE:
            _refuse_variable(variable, environ[variable], notice)
            continue
        flag = _BY_VARIABLE.get(variable)
        if flag is None:
            if variable.startswith("LLAMA_ARG_"):
                notice(f"{variable} is not read: it stands for no flag of this server")
            continue
        by = next((name for name in (flag.name, flag.same) if name in given), None)
        if by is not None and not flag.adds:
            notice(f"{variable} is not read: {given[by][0].source} on the command line replaces it")
        else:
            found[flag.name] = [_read(flag, environ[variable], variable)]
            notice(f"{variable} is read as {flag.name}" + ("" if flag.secret else f" {one_line(environ[variable])}"))
    return found


def _refuse_variable(variable: str, value: str, notice: Callable[[str], None]) -> None:
    if variable in _SWITCHES and value in _OFF:
        notice(f"{variable} is read as off")
        return
    refused = _REFUSED_BY_VARIABLE[variable]
    raise SettingsError(f"{variable} is set, and {refused.name} {refused.why}; unset the variable")


def _model(named: _Named, environ: Mapping[str, str]) -> tuple[str | None, str | None]:
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


def _check_slots(named: _Named, slots: Slots, depth: int | None) -> None:
    """Refuse settings of contexts and slots that contradict each other, wherever they come from."""
    if "--ctx-size" in named:
        total = named["--ctx-size"][-1].source
        if "--slot-ctx" in named:
            raise SettingsError(
                f"{named['--slot-ctx'][-1].source} beside {total}: one names a slot's positions, and the other the"
                " total of all; name one"
            )
        if slots == "auto":
            raise SettingsError(
                f"{named['--parallel'][-1].source} auto beside {total}: a total cannot say how many share it; name each"
                " one's positions with --slot-ctx"
            )
    most = MOST_AUTO_SLOTS if slots == "auto" else slots
    if depth is not None and most + depth > MAX_REQUESTS:
        raise SettingsError(
            f'--queue-depth "{depth}": {most} slots leave room for {MAX_REQUESTS - most} waiting requests,'
            f" as the server holds {MAX_REQUESTS} at once"
        )


def _api_keys(named: _Named) -> tuple[ApiKey, ...]:
    """The keys of every list and file together."""
    flags = ("--api-key", "--api-key-file")
    try:
        return distinct(key for name in flags for found in named.get(name, []) for key in found.value)
    except ValueError as error:
        raise SettingsError(f"{' and '.join(flags)}: {error}") from None


def read_settings(argv: Sequence[str], environ: Mapping[str, str], notice: Callable[[str], None]) -> Settings:
    """The settings that the command line (without the program's name), its settings file and the variables make.

    `notice` gets one line for each entry of the file and each variable, which never holds a key. Nothing but the files
    of settings and keys is read. Raises SettingsError naming the flag, entry or variable that is unknown, given twice,
    out of range, or not of this version.
    """
    line = _command_line(argv)
    given = {**_file(line, notice), **line}
    variables = _environment(environ, given, notice)
    named = {name: variables.get(name, []) + given.get(name, []) for name in {*variables, *given}}
    values = {flag.name: named[flag.name][-1].value if flag.name in named else flag.default for flag in FLAGS}
    model_file, seat = _model(named, environ)
    _check_slots(named, values["--parallel"], values["--queue-depth"])
    by_flag = {name: values[name] for name in named}
    replaced = {
        name: found[-1].source + (" on the command line" if name in given else "") for name, found in named.items()
    }
    levers = read_levers(environ, seat, replaced, notice)
    return Settings(
        model_file=model_file,
        seat=seat,
        engine=values["--engine"],
        numerics=values["--numerics"],
        host=values["--host"],
        port=values["--port"],
        ctx_size=values["--ctx-size"],
        slot_ctx=values["--slot-ctx"],
        parallel=values["--parallel"],
        queue_depth=values["--queue-depth"],
        ubatch_size=levers.get("BLOOMERY_QWEN3_UBATCH", values["--ubatch-size"]),
        threads=levers.get("BLOOMERY_THREADS", values["--threads"]),
        alias=values["--alias"],
        chat_template_file=values["--chat-template-file"],
        api_keys=_api_keys(named),
        given=frozenset(named),
        levers=levers,
        lever_lines=tuple(lever_lines(levers, by_flag, seat)),
    )


def help_seat(argv: Sequence[str]) -> Seat | None:
    """The seat whose usage `--help` prints, from the command line or its settings file; None for all seats.

    Arguments that are no flags are passed over here. Raises SettingsError for a settings file that is refused, and for
    a word that `--model` does not take.
    """
    following = dict(pairwise(argv))
    if list(argv).count("--config") > 1:
        raise SettingsError("--config is given twice; name it once")
    word = None
    if "--config" in following:
        for given in read_config(following["--config"]).get("--model", []):
            word = given.value
    if "--model" in following:
        word = _read(_BY_NAME["--model"], following["--model"], "--model").value
    return None if word is None else BY_WORD.get(word)
