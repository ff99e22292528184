"""The settings file of `--config`: one JSON object, each key a flag's name without its dashes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

from bloomery.interface.quoted import one_line
from bloomery.server.flags import ACTIONS, BY_SPELLING, REFUSED_BY_SPELLING, Flag
from bloomery.server.given import Given, SettingsError

_MAX_FILE_BYTES = 1 << 20
# What asks a start to do something, here or in another command of the family, is no setting.
_NO_SETTINGS = frozenset(
    {"plan", "records-schema", "recommend", "dry-run", "json", "config"}
    | {spelling[2:] for action in ACTIONS for spelling in action.spellings if spelling.startswith("--")}
)


class _Number(str):
    """A number's text as it stands in the file, which a flag reads as on the command line."""

    __slots__ = ()


def read_config(path: str) -> dict[str, list[Given]]:
    """The settings of a file, by the flag's name; a list gives several.

    Raises SettingsError, naming the file, for a file that is not one JSON object, a key that is twice there, has
    dashes or is no setting, and a value its flag does not take. No message holds a value that may be a key.
    """
    given: dict[str, list[Given]] = {}
    for key, value in _object(path):
        flag = _flag(path, key)
        if flag.name in given:
            raise SettingsError(f'{path}: "{key}" is named twice; name it once')
        values = value if isinstance(value, list) else [value]
        if len(values) != 1 and not (values and flag.adds):
            raise SettingsError(f'{path}: "{key}" is a list of {len(values)}, and {flag.name} takes one value')
        given[flag.name] = [_given(path, key, flag, item) for item in values]
    return given


def _object(path: str) -> list[tuple[str, Any]]:
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"--config {path}: cannot read it: {error.strerror}") from None
    if len(data) > _MAX_FILE_BYTES:
        raise SettingsError(f"{path}: a settings file has at most {_MAX_FILE_BYTES} bytes")
    try:
        # Pairs come as tuples of tuples, so that an object is told from a list and no key is lost.
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=tuple,
            parse_int=_Number,
            parse_float=_Number,
            parse_constant=_no_constant,
        )
    except UnicodeDecodeError:
        raise SettingsError(f"{path}: it is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise SettingsError(
            f"{path}: it is no JSON at line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None
    except (RecursionError, ValueError):
        raise SettingsError(f"{path}: it is no JSON that a settings file can hold") from None
    if not isinstance(value, tuple):
        raise SettingsError(f"{path}: a settings file is one JSON object")
    return list(value)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _flag(path: str, key: str) -> Flag:
    shown = one_line(key)
    if key.startswith("-"):
        raise SettingsError(f'{path}: "{shown}" is written with its dashes; a key has none: "{shown.lstrip("-")}"')
    if key in _NO_SETTINGS:
        raise SettingsError(f'{path}: "{key}" asks the start to do something, and a file only sets; use --{key} itself')
    spelling = f"--{key}"
    if spelling in REFUSED_BY_SPELLING:
        refused = REFUSED_BY_SPELLING[spelling]
        raise SettingsError(f'{path}: "{key}": {refused.name} {refused.why}')
    flag = BY_SPELLING.get(spelling) or BY_SPELLING.get(f"-{key}")
    if flag is None:
        raise SettingsError(f'{path}: "{shown}" is no setting: there is no flag --{shown}')
    if flag.name != spelling:
        raise SettingsError(f'{path}: "{key}" is a short spelling; the key is "{flag.name[2:]}"')
    return flag


def _given(path: str, key: str, flag: Flag, value: Any) -> Given:
    if not isinstance(value, str):
        what = "an object" if isinstance(value, tuple) else "a list" if isinstance(value, list) else json.dumps(value)
        raise SettingsError(f'{path}: "{key}" is {what}, and {flag.name} takes a string or a number')
    try:
        return Given(flag.read(str(value)), flag.name, str(value))
    except ValueError as error:
        words = f' "{one_line(value)}"' if flag.shown else ""
        raise SettingsError(f'{path}: "{key}"{words}: {error}') from None
