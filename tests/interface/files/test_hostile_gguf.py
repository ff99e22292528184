"""Damaged and hostile GGUF files end in a named refusal, or open and can be read to their last byte; nothing else
happens.

The mutations start from files that the gguf package wrote. The positions of their fields come from a small walker of
this file, which only ever sees good files.
"""

from __future__ import annotations

import json
import random
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from bloomery.interface.files.gguf import ModelFileError, open_gguf
from bloomery.interface.files.header import (
    MAX_KEY_BYTES,
    MAX_NAMES_BYTES,
    MAX_NUMBERS,
    MAX_STRINGS_BYTES,
    MAX_TEXT_BYTES,
)
from bloomery.interface.files.quants import UnsupportedFormat, encode

U8, BOOL, U32, STRING, ARRAY, U64 = 0, 7, 4, 8, 9, 10
F32, Q4_K = 0, 12

N_MUTATIONS = 300

# What a count, a length or an offset is replaced with.
ABSURD = (0, 1, 2, 255, 1 << 16, 1 << 32, 1 << 61, *((1 << bits) - 1 for bits in (31, 32, 63, 64)), 1 << 31, 1 << 63)


# Building files by hand.


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def key(name: bytes, value_type: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", value_type) + value


def array_of(item_type: int, count: int, items: bytes) -> bytes:
    return struct.pack("<IQ", item_type, count) + items


def tensor(name: bytes, dims: tuple[int, ...], ggml_type: int = F32, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, ggml_type, offset)


def model(
    keys: tuple[bytes, ...] = (),
    tensors: tuple[bytes, ...] = (),
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_keys: int | None = None,
    n_tensors: int | None = None,
    data: int = 256,
) -> bytes:
    counts = (len(tensors) if n_tensors is None else n_tensors, len(keys) if n_keys is None else n_keys)
    header = magic + struct.pack("<IQQ", version, *counts) + b"".join(keys) + b"".join(tensors)
    return header + bytes(-len(header) % 32 + data)


LONG_KEY = b"k" * 65536
GOOD_TENSOR = tensor(b"a", (8,))

# Each: a file and the words its refusal must hold.
HANDWRITTEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "ends at byte 0"),
    "a short text": (b"hello\n", "at byte 0, the file starts with b'hell', not with b'GGUF', so it is no GGUF file"),
    "part of another magic": (b"GG\n", "at byte 0, the file starts with b'GG\\n'"),
    "part of the magic": (b"GG", "ends at byte 2"),
    "only the magic": (b"GGUF", "ends at byte 4"),
    "bad magic": (model(magic=b"GGML"), "at byte 0, the file starts with b'GGML'"),
    "safetensors": (b'@\x00\x00\x00\x00\x00\x00\x00{"__metadata__":{}}   ', "at byte 0, the file starts with"),
    "version 0": (model(version=0), "at byte 4, the GGUF version is 0"),
    "version 1": (model(version=1), "at byte 4, the GGUF version is 1"),
    "version 4": (model(version=4), "at byte 4, the GGUF version is 4"),
    "big-endian": (model(version=3 << 24), "at byte 4, the version is 0x03000000: this is a big-endian"),
    "2^63 keys": (model(n_keys=1 << 63), f"at byte 16, the header claims {1 << 63} keys"),
    "2^63 tensors": (model(n_tensors=1 << 63), f"at byte 8, the header claims {1 << 63} tensors"),
    "one key too many": (model((key(b"a", U8, b"\0"),), n_keys=2, data=0), "the name of key 1"),
    "empty key": (model((key(b"", U8, b"\0"),)), "at byte 24, the name of key 0 is empty"),
    "long key": (model((key(LONG_KEY, U8, b"\0"),)), "the name of key 0 has 65536 bytes"),
    "key not UTF-8": (model((key(b"\xff\xfe", U8, b"\0"),)), "the name of key 0 is not UTF-8"),
    "key of 2^64-1 bytes": (model((struct.pack("<Q", (1 << 64) - 1) + bytes(99),)), f"claims {(1 << 64) - 1} bytes"),
    "duplicate key": (model((key(b"a", U8, b"\0"),) * 2), "the key 'a' appears a second time"),
    "unknown value type": (model((key(b"a", 13, bytes(8)),)), "the value of key 'a' has the unknown type 13"),
    "string past the end": (model((key(b"a", STRING, struct.pack("<Q", 1 << 62)),)), "value of key 'a' claims"),
    "bool of 2": (model((key(b"a", BOOL, b"\2"),)), "the value of key 'a' is a bool stored as 2"),
    "bool item of 9": (
        model((key(b"a", ARRAY, array_of(BOOL, 3, b"\0\1\x09")),)),
        "item 2 of the value of key 'a' is a bool stored as 9",
    ),
    "2^63 array items": (
        model((key(b"a", ARRAY, array_of(U32, 1 << 63, b"")),)),
        f"the value of key 'a' claims {1 << 63} items",
    ),
    "2^63 strings": (model((key(b"a", ARRAY, array_of(STRING, 1 << 63, b"")),)), "the value of key 'a' claims"),
    "string item past the end": (
        model((key(b"a", ARRAY, array_of(STRING, 2, text(b"x") + struct.pack("<Q", 1 << 63))),)),
        "string 1 of the value of key 'a' claims",
    ),
    "unknown item type": (model((key(b"a", ARRAY, array_of(99, 1, bytes(8))),)), "an array of the unknown type 99"),
    "array of arrays": (
        model((key(b"a", ARRAY, array_of(ARRAY, 1, array_of(U8, 1, b"\0"))),)),
        "the value of key 'a' is an array of arrays",
    ),
    "alignment 0": (model((key(b"general.alignment", U32, struct.pack("<I", 0)),)), "'general.alignment' is 0"),
    "alignment 48": (model((key(b"general.alignment", U32, struct.pack("<I", 48)),)), "'general.alignment' is 48"),
    "alignment as u64": (model((key(b"general.alignment", U64, bytes(8)),)), "'general.alignment' is of type u64"),
    "alignment as text": (model((key(b"general.alignment", STRING, text(b"32")),)), "is of type str"),
    "alignment past the end": (
        model((key(b"general.alignment", U32, struct.pack("<I", 1 << 31)),), (GOOD_TENSOR,)),
        "past the end of a file",
    ),
    "tensor without a name": (model((), (tensor(b"", (8,)),)), "the name of tensor 0 is empty"),
    "long tensor name": (model((), (tensor(b"t" * 64, (8,)),)), "the name of tensor 0 has 64 bytes"),
    "tensor name not UTF-8": (model((), (tensor(b"\xc3", (8,)),)), "the name of tensor 0 is not UTF-8"),
    "duplicate tensor": (model((), (GOOD_TENSOR, tensor(b"a", (8,), offset=32))), "tensor 'a' appears a second time"),
    "no dimensions": (model((), (tensor(b"a", ()),)), "tensor 'a' has 0 dimensions"),
    "five dimensions": (model((), (tensor(b"a", (1,) * 5),)), "tensor 'a' has 5 dimensions"),
    "2^32-1 dimensions": (model((), (text(b"a") + b"\xff" * 60,)), "tensor 'a' has 4294967295 dimensions"),
    "dimension of 0": (model((), (tensor(b"a", (8, 0)),)), "tensor 'a' has a dimension of size 0"),
    "product overflows 64 bits": (model((), (tensor(b"a", (1 << 32, 1 << 32, 2)),)), "tensor 'a' has"),
    "product wraps to 0": (model((), (tensor(b"a", (1 << 63, 2)),)), "too many to count"),
    "unknown tensor type": (
        model((), (tensor(b"a", (8,), 77), tensor(b"b", (8,), 99, 32))),
        "tensor 'a', like 1 more, is of a type this build does not know: 77, 99",
    ),
    "removed tensor type": (model((), (tensor(b"a", (8,), 4),)), "this build does not know: 4"),
    "part of a block": (model((), (tensor(b"a", (255,), Q4_K),)), "tensor 'a' has rows of 255 weights"),
    "misaligned data": (model((), (tensor(b"a", (8,), offset=8),)), "at offset 8, no multiple of the alignment 32"),
    "data past the end": (model((), (tensor(b"a", (1 << 20,)),)), "tensor 'a' has its 4194304 bytes of data at byte"),
    "offset past the end": (model((), (tensor(b"a", (8,), offset=1 << 63),)), "past the end of a file"),
    "overlap": (model((), (tensor(b"a", (16,)), tensor(b"b", (8,), offset=32))), "'b' overlaps that of tensor 'a'"),
    "no room for data": (model((), (GOOD_TENSOR,), data=0), "past the end of a file"),
    "split count of 100000": (model((key(b"split.count", U32, struct.pack("<I", 100000)),)), "'split.count' is 100000"),
    "split number missing": (
        model((key(b"split.count", U32, struct.pack("<I", 2)),)),
        "'split.no' (an integer) is missing",
    ),
    "split count as text": (model((key(b"split.count", STRING, text(b"2")),)), "'split.count' is of type str"),
}


