"""Run two engines on one prompt and name the first op whose output leaves its band.

Each engine is ENGINE or ENGINE:NUMERICS, where numerics are an installed op set or module:factory:

    bloomery-conformance bisect --a reference --b reference:my_package.ops:MyOps --model FILE --prompt TEXT

The op's inputs are saved as a file that `ops --replay` plays again on any op set. An engine that reports no ops is
compared layer by layer, or row by row.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bloomery.conformance.commands import UsageError
from bloomery.conformance.engines.bisect import bisect
from bloomery.conformance.engines.opening import EngineName, Model
from bloomery.conformance.finding import Check, Effort, Finding
from bloomery.interface.tokenizer.load import load_tokenizer

_PROMPT = "The forge is warm before the sun is up."
# Every op of the program is evaluated on every row, so a long prompt takes long and shows no more.
_MOST_IDS = 512


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bisect`."""
    parser.add_argument("--a", metavar="ENGINE[:NUMERICS]", default="reference", help="the one (default: %(default)s)")
    parser.add_argument("--b", metavar="ENGINE[:NUMERICS]", required=True, help="the other")
    parser.add_argument("--model", type=Path, metavar="FILE", required=True, help="a GGUF file")
    given = parser.add_mutually_exclusive_group()
    given.add_argument("--prompt", metavar="TEXT", default=_PROMPT, help="what both read (default: %(default)r)")
    given.add_argument("--ids", metavar="ID,ID,...", help="the same as ids of the vocabulary")


def checks(arguments: argparse.Namespace) -> list[Check]:
    """The one check; no engine is opened yet.  Raises UsageError and UnknownNameError."""
    a, b = (_engine(f"--{side}", getattr(arguments, side)) for side in ("a", "b"))
    if a == b:
        raise UsageError(f"--a and --b are both {a}; name two engines, or two numerics of one")
    ids = _ids(arguments, Model(arguments.model))
    return [Check(subject=f"{b} against {a}", name="bisect", run=partial(_run, a, b, arguments.model, ids))]


def _run(a: EngineName, b: EngineName, path: Path, ids: list[int], effort: Effort) -> Iterator[Finding]:
    yield from bisect(a, b, Model(path), ids, effort)


def _engine(flag: str, text: str) -> EngineName:
    try:
        name = EngineName.parse(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None
    name.find()
    return name


def _ids(arguments: argparse.Namespace, model: Model) -> list[int]:
    if arguments.ids is not None:
        flag = "--ids"
        try:
            ids = [int(text) for text in arguments.ids.split(",")]
        except ValueError:
            raise UsageError(f"--ids {arguments.ids}: numbers with commas between them, as in 1,2,3") from None
    else:
        flag = "--prompt"
        ids = load_tokenizer(model.file.metadata).encode(arguments.prompt, add_special=True, parse_special=False)
    if not 1 <= len(ids) <= _MOST_IDS:
        raise UsageError(f"{flag}: {len(ids)} ids; a bisection reads 1 to {_MOST_IDS}")
    return ids
