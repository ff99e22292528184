"""Bodies: their codings, their sizes, and what counts as a JSON object."""

from __future__ import annotations

import gzip
import json
import random
import tracemalloc
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomery.server.body import BODY_LIMIT, NESTING_LIMIT, content_coding, decode, json_object
from bloomery.server.errors import ApiError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def refused(data: bytes) -> str:
    with pytest.raises(ApiError) as caught:
        json_object(data)
    assert (caught.value.code, caught.value.type) == (400, "invalid_request_error")
    assert caught.value.param is None
    return caught.value.message


@given(st.dictionaries(st.text(), VALUES))
def test_every_object_is_read_as_the_json_module_reads_it(value: dict[str, Any]) -> None:
    assert json_object(json.dumps(value).encode()) == value
    assert json_object(b"\xef\xbb\xbf " + json.dumps(value, ensure_ascii=False).encode() + b"\n") == value


# What a real llama-server refuses with these words (recorded from b11549, parse errors 101 and out_of_range 406).
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "parse_error.101"),
        (b"{", "line 1, column 2"),
        (b"{'a': 1}", "line 1, column 2"),
        (b'{"a":1,}', "parse_error.101"),
        (b'{"a":1} x', "parse_error.101"),
        (b'{"a":NaN}', "parse_error.101"),
        (b'{"a":-Infinity}', "parse_error.101"),
        (b'{"a":"\\ud800"}', "surrogate"),
        (b'{"\\udc00":1}', "surrogate"),
        (b'{"a":"\xff"}', "line 1, column 7"),
        (b'{\n"a":"\xff"}', "line 2, column 6"),
        (b'{"a":"b\nc"}', "parse_error.101"),
        (b'{"a":01}', "parse_error.101"),
        (b'{"a":1e999}', "out_of_range.406] number overflow parsing '1e999'"),
        (b'{"a":' + b"9" * 5000 + b"}", "out_of_range.406"),
    ],
)
def test_what_is_no_json_is_refused_where_it_fails(data: bytes, words: str) -> None:
    assert words in refused(data)


@pytest.mark.parametrize("data", [b"[]", b'"x"', b"null", b"5", b"true"])
def test_json_that_is_no_object_is_refused(data: bytes) -> None:
    assert "must be a JSON object" in refused(data)


def test_a_surrogate_pair_is_a_character() -> None:
    assert json_object(b'{"a":"\\ud83d\\ude00"}') == {"a": "😀"}


def test_the_last_of_repeated_keys_counts() -> None:
    assert json_object(b'{"a":1,"a":2}') == {"a": 2}
    assert json_object(b'{"logit_bias":{},"a":1,"a":2}') == {"logit_bias": {}, "a": 2}


@pytest.mark.parametrize("opening", [b'{"a":', b"["])
def test_nesting_ends_at_the_limit(opening: bytes) -> None:
    closing = b"}" if opening.startswith(b"{") else b"]"
    inner = NESTING_LIMIT - 1

    def nested(levels: int) -> bytes:
        return b'{"a":' + opening * levels + b"1" + closing * levels + b"}"

    assert json_object(nested(inner))
    assert "128 levels" in refused(nested(inner + 1))
    assert "128 levels" in refused(nested(100_000))
    assert "128 levels" in refused(opening * 100_000)


@given(st.binary(max_size=2000))
def test_a_coded_body_is_the_bytes_it_decodes_to(data: bytes) -> None:
    assert decode(data, None) == data
    assert decode(gzip.compress(data), "gzip") == data
    assert decode(gzip.compress(data), "x-gzip") == data
    assert decode(zlib.compress(data), "deflate") == data


@given(st.binary(min_size=1, max_size=200), st.data())
def test_a_damaged_or_cut_stream_is_a_named_refusal(data: bytes, draw: st.DataObject) -> None:
    packed = gzip.compress(data)
    cut = packed[: draw.draw(st.integers(1, len(packed) - 1))]
    for damaged, coding in ((cut, "gzip"), (packed + b"x", "gzip"), (packed, "deflate"), (data, "gzip")):
        with pytest.raises(ApiError) as caught:
            decode(damaged, coding)
        assert caught.value.code == 400
        assert coding in caught.value.message


def test_no_more_than_the_limit_is_sent_or_decoded() -> None:
    with pytest.raises(ApiError, match="too large"):
        decode(bytes(BODY_LIMIT + 1), None)
    bomb = zlib.compress(bytes(BODY_LIMIT + 1), 9)
    with pytest.raises(ApiError, match="decoded body too large"):
        decode(bomb, "deflate")
    assert len(decode(zlib.compress(bytes(BODY_LIMIT), 9), "deflate")) == BODY_LIMIT


def test_a_bomb_is_refused_without_holding_what_it_decodes_to() -> None:
    packer = zlib.compressobj(9)
    zeros = bytes(1 << 20)
    first = packer.compress(zeros) + packer.flush(zlib.Z_FULL_FLUSH)
    # After a full flush every block stands alone, so a gigabyte is the same block again and again.
    bomb = first + 1023 * (packer.compress(zeros) + packer.flush(zlib.Z_FULL_FLUSH))
    tracemalloc.start()
    try:
        with pytest.raises(ApiError, match="decoded body too large"):
            decode(bomb, "deflate")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


@pytest.mark.parametrize("size", [0, 1, (1 << 18) - 1, 1 << 18, (1 << 18) + 1, 3 << 18])
@pytest.mark.parametrize("level", [0, 9])
def test_pieces_end_anywhere(size: int, level: int) -> None:
    data = random.Random(size).randbytes(size)
    packed = zlib.compress(data, level)
    assert decode(packed, "deflate") == data
    for damaged in (packed[:-1], packed + b"x", packed + bytes(1 << 18)):
        with pytest.raises(ApiError, match="deflate stream"):
            decode(damaged, "deflate")
    zeros = zlib.compress(bytes(size), level)
    assert decode(zeros, "deflate") == bytes(size)


@pytest.mark.parametrize("coding", ["br", "zstd", "compress", "gzip, deflate", "gzip,gzip", "GZIPX"])
def test_other_codings_are_refused(coding: str) -> None:
    with pytest.raises(ApiError) as caught:
        content_coding({"CONTENT_ENCODING": coding})
    assert caught.value.code == 415


@pytest.mark.parametrize(
    ("header", "coding"), [("gzip", "gzip"), (" Deflate ", "deflate"), ("X-GZIP", "x-gzip"), ("", None)]
)
def test_known_codings_are_taken_in_any_case(header: str, coding: str | None) -> None:
    assert content_coding({"CONTENT_ENCODING": header}) == coding