@pytest.mark.parametrize("case", HANDWRITTEN)
def test_a_hostile_file_is_refused_by_name(case: str, tmp_path: Path) -> None:
    content, words = HANDWRITTEN[case]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFileError) as refusal:
        open_gguf(path)
    message = str(refusal.value)
    assert words in message
    assert str(path) in message
    assert "\n" not in message


def test_what_is_no_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"missing\.gguf: the file cannot be opened: No such file"):
        open_gguf(tmp_path / "missing.gguf")
    with pytest.raises(ModelFileError, match="this is a directory"):
        open_gguf(tmp_path)
    with pytest.raises(ModelFileError, match="this is no regular file"):
        open_gguf("/dev/null")
    with pytest.raises(ModelFileError, match="cannot be opened"):
        open_gguf("nul\0byte.gguf")


def test_names_from_a_file_are_escaped_and_cut_in_messages(tmp_path: Path) -> None:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(model((key(b"\x1b[31m\n" + b"k" * 60000, 13, bytes(8)),)))
    with pytest.raises(ModelFileError) as refusal:
        open_gguf(path)
    message = str(refusal.value)
    assert message.isprintable()
    assert len(message) < len(str(path)) + 300


# Sparse files: they take little of the disk, and claim as much as they like.

I32, F64 = 5, 12
WIDTHS = {BOOL: 1, I32: 4, F64: 8}


