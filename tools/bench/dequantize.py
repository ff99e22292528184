"""Speed of decoding each block format beside gguf.quants.dequantize, in one process, as ratios.

    python -m tools.bench.dequantize [--weights 8388608] [--rounds 5] [--only Q4_K ...]
        [--out docs/bench/dequantize.json]

The two run in turns on the same blocks, and each side's best round counts, in processor time of the one thread that
runs. A line also says whether both gave the same bits; formats that gguf cannot decode have no ratio. F32 and F64 are
left out, since nothing is decoded there. A busy machine moves both sides.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from bloomery.interface.files.quants import FORMATS, BlockFormat, decode_into, encode
from tools.bench.machine import load, machine

_ROW = 4096


def _seconds(act: Callable[[], object]) -> float:
    started = time.thread_time()
    act()
    return time.thread_time() - started


def _blocks(block_format: BlockFormat, values: np.ndarray) -> np.ndarray:
    """Bytes `[rows, row_bytes]` of `values`, or of random blocks with ordinary scales where they cannot be encoded."""
    if block_format.encodable and block_format.name != "Q8_1":
        return encode(values, block_format.name)
    raw = np.random.default_rng(2).integers(0, 256, (len(values), block_format.row_bytes(_ROW)), np.uint8)
    blocks = raw.reshape(-1).view(np.dtype(block_format.layout))
    for name in {"d", "dmin", "s"} & set(blocks.dtype.names or ()):
        blocks[name] = 0.01
    return raw


def _measure(block_format: BlockFormat, values: np.ndarray, n_rounds: int) -> dict[str, Any]:
    """Millions of weights a second of both, as the JSON of `--out` has them; None where gguf cannot."""
    raw = _blocks(block_format, values)
    out = np.empty_like(values)
    theirs: list[np.ndarray] = []

    def ours_once() -> None:
        decode_into(raw, block_format, out)

    def theirs_once() -> None:
        theirs[:] = [dequantize(raw, GGMLQuantizationType(block_format.ggml_type))]

    try:
        theirs_once()
    except (NotImplementedError, ValueError):
        speed = values.size / min(_seconds(ours_once) for _ in range(n_rounds)) / 1e6
        return {"ours": round(speed), "gguf": None, "ratio": None, "same_bits": None}
    rounds = [(_seconds(ours_once), _seconds(theirs_once)) for _ in range(n_rounds)]
    ours, other = (values.size / min(times) / 1e6 for times in zip(*rounds, strict=True))
    same = np.array_equal(out.view(np.uint32), np.ascontiguousarray(theirs[0]).reshape(out.shape).view(np.uint32))
    return {"ours": round(ours), "gguf": round(other), "ratio": round(ours / other, 2), "same_bits": same}


def main() -> None:
    """Prints one line a format; writes the JSON."""
    decodable = [block_format for block_format in FORMATS.values() if block_format.decodable]
    measured = {
        block_format.name: block_format for block_format in decodable if block_format.name not in {"F32", "F64"}
    }
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=int, default=8 << 20, help="weights decoded a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=measured, default=list(measured), help="formats to measure")
    parser.add_argument("--out", type=Path, help="a JSON file to write")
    arguments = parser.parse_args()
    values = np.random.default_rng(1).standard_normal((max(1, arguments.weights // _ROW), _ROW), np.float32)
    found: dict[str, Any] = {}
    before = load()
    print(f"{'format':8}{'M weights/s':>12}{'gguf':>8}{'ratio':>8}  same bits")
    for name in arguments.only:
        found[name] = line = _measure(measured[name], values, arguments.rounds)
        same = {True: "yes", False: "NO", None: "-"}[line["same_bits"]]
        print(f"{name:8}{line['ours']:12}{line['gguf'] or '-':>8}{line['ratio'] or '-':>8}  {same}", flush=True)
    if arguments.out:
        result = {"machine": machine(), "peer": f"gguf {version('gguf')}", "load": [before, load()], "formats": found}
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
