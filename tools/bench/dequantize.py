"""Speed of decoding each block format beside gguf.quants.dequantize, in one process, as ratios.

    python tools/bench/dequantize.py [--weights 8388608] [--rounds 5]

The two run in turns on the same blocks, and each side's best round counts. A line also says whether both gave the same
bits. F32 is left out, since gguf hands out a view and does no work. A busy machine moves both sides.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from bloomery.interface.files.quants import FORMATS, decode_into, encode

_ROW = 4096


def _seconds(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def main() -> None:
    """Prints one line a format that both sides can decode."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=int, default=8 << 20, help="weights decoded a round")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    n_rows = max(1, arguments.weights // _ROW)
    values = np.random.default_rng(1).standard_normal((n_rows, _ROW), np.float32)
    out = np.empty_like(values)
    print(f"{'format':8}{'M weights/s':>12}{'gguf':>8}{'ratio':>8}  same bits")
    for block_format in FORMATS.values():
        if not block_format.decodable or block_format.name in {"F32", "F64"}:
            continue
        if block_format.encodable:
            raw = encode(values, block_format.name)
        else:
            # Small bytes keep the half-precision fields of random blocks ordinary, since speed may depend on them.
            shape = (n_rows, block_format.row_bytes(_ROW))
            raw = np.random.default_rng(2).integers(0, 64, shape, np.uint8)
        theirs: list[np.ndarray] = []

        def ours_once(raw: np.ndarray = raw, block_format: object = block_format) -> None:
            decode_into(raw, block_format, out)

        def theirs_once(raw: np.ndarray = raw, ggml_type: int = block_format.ggml_type, kept: list = theirs) -> None:
            kept[:] = [dequantize(raw, GGMLQuantizationType(ggml_type))]

        rounds = [(_seconds(ours_once), _seconds(theirs_once)) for _ in range(arguments.rounds)]
        ours, other = (values.size / min(times) / 1e6 for times in zip(*rounds, strict=True))
        same = np.array_equal(out.view(np.uint32), np.ascontiguousarray(theirs[0]).reshape(out.shape).view(np.uint32))
        print(f"{block_format.name:8}{ours:12.0f}{other:8.0f}{ours / other:8.2f}  {'yes' if same else 'NO'}")


if __name__ == "__main__":
    main()
