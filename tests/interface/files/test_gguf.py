"""Reading GGUF files that the gguf package wrote: metadata, tensors, and nothing read before it is asked for."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.interface.files.gguf import GgufFile, ModelFileError, open_gguf
from bloomery.interface.files.quants import UnsupportedFormat, by_name, decode, encode

ValueType = gguf.GGUFValueType

INTEGER_RANGES = {
    ValueType.UINT8: (0, 2**8 - 1),
    ValueType.INT8: (-(2**7), 2**7 - 1),
    ValueType.UINT16: (0, 2**16 - 1),
    ValueType.INT16: (-(2**15), 2**15 - 1),
    ValueType.UINT32: (0, 2**32 - 1),
    ValueType.INT32: (-(2**31), 2**31 - 1),
    ValueType.UINT64: (0, 2**64 - 1),
    ValueType.INT64: (-(2**63), 2**63 - 1),
}
TYPE_NAMES = {
    ValueType.UINT8: "u8",
    ValueType.INT8: "i8",
    ValueType.UINT16: "u16",
    ValueType.INT16: "i16",
    ValueType.UINT32: "u32",
    ValueType.INT32: "i32",
    ValueType.UINT64: "u64",
    ValueType.INT64: "i64",
    ValueType.FLOAT32: "f32",
    ValueType.FLOAT64: "f64",
    ValueType.BOOL: "bool",
    ValueType.STRING: "str",
}


def write(path: Path, writer: gguf.GGUFWriter) -> Path:
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def one_value(value_type: Any) -> st.SearchStrategy[Any]:
    if value_type in INTEGER_RANGES:
        return st.integers(*INTEGER_RANGES[value_type])
    return {
        ValueType.FLOAT32: st.floats(width=32, allow_nan=False),
        ValueType.FLOAT64: st.floats(allow_nan=False),
        ValueType.BOOL: st.booleans(),
        ValueType.STRING: st.text(st.characters(codec="utf-8"), max_size=20),
    }[value_type]


scalars = st.sampled_from(list(TYPE_NAMES)).flatmap(lambda kind: st.tuples(st.just(kind), one_value(kind)))
arrays = st.sampled_from(list(TYPE_NAMES)).flatmap(
    lambda kind: st.tuples(st.just(kind), st.lists(one_value(kind), min_size=1, max_size=9))
)
# Keys of these two kinds mean something to the reader itself.
keys = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(
    lambda key: not key.startswith(("general.", "split."))
)


@given(entries=st.dictionaries(keys, scalars | arrays, max_size=8))
@settings(max_examples=60, deadline=None)
def test_metadata_reads_back_as_written(entries: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    writer = gguf.GGUFWriter(None, "any")
    for key, (value_type, value) in entries.items():
        if isinstance(value, list):
            writer.add_key_value(key, value, ValueType.ARRAY, value_type)
        else:
            writer.add_key_value(key, value, value_type)
    file = open_gguf(write(tmp_path_factory.mktemp("model") / "metadata.gguf", writer))
    assert list(file.metadata) == ["general.architecture", *entries]
    assert file.get_str("general.architecture") == "any"
    for key, (value_type, value) in entries.items():
        name = TYPE_NAMES[value_type]
        found = file.metadata[key]
        if isinstance(value, list):
            assert file.metadata.type_of(key) == f"arr[{name}]"
            assert list(found) == value
            assert len(file.get_array(key)) == len(value)
        else:
            assert file.metadata.type_of(key) == name
            assert found == value
            assert type(found) is type(value)


shapes = st.lists(st.integers(1, 5), min_size=0, max_size=3).map(tuple)


@given(
    tensors=st.lists(st.tuples(shapes, st.sampled_from(["F32", "F16", "BF16", "Q8_0", "Q6_K"])), max_size=6),
    alignment=st.sampled_from([8, 32, 256]),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_tensors_read_back_as_written(
    tensors: list[tuple[tuple[int, ...], str]], alignment: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(None, "any")
    writer.add_custom_alignment(alignment)
    written = {}
    for index, (leading, name) in enumerate(tensors):
        shape = (*leading, int(rng.integers(1, 3)) * by_name(name).block_size)
        raw = encode(rng.standard_normal(shape).astype(np.float32), name)
        written[f"tensor.{index}"] = (shape, name, raw)
        writer.add_tensor(f"tensor.{index}", raw, raw_dtype=gguf.GGMLQuantizationType[name])
    file = open_gguf(write(tmp_path_factory.mktemp("model") / "tensors.gguf", writer))
    assert list(file.tensors) == list(written)
    assert file.tensor_bytes == sum(raw.size for _, _, raw in written.values())
    for tensor_name, (shape, name, raw) in written.items():
        stored = file.tensors[tensor_name]
        assert (stored.name, stored.shape, stored.format.name) == (tensor_name, shape, name)
        assert (stored.nbytes, stored.row_bytes) == (raw.size, raw.shape[-1])
        assert stored.data.tobytes() == raw.tobytes()
        assert stored.decode().tobytes() == decode(raw, by_name(name), shape).tobytes()


@pytest.fixture
def model(tmp_path: Path) -> GgufFile:
    rng = np.random.default_rng(3)
    writer = gguf.GGUFWriter(None, "qwen3")
    writer.add_uint32("count", 7)
    writer.add_int32("negative", -1)
    writer.add_uint64("large", 1 << 40)
    writer.add_float32("rate", 0.5)
    writer.add_bool("yes", True)
    writer.add_token_list([b"plain", "wörter".encode(), b"\xff\xfe", b"", b"last"])
    writer.add_array("numbers", [3, 1, 2])
    writer.add_tensor("matrix", rng.standard_normal((5, 8)).astype(np.float32))
    experts = encode(rng.standard_normal((3, 4, 256)).astype(np.float32), "Q4_K")
    writer.add_tensor("experts", experts, raw_dtype=gguf.GGMLQuantizationType.Q4_K)
    writer.add_tensor("other", np.zeros((2, 50), np.int32))
    return open_gguf(write(tmp_path / "model.gguf", writer))


def test_the_gguf_package_reads_the_same(model: GgufFile) -> None:
    reader = gguf.GGUFReader(model.path)
    assert [tensor.name for tensor in reader.tensors] == list(model.tensors)
    for tensor in reader.tensors:
        stored = model.tensors[tensor.name]
        assert tuple(reversed(tensor.shape.tolist())) == stored.shape
        assert tensor.data_offset == stored.offset
        assert tensor.data.tobytes() == stored.data.tobytes()
    assert [key for key in reader.fields if not key.startswith("GGUF.")] == list(model.metadata)


def test_getters_give_values_and_defaults(model: GgufFile) -> None:
    assert (model.get_int("count"), model.get_u32("count"), model.get_int("negative")) == (7, 7, -1)
    assert (model.get_float("rate"), model.get_bool("yes")) == (0.5, True)
    assert model.get_str("general.architecture") == "qwen3"
    assert model.get_numbers("numbers").tolist() == [3, 1, 2]
    assert list(model.get_strings("tokenizer.ggml.tokens"))[1] == "wörter"
    assert model.get_int("absent", 9) == 9
    assert model.get_u32("absent", None) is None
    assert model.get_float("absent", None) is None
    assert model.get_str("absent", "") == ""
    assert model.get_bool("absent", default=False) is False
    assert model.get_array("absent", None) is None
    assert model.get_strings("absent", None) is None
    assert model.get_numbers("absent", None) is None


@pytest.mark.parametrize(
    ("getter", "key", "words"),
    [
        ("get_int", "absent", "the key 'absent' (an integer) is missing"),
        ("get_int", "rate", "the key 'rate' is of type f32, but an integer is expected"),
        ("get_int", "yes", "the key 'yes' is of type bool, but an integer is expected"),
        ("get_u32", "negative", "the key 'negative' is -1, which is no unsigned 32-bit integer"),
        ("get_u32", "large", "the key 'large' is 1099511627776"),
        ("get_float", "count", "the key 'count' is of type u32, but a float is expected"),
        ("get_bool", "count", "the key 'count' is of type u32, but a bool is expected"),
        ("get_str", "numbers", "the key 'numbers' is of type arr[i32], but a string is expected"),
        ("get_array", "count", "the key 'count' is of type u32, but an array is expected"),
        ("get_strings", "numbers", "of type arr[i32], but an array of strings is expected"),
        ("get_numbers", "tokenizer.ggml.tokens", "of type arr[str], but an array of numbers is expected"),
    ],
)
def test_getters_refuse_by_key_and_type(model: GgufFile, getter: str, key: str, words: str) -> None:
    with pytest.raises(ModelFileError) as refusal:
        getattr(model, getter)(key)
    assert words in str(refusal.value)
    assert str(model.path) in str(refusal.value)


def test_a_default_does_not_excuse_a_wrong_type(model: GgufFile) -> None:
    with pytest.raises(ModelFileError, match="of type u32, but a string is expected"):
        model.get_str("count", "default")


def test_string_arrays_give_text_and_bytes(model: GgufFile) -> None:
    tokens = model.get_strings("tokenizer.ggml.tokens")
    raws = [b"plain", "wörter".encode(), b"\xff\xfe", b"", b"last"]
    assert tokens.raws() == raws
    assert tokens.joined() == b"".join(b"\0" + raw for raw in raws)
    assert [tokens.raw(index) for index in range(-5, 5)] == raws * 2
    assert list(tokens) == [tokens[index] for index in range(5)] == ["plain", "wörter", "\ufffd\ufffd", "", "last"]
    assert tokens[1:4] == ["wörter", "\ufffd\ufffd", ""]
    assert (tokens[-1], len(tokens), "last" in tokens) == ("last", 5, True)
    for index in (5, -6):
        with pytest.raises(IndexError):
            tokens.raw(index)


def test_numeric_arrays_and_weights_cannot_be_written_to(model: GgufFile) -> None:
    assert not model.get_numbers("numbers").flags.writeable
    assert not model.tensors["matrix"].data.flags.writeable
    assert model.tensors["matrix"].decode().flags.writeable


def test_rows_blocks_and_experts_are_pieces_of_the_data(model: GgufFile) -> None:
    matrix, experts = model.tensors["matrix"], model.tensors["experts"]
    assert (matrix.n_rows, matrix.row_bytes, experts.n_rows, experts.row_bytes) == (5, 32, 12, 144)
    assert matrix.rows(1, 3).tobytes() == matrix.data[32:96].tobytes()
    assert experts.blocks().shape == (3, 4, 144)
    assert experts.blocks((1, slice(2, 4))).tobytes() == experts.rows(6, 8).tobytes()
    assert experts.expert(2).tobytes() == experts.rows(8, 12).tobytes()
    whole = experts.decode()
    assert whole.shape == (3, 4, 256)
    assert experts.decode(slice(3, 9)).tobytes() == whole.reshape(12, 256)[3:9].tobytes()
    assert experts.decode(slice(-2, None)).tobytes() == whole.reshape(12, 256)[-2:].tobytes()
    assert experts.decode(slice(5, 2)).shape == (0, 256)
    assert experts.decode_expert(1).tobytes() == whole[1].tobytes()


def test_pieces_that_are_not_there_are_refused_by_name(model: GgufFile) -> None:
    matrix, experts = model.tensors["matrix"], model.tensors["experts"]
    with pytest.raises(IndexError, match="rows 3:6 of tensor 'matrix', which has 5"):
        matrix.rows(3, 6)
    with pytest.raises(IndexError, match="no expert 3 in tensor 'experts'"):
        experts.expert(3)
    with pytest.raises(IndexError, match="no expert 0 in tensor 'matrix'"):
        matrix.decode_expert(0)
    with pytest.raises(ValueError, match="without a step"):
        matrix.decode(slice(0, 4, 2))
    with pytest.raises(UnsupportedFormat, match="I32"):
        model.tensors["other"].decode()


def test_arrays_outlive_the_file(model: GgufFile) -> None:
    data, expected = model.tensors["matrix"].data, model.tensors["matrix"].data.tobytes()
    with model as entered:
        assert entered is model
    assert not model.tensors
    assert data.tobytes() == expected


def test_version_2_reads_like_version_3(model: GgufFile, tmp_path: Path) -> None:
    content = bytearray(model.path.read_bytes())
    assert struct.unpack_from("<I", content, 4) == (3,)
    content[4] = 2
    older = tmp_path / "older.gguf"
    older.write_bytes(content)
    file = open_gguf(older)
    assert (file.version, model.version) == (2, 3)
    assert file.tensors["matrix"].decode().tobytes() == model.tensors["matrix"].decode().tobytes()


def resident_bytes(path: Path) -> int:
    """Bytes of `path` that are resident through this process's mappings of it."""
    resident, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            resident += int(line.split()[1]) * 1024
    return resident


def test_opening_touches_no_tensor_data(tmp_path: Path) -> None:
    # The file is sparse: 16 GiB of weights that take no disk, and would take the machine's memory if they were read.
    path = tmp_path / "large.gguf"
    writer = gguf.GGUFWriter(None, "any")
    rows, columns = 1 << 22, 1024
    writer.add_tensor_info("large", (rows, columns), np.dtype(np.float32), rows * columns * 4)
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        file.truncate(-(-path.stat().st_size // 32) * 32 + rows * columns * 4)
    model = open_gguf(path)
    stored = model.tensors["large"]
    assert stored.shape == (rows, columns)
    assert stored.blocks()[5].shape == (4096,)
    # What the kernel brings in around the one page of the header is allowed.
    assert resident_bytes(path) <= 1 << 20
    assert not stored.decode(slice(rows - 2, rows)).any()
    assert resident_bytes(path) <= 4 << 20
