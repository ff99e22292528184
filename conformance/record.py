"""Take the recordings of a real llama-server.

    python -m bloomery.conformance.record --out DIR [--only SET ...] [--fixtures DIR]

Needs the extra `oracle` (pip install 'bloomery[oracle]'). Each set is written beside the old one and swapped in when
it is whole. Exit codes: 0 all sets written, 1 one failed (the others stay), 2 the oracle is not installed or a set is
unknown.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from bloomery.conformance.fixtures import FixtureError
from bloomery.conformance.oracle import OracleError, oracle_version
from bloomery.conformance.plan import all_plans
from bloomery.conformance.recorder import record


def main(arguments: list[str] | None = None) -> int:
    """The exit code; see the module."""
    parser = argparse.ArgumentParser(
        prog="python -m bloomery.conformance.record", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder of sets to write into")
    parser.add_argument("--only", action="append", metavar="SET", help="one set; may be given several times")
    parser.add_argument("--fixtures", type=Path, help="where the fixture models are kept (default: the user's cache)")
    chosen = parser.parse_args(arguments)
    plans = all_plans()
    names = chosen.only or list(plans)
    unknown = [name for name in names if name not in plans]
    if unknown:
        print(f"record: no set is named {', '.join(unknown)}; known are {', '.join(plans)}", file=sys.stderr)
        return 2
    try:
        print(f"record: the oracle is {oracle_version()}")
    except OracleError as error:
        print(f"record: {error}", file=sys.stderr)
        return 2
    failed = 0
    for name in names:
        start = time.monotonic()
        try:
            folder = record(name, plans[name], chosen.out, chosen.fixtures)
        except (OracleError, FixtureError) as error:
            print(f"record: {name}: {error}", file=sys.stderr)
            failed += 1
            continue
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(f"{name}: {size / 1024:.0f} KiB in {time.monotonic() - start:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
