"""A case as one file: a zip of `case.json` and an `.npy` member an array, so that `numpy.load` opens it too.

`case.json` says what the case is; weights lie in `weights/<name>.npy` as their stored bytes, arrays in
`arrays/<name>.npy`. Nothing is pickled. A reader trusts no number of a file: members, sizes and shapes are bounded and
compared before anything is allocated, and a case must be one that the op could have been called with.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np

from bloomery.conformance.ops.case import Array, Layout, OpCase, Stored, parameters_of
from bloomery.interface.files.quants import UnsupportedFormat
from bloomery.interface.ops import OpSet
from bloomery.interface.spec import Rope

FORMAT = "bloomery-op-case"
VERSION = 1

_MOST_BYTES = 64 << 20
_MOST_MEMBERS = 64
_DTYPES = {"float32", "int32", "uint8"}
# A zip keeps the time of its members; a fixed one makes the same case the same bytes.
_NO_TIME = (1980, 1, 1, 0, 0, 0)


class OpReplayError(ValueError):
    """A file is no saved case of this version; the message names the file and what is wrong with it."""


@dataclasses.dataclass(frozen=True)
class Saved:
    """A case and the name of the check that it was wrong in."""

    case: OpCase
    check: str


def to_bytes(case: OpCase, check: str = "", notes: Mapping[str, Any] | None = None) -> bytes:
    """The file of a case. `notes` are for a person who opens it: JSON, not needed to play the case again."""
    head = {
        "format": FORMAT,
        "version": VERSION,
        "op": case.op,
        "check": check,
        "format_name": case.format_name,
        "layouts": dict(case.layouts),
        "weights": {name: {"format": w.format_name, "shape": list(w.shape)} for name, w in case.weights.items()},
        "params": {name: _param_to_json(value) for name, value in case.params.items()},
        "notes": notes or {},
    }
    members = {"case.json": json.dumps(head, indent=1).encode() + b"\n"}
    for folder, arrays in (("arrays", case.arrays), ("weights", {n: w.raw for n, w in case.weights.items()})):
        for name, array in arrays.items():
            packed = io.BytesIO()
            np.lib.format.write_array(packed, np.ascontiguousarray(array), allow_pickle=False)
            members[f"{folder}/{name}.npy"] = packed.getvalue()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, raw in members.items():
            archive.writestr(zipfile.ZipInfo(name, _NO_TIME), raw, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def save(folder: Path, case: OpCase, check: str, notes: Mapping[str, Any]) -> Path:
    """Write a case into a folder, under a name made of the op and of what the case is; returns the file."""
    raw = to_bytes(case, check, notes)
    words = [case.op, case.format_name, hashlib.sha256(raw).hexdigest()[:8]]
    path = folder / ("-".join(word for word in words if word) + ".npz")
    folder.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    beside.write_bytes(raw)
    beside.replace(path)
    return path


def load(path: Path) -> Saved:
    """The case of a file.  Raises OpReplayError, and OSError where the file cannot be read."""
    if path.stat().st_size > _MOST_BYTES:
        raise OpReplayError(f"{path}: larger than {_MOST_BYTES} bytes, so no saved case")
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename: info for info in archive.infolist()}
            if len(members) > _MOST_MEMBERS or sum(info.file_size for info in members.values()) > _MOST_BYTES:
                raise OpReplayError(f"{path}: more than {_MOST_MEMBERS} members or {_MOST_BYTES} bytes unpacked")
            # A member that unpacks to more than it states ends with an error of zipfile's own.
            raw = {name: archive.read(info) for name, info in members.items()}
        head = json.loads(raw["case.json"])
        return Saved(_case(head, raw), str(head["check"]))
    except OpReplayError:
        raise
    except KeyError as error:
        raise OpReplayError(f"{path}: not a saved case: {error} is missing") from None
    except (ValueError, TypeError, zipfile.BadZipFile, NotImplementedError, EOFError, RecursionError) as error:
        raise OpReplayError(f"{path}: not a saved case: {error}") from None


def _case(head: Any, raw: Mapping[str, bytes]) -> OpCase:
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise ValueError(f"case.json is not of the format {FORMAT}")
    if head.get("version") != VERSION:
        raise ValueError(f"its format version is {head.get('version')!r}; this build reads {VERSION}")
    op = str(head["op"])
    arrays = {name: _array(data) for name, data in _under("arrays", raw).items()}
    weights = {}
    for name, data in _under("weights", raw).items():
        stated = head["weights"][name]
        shape = tuple(_size(n) for n in stated["shape"])
        if not shape or math.prod(shape) > _MOST_BYTES:
            raise ValueError(f"the weight {name} has the shape {list(shape)}")
        try:
            weights[name] = Stored(str(stated["format"]), shape, _array(data))
        except UnsupportedFormat as error:
            raise ValueError(str(error)) from None
    params = {name: _param_from_json(value) for name, value in head["params"].items()}
    layouts = {name: value for name, value in head["layouts"].items() if value in get_args(Layout)}
    _check_names(op, {*arrays, *weights, *params})
    return OpCase(op, arrays, weights, params, cast(dict[str, Layout], layouts), str(head["format_name"]))


def _check_names(op: str, given: set[str]) -> None:
    """A case names the op's own parameters, and every one without a default."""
    if op.startswith("_") or not hasattr(OpSet, op):
        raise ValueError(f"there is no op {op!r}")
    parameters = parameters_of(op)
    known = {parameter.name for parameter in parameters}
    required = {parameter.name for parameter in parameters if parameter.default is parameter.empty}
    if not required <= given <= known:
        raise ValueError(f"{op} takes {', '.join(sorted(known))}; the case has {', '.join(sorted(given))}")


def _under(folder: str, raw: Mapping[str, bytes]) -> dict[str, bytes]:
    return {
        name.removeprefix(f"{folder}/").removesuffix(".npy"): data
        for name, data in raw.items()
        if name.startswith(f"{folder}/")
    }


def _array(raw: bytes) -> Array:
    stream = io.BytesIO(raw)
    version = np.lib.format.read_magic(stream)
    if version != (1, 0):
        raise ValueError(f"an array is of .npy version {version}, not (1, 0)")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype.name not in _DTYPES or fortran:
        raise ValueError(f"an array is {dtype.name}; a case holds {', '.join(sorted(_DTYPES))} in C order")
    n_bytes = math.prod(shape) * dtype.itemsize
    if n_bytes != len(raw) - stream.tell():
        raise ValueError(f"an array of shape {list(shape)} takes {n_bytes} bytes, not {len(raw) - stream.tell()}")
    return np.frombuffer(raw, dtype, offset=stream.tell()).reshape(shape).copy()


def _size(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST_BYTES:
        raise ValueError(f"a shape has the length {value!r}")
    return value


def _param_to_json(value: Any) -> Any:
    return {"rope": dataclasses.asdict(value)} if isinstance(value, Rope) else value


def _param_from_json(value: Any) -> Any:
    if isinstance(value, dict):
        fields = dict(value["rope"])
        if fields.get("sections") is not None:
            fields["sections"] = tuple(fields["sections"])
        return Rope(**fields)
    if value is not None and not isinstance(value, bool | int | float | str | list):
        raise ValueError(f"a parameter is {value!r}")
    return value
