"""Reading API keys: the list of `--api-key`, and the file of `--api-key-file`. No message here ever holds a key."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from bloomery.interface.quoted import one_line
from bloomery.server.key_fields import KeyFields, read_fields

_NO_KEY = "it names no key, and a server with no key checks no request"
_MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True)
class ApiKey:
    """A key and what it may do. `place` is where it was given, in the words of a refusal."""

    secret: str = field(repr=False)
    fields: KeyFields = field(default_factory=KeyFields)
    place: str = field(default="--api-key", compare=False)


def read_key_list(text: str) -> tuple[ApiKey, ...]:
    """The keys of a comma-separated list, empty items dropped.

    An item that begins with `"` runs to the closing `"`, may hold commas, and `""` in it is one quote; elsewhere a
    quote is a character like any other. Raises ValueError when a quote stays open or no key is left.
    """
    keys, item, at, quoted = [], "", 0, False
    while at < len(text):
        character = text[at]
        at += 1
        if quoted and text[at - 1 : at + 1] == '""':
            item += '"'
            at += 1
        elif character == '"' and (quoted or not item):
            quoted = not quoted
        elif character == "," and not quoted:
            keys.append(item)
            item = ""
        else:
            item += character
    if quoted:
        raise ValueError("a quoted key has no closing quote")
    found = [ApiKey(key) for key in (*keys, item) if key]
    if not found:
        raise ValueError(_NO_KEY)
    return distinct(found)


def read_key_file(path: str) -> tuple[ApiKey, ...]:
    """The keys of a file, one a line, each with the fields after it; blank lines and lines that begin with `#` are
    skipped.

    Raises ValueError when it cannot be read, names no key, or a line holds what no line takes.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        lines = data.decode().split("\n")
    except OSError as error:
        raise ValueError(f"cannot read it: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError("cannot read it: it is not UTF-8 text") from None
    if len(data) > _MAX_FILE_BYTES:
        raise ValueError(f"a key file has at most {_MAX_FILE_BYTES} bytes")
    found = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or line.startswith("#"):
            continue
        try:
            found.append(ApiKey(words[0], read_fields(words[1:]), f"line {number} of {one_line(path)}"))
        except ValueError as error:
            raise ValueError(f"line {number}, {error}") from None
    if not found:
        raise ValueError(_NO_KEY)
    return distinct(found)


def distinct(keys: Iterable[ApiKey]) -> tuple[ApiKey, ...]:
    """Every key once.

    Raises ValueError that names the places of a key that is given twice with different fields, and not the key.
    """
    known: dict[str, ApiKey] = {}
    for key in keys:
        first = known.setdefault(key.secret, key)
        if first != key:
            raise ValueError(f"{key.place}: the key is also that of {first.place}, with other fields; give it once")
    return tuple(known.values())
