"""What the machine has."""

from __future__ import annotations

import os
from pathlib import Path


def available_memory() -> int:
    """Bytes of memory a process may still take without swapping, by the kernel's estimate and this process's limits."""
    found = []
    try:
        meminfo = Path("/proc/meminfo").read_text(encoding="ascii")
        found += [int(line.split()[1]) * 1024 for line in meminfo.splitlines() if line.startswith("MemAvailable:")]
    except OSError:
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii"))
        if limit != "max":
            found.append(max(0, int(limit) - used))
    except OSError:
        pass
    return min(found)
