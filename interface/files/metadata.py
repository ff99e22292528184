"""The key-value part of a GGUF header: values that are decoded when asked for, and getters that check types."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar, overload

import numpy as np
import numpy.typing as npt

from bloomery.interface.files.model_file_error import ModelFileError
from bloomery.interface.quoted import quoted

T = TypeVar("T")

_LENGTH_BYTES = 8

# Far above any word or name in a real file: a text that is meant to be longer is asked for as such.
MAX_WORD_BYTES = 4096

_INTEGERS = frozenset({"u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"})
_FLOATS = frozenset({"f32", "f64"})


class StringArray(Sequence[str]):
    """The strings of one metadata array, read from the mapped file on access.

    Indexing and iterating give text with invalid UTF-8 replaced by U+FFFD; `raw` and `raws` give the bytes as stored,
    which is what a tokenizer wants: a token may be half a character.
    """

    __slots__ = ("_mapping", "_starts")

    def __init__(self, mapping: mmap.mmap, starts: npt.NDArray[np.int64]) -> None:
        """`starts` holds the file offset of each string's 8-byte length and, last, the end of the array: `[n + 1]`."""
        self._mapping = mapping
        self._starts = starts

    def raw(self, index: int) -> bytes:
        """The bytes of string `index`."""
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(f"there is no string {index} in an array of {len(self)}")
        return self._mapping[int(self._starts[index]) + _LENGTH_BYTES : int(self._starts[index + 1])]

    def raws(self) -> list[bytes]:
        """The bytes of every string."""
        mapping = self._mapping
        return [mapping[start + _LENGTH_BYTES : stop] for start, stop in pairwise(self._starts.tolist())]

    def joined(self) -> bytes:
        """The bytes of every string, a zero byte before each: one read of them all, for whoever wants all of them."""
        if not len(self):
            return b""
        first, end = int(self._starts[0]), int(self._starts[-1])
        region = np.frombuffer(self._mapping, np.uint8, end - first, first).copy()
        lengths = self._starts[:-1] - first
        # Of each string's 8-byte length one byte stays, as the zero before the string.
        region[lengths] = 0
        stays = np.ones(len(region), bool)
        for byte in range(1, _LENGTH_BYTES):
            stays[lengths + byte] = False
        return region[stays].tobytes()

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.raw(index).decode("utf-8", "replace")

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __iter__(self) -> Iterator[str]:
        mapping = self._mapping
        for start, stop in pairwise(self._starts.tolist()):
            yield mapping[start + _LENGTH_BYTES : stop].decode("utf-8", "replace")

    def __repr__(self) -> str:
        return f"<StringArray of {len(self)}>"


MetadataValue: TypeAlias = str | int | float | bool | npt.NDArray[Any] | StringArray


@dataclass(frozen=True, slots=True)
class StoredText:
    """A string value whose bytes are still in the file."""

    start: int
    stop: int

    def decode(self, mapping: mmap.mmap) -> str:
        """The text, with invalid UTF-8 replaced."""
        return mapping[self.start : self.stop].decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class StoredNumbers:
    """A numeric array that is still in the file."""

    dtype: np.dtype[Any]
    count: int
    start: int

    def decode(self, mapping: mmap.mmap) -> npt.NDArray[Any]:
        """A read-only copy in memory; the file does not align its arrays."""
        array = np.frombuffer(mapping, self.dtype, self.count, self.start).copy()
        array.flags.writeable = False
        return array


@dataclass(frozen=True, slots=True)
class Entry:
    """One key's value with the name of its type in the file: "u32", "str", "arr[f32]"."""

    type_name: str
    value: MetadataValue | StoredText | StoredNumbers


class Metadata(Mapping[str, MetadataValue]):
    """Keys in file order. Text and numeric arrays are read from the mapped file when first asked for."""

    def __init__(self, entries: dict[str, Entry], mapping: mmap.mmap) -> None:
        self._entries = entries
        self._mapping = mapping
        self._decoded: dict[str, MetadataValue] = {}

    def __getitem__(self, key: str) -> MetadataValue:
        value = self._entries[key].value
        if not isinstance(value, StoredText | StoredNumbers):
            return value
        if key not in self._decoded:
            self._decoded[key] = value.decode(self._mapping)
        return self._decoded[key]

    def type_of(self, key: str) -> str:
        """The type of a key's value as the file has it, like "u32", "str", "arr[f32]"; KeyError for a missing key."""
        return self._entries[key].type_name

    def text_bytes(self, key: str) -> int:
        """How many bytes the text of a key takes in the file, known without reading it; 0 for another value."""
        value = self._entries[key].value
        return value.stop - value.start if isinstance(value, StoredText) else 0

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<Metadata of {len(self)} keys>"


