"""Plants every fault in turn and tells which check of the conformance suite notices it.

    python -m tools.planted_faults [-j N] [-k WORD] [--area AREA] [--write]

Exit code 0 when each is noticed by the check that is named for it, and that check passes without the fault.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path

from tools.planted_faults import FAULTS
from tools.planted_faults.fault import Fault
from tools.planted_faults.planting import CHECKOUT, Outcome, PlantingError, copy_packages, run
from tools.planted_faults.table import with_table

_PAGE = CHECKOUT / "docs" / "conformance.md"


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tools.planted_faults", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-j", "--jobs", type=int, default=2, help="faults at once (default: %(default)s)")
    parser.add_argument("-k", metavar="WORD", default="", help="only faults whose name, file or check has the word")
    parser.add_argument("--area", help="only faults of this area")
    parser.add_argument("--write", action="store_true", help=f"write the table into {_PAGE.name}; needs all faults")
    arguments = parser.parse_args()
    chosen = [
        fault
        for fault in FAULTS
        if arguments.k in f"{fault.name} {fault.file} {fault.caught_by}" and arguments.area in {None, fault.area}
    ]
    if arguments.write and len(chosen) < len(FAULTS):
        parser.error("--write needs all faults: leave -k and --area out")
    if not chosen:
        parser.error("no fault is chosen")
    faults = _hold(chosen, arguments.jobs)
    for sentence in faults:
        print(sentence)
    if not faults and arguments.write:
        _PAGE.write_text(with_table(_PAGE.read_text(), FAULTS))
    return 1 if faults else 0


def _hold(chosen: list[Fault], jobs: int) -> list[str]:
    """What is wrong: faults that survive, and checks that fail without one."""
    began = time.monotonic()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="bloomery-packages-") as folder, ThreadPoolExecutor(jobs) as pool:
        packages = Path(folder)
        copy_packages(packages)
        commands = sorted({fault.run for fault in chosen})
        runs: dict[Future[Outcome], Fault | tuple[str, ...]] = {
            **{pool.submit(run, packages, command): command for command in commands},
            **{pool.submit(run, packages, fault.run, fault): fault for fault in chosen},
        }
        for n, done in enumerate(as_completed(runs), 1):
            what = runs[done]
            try:
                sentence = _judged(what, done.result(), chosen)
            except PlantingError as error:
                sentence = str(error)
            name = what.name if isinstance(what, Fault) else f"without a fault: {' '.join(what)}"
            print(f"[{n}/{len(runs)}] {name}: {sentence or 'as it must be'}", file=sys.stderr, flush=True)
            if sentence:
                wrong.append(sentence)
    print(f"{len(chosen)} faults, {len(commands)} commands, {time.monotonic() - began:.0f} s", file=sys.stderr)
    return wrong


def _judged(what: Fault | tuple[str, ...], outcome: Outcome, chosen: list[Fault]) -> str:
    """What is wrong with a run; "" when nothing is."""
    if isinstance(what, Fault):
        if what.caught_by in outcome.failed:
            return ""
        instead = f"; these do: {', '.join(outcome.failed)}" if outcome.failed else ""
        return f"SURVIVES: {what.name} ({what.file}): {what.caught_by} does not fail{instead}"
    if outcome.failed:
        return f"FAILS WITHOUT A FAULT: {', '.join(outcome.failed)}\n{outcome.said}"
    missing = {fault.caught_by for fault in chosen if fault.run == what} - set(outcome.passed)
    return f"DID NOT RUN: {', '.join(sorted(missing))}\n{outcome.said}" if missing else ""


if __name__ == "__main__":
    sys.exit(main())
