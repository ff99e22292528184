"""Reading a metadata key that is a size, not a count: an epsilon, a base."""

from __future__ import annotations

import math

from bloomery.interface.files.gguf import GgufFile, ModelFileError


def read_positive(file: GgufFile, key: str, default: float | None = None) -> float:
    """A finite number above 0.  Raises ModelFileError for another one, or for a missing key without default."""
    value = file.get_float(key) if default is None else file.get_float(key, default)
    if not (value > 0 and math.isfinite(value)):
        raise ModelFileError(f"{file.path}: the key {key!r} is {value}; it must be a positive number")
    return value