def sparse(path: Path, key_start: bytes, value_bytes: int) -> Path:
    """A file of one key, of whose value only the start is written: `value_bytes` zeros follow it, then 256 more."""
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key_start)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + value_bytes + 256)
    return path


def sparse_text(path: Path, name: bytes, length: int) -> Path:
    return sparse(path, text(name) + struct.pack("<IQ", STRING, length), length)


def sparse_array(path: Path, item_type: int, count: int) -> Path:
    start = text(b"a") + struct.pack("<IIQ", ARRAY, item_type, count)
    return sparse(path, start, count * WIDTHS[item_type])


@pytest.mark.parametrize("length", [MAX_TEXT_BYTES + 1, 1 << 30, 1 << 39])
def test_a_text_that_is_too_long_is_refused_unread(length: int, tmp_path: Path) -> None:
    path = sparse_text(tmp_path / "text.gguf", b"tokenizer.chat_template", length)
    with pytest.raises(ModelFileError, match=f"'tokenizer.chat_template' has {length} bytes, more than the 16777216"):
        open_gguf(path)


@pytest.mark.parametrize(
    ("item_type", "count"), [(BOOL, MAX_NUMBERS + 1), (BOOL, 1 << 36), (I32, 1 << 28), (F64, 1 << 31)]
)
def test_an_array_of_too_many_numbers_is_refused_unread(item_type: int, count: int, tmp_path: Path) -> None:
    path = sparse_array(tmp_path / "array.gguf", item_type, count)
    with pytest.raises(
        ModelFileError, match=f"the value of key 'a' claims {count} items, which brings the header over"
    ):
        open_gguf(path)