class _Required:
    """Stands for a getter's missing default."""


_REQUIRED: Final = _Required()


class TypedMetadata:
    """Getters that either give a value of the type asked for or refuse, naming the key and both types.

    Each takes a default for a key the file does not have; without one, a missing key is refused as well. A key that
    is there with another type is always refused.
    """

    path: Path
    metadata: Metadata

    def _get(self, key: str, default: Any, expected: str, accepted: frozenset[str]) -> Any:
        if key not in self.metadata:
            if default is _REQUIRED:
                raise ModelFileError(f"{self.path}: the key {quoted(key)} ({expected}) is missing")
            return default
        found = self.metadata.type_of(key)
        if found not in accepted:
            raise ModelFileError(f"{self.path}: the key {quoted(key)} is of type {found}, but {expected} is expected")
        return self.metadata[key]

    @overload
    def get_int(self, key: str) -> int: ...
    @overload
    def get_int(self, key: str, default: T) -> int | T: ...
    def get_int(self, key: str, default: Any = _REQUIRED) -> Any:
        """An integer of any width."""
        return self._get(key, default, "an integer", _INTEGERS)

    @overload
    def get_u32(self, key: str) -> int: ...
    @overload
    def get_u32(self, key: str, default: T) -> int | T: ...
    def get_u32(self, key: str, default: Any = _REQUIRED) -> Any:
        """An integer of any width whose value is in 0..4294967295."""
        value = self._get(key, default, "an unsigned 32-bit integer", _INTEGERS)
        if key in self.metadata and not 0 <= value < 1 << 32:
            raise ModelFileError(f"{self.path}: the key {quoted(key)} is {value}, which is no unsigned 32-bit integer")
        return value

    @overload
    def get_float(self, key: str) -> float: ...
    @overload
    def get_float(self, key: str, default: T) -> float | T: ...
    def get_float(self, key: str, default: Any = _REQUIRED) -> Any:
        """A floating-point number; an integer is not one."""
        return self._get(key, default, "a float", _FLOATS)

    @overload
    def get_bool(self, key: str) -> bool: ...
    @overload
    def get_bool(self, key: str, default: T) -> bool | T: ...
    def get_bool(self, key: str, default: Any = _REQUIRED) -> Any:
        """A truth value."""
        return self._get(key, default, "a bool", frozenset({"bool"}))

    @overload
    def get_str(self, key: str, *, most: int = ...) -> str: ...
    @overload
    def get_str(self, key: str, default: T, *, most: int = ...) -> str | T: ...
    def get_str(self, key: str, default: Any = _REQUIRED, *, most: int = MAX_WORD_BYTES) -> Any:
        """Text of at most `most` bytes in the file; a longer one is refused. What is not UTF-8 comes as U+FFFD."""
        if key in self.metadata and (found := self.metadata.text_bytes(key)) > most:
            raise ModelFileError(f"{self.path}: the key {quoted(key)} has {found} bytes, more than the {most} allowed")
        return self._get(key, default, "a string", frozenset({"str"}))

    @overload
    def get_strings(self, key: str) -> StringArray: ...
    @overload
    def get_strings(self, key: str, default: T) -> StringArray | T: ...
    def get_strings(self, key: str, default: Any = _REQUIRED) -> Any:
        """An array of strings."""
        return self._get(key, default, "an array of strings", frozenset({"arr[str]"}))

    @overload
    def get_numbers(self, key: str) -> npt.NDArray[Any]: ...
    @overload
    def get_numbers(self, key: str, default: T) -> npt.NDArray[Any] | T: ...
    def get_numbers(self, key: str, default: Any = _REQUIRED) -> Any:
        """An array of numbers or bools, read-only, in the file's own dtype."""
        accepted = frozenset(f"arr[{name}]" for name in _INTEGERS | _FLOATS | {"bool"})
        return self._get(key, default, "an array of numbers", accepted)

    @overload
    def get_array(self, key: str) -> npt.NDArray[Any] | StringArray: ...
    @overload
    def get_array(self, key: str, default: T) -> npt.NDArray[Any] | StringArray | T: ...
    def get_array(self, key: str, default: Any = _REQUIRED) -> Any:
        """An array of anything."""
        accepted = frozenset(f"arr[{name}]" for name in _INTEGERS | _FLOATS | {"bool", "str"})
        return self._get(key, default, "an array", accepted)
