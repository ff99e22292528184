"""Lines of a key file: what a key may do, and what a refusal tells of a line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomery.server.api_keys import ApiKey, read_key_file
from bloomery.server.key_fields import KeyFields, Rate, read_fields

SECRET = "sk-very-secret"


def read(tmp_path: Path, text: str) -> tuple[ApiKey, ...]:
    file = tmp_path / "keys"
    file.write_bytes(text.encode())
    return read_key_file(str(file))


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(ValueError) as caught:
        read(tmp_path, text)
    assert SECRET not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("fields", "limits"),
    [
        ("", KeyFields()),
        ("scope=admin", KeyFields(scopes=frozenset({"admin"}))),
        ("scope=inference,read", KeyFields(scopes=frozenset({"inference", "read"}))),
        ("scope=read,read", KeyFields(scopes=frozenset({"read"}))),
        ("inflight=2", KeyFields(inflight=2)),
        ("rate=30/m", KeyFields(rate=Rate(n=30, seconds=60, burst=30))),
        ("burst=5\trate=3/s", KeyFields(rate=Rate(n=3, seconds=1, burst=5))),
    ],
)
def test_fields_follow_a_key(tmp_path: Path, fields: str, limits: KeyFields) -> None:
    (key,) = read(tmp_path, f"# ours\n \t\r\n{SECRET} {fields} \r\n")
    assert (key.secret, key.fields) == (SECRET, limits)
    assert SECRET not in repr(key)


@pytest.mark.parametrize(
    ("fields", "place", "words"),
    [
        ("sk-other", 2, "scope=, inflight=, rate= or burst="),
        ("scope=read scopes=read", 3, "scope=, inflight=, rate= or burst="),
        ("Scope=read", 2, "scope="),
        ("scope=read scope=read", 3, "scope stands in field 2 already"),
        ("inflight=1 rate=1/s inflight=1", 4, "inflight stands in field 2 already"),
        ("scope=", 2, "inference, read, admin"),
        ("scope=read,", 2, "inference, read, admin"),
        ("scope=write", 2, "inference, read, admin"),
        ("inflight=0", 2, "from 1 to 1000000"),
        ("inflight=-1", 2, "from 1 to 1000000"),
        ("inflight=1.5", 2, "from 1 to 1000000"),
        ("inflight=01", 2, "from 1 to 1000000"),
        ("inflight=1000001", 2, "from 1 to 1000000"),
        ("inflight=²", 2, "from 1 to 1000000"),
        (f"inflight={'9' * 5000}", 2, "from 1 to 1000000"),
        ("rate=5", 2, "N/s or N/m"),
        ("rate=5/h", 2, "N/s or N/m"),
        ("rate=0/s", 2, "from 1 to 1000000"),
        ("rate=5/s burst=0", 3, "from 1 to 1000000"),
        ("scope=read burst=5", 3, "name a rate beside it"),
    ],
)
def test_a_bad_field_is_refused_by_its_place(tmp_path: Path, fields: str, place: int, words: str) -> None:
    message = refusal(tmp_path, f"k1\n\n{SECRET} {fields}\n")
    assert message.startswith(f"line 3, field {place}: ")
    assert words in message


def test_a_second_key_on_a_line_is_not_shown(tmp_path: Path) -> None:
    assert refusal(tmp_path, f"k1 {SECRET}\n").startswith("line 1, field 2: ")


def test_a_key_may_stand_twice_with_the_same_fields(tmp_path: Path) -> None:
    text = "k1 scope=read inflight=2\nk2\nk1  inflight=2  scope=read\n"
    assert [key.secret for key in read(tmp_path, text)] == ["k1", "k2"]
    message = refusal(tmp_path, f"{SECRET} scope=read\nk2\n{SECRET}\n")
    assert f"line 3 of {tmp_path / 'keys'}: the key is also that of line 1" in message


@given(st.lists(st.text(st.characters(exclude_characters=" ", exclude_categories=["Cs"])), max_size=4))
def test_any_fields_are_read_or_refused_without_their_text(words: list[str]) -> None:
    fields = [f"sk-{word}" for word in words]
    try:
        assert read_fields(fields) == KeyFields()
    except ValueError as error:
        assert not any(field in str(error) for field in fields)
