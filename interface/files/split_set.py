"""Models cut into several GGUF files, `name-00001-of-00003.gguf` and so on, as llama.cpp's gguf-split writes them.

The first file carries the model's metadata; each carries its number (`split.no`, from 0), how many there are
(`split.count`) and the number of tensors in all (`split.tensors.count`). As in llama.cpp
(src/llama-model-loader.cpp), a set is opened by its first file.
"""

from __future__ import annotations

import re
from pathlib import Path

from bloomery.interface.files.metadata import TypedMetadata
from bloomery.interface.files.model_file_error import ModelFileError

_NAME = re.compile(r"(?P<prefix>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)

MAX_SHARDS = 99999


def shard_path(first: Path, number: int, count: int) -> Path:
    """The path of shard `number` (from 0) of the set that `first` belongs to."""
    match = _NAME.fullmatch(first.name)
    prefix = match["prefix"] if match else first.stem
    return first.with_name(f"{prefix}-{number + 1:05d}-of-{count:05d}.gguf")


def shard_count(file: TypedMetadata) -> int:
    """How many files the set of `file` has: 1 when it stands alone. Refuses a file that is not the first of its set."""
    count = file.get_int("split.count", 1)
    if count in (0, 1):
        return 1
    if not 0 < count <= MAX_SHARDS:
        raise ModelFileError(f"{file.path}: the key 'split.count' is {count}, but 1 to {MAX_SHARDS} are possible")
    first = shard_path(file.path, 0, count)
    number = file.get_int("split.no")
    if number != 0:
        raise ModelFileError(
            f"{file.path}: this is file {number + 1} of a split set of {count}; open the first one, {first.name}"
        )
    if first != file.path:
        raise ModelFileError(
            f"{file.path}: this is the first file of a split set of {count}, so it must be named like {first.name}"
        )
    return count


def check_shard(file: TypedMetadata, number: int, count: int) -> None:
    """Refuses a file that is not shard `number` (from 0) of `count`."""
    found_number, found_count = file.get_int("split.no"), file.get_int("split.count")
    if (found_number, found_count) != (number, count):
        raise ModelFileError(
            f"{file.path}: the keys 'split.no' and 'split.count' say file {found_number + 1} of {found_count}, "
            f"but its name says file {number + 1} of {count}"
        )
