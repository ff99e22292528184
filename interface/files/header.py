"""The bounded reader of a GGUF header: every length and count is checked against the bytes that remain before its use.

The format (versions 2 and 3, little-endian): the magic "GGUF", a 4-byte version, the numbers of tensors and of keys
(8 bytes each), the keys with their values, the tensor descriptions, padding to the alignment, the data. Strings are
an 8-byte length and bytes. Which files are refused follows llama.cpp (ggml/src/gguf.cpp), with limits on top that
keep the cost of a hostile header small.
"""

from __future__ import annotations

import mmap
import struct
from array import array
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from bloomery.interface.files.metadata import Entry, Metadata, StoredNumbers, StoredText, StringArray
from bloomery.interface.files.model_file_error import ModelFileError
from bloomery.interface.files.quants import FORMATS, BlockFormat
from bloomery.interface.quoted import quoted

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
ALIGNMENT_KEY = "general.alignment"

# GGUF's own limit on a key, and ggml's on a tensor name with its final zero and on dimensions.
MAX_KEY_BYTES = 65535
MAX_NAME_BYTES = 63
MAX_DIMENSIONS = 4

# Ours, far above any real file: what they bound costs memory or time for each item.
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 18
MAX_STRINGS = 1 << 22
MAX_TEXT_BYTES = 1 << 24

# Ours as well, for a header as a whole: the names of its keys, its arrays of strings, the items of its other arrays.
MAX_NAMES_BYTES = 1 << 26
MAX_STRINGS_BYTES = 1 << 27
MAX_NUMBERS = 1 << 24

# The fewest bytes a key with its value, and a tensor description, can take.
_SMALLEST_KEY = 8 + 1 + 4 + 1
_SMALLEST_TENSOR = 8 + 1 + 4 + 8 + 4 + 8

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

_STRING = 8
_ARRAY = 9
_BOOL = 7

# Value types by number: the name llama.cpp prints and the layout of one value.
_SCALARS: dict[int, tuple[str, struct.Struct, np.dtype[np.generic]]] = {
    0: ("u8", struct.Struct("<B"), np.dtype("u1")),
    1: ("i8", struct.Struct("<b"), np.dtype("i1")),
    2: ("u16", struct.Struct("<H"), np.dtype("<u2")),
    3: ("i16", struct.Struct("<h"), np.dtype("<i2")),
    4: ("u32", struct.Struct("<I"), np.dtype("<u4")),
    5: ("i32", struct.Struct("<i"), np.dtype("<i4")),
    6: ("f32", struct.Struct("<f"), np.dtype("<f4")),
    _BOOL: ("bool", struct.Struct("<?"), np.dtype("?")),
    10: ("u64", struct.Struct("<Q"), np.dtype("<u8")),
    11: ("i64", struct.Struct("<q"), np.dtype("<i8")),
    12: ("f64", struct.Struct("<d"), np.dtype("<f8")),
}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies: its shape in NumPy order, its format, and its bytes from the start of the file."""

    name: str
    shape: tuple[int, ...]
    format: BlockFormat
    start: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a GGUF file says about itself."""

    version: int
    metadata: Metadata
    tensors: tuple[TensorEntry, ...]


