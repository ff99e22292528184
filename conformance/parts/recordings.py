"""Recordings of the parts beneath every engine and server: a real llama-server's tokenizers, and its sampler."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from bloomery.conformance.recording import RECORDINGS, RecordingError

PARTS = RECORDINGS / "parts"

Json = dict[str, Any]


def manifest_of(folder: Path) -> Json:
    """The manifest, after a check that the files beside it are the recorded ones.  Raises RecordingError."""
    try:
        manifest: Json = json.loads((folder / "manifest.json").read_bytes())
        named: dict[str, str] = manifest["sha256"]
        if manifest["version"] != 1:
            raise RecordingError(f"{folder}: version {manifest['version']} is not known; known is 1")
        for name, digest in named.items():
            if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
                raise RecordingError(f"{folder / name} is not the file that was recorded")
    except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise RecordingError(f"{folder} is no whole recording: {type(error).__name__}: {error}") from None
    return manifest


def cases_of(folder: Path, kind: str) -> list[Json]:
    """The cases of one kind, as many as the manifest says.  Raises RecordingError."""
    wanted = manifest_of(folder)["counts"].get(kind, 0)
    cases = [
        case for case in map(json.loads, (folder / "cases.jsonl").read_text().splitlines()) if case["kind"] == kind
    ]
    if len(cases) != wanted:
        raise RecordingError(f"{folder} has {len(cases)} cases of {kind} where its manifest counts {wanted}")
    return cases
