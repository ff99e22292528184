"""Reading a metadata key that counts something."""

from __future__ import annotations

from bloomery.interface.files.gguf import GgufFile, ModelFileError

# More than any model has of anything; it keeps a hostile file from asking for a spec of billions of layers.
_MOST = 1 << 24


def read_count(file: GgufFile, key: str, default: int | None = None, *, most: int = _MOST) -> int:
    """A whole number from 1 to `most`.  Raises ModelFileError for another one, or for a missing key without default."""
    value = file.get_int(key) if default is None else file.get_int(key, default)
    if not 1 <= value <= most:
        raise ModelFileError(f"{file.path}: the key {key!r} is {value}; it must be from 1 to {most}")
    return value