def test_the_limits_themselves_are_allowed(tmp_path: Path) -> None:
    file = open_gguf(sparse_text(tmp_path / "text.gguf", b"long", MAX_TEXT_BYTES))
    assert len(file.get_str("long", most=MAX_TEXT_BYTES)) == MAX_TEXT_BYTES
    file = open_gguf(sparse_array(tmp_path / "array.gguf", BOOL, MAX_NUMBERS))
    assert len(file.get_numbers("a")) == MAX_NUMBERS


def test_small_arrays_together_are_limited_too(tmp_path: Path) -> None:
    count = MAX_NUMBERS // 2
    path = tmp_path / "arrays.gguf"
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 3))
        for name in (b"a", b"b", b"c"):
            file.write(text(name) + struct.pack("<IIQ", ARRAY, BOOL, count))
            file.seek(count, 1)
        file.truncate(file.tell() + 256)
    with pytest.raises(
        ModelFileError, match=f"the value of key 'c' claims {count} items, which brings the header over"
    ):
        open_gguf(path)


def test_strings_of_an_array_are_limited_in_bytes(tmp_path: Path) -> None:
    start = text(b"a") + struct.pack("<IIQ", ARRAY, STRING, 2) + text(b"short")
    path = sparse(tmp_path / "long.gguf", start + struct.pack("<Q", 1 << 40), 1 << 40)
    with pytest.raises(
        ModelFileError, match="string 1 of the value of key 'a' brings the header's arrays of strings over"
    ):
        open_gguf(path)
    # The last bytes that are allowed end in the middle of a length.
    start += struct.pack("<Q", MAX_STRINGS_BYTES - 13 - 8)
    with pytest.raises(ModelFileError, match=r"string 1 of .* brings"):
        open_gguf(sparse(tmp_path / "one-too-many.gguf", start.replace(text(b"short"), text(b"shorte")), 1 << 30))
    file = open_gguf(sparse(tmp_path / "whole.gguf", start, MAX_STRINGS_BYTES))
    assert len(file.get_strings("a").raw(1)) == MAX_STRINGS_BYTES - 13 - 8


def test_the_names_of_keys_are_limited_together(tmp_path: Path) -> None:
    path = tmp_path / "names.gguf"
    n_keys = MAX_NAMES_BYTES // MAX_KEY_BYTES + 2
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, n_keys))
        for index in range(n_keys):
            file.write(struct.pack("<Q", MAX_KEY_BYTES) + b"%04d" % index)
            file.seek(MAX_KEY_BYTES - 4, 1)
            file.write(struct.pack("<IB", U8, 0))
        file.truncate(file.tell() + 256)
    with pytest.raises(ModelFileError, match=r"the name of key \d+ .*over 67108864 bytes of names"):
        open_gguf(path)


def test_a_word_is_short_unless_more_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "words.gguf"
    path.write_bytes(
        model((key(b"word", STRING, text(b"w" * 4096)), key(b"long", STRING, text(b"\x1b\n" * 2048 + b"w"))))
    )
    file = open_gguf(path)
    assert file.get_str("word") == "w" * 4096
    assert len(file.get_str("long", most=4097)) == 4097
    for default in ((), ("else",)):
        with pytest.raises(ModelFileError, match="the key 'long' has 4097 bytes, more than the 4096 allowed"):
            file.get_str("long", *default)


def peak_of_sparse(folder: Path) -> dict[str, Any]:
    """Sparse files refused in this process: the messages, and the peak memory afterwards in bytes."""
    path = folder / "sparse.gguf"
    makers: tuple[Callable[[], object], ...] = (
        lambda: sparse_text(path, b"general.architecture", 1 << 30),
        lambda: sparse_text(path, b"general.name", 1 << 39),
        lambda: sparse_array(path, I32, 1 << 28),
        lambda: sparse_array(path, BOOL, 1 << 36),
        lambda: sparse_text(path, b"general.architecture", MAX_TEXT_BYTES),
    )
    outcomes = []
    for make in makers:
        make()
        try:
            open_gguf(path).get_str("general.architecture")
        except ModelFileError as refusal:
            outcomes.append(str(refusal))
    return {"outcomes": outcomes, "peak": peak_bytes()}


