"""Speed of decoding each block format beside gguf.quants.dequantize, in one process, as ratios.

    python tools/bench/dequantize.py [--weights 8388608] [--rounds 5] [--only Q4_K ...]

The two run in turns on the same blocks, and each side's best round counts, in processor time of the one thread that
runs. A line also says whether both gave the same bits; formats that gguf cannot decode have no ratio. F32 and F64 are
left out, since nothing is decoded there. A busy machine moves both sides.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from bloomery.interface.files.quants import FORMATS, BlockFormat, decode_into, encode

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
    blocks = raw.reshape(-1).view(block_format.layout)
    for name in {"d", "dmin", "s"} & set(blocks.dtype.names or ()):
        blocks[name] = 0.01
    return raw


def _measure(block_format: BlockFormat, values: np.ndarray, n_rounds: int) -> str:
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
        return f"{block_format.name:8}{speed:12.0f}{'-':>8}{'-':>8}  -"
    rounds = [(_seconds(ours_once), _seconds(theirs_once)) for _ in range(n_rounds)]
    ours, other = (values.size / min(times) / 1e6 for times in zip(*rounds, strict=True))
    same = np.array_equal(out.view(np.uint32), np.ascontiguousarray(theirs[0]).reshape(out.shape).view(np.uint32))
    return f"{block_format.name:8}{ours:12.0f}{other:8.0f}{ours / other:8.2f}  {'yes' if same else 'NO'}"


def main() -> None:
    """Prints one line a format."""
    decodable = [block_format for block_format in FORMATS.values() if block_format.decodable]
    measured = {
        block_format.name: block_format for block_format in decodable if block_format.name not in {"F32", "F64"}
    }
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=int, default=8 << 20, help="weights decoded a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=measured, default=list(measured), help="formats to measure")
    arguments = parser.parse_args()
    values = np.random.default_rng(1).standard_normal((max(1, arguments.weights // _ROW), _ROW), np.float32)
    print(f"{'format':8}{'M weights/s':>12}{'gguf':>8}{'ratio':>8}  same bits")
    for name in arguments.only:
        print(_measure(measured[name], values, arguments.rounds), flush=True)


if __name__ == "__main__":
    main()
