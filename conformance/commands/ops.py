"""Hold an op set against the definition of every op: drawn shapes, layouts, values and weights in every block format.

--ops names an installed op set, or one that is not: module:factory, called without arguments. What it may be and what
it may claim of its arithmetic is in docs/adding-an-op.md. A failing case is made as small as it can be, and saved;
--replay plays it again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bloomery.conformance.commands import UsageError
from bloomery.conformance.finding import Check, Effort, Finding
from bloomery.interface.registry import UnknownNameError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ops`."""
    parser.add_argument(
        "--ops",
        metavar="NAME",
        default="exact",
        help="an installed op set, or module:factory for one that is not (default: %(default)s)",
    )
    parser.add_argument("--op", action="append", metavar="NAME", help="one op; may be given several times")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="play a saved case again, on --ops")


def checks(arguments: argparse.Namespace) -> list[Check]:
    """What the arguments ask for.  Raises UsageError."""
    from bloomery.conformance.ops import checks as op_checks
    from bloomery.conformance.ops.replay import OpReplayError, load

    try:
        # A name that stands for no op set is refused before anything runs; each check makes its own.
        op_checks.factory_of(arguments.ops)
        if arguments.replay is not None:
            op = load(arguments.replay).case.op
            run = partial(_replayed, arguments.replay, arguments.ops)
            return [Check(subject=f"op {op}", name=f"replay of {arguments.replay.name}", run=run)]
        return op_checks.checks(arguments.ops, arguments.op)
    except (UnknownNameError, op_checks.UnknownOpError, OpReplayError) as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"--replay {arguments.replay}: {error.strerror}") from None


def _replayed(path: Path, ops: str, _effort: Effort) -> Iterator[Finding]:
    from bloomery.conformance.ops.checks import factory_of, replay

    yield replay(path, factory_of(ops)())