def peak_bytes() -> int:
    """The most memory this process had. Unlike `ru_maxrss`, it does not begin with that of the one that started it."""
    (peak,) = re.findall(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    return int(peak) * 1024


def test_sparse_files_are_refused_in_little_memory(tmp_path: Path) -> None:
    script = (
        "import json, pathlib, runpy, sys\n"
        "print(json.dumps(runpy.run_path(sys.argv[1])['peak_of_sparse'](pathlib.Path(sys.argv[2]))))\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", script, __file__, str(tmp_path)], capture_output=True, text=True, timeout=120, check=True
    )
    result = json.loads(finished.stdout)
    assert len(result["outcomes"]) == 5
    assert all(len(message) < len(str(tmp_path)) + 300 for message in result["outcomes"])
    # What is imported takes most of it.
    assert result["peak"] < 256 << 20


# Mutations of real headers.


def write_real_files(folder: Path) -> list[bytes]:
    """Small models as the gguf package writes them: plain, quantised, with another alignment, and with experts."""
    contents = []
    for index, alignment in enumerate((32, 64, 32)):
        path = folder / f"real-{index}.gguf"
        writer = gguf.GGUFWriter(path, "qwen3moe" if index else "qwen3")
        writer.add_custom_alignment(alignment)
        writer.add_context_length(2048)
        writer.add_rope_freq_base(1e6)
        writer.add_add_bos_token(False)
        writer.add_token_list([f"token{n}" for n in range(40)])
        writer.add_token_types([1] * 40)
        writer.add_token_merges(["a b", "c d"])
        writer.add_array("bools", [True, False, True])
        weights = np.linspace(-1, 1, 2 * 4 * 256, dtype=np.float32).reshape(2, 4, 256)
        writer.add_tensor("token_embd.weight", weights[0])
        for name in ("Q8_0", "Q4_K", "Q6_K")[: index + 1]:
            raw = encode(weights, name)
            writer.add_tensor(f"blk.0.{name}.weight", raw, raw_dtype=gguf.GGMLQuantizationType[name])
        writer.add_tensor("output_norm.weight", weights[0, 0])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        contents.append(path.read_bytes())
    return contents


def fields_of(content: bytes) -> list[tuple[int, int]]:
    """Position and size of every count, length, type, dimension and offset in the header of a good file."""
    fields: list[tuple[int, int]] = [(4, 4), (8, 8), (16, 8)]
    position = 24
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

    def take(size: int) -> int:
        nonlocal position
        fields.append((position, size))
        position += size
        return int.from_bytes(content[position - size : position], "little")

    def take_value(value_type: int) -> None:
        nonlocal position
        if value_type == STRING:
            length = take(8)
            position += length
        else:
            take(sizes[value_type])

    n_tensors, n_keys = struct.unpack_from("<QQ", content, 8)
    for _ in range(n_keys):
        take_value(STRING)
        value_type = take(4)
        if value_type == ARRAY:
            item_type, count = take(4), take(8)
            for _ in range(count):
                take_value(item_type)
        else:
            take_value(value_type)
    for _ in range(n_tensors):
        take_value(STRING)
        for _ in range(take(4)):
            take(8)
        take(4)
        take(8)
    return fields


