"""Compare two recordings: which cases differ, how far distributions are apart, where ids and answers part.

A and B are sets or folders of sets, as `record` writes them. Sets of one name are compared; with two sets the names may
differ. Answers are compared as JSON, times and random ids left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from bloomery.conformance.answers import LOGPROB_BAND
from bloomery.conformance.commands import UsageError
from bloomery.conformance.differences import DIFFERENCES
from bloomery.conformance.finding import Check, Effort, Finding
from bloomery.conformance.recording import RecordingError, load_set, set_names
from bloomery.conformance.recording_diff import diff_sets


def _band(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError
    return value


_band.__name__ = "number"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The two, and what counts as equal."""
    parser.add_argument("a", type=Path, metavar="A", help="a set, or a folder of sets")
    parser.add_argument("b", type=Path, metavar="B", help="another")
    parser.add_argument(
        "--band", type=_band, default=LOGPROB_BAND, metavar="DISTANCE",
        help="how far two log-probabilities may be apart (default: %(default)g, what F32 weights are held to)",
    )  # fmt: skip
    parser.add_argument(
        "--known",
        action="store_true",
        help="A is a llama-server's and B bloomery's: the documented differences are none",
    )


def checks(arguments: argparse.Namespace) -> list[Check]:
    """A check a pair of sets."""
    a, b = (_sets(flag, path) for flag, path in (("A", arguments.a), ("B", arguments.b)))
    alone = len(a) == len(b) == 1
    names = [(*a, *b)] if alone else [(name, name) for name in dict.fromkeys((*a, *b))]

    def of(one: str, other: str) -> Check:
        def run(_effort: Effort) -> Iterator[Finding]:
            missing = [side for side, name, sets in (("A", one, a), ("B", other, b)) if name not in sets]
            if missing:
                yield Finding(subject=one, check="cases", measured={}, wrong=(f"{missing[0]} has no such set",))
                return
            try:
                pair = load_set(a[one].name, a[one].parent), load_set(b[other].name, b[other].parent)
            except RecordingError as error:
                yield Finding(subject=one, check="cases", measured={}, wrong=(str(error),))
                return
            yield from diff_sets(*pair, band=arguments.band, known=DIFFERENCES if arguments.known else ())

        return Check(subject=one, name="diff", run=run)

    return [of(*pair) for pair in names]


def _sets(flag: str, path: Path) -> dict[str, Path]:
    """The sets at a path, by name."""
    if (path / "manifest.json").is_file():
        absolute = path.absolute()
        return {absolute.name: absolute}
    found = {name: path / name for name in set_names(path)}
    if not found:
        raise UsageError(f"{flag}: {path} is no set and holds none: no manifest.json; `record` writes them")
    return found