class _Reader:
    """Reads forward through the mapped file and refuses to read past its end."""

    def __init__(self, path: Path, mapping: mmap.mmap) -> None:
        self.path = path
        self.mapping = mapping
        self.size = len(mapping)
        self.position = 0
        self.strings_left = MAX_STRINGS
        self.strings_bytes_left = MAX_STRINGS_BYTES
        self.names_bytes_left = MAX_NAMES_BYTES
        self.numbers_left = MAX_NUMBERS

    def refusal(self, what: str, at: int | None = None) -> ModelFileError:
        return ModelFileError(f"{self.path}: at byte {self.position if at is None else at}, {what}")

    def remaining(self) -> int:
        return self.size - self.position

    def number(self, layout: struct.Struct, what: str) -> int | float:
        if layout.size > self.remaining():
            raise self.refusal(f"the file ends inside {what}")
        value: int | float = layout.unpack_from(self.mapping, self.position)[0]
        self.position += layout.size
        return value

    def u32(self, what: str) -> int:
        return int(self.number(_U32, what))

    def u64(self, what: str) -> int:
        return int(self.number(_U64, what))

    def string_span(self, what: str) -> tuple[int, int]:
        """Steps over one string and returns where its bytes start and stop."""
        at = self.position
        length = self.u64(f"the length of {what}")
        if length > self.remaining():
            raise self.refusal(f"{what} claims {length} bytes, but {self.remaining()} remain in the file", at)
        start = self.position
        self.position += length
        return start, self.position

    def name(self, what: str, limit: int) -> str:
        """Reads a key or a tensor name: not empty, at most `limit` bytes, UTF-8."""
        at = self.position
        start, stop = self.string_span(what)
        if start == stop:
            raise self.refusal(f"{what} is empty", at)
        if stop - start > limit:
            raise self.refusal(f"{what} has {stop - start} bytes, more than the {limit} allowed", at)
        self.names_bytes_left -= stop - start
        if self.names_bytes_left < 0:
            raise self.refusal(f"{what} brings the header over {MAX_NAMES_BYTES} bytes of names", at)
        try:
            return self.mapping[start:stop].decode("utf-8")
        except UnicodeDecodeError:
            raise self.refusal(f"{what} is not UTF-8", at) from None

    def text(self, what: str) -> StoredText:
        """Steps over a string value; its bytes stay in the file."""
        at = self.position
        start, stop = self.string_span(what)
        if stop - start > MAX_TEXT_BYTES:
            raise self.refusal(f"{what} has {stop - start} bytes, more than the {MAX_TEXT_BYTES} allowed", at)
        return StoredText(start, stop)

    def numbers(self, dtype: np.dtype[np.generic], count: int, what: str) -> StoredNumbers:
        """Steps over an array of numbers, whose bytes are known to be there; they stay in the file."""
        if count > self.numbers_left:
            raise self.refusal(f"{what} claims {count} items, which brings the header over {MAX_NUMBERS} numbers")
        self.numbers_left -= count
        start = self.position
        self.position += count * dtype.itemsize
        return StoredNumbers(dtype, count, start)

    def string_array(self, count: int, what: str) -> StringArray:
        """Walks the lengths of `count` strings; their bytes stay in the file."""
        at = self.position
        if count > self.strings_left:
            raise self.refusal(f"{what} brings the header over {MAX_STRINGS} strings", at)
        self.strings_left -= count
        mapping, unpack = self.mapping, _U64.unpack_from
        stop = min(self.size, at + self.strings_bytes_left)
        starts = array("q", [at])
        add = starts.append
        last_length = stop - _U64.size
        for index in range(count):
            if at > last_length:
                if stop < self.size:
                    raise self._too_many_string_bytes(index, what, at)
                raise self.refusal(f"the file ends inside the length of string {index} of {what}", at)
            (length,) = unpack(mapping, at)
            if length > last_length - at:
                remain = self.size - _U64.size - at
                if length <= remain:
                    raise self._too_many_string_bytes(index, what, at)
                raise self.refusal(
                    f"string {index} of {what} claims {length} bytes, but {remain} remain in the file", at
                )
            at += 8 + length  # Spelled out, as is `add`: this loop runs a million times for a large vocabulary.
            add(at)
        self.strings_bytes_left -= at - self.position
        self.position = at
        return StringArray(mapping, np.frombuffer(starts, np.int64))

    def _too_many_string_bytes(self, index: int, what: str, at: int) -> ModelFileError:
        return self.refusal(
            f"string {index} of {what} brings the header's arrays of strings over {MAX_STRINGS_BYTES} bytes", at
        )


