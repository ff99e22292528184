"""Reading a metadata key that has one number for all layers, or an array with one a layer; or a flag a layer."""

from __future__ import annotations

from bloomery.interface.families.count import read_count
from bloomery.interface.files.gguf import GgufFile, ModelFileError

# As `read_count` has it.
_MOST = 1 << 24


def read_per_layer(file: GgufFile, key: str, n_layer: int, default: int | None = None) -> tuple[int, ...]:
    """Whole numbers from 0 up, `n_layer` of them; 0 says that a layer has none of what is counted.

    Raises ModelFileError for an array of another length or with a number out of range, for a single number below 1,
    and for a missing key without default.
    """
    if key not in file.metadata or not file.metadata.type_of(key).startswith("arr["):
        return (read_count(file, key, default),) * n_layer
    numbers = file.get_numbers(key)
    if numbers.dtype.kind not in "iu":
        raise ModelFileError(f"{file.path}: the key {key!r} is an array of {numbers.dtype}, not of whole numbers")
    if len(numbers) != n_layer:
        raise ModelFileError(f"{file.path}: the key {key!r} has {len(numbers)} numbers for {n_layer} layers")
    wrong = next((int(number) for number in numbers if not 0 <= number <= _MOST), None)
    if wrong is not None:
        raise ModelFileError(f"{file.path}: the key {key!r} has the number {wrong}; each must be from 0 to {_MOST}")
    return tuple(map(int, numbers))


def read_flags(file: GgufFile, key: str, n_layer: int) -> tuple[bool, ...]:
    """An array of `n_layer` truth values, where a whole number that is not 0 is a yes.

    Raises ModelFileError for a missing key, and for an array of another length or of other numbers.
    """
    flags = file.get_numbers(key)
    if flags.dtype.kind not in "biu" or len(flags) != n_layer:
        raise ModelFileError(
            f"{file.path}: the key {key!r} has {len(flags)} entries of {flags.dtype}; {n_layer} layers need as many"
            " truth values"
        )
    return tuple(flags.astype(bool).tolist())
