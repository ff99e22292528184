"""A recording is a folder: `manifest.json`, `cases.jsonl`, `arrays.npz`.

The manifest says what made the set and holds the sha256 of the other two files; it is written last. A set without it,
of another version, or with a file that is not the one it names, is refused by every reader. A set is written beside
the old one and swapped in when it is whole.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bloomery.conformance.cases import C, Case, Distribution, Greedy, from_json, to_json

FORMAT = "bloomery-recording"
VERSION = 1
RECORDINGS = Path(__file__).with_name("recordings")

# How many of a distribution's best are kept where it is not kept whole.
N_BEST = 64

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


class RecordingError(ValueError):
    """A folder is no whole recording of this version; the message names the folder and the file."""


@dataclass(frozen=True)
class Manifest:
    """What made a set.

    oracle: package, version and build.  command: how to take it again.  settings: the oracle's, as `OracleSettings`.
    model: the fixture's name.  model_sha256: its file's.  weights: what its weights are stored as, by the names of
    `bands`.  numerics: what the configuration means.  taken: the day, ISO.
    """

    oracle: str
    command: str
    settings: Mapping[str, Any]
    model: str
    model_sha256: str
    weights: str
    numerics: str
    taken: str


@dataclass(frozen=True)
class RecordedRow:
    """One recorded distribution: ids, best first, and their log-probabilities; all of the vocabulary or the best."""

    ids: Ids
    logprobs: Floats

    @property
    def margin(self) -> float:
        """The best's lead over the second best."""
        return float(self.logprobs[0] - self.logprobs[1])


class RecordingSet:
    """A set that was read whole and found intact."""

    def __init__(self, name: str, manifest: Manifest, cases: Iterable[Case], arrays: Mapping[str, Array]) -> None:
        self.name = name
        self.manifest = manifest
        self._cases = tuple(cases)
        self._arrays = dict(arrays)

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {kind}" for kind, count in Counter(case.kind for case in self._cases).items())
        return f"<RecordingSet {self.name}: {counts}>"

    def cases(self, kind: type[C]) -> list[C]:
        """The cases of one kind (`Distribution`, `Greedy`, `Seeded`, `Drafted`, `Exchange`), in the order of taking."""
        return [case for case in self._cases if isinstance(case, kind)]

    def only(self, wanted: Callable[[Case], bool]) -> RecordingSet:
        """The same set with only the cases that are wanted."""
        return RecordingSet(self.name, self.manifest, filter(wanted, self._cases), self._arrays)

    def distribution(self, case: Distribution) -> list[RecordedRow]:
        """The case's rows, one a length.

        Full sets keep `logprobs` [rows, n_vocab]; others `best_ids` and `best_logprobs` [rows, N_BEST].
        """
        rows = range(case.first_row, case.first_row + len(case.lengths))
        if "logprobs" in self._arrays:
            whole = self._arrays["logprobs"][rows.start : rows.stop]
            order = np.argsort(-whole, axis=1, kind="stable")
            return [RecordedRow(ids, row[ids]) for ids, row in zip(order, whole, strict=True)]
        ids, best = self._arrays["best_ids"], self._arrays["best_logprobs"]
        return [RecordedRow(ids[row].astype(np.int64), best[row]) for row in rows]

    def margins(self, case: Greedy) -> Floats:
        """The lead of each id of a greedy continuation over the second best, in log-probability: [len(case.ids)]."""
        return np.asarray(self._arrays["margins"][case.first_step : case.first_step + len(case.ids)], np.float32)


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def write_set(folder: Path, manifest: Manifest, cases: Iterable[Case], arrays: Mapping[str, Array]) -> None:
    """Write a set to `folder`, replacing the one that is there in one step when all of it is written."""
    listed = list(cases)
    packed = io.BytesIO()
    np.savez_compressed(packed, allow_pickle=False, **arrays)
    files = {
        "cases.jsonl": "".join(json.dumps(to_json(case), ensure_ascii=False) + "\n" for case in listed).encode(),
        "arrays.npz": packed.getvalue(),
    }
    head = {
        "format": FORMAT,
        "version": VERSION,
        **vars(manifest),
        "counts": dict(Counter(case.kind for case in listed)),
        "files": {name: {"sha256": _digest(raw), "bytes": len(raw)} for name, raw in files.items()},
    }
    beside = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    beside.mkdir(parents=True)
    try:
        for name, raw in files.items():
            (beside / name).write_bytes(raw)
        (beside / "manifest.json").write_text(json.dumps(head, indent=1) + "\n")
        if folder.exists():
            folder.rename(old)
        beside.rename(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    try:
        head = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise RecordingError(f"{folder}: no manifest.json, so this is no whole recording") from None
    except ValueError as error:
        raise RecordingError(f"{path}: not JSON: {error}") from None
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise RecordingError(f"{path}: not the manifest of a {FORMAT}")
    if head.get("version") != VERSION:
        raise RecordingError(f"{path}: format version {head.get('version')!r}; this build reads version {VERSION}")
    return head


def load_set(name: str, folder: Path = RECORDINGS) -> RecordingSet:
    """Read the set `name` of a folder of sets.  Raises RecordingError unless it is whole and as its manifest says."""
    place = folder / name
    head = _read_manifest(place)
    raw: dict[str, bytes] = {}
    try:
        for file in ("cases.jsonl", "arrays.npz"):
            stated = head["files"][file]
            path = place / file
            if path.stat().st_size != stated["bytes"]:
                raise RecordingError(f"{path}: {path.stat().st_size} bytes, its manifest says {stated['bytes']}")
            raw[file] = path.read_bytes()
            if _digest(raw[file]) != stated["sha256"]:
                raise RecordingError(f"{path}: its sha256 is not the one in the manifest")
        manifest = Manifest(**{field: head[field] for field in Manifest.__dataclass_fields__})
        cases = [from_json(json.loads(line)) for line in raw["cases.jsonl"].splitlines()]
        counts = dict(Counter(case.kind for case in cases))
        if counts != head["counts"]:
            raise RecordingError(f"{place}: holds {counts}, its manifest says {head['counts']}")
        with np.load(io.BytesIO(raw["arrays.npz"]), allow_pickle=False) as packed:
            arrays = {key: packed[key] for key in packed.files}
    except RecordingError:
        raise
    except (KeyError, TypeError, ValueError, OSError, zipfile.BadZipFile) as error:
        raise RecordingError(f"{place}: not a whole recording: {error}") from None
    return RecordingSet(name, manifest, cases, arrays)


def set_names(folder: Path = RECORDINGS) -> list[str]:
    """The sets of a folder, by name; folders without a manifest are not sets."""
    return sorted(path.parent.name for path in folder.glob("*/manifest.json") if not path.parent.name.startswith("."))
