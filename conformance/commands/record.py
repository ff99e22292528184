"""Take recordings of a running llama-server or bloomery, or of the oracle.

With --url the server is asked for distributions and ids after passages of text (the set `numbers`) and for the
exchanges of the corpus; start it just before, because what a slot holds shows in its answers. With --oracle the planned
sets are taken of the real llama-server in the extra `oracle`, each on its fixture, as the committed recordings were. A
set is written beside the old one and swapped in when it is whole.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from pathlib import Path

from bloomery.conformance.commands import UsageError
from bloomery.conformance.commands.serve import http_sets
from bloomery.conformance.finding import Check, Effort, Finding
from bloomery.conformance.fixtures import FixtureError
from bloomery.conformance.oracle import OracleError, oracle_version
from bloomery.conformance.peer import Peer, PeerError
from bloomery.conformance.plan import all_plans
from bloomery.conformance.recorder import record
from bloomery.conformance.serve_checks import address_of
from bloomery.conformance.url_recorder import NUMBERS, Wanted, record_url

_RECORDED = "recorded"
# What every server can be asked, whatever its model and its flags.
_BY_URL = (NUMBERS, "http-text", "http-refusals", "http-status", "http-tokenizer")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of what, where to, and what cannot be asked of a server."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--url", help="the server, as in http://127.0.0.1:8080")
    source.add_argument("--oracle", action="store_true", help="the planned sets, of the extra `oracle`")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder of sets to write into")
    parser.add_argument(
        "--set", action="append", metavar="NAME", dest="sets", help="one set; may be given several times"
    )
    parser.add_argument("--fixtures", type=Path, metavar="DIR", help="with --oracle: where the fixture models are kept")
    parser.add_argument("--api-key", default="", metavar="KEY", help="with --url: the key that the server wants")
    parser.add_argument("--model", type=Path, metavar="FILE", help="with --url: the model's file, for its sha256")
    parser.add_argument("--weights", default="", metavar="TEXT", help="with --url: what the weights are stored as")
    parser.add_argument(
        "--numerics", default="", metavar="TEXT",
        help="with --url: how the server computes, as in 'flash attention on, cache in F16'",
    )  # fmt: skip
    parser.add_argument("--redact", action="store_true", help="with --url: leave out keys, folders and times")
    # The exchanges of a server are taken one after another.
    parser.set_defaults(jobs=1)


def checks(arguments: argparse.Namespace) -> list[Check]:
    """A check a set: that it was taken."""
    return _oracle_checks(arguments) if arguments.oracle else _url_checks(arguments)


def _chosen(arguments: argparse.Namespace, known: list[str], default: list[str]) -> list[str]:
    unknown = [name for name in arguments.sets or () if name not in known]
    if unknown:
        raise UsageError(f"--set: no set is named {', '.join(unknown)}; known are {', '.join(known)}")
    return arguments.sets or default


def _oracle_checks(arguments: argparse.Namespace) -> list[Check]:
    for flag, value in (("--model", arguments.model), ("--redact", arguments.redact), ("--api-key", arguments.api_key)):
        if value:
            raise UsageError(f"{flag} goes with --url; the oracle's sets are planned")
    plans = all_plans()
    names = _chosen(arguments, list(plans), list(plans))
    oracle_version()

    def of(name: str) -> Check:
        def run(_effort: Effort) -> Iterator[Finding]:
            try:
                folder = record(name, plans[name], arguments.out, arguments.fixtures)
            except (OracleError, FixtureError) as error:
                yield Finding(subject=name, check=_RECORDED, measured={}, wrong=(str(error),))
                return
            kib = sum(path.stat().st_size for path in folder.iterdir()) // 1024
            yield Finding(subject=name, check=_RECORDED, measured={"KiB": kib})

        return Check(subject=name, name=_RECORDED, run=run)

    return [of(name) for name in names]


def _url_checks(arguments: argparse.Namespace) -> list[Check]:
    if arguments.jobs != 1:
        raise UsageError("--jobs: the exchanges of a server are taken one after another; leave it out")
    try:
        address_of(arguments.url)
    except ValueError as error:
        raise UsageError(f"--url {error}") from None
    if arguments.model is not None and not arguments.model.is_file():
        raise UsageError(f"--model {arguments.model}: no such file")
    peer = Peer(arguments.url, arguments.api_key)
    names = _chosen(arguments, [NUMBERS, *http_sets()], list(_BY_URL))
    command = shlex.join(["bloomery-conformance", "record", "--url", arguments.url, "--out", str(arguments.out)])
    wanted = Wanted(
        out=arguments.out,
        model_file=arguments.model,
        weights=arguments.weights,
        numerics=arguments.numerics,
        redact=arguments.redact,
        command=command,
    )

    def of(name: str) -> Check:
        def run(_effort: Effort) -> Iterator[Finding]:
            try:
                measured = record_url(peer, name, wanted)
            except (PeerError, OSError) as error:
                yield Finding(subject=name, check=_RECORDED, measured={}, wrong=(str(error),))
            else:
                yield Finding(subject=name, check=_RECORDED, measured=measured)

        return Check(subject=name, name=_RECORDED, run=run)

    return [of(name) for name in names]
