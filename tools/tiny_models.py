"""Write the conformance fixtures, tiny models made from a seed, into a folder.

    python -m tools.tiny_models --out DIR [--only NAME ...] [--pin]

The generator itself is `bloomery.conformance.fixtures`, because checks make the same files when they run.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from bloomery.conformance.fixtures import MAKERS, FixtureError, fixture, make, pins, sha256_of
from bloomery.conformance.fixtures.catalog import PINS_FILE


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0 when every file was written with its pinned sha256."""
    parser = argparse.ArgumentParser(prog="python -m tools.tiny_models", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder to write into, made when missing")
    parser.add_argument("--only", action="append", metavar="NAME", help="one fixture; may be given several times")
    parser.add_argument(
        "--pin",
        action="store_true",
        help="accept what this build makes: rewrite the pinned sha256 (then record what changed again)",
    )
    chosen = parser.parse_args(arguments)
    names = chosen.only or list(MAKERS)
    try:
        if chosen.pin:
            made = {name: sha256_of(make(name, chosen.out)) for name in names}
            known = pins() if PINS_FILE.exists() else {}
            merged = {name: (known | made)[name] for name in MAKERS if name in known | made}
            PINS_FILE.write_text(json.dumps(merged, indent=1) + "\n")
        for name in names:
            path = fixture(name, chosen.out)
            print(f"{path.stat().st_size:>10}  {path}")
    except FixtureError as error:
        print(f"tiny_models: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
