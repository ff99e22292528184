"""What numbers were measured on: kept with them, because a figure means little without it."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import threadpoolctl

# Floats moved at once: many times any cache.
_MOVED = 64 << 20


def machine() -> dict[str, Any]:
    """The processor, its cores, and the NumPy and BLAS that ran."""
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    blas: dict[str, Any] = next((pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"), {})
    return {
        "cpu": found[1] if found else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": " ".join(str(blas.get(name)) for name in ("internal_api", "version", "architecture")),
    }


def load() -> float:
    """Processes that ran or waited to run, the mean of the last minute: what else the machine was busy with."""
    return round(os.getloadavg()[0], 2)


def bandwidth(threads: int) -> dict[str, float]:
    """GB/s of memory on `threads` threads: reading floats to add them up, and copying them, both directions counted."""
    source, target = np.ones(_MOVED, np.float32), np.ones(_MOVED, np.float32)
    ends = np.linspace(0, _MOVED, threads + 1).astype(int)
    parts = [slice(start, stop) for start, stop in pairwise(ends)]

    def add_up(part: slice) -> None:
        source[part].sum()

    def copy(part: slice) -> None:
        np.copyto(target[part], source[part])

    with ThreadPoolExecutor(threads) as pool:
        return {
            "read": _speed(lambda: list(pool.map(add_up, parts)), source),
            "copy": 2 * _speed(lambda: list(pool.map(copy, parts)), source),
        }


def peak_memory(pid: int) -> int:
    """The most bytes of memory that a process has had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 if found else 0


def _speed(act: Callable[[], object], moved: npt.NDArray[np.float32]) -> float:
    """GB/s of the best of several rounds."""
    seconds = []
    for _ in range(7):
        started = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - started)
    return round(moved.nbytes / min(seconds) / 1e9, 1)
