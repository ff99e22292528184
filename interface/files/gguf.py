"""GGUF model files: opened by reading their header, mapped into memory, and read where they are asked.

`open_gguf` checks the whole header (see header.py) and touches no tensor data. Weights come as views of the mapping,
so a file larger than memory can be worked on. A file that somebody truncates while it is open is out of reach of
these checks: the operating system then ends the process with SIGBUS at the first missing page.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from bloomery.interface.files.header import MAGIC, Header, TensorEntry, read_header
from bloomery.interface.files.metadata import Metadata, MetadataValue, StringArray, TypedMetadata
from bloomery.interface.files.model_file_error import ModelFileError
from bloomery.interface.files.quants import BlockFormat, decode
from bloomery.interface.files.split_set import check_shard, shard_count, shard_path
from bloomery.interface.quoted import quoted

__all__ = ["GgufFile", "Metadata", "MetadataValue", "ModelFileError", "StoredTensor", "StringArray", "open_gguf"]

_SMALLEST_FILE = 24


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """One tensor of a file: its shape in NumPy order (columns last), its format, and its bytes where they lie.

    All byte views are read-only uint8 views of the mapping. A row is the last axis; bytes of a row are `row_bytes`.
    """

    name: str
    shape: tuple[int, ...]
    format: BlockFormat
    nbytes: int
    path: Path
    offset: int
    _mapping: mmap.mmap = field(repr=False)

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """All bytes, `[nbytes]`."""
        return np.frombuffer(self._mapping, np.uint8, self.nbytes, self.offset)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.format.row_bytes(self.shape[-1])

    @property
    def n_rows(self) -> int:
        """Rows of the tensor with every axis but the last flattened."""
        return self.nbytes // self.row_bytes

    def blocks(self, index: int | slice | tuple[int | slice, ...] = slice(None)) -> npt.NDArray[np.uint8]:
        """The bytes `[*shape[:-1], row_bytes]` at `index`, which selects along the axes before the last."""
        view: npt.NDArray[np.uint8] = self.data.reshape(*self.shape[:-1], self.row_bytes)[index]
        return view

    def rows(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """The bytes `[stop - start, row_bytes]` of flattened rows; IndexError unless 0 <= start <= stop <= n_rows."""
        if not 0 <= start <= stop <= self.n_rows:
            raise IndexError(f"rows {start}:{stop} of tensor {self.name!r}, which has {self.n_rows}")
        return self.data.reshape(self.n_rows, self.row_bytes)[start:stop]

    def expert(self, index: int) -> npt.NDArray[np.uint8]:
        """The bytes `[rows, row_bytes]` of one expert of a tensor `[experts, rows, columns]`."""
        self._check_expert(index)
        return self.blocks(index)

    def decode(self, rows: slice | None = None) -> npt.NDArray[np.float32]:
        """The weights as a new float32 array: all of them in `shape`, or the flattened `rows` as `[n, columns]`.

        UnsupportedFormat where this build cannot decode the format; `rows` has no step.
        """
        if rows is None:
            return decode(self.data, self.format, self.shape)
        start, stop, step = rows.indices(self.n_rows)
        if step != 1:
            raise ValueError("rows are decoded without a step")
        stop = max(start, stop)
        return decode(self.rows(start, stop), self.format, (stop - start, self.shape[-1]))

    def decode_expert(self, index: int) -> npt.NDArray[np.float32]:
        """The weights `[rows, columns]` of one expert of a tensor `[experts, rows, columns]`."""
        self._check_expert(index)
        return decode(self.blocks(index), self.format, self.shape[1:])

    def _check_expert(self, index: int) -> None:
        if len(self.shape) != 3 or not 0 <= index < self.shape[0]:
            raise IndexError(f"there is no expert {index} in tensor {self.name!r} of shape {self.shape}")


class GgufFile(TypedMetadata):
    """An open model: one file, or the files of a split set taken as one.

    `metadata` is that of the first file; `tensors` holds all in file order. Arrays handed out keep their mapping
    alive, so they stay valid after `close`.
    """

    def __init__(self, path: Path, version: int, metadata: Metadata) -> None:
        self.path = path
        self.paths: tuple[Path, ...] = (path,)
        self.version = version
        self.metadata = metadata
        self.tensors: Mapping[str, StoredTensor] = {}
        self.size_bytes = 0

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensor data."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def close(self) -> None:
        """Forgets the tensors; a mapping is gone when the last array that views it is."""
        self.tensors = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<GgufFile {self.path.name}: {len(self.metadata)} keys, {len(self.tensors)} tensors>"


def open_gguf(path: str | os.PathLike[str]) -> GgufFile:
    """Opens a GGUF file, or a split set by its first file, without reading any tensor data.

    ModelFileError for a file that cannot be read or is not whole and consistent, and for a split set with a file
    missing, out of place, or repeating a tensor.
    """
    file, mapping, header = _open_shard(Path(path))
    tensors = {entry.name: _stored(entry, file.path, mapping) for entry in header.tensors}
    count = shard_count(file)
    paths = [file.path]
    for number in range(1, count):
        shard, mapping, header = _open_shard(shard_path(file.path, number, count))
        check_shard(shard, number, count)
        for entry in header.tensors:
            if entry.name in tensors:
                raise ModelFileError(
                    f"{shard.path}: tensor {quoted(entry.name)} is already in {tensors[entry.name].path.name}"
                )
            tensors[entry.name] = _stored(entry, shard.path, mapping)
        paths.append(shard.path)
        file.size_bytes += shard.size_bytes
    if count > 1:
        expected = file.get_int("split.tensors.count")
        if expected != len(tensors):
            raise ModelFileError(
                f"{file.path}: the key 'split.tensors.count' is {expected}, but the {count} files hold {len(tensors)}"
            )
    file.paths = tuple(paths)
    file.tensors = MappingProxyType(tensors)
    return file


def _open_shard(path: Path) -> tuple[GgufFile, mmap.mmap, Header]:
    mapping = _map(path)
    header = read_header(path, mapping)
    file = GgufFile(path, header.version, header.metadata)
    file.size_bytes = len(mapping)
    return file, mapping, header


def _map(path: Path) -> mmap.mmap:
    """Maps a regular file for reading. Opening never waits, so that a named pipe is refused like any other non-file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelFileError(f"{path}: the file cannot be opened: {reason}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ModelFileError(
                f"{path}: this is {'a directory' if stat.S_ISDIR(status.st_mode) else 'no regular file'}"
            )
        start = os.pread(descriptor, len(MAGIC), 0)
        if not MAGIC.startswith(start):
            raise ModelFileError(
                f"{path}: at byte 0, the file starts with {start!r}, not with {MAGIC!r}, so it is no GGUF file"
            )
        if status.st_size < _SMALLEST_FILE:
            raise ModelFileError(
                f"{path}: the file ends at byte {status.st_size}, but a GGUF file starts with {_SMALLEST_FILE} bytes"
            )
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)


def _stored(entry: TensorEntry, path: Path, mapping: mmap.mmap) -> StoredTensor:
    return StoredTensor(entry.name, entry.shape, entry.format, entry.nbytes, path, entry.start, mapping)
