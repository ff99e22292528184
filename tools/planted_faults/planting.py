"""Running the conformance suite on a copy of the packages, with a fault in it or without.

The copy is taken once, so that what happens to the checkout meanwhile does not matter, and a fault is written into a
second copy of the one package it is in. A folder `bloomery` of links to these is put first on Python's path, before
the installed packages: the suite, the commands it starts and the entry points it finds by name all come from there.
"""

from __future__ import annotations

import compileall
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

from tools.planted_faults.fault import Fault

CHECKOUT = Path(__file__).parents[2]
PACKAGES = ("interface", "reference", "accelerated", "server", "conformance")
_TIMEOUT = 600.0
_COMMAND = "from bloomery.conformance.command import main; import sys; sys.exit(main())"
_SKIPPED = shutil.ignore_patterns("__pycache__")


class PlantingError(RuntimeError):
    """A run says nothing about a fault: its text is gone from the file, or the suite did not run."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A run: the checks that failed and those that passed, as "subject: name", and the end of what it said."""

    failed: tuple[str, ...]
    passed: tuple[str, ...]
    said: str


def copy_packages(into: Path) -> None:
    """The checkout's packages, compiled, so that runs start fast."""
    for package in PACKAGES:
        shutil.copytree(CHECKOUT / package, into / package, ignore=_SKIPPED)
    compileall.compile_dir(into, quiet=1)


def planted(fault: Fault, text: str) -> str:
    """The file's text with the fault.  Raises PlantingError unless its place is there once."""
    count = text.count(fault.old)
    if count != 1:
        raise PlantingError(f"{fault.name}: {fault.file} holds its text {count} times, not once: {fault.old!r}")
    return text.replace(fault.old, fault.new)


def run(packages: Path, arguments: tuple[str, ...], fault: Fault | None = None) -> Outcome:
    """The suite on the copied packages, with the fault or without.  Raises PlantingError when it does not run."""
    with tempfile.TemporaryDirectory(prefix="bloomery-planted-") as folder:
        scratch = Path(folder)
        root = scratch / "path" / "bloomery"
        root.mkdir(parents=True)
        for package in PACKAGES:
            if fault is not None and Path(fault.file).parts[0] == package:
                shutil.copytree(packages / package, root / package)
            else:
                (root / package).symlink_to(packages / package)
        if fault is not None:
            file = root / fault.file
            text = planted(fault, file.read_text())
            for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
                compiled.unlink()
            file.write_text(text)
        return _run(scratch, arguments)


def _run(scratch: Path, arguments: tuple[str, ...]) -> Outcome:
    report = scratch / "report.xml"
    path = os.pathsep.join(filter(None, (str(scratch / "path"), os.environ.get("PYTHONPATH", ""))))
    command = [sys.executable, "-c", _COMMAND, *arguments]
    command += ["--junit", str(report), "--replays", str(scratch / "replays"), "--quiet"]
    with subprocess.Popen(
        command,
        cwd=scratch,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=_TIMEOUT)
        except subprocess.TimeoutExpired:
            # The command ends the processes of its checks when it is told to end.
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate()
            raise PlantingError(f"no end after {_TIMEOUT:g} s: {' '.join(arguments)}\n{said[-2000:]}") from None
    if not report.is_file():
        raise PlantingError(f"no report of: {' '.join(arguments)}\n{said[-2000:]}")
    failed, passed = [], []
    for case in ET.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname')}: {case.get('name')}"
        if case.find("failure") is not None:
            failed.append(name)
        elif case.find("skipped") is None:
            passed.append(name)
    return Outcome(failed=tuple(failed), passed=tuple(passed), said=said[-4000:])