def read_header(path: Path, mapping: mmap.mmap) -> Header:
    """Reads the header of one mapped file, which starts with the magic.

    ModelFileError for anything that is not whole and consistent.
    """
    reader = _Reader(path, mapping)
    version = _read_version(reader)
    n_tensors = reader.u64("the number of tensors")
    n_keys = reader.u64("the number of keys")
    most_keys = min(MAX_KEYS, reader.remaining() // _SMALLEST_KEY)
    if n_keys > most_keys:
        raise reader.refusal(f"the header claims {n_keys} keys, but at most {most_keys} are possible", 16)
    most_tensors = min(MAX_TENSORS, reader.remaining() // _SMALLEST_TENSOR)
    if n_tensors > most_tensors:
        raise reader.refusal(f"the header claims {n_tensors} tensors, but at most {most_tensors} are possible", 8)
    entries: dict[str, Entry] = {}
    for index in range(n_keys):
        at = reader.position
        key = reader.name(f"the name of key {index}", MAX_KEY_BYTES)
        if key in entries:
            raise reader.refusal(f"the key {quoted(key)} appears a second time", at)
        entries[key] = _read_value(reader, f"the value of key {quoted(key)}")
    alignment = _alignment(reader, entries)
    descriptions = [_read_description(reader, index) for index in range(n_tensors)]
    data_start = -(-reader.position // alignment) * alignment
    tensors = _locate(reader, descriptions, alignment, data_start)
    return Header(version, Metadata(entries, mapping), tensors)


def _read_version(reader: _Reader) -> int:
    reader.position = len(MAGIC)
    version = reader.u32("the version")
    if version and not version & 0xFFFF:
        raise reader.refusal(
            f"the version is {version:#010x}: this is a big-endian GGUF file, which is not supported", 4
        )
    if version not in VERSIONS:
        raise reader.refusal(f"the GGUF version is {version}; versions 2 and 3 are supported", 4)
    return version


def _read_value(reader: _Reader, what: str) -> Entry:
    at = reader.position
    value_type = reader.u32(f"the type of {what}")
    if value_type == _STRING:
        return Entry("str", reader.text(what))
    if value_type == _ARRAY:
        return _read_array(reader, what)
    if value_type not in _SCALARS:
        raise reader.refusal(f"{what} has the unknown type {value_type}", at)
    name, layout, _ = _SCALARS[value_type]
    at = reader.position
    value = reader.number(layout, what)
    if value_type == _BOOL and reader.mapping[at] > 1:
        raise reader.refusal(f"{what} is a bool stored as {reader.mapping[at]}, neither 0 nor 1", at)
    return Entry(name, value)


def _read_array(reader: _Reader, what: str) -> Entry:
    at = reader.position
    item_type = reader.u32(f"the item type of {what}")
    count = reader.u64(f"the item count of {what}")
    if item_type == _ARRAY:
        raise reader.refusal(f"{what} is an array of arrays, which GGUF readers do not support", at)
    if item_type != _STRING and item_type not in _SCALARS:
        raise reader.refusal(f"{what} is an array of the unknown type {item_type}", at)
    smallest = _U64.size if item_type == _STRING else _SCALARS[item_type][1].size
    if count * smallest > reader.remaining():
        raise reader.refusal(f"{what} claims {count} items, but {reader.remaining()} bytes remain in the file", at)
    if item_type == _STRING:
        return Entry("arr[str]", reader.string_array(count, what))
    name, _, dtype = _SCALARS[item_type]
    numbers = reader.numbers(dtype, count, what)
    if item_type == _BOOL and count:
        stored = np.frombuffer(reader.mapping, np.uint8, count, numbers.start)
        if stored.max() > 1:
            index = int((stored > 1).argmax())
            raise reader.refusal(
                f"item {index} of {what} is a bool stored as {stored[index]}, neither 0 nor 1", numbers.start + index
            )
    return Entry(f"arr[{name}]", numbers)


def _alignment(reader: _Reader, entries: dict[str, Entry]) -> int:
    entry = entries.get(ALIGNMENT_KEY)
    if entry is None:
        return DEFAULT_ALIGNMENT
    value = entry.value
    if entry.type_name != "u32" or not isinstance(value, int):
        raise ModelFileError(
            f"{reader.path}: the key {ALIGNMENT_KEY!r} is of type {entry.type_name}, but u32 is expected"
        )
    if value <= 0 or value & (value - 1):
        raise ModelFileError(f"{reader.path}: the key {ALIGNMENT_KEY!r} is {value}, which is no power of two")
    return value


@dataclass(frozen=True, slots=True)
class _Description:
    """A tensor as the header has it: `at` is where its description starts, `offset` counts from the data's start."""

    at: int
    name: str
    shape: tuple[int, ...]
    ggml_type: int
    offset: int


def _read_description(reader: _Reader, index: int) -> _Description:
    at = reader.position
    name = reader.name(f"the name of tensor {index}", MAX_NAME_BYTES)
    tensor = f"tensor {quoted(name)}"
    n_dimensions = reader.u32(f"the number of dimensions of {tensor}")
    if not 1 <= n_dimensions <= MAX_DIMENSIONS:
        raise reader.refusal(f"{tensor} has {n_dimensions} dimensions; 1 to {MAX_DIMENSIONS} are supported", at)
    sizes = [reader.u64(f"the dimensions of {tensor}") for _ in range(n_dimensions)]
    n_weights = 1
    for size in sizes:
        if size == 0:
            raise reader.refusal(f"{tensor} has a dimension of size 0", at)
        n_weights *= size
    if n_weights >= 1 << 63:
        raise reader.refusal(f"{tensor} has {' x '.join(map(str, sizes))} weights, too many to count in 63 bits", at)
    ggml_type = reader.u32(f"the type of {tensor}")
    offset = reader.u64(f"the data offset of {tensor}")
    return _Description(at, name, tuple(reversed(sizes)), ggml_type, offset)


def _locate(
    reader: _Reader, descriptions: list[_Description], alignment: int, data_start: int
) -> tuple[TensorEntry, ...]:
    """The tensors, checked: known type, whole blocks, and data aligned, inside the file, apart from each other."""
    _refuse_unknown_types(reader, descriptions)
    entries: dict[str, TensorEntry] = {}
    for description in descriptions:
        tensor = f"tensor {quoted(description.name)}"
        if description.name in entries:
            raise reader.refusal(f"{tensor} appears a second time", description.at)
        block_format = FORMATS[description.ggml_type]
        columns = description.shape[-1]
        if columns % block_format.block_size:
            raise reader.refusal(
                f"{tensor} has rows of {columns} weights, which are not whole {block_format.name} blocks "
                f"of {block_format.block_size}",
                description.at,
            )
        if description.offset % alignment:
            raise reader.refusal(
                f"{tensor} has its data at offset {description.offset}, no multiple of the alignment {alignment}",
                description.at,
            )
        nbytes = _n_weights(description.shape) // block_format.block_size * block_format.type_size
        start = data_start + description.offset
        if start + nbytes > reader.size:
            raise reader.refusal(
                f"{tensor} has its {nbytes} bytes of data at byte {start}, past the end of a file of {reader.size}",
                description.at,
            )
        entries[description.name] = TensorEntry(description.name, description.shape, block_format, start, nbytes)
    _refuse_overlap(reader, entries)
    return tuple(entries.values())


def _n_weights(shape: tuple[int, ...]) -> int:
    n_weights = 1
    for size in shape:
        n_weights *= size
    return n_weights


def _refuse_unknown_types(reader: _Reader, descriptions: list[_Description]) -> None:
    unknown = [description for description in descriptions if description.ggml_type not in FORMATS]
    if not unknown:
        return
    types = ", ".join(str(ggml_type) for ggml_type in sorted({description.ggml_type for description in unknown}))
    first = unknown[0]
    more = f", like {len(unknown) - 1} more," if len(unknown) > 1 else ""
    raise reader.refusal(f"tensor {quoted(first.name)}{more} is of a type this build does not know: {types}", first.at)


def _refuse_overlap(reader: _Reader, entries: dict[str, TensorEntry]) -> None:
    in_file_order = sorted(entries.values(), key=lambda entry: entry.start)
    for before, after in pairwise(in_file_order):
        if before.start + before.nbytes > after.start:
            raise reader.refusal(
                f"the data of tensor {quoted(after.name)} overlaps that of tensor {quoted(before.name)}", after.start
            )
