"""Reading API keys: the list of `--api-key`, and the file of `--api-key-file`. No message here ever holds a key."""

from __future__ import annotations

from pathlib import Path

_NO_KEY = "it names no key, and a server with no key checks no request"
_MAX_FILE_BYTES = 1 << 20


def read_key_list(text: str) -> tuple[str, ...]:
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
    keys = [key for key in (*keys, item) if key]
    if not keys:
        raise ValueError(_NO_KEY)
    return tuple(keys)


def read_key_file(path: str) -> tuple[str, ...]:
    """The keys of a file, one a line; blank lines and lines that begin with `#` are skipped.

    Raises ValueError when it cannot be read, names no key, or a line holds more than a key.
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
    keys = []
    for number, line in enumerate(lines, 1):
        fields = line.removesuffix("\r").split()
        if not fields or line.startswith("#"):
            continue
        if len(fields) > 1:
            raise ValueError(f"line {number}, field 2: fields after a key are not part of this version yet")
        keys.append(fields[0])
    if not keys:
        raise ValueError(_NO_KEY)
    return tuple(keys)
