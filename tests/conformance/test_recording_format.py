"""A recording round-trips, and whatever is not whole is refused."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomery.conformance import recording
from bloomery.conformance.cases import Case, Distribution, Drafted, Exchange, Greedy, Seeded, from_json, to_json
from bloomery.conformance.recording import Manifest, RecordingError, load_set, set_names, write_set

MANIFEST = Manifest(
    oracle="somebody 1",
    command="take it",
    settings={"n_ctx": 8},
    model="m",
    model_sha256="0" * 64,
    weights="F32",
    numerics="plain",
    taken="2026-01-01",
)
GREEDY = Greedy(name="g", prompt=(1, 2), request={"temperature": 0}, ids=(3, 4), stop_type="limit", first_step=1)
CASES: list[Case] = [
    Distribution(name="d", ids=(1, 2, 3), lengths=(1, 3), request={"n_probs": 4}, first_row=1, digest="ff"),
    GREEDY,
    Seeded(name="s", prompt=(5,), request={"seed": 1}, ids=(6,), stop_type="eos"),
    Drafted(name="w", prompt=(7,), request={"seed": 2}, ids=(8, 9), stop_type="limit", proposed=3, accepted=1),
]
ROWS = np.log(np.array([[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1], [0.1, 0.7, 0.15, 0.05]], np.float32))
ARRAYS = {"logprobs": ROWS, "margins": np.array([9, 0.5, 0.25], np.float32)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_set(tmp_path / "one", MANIFEST, CASES, ARRAYS)
    return tmp_path


def rewrite_manifest(folder: Path, **changes: Any) -> None:
    path = folder / "one" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


texts_or_bytes = st.one_of(st.text().map(str.encode), st.binary())
pairs = st.lists(st.tuples(st.text(), st.text())).map(tuple)


@given(
    body=st.none() | texts_or_bytes,
    chunks=st.none() | st.lists(texts_or_bytes).map(tuple),
    whole=texts_or_bytes,
    headers=pairs,
)
def test_an_exchange_survives_its_json_line(
    body: bytes | None, chunks: tuple[bytes, ...] | None, whole: bytes, headers: tuple[tuple[str, str], ...]
) -> None:
    case = Exchange(
        name="x",
        method="POST",
        path="/completion",
        headers=headers,
        body=body,
        status=200,
        response_headers=headers,
        response=whole if chunks is None else b"".join(chunks),
        chunks=chunks,
    )
    assert from_json(json.loads(json.dumps(to_json(case), ensure_ascii=False))) == case


def test_a_set_is_read_as_it_was_written(folder: Path) -> None:
    read = load_set("one", folder)
    assert read.manifest == MANIFEST
    assert [*read.cases(Distribution), *read.cases(Greedy), *read.cases(Seeded), *read.cases(Drafted)] == CASES
    assert read.cases(Exchange) == []
    assert set_names(folder) == ["one"]
    assert "1 distribution" in repr(read)


def test_whole_rows_come_best_first(folder: Path) -> None:
    read = load_set("one", folder)
    [case] = read.cases(Distribution)
    first, second = read.distribution(case)
    assert first.ids.tolist() == [0, 1, 2, 3]
    assert second.ids.tolist() == [1, 2, 0, 3]
    assert (second.logprobs == ROWS[2][second.ids]).all()
    assert first.margin == pytest.approx(np.log(4 / 3), abs=1e-6)


def test_best_rows_come_as_they_lie(tmp_path: Path) -> None:
    best = {"best_ids": np.array([[9, 9], [7, 5], [2, 0]], np.uint32), "best_logprobs": ROWS[:, :2]}
    write_set(tmp_path / "one", MANIFEST, CASES[:1], best)
    read = load_set("one", tmp_path)
    assert [row.ids.tolist() for row in read.distribution(read.cases(Distribution)[0])] == [[7, 5], [2, 0]]


def test_margins_are_a_case_s_own(folder: Path) -> None:
    assert load_set("one", folder).margins(GREEDY).tolist() == [0.5, 0.25]


def test_a_folder_without_a_manifest_is_refused(folder: Path) -> None:
    (folder / "one" / "manifest.json").unlink()
    with pytest.raises(RecordingError, match=r"no manifest\.json"):
        load_set("one", folder)
    assert set_names(folder) == []


def test_a_manifest_that_is_no_json_is_refused(folder: Path) -> None:
    (folder / "one" / "manifest.json").write_text("{")
    with pytest.raises(RecordingError, match="not JSON"):
        load_set("one", folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "not the manifest"),
        ({"version": 2}, "format version 2; this build reads version 1"),
        ({"counts": {"greedy": 2}}, "its manifest says"),
        ({"files": {}}, "not a whole recording"),
        ({"files": 3}, "not a whole recording"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    rewrite_manifest(folder, **changes)
    with pytest.raises(RecordingError, match=message):
        load_set("one", folder)


@pytest.mark.parametrize("name", ["cases.jsonl", "arrays.npz"])
def test_a_changed_file_is_refused(folder: Path, name: str) -> None:
    path = folder / "one" / name
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    with pytest.raises(RecordingError, match=f"{name}: its sha256"):
        load_set("one", folder)


@pytest.mark.parametrize("name", ["cases.jsonl", "arrays.npz"])
def test_a_file_cut_short_or_missing_is_refused(folder: Path, name: str) -> None:
    path = folder / "one" / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RecordingError, match="bytes, its manifest says"):
        load_set("one", folder)
    path.unlink()
    with pytest.raises(RecordingError, match="not a whole recording"):
        load_set("one", folder)


@pytest.mark.parametrize("line", ["{", "[]", '{"kind": "unheard of"}', '{"kind": "greedy"}'])
def test_a_line_that_is_no_case_is_refused(folder: Path, line: str) -> None:
    raw = (line + "\n").encode()
    (folder / "one" / "cases.jsonl").write_bytes(raw)
    files = json.loads((folder / "one" / "manifest.json").read_text())["files"]
    files["cases.jsonl"] = {"sha256": hashlib.sha256(raw).hexdigest(), "bytes": len(raw)}
    rewrite_manifest(folder, files=files)
    with pytest.raises(RecordingError, match="not a whole recording"):
        load_set("one", folder)


def test_a_new_set_replaces_the_old_one_and_leaves_nothing_beside(folder: Path) -> None:
    write_set(folder / "one", MANIFEST, CASES[:1], ARRAYS)
    assert load_set("one", folder).cases(Greedy) == []
    assert [path.name for path in folder.iterdir()] == ["one"]


def test_a_failed_write_leaves_the_old_set(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(recording.Path, "write_text", refuse)
    with pytest.raises(OSError, match="disk full"):
        write_set(folder / "one", MANIFEST, CASES[:1], ARRAYS)
    assert len(load_set("one", folder).cases(Greedy)) == 1
    assert [path.name for path in folder.iterdir()] == ["one"]