def mutate(contents: list[bytes], seed: int) -> bytes:
    rng = random.Random(seed)
    content = bytearray(rng.choice(contents))
    fields = fields_of(bytes(content))
    header_end = fields[-1][0] + fields[-1][1]

    def absurd_field() -> None:
        at, size = rng.choice(fields)
        value = int.from_bytes(content[at : at + size], "little")
        near = (value + 1, value - 1, value * 2, value ^ (1 << rng.randrange(8 * size)))
        chosen = rng.choice((*ABSURD, len(content), *near))
        content[at : at + size] = (chosen % (1 << (8 * size))).to_bytes(size, "little")

    def flip_bytes() -> None:
        for _ in range(rng.randint(1, 8)):
            content[rng.randrange(header_end)] = rng.randrange(256)

    def truncate() -> None:
        at, size = rng.choice(fields)
        del content[rng.choice((at, at + 1, at + size, rng.randrange(len(content)))) :]

    def delete_bytes() -> None:
        at = rng.randrange(header_end)
        del content[at : at + rng.randint(1, 16)]

    def insert_bytes() -> None:
        at = rng.randrange(header_end)
        content[at:at] = rng.randbytes(rng.randint(1, 16))

    def copy_a_piece_over_another() -> None:
        (source, _), (target, _) = rng.sample(fields, 2)
        size = rng.randint(8, 40)
        content[target : target + size] = content[source : source + size]

    def swap_a_field() -> None:
        (first, first_size), (second, second_size) = rng.sample(fields, 2)
        size = min(first_size, second_size)
        content[first : first + size], content[second : second + size] = (
            content[second : second + size],
            content[first : first + size],
        )

    kinds: tuple[Callable[[], None], ...] = (
        absurd_field,
        absurd_field,
        absurd_field,
        flip_bytes,
        truncate,
        delete_bytes,
        insert_bytes,
        copy_a_piece_over_another,
        swap_a_field,
    )
    kinds[seed % len(kinds)]()
    return bytes(content)


def read_everything(path: Path) -> None:
    """Opens a model and reads all of its metadata and weights; an unsupported format is a proper answer too."""
    with open_gguf(path) as file:
        for value in file.metadata.values():
            if not isinstance(value, str | int | float):
                list(value)
        for stored in file.tensors.values():
            try:
                weights = stored.decode()
            except UnsupportedFormat:
                continue
            assert weights.shape == stored.shape


def outcome(path: Path, content: bytes) -> str:
    """The refusal's message, or "opened"; any other exception is the caller's to see."""
    path.write_bytes(content)
    try:
        read_everything(path)
    except ModelFileError as refusal:
        return str(refusal)
    return "opened"


def run_all(folder: Path) -> dict[str, Any]:
    """Every mutation and handwritten case in this process: their messages, and the peak memory afterwards in bytes."""
    contents = write_real_files(folder)
    cases = [mutate(contents, seed) for seed in range(N_MUTATIONS)]
    cases += [content for content, _ in HANDWRITTEN.values()]
    outcomes = [outcome(folder / "hostile.gguf", content) for content in cases]
    return {"outcomes": outcomes, "peak": peak_bytes()}


def test_the_unharmed_files_open(tmp_path: Path) -> None:
    for content in write_real_files(tmp_path):
        assert outcome(tmp_path / "real.gguf", content) == "opened"


def test_mutated_headers_are_refused_by_name_or_readable(tmp_path: Path) -> None:
    contents = write_real_files(tmp_path)
    path = tmp_path / "hostile.gguf"
    n_refused = 0
    for seed in range(N_MUTATIONS):
        try:
            message = outcome(path, mutate(contents, seed))
        except Exception as error:
            raise AssertionError(f"mutation {seed} ended in {error!r}") from error
        if message != "opened":
            n_refused += 1
            assert str(path) in message, f"mutation {seed}: {message}"
            assert re.search(r"byte \d+|key '|tensor '", message), f"mutation {seed}: {message}"
            assert message.isprintable(), f"mutation {seed}: {message!r}"
    # Most mutations break a header; a test whose mutations all pass would test nothing.
    assert n_refused > N_MUTATIONS // 2


@pytest.mark.parametrize("seed", range(3))
def test_a_header_cut_anywhere_is_refused(seed: int, tmp_path: Path) -> None:
    content = write_real_files(tmp_path)[seed]
    end = sum(fields_of(content)[-1])
    path = tmp_path / "cut.gguf"
    for stop in range(0, end, 7):
        assert outcome(path, content[:stop]) != "opened"


def test_all_cases_together_stay_under_one_gibibyte(tmp_path: Path) -> None:
    script = (
        "import json, pathlib, runpy, sys\n"
        "print(json.dumps(runpy.run_path(sys.argv[1])['run_all'](pathlib.Path(sys.argv[2]))['peak']))\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", script, __file__, str(tmp_path)], capture_output=True, text=True, timeout=120, check=True
    )
    assert int(finished.stdout) < 1 << 30
