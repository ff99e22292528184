"""Hold a running server against recordings of a real llama-server, or against another server; and the laws.

The recorded exchanges of a set are asked for in their order of a server that was just started with the set's model:
what a slot holds from one shows in the next. A set that the server was not started for is skipped with the command
that starts one. --against URL asks both servers the same corpus, whatever their model, and compares by the same rules.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from bloomery.conformance.answers import ABSENT, Difference
from bloomery.conformance.cases import Exchange
from bloomery.conformance.commands import UsageError
from bloomery.conformance.corpus.request import Request
from bloomery.conformance.differences import DIFFERENCES
from bloomery.conformance.finding import Check, Effort, Finding
from bloomery.conformance.fixtures import fixture
from bloomery.conformance.known_difference import KnownDifference
from bloomery.conformance.own_server import OwnServerError, arguments_of, own_server, start_command
from bloomery.conformance.peer import About, Peer, PeerError, about
from bloomery.conformance.plan import all_plans
from bloomery.conformance.recorder import take_exchange
from bloomery.conformance.recording import RecordingSet, load_set
from bloomery.conformance.reports.report import first_few
from bloomery.conformance.serve_checks import Outcome, ServeReport, address_of, check_server, compare
from bloomery.conformance.serve_laws import LAWS, SUBJECT, hold, law_checks
from bloomery.conformance.wire import WireError, ask

_Runner = Callable[[Effort], Iterator[Finding]]

RECORDINGS = "recordings"
EXCHANGES = "exchanges"
# A model of random weights writes half characters and ends nowhere, which streams and slots must bear.
_LAWS_MODEL = "qwen3-a-f32"
_MOST_SENTENCES = 30
_MOST_PLACES = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The server and what it is held against."""
    parser.add_argument("--url", required=True, help="the server, as in http://127.0.0.1:8080")
    parser.add_argument(
        "--against", metavar="URL", default=RECORDINGS, help="another server to compare with (default: the recordings)"
    )
    parser.add_argument(
        "--set", action="append", choices=http_sets(), metavar="NAME", dest="sets",
        help=f"one of the recorded sets, may be given several times: {', '.join(http_sets())}",
    )  # fmt: skip
    parser.add_argument("--api-key", default="", metavar="KEY", help="the key that both servers want")
    # A server that is asked by two checks at once answers neither as it was recorded.
    parser.set_defaults(jobs=1)


def http_sets() -> list[str]:
    """The recorded sets of exchanges."""
    return [name for name, plan in all_plans().items() if plan.requests is not None]


def checks(arguments: argparse.Namespace) -> list[Check]:
    """A check a set, and one a law."""
    if arguments.jobs != 1:
        raise UsageError("--jobs: a server is asked by one check at a time; leave it out")
    for flag, url in (("--url", arguments.url), ("--against", arguments.against)):
        if url != RECORDINGS:
            try:
                address_of(url)
            except ValueError as error:
                raise UsageError(f"{flag} {error}") from None
    peer = Peer(arguments.url, arguments.api_key)
    if arguments.against == RECORDINGS:
        found = [_recorded_check(peer, name) for name in arguments.sets or http_sets()]
    else:
        other = Peer(arguments.against, arguments.api_key)
        if other.address == peer.address:
            raise UsageError(f"--against {arguments.against}: the same server as --url, whose slots both would share")
        found = [_paired_check(peer, other, name) for name in arguments.sets or _sets_for_any_server()]
    return found + law_checks(peer)


def own_checks() -> list[Check]:
    """The same of servers that the checks start for themselves."""
    found = [Check(subject=name, name=EXCHANGES, run=_own_set(name)) for name in http_sets()]
    return found + [Check(subject=SUBJECT, name=name, run=_own_law(name)) for name in LAWS]


# Against recordings.


def _recorded_check(peer: Peer, name: str) -> Check:
    def run(_effort: Effort) -> Iterator[Finding]:
        recording = load_set(name)
        try:
            server = about(peer)
            reason = _why_not(peer, server, recording)
        except PeerError as error:
            yield Finding(subject=name, check=EXCHANGES, measured={}, wrong=(str(error),))
            return
        if reason is not None:
            yield Finding(subject=name, check=EXCHANGES, measured={}, skipped=reason)
        else:
            # A llama-server is held to its own recordings, in which nothing may differ.
            known = DIFFERENCES if server.bloomery else ()
            yield _finding(check_server(peer.url, recording, known=known))

    return Check(subject=name, name=EXCHANGES, run=run)


def _why_not(peer: Peer, server: About, recording: RecordingSet) -> str | None:
    """Why a server cannot be asked a set's exchanges; None when it can."""
    manifest = recording.manifest
    settings = manifest.settings
    started = (server.n_ctx * server.n_slots, server.n_slots, peer.api_key)
    wanted = (settings["n_ctx"], settings["n_parallel"], settings["api_key"])
    named = server.alias == settings["alias"] if settings["alias"] else server.model == manifest.model
    # An alias shows in every answer, so a set without one wants a server without one.
    aliased = not settings["alias"] and server.alias.removesuffix(".gguf") != manifest.model
    if not named or aliased or started != wanted:
        return f"it wants a server started with: {start_command(recording)}"
    # A llama-server counts a question for its slots as a task, which a set that asks for them would see.
    counted = not server.bloomery and any(case.path == "/slots" for case in recording.cases(Exchange))
    if not counted and _has_worked(peer):
        return f"it wants a server that has answered nothing yet; start again: {start_command(recording)}"
    return None


def _has_worked(peer: Peer) -> bool:
    """Whether a slot had a request before; False where the server does not tell."""
    try:
        return any("id_task" in slot for slot in peer.get("/slots"))
    except PeerError:
        return False


def _own_set(name: str) -> _Runner:
    def run(_effort: Effort) -> Iterator[Finding]:
        recording = load_set(name)
        try:
            with own_server(arguments_of(recording)) as url:
                yield _finding(check_server(url, recording))
        except OwnServerError as error:
            yield Finding(subject=name, check=EXCHANGES, measured={}, wrong=(str(error),))

    return run


def _own_law(name: str) -> _Runner:
    def run(effort: Effort) -> Iterator[Finding]:
        arguments = ["--model-file", str(fixture(_LAWS_MODEL)), "--ctx-size", "1024", "--parallel", "2"]
        try:
            with own_server(arguments) as url:
                yield hold(name, Peer(url), effort)
        except OwnServerError as error:
            yield Finding(subject=SUBJECT, check=name, measured={}, wrong=(str(error),))

    return run


# Against another server.


def _sets_for_any_server() -> list[str]:
    """Those that need no key and no alias."""
    plans = all_plans()
    return [name for name in http_sets() if not plans[name].settings.api_key and not plans[name].settings.alias]


def _paired_check(peer: Peer, other: Peer, name: str) -> Check:
    def run(_effort: Effort) -> Iterator[Finding]:
        try:
            # The known differences are bloomery's from llama-server, and say nothing of any other pair.
            known = DIFFERENCES if about(peer).bloomery and not about(other).bloomery else ()
        except PeerError as error:
            yield Finding(subject=name, check="against", measured={}, wrong=(str(error),))
            return
        requests = all_plans()[name].requests
        assert requests is not None  # noqa: S101 - only sets of exchanges are offered
        outcomes = [_compared(peer, other, request, name, known) for request in requests()]
        yield _finding(
            ServeReport(set_name=name, server=peer.url, outcomes=tuple(outcomes), connections=len(outcomes), stale=()),
            check="against",
        )

    return Check(subject=name, name="against", run=run)


def _compared(peer: Peer, other: Peer, request: Request, set_name: str, known: Sequence[KnownDifference]) -> Outcome:
    """One request asked of both."""
    try:
        theirs = take_exchange(other.address, replace(request, headers=(*request.headers, *other.headers)))
    except (OSError, WireError) as error:
        return Outcome(case=request.name, differences=(Difference("answer of --against", error, ABSENT),))
    try:
        ours = ask(peer.address, request.method, request.path, request.body, (*request.headers, *peer.headers))
    except (OSError, WireError) as error:
        return Outcome(case=request.name, differences=(Difference("answer", theirs.status, error),))
    return compare(theirs, ours, set_name, known)


def _finding(report: ServeReport, check: str = EXCHANGES) -> Finding:
    measured = {verdict: float(report.counts[verdict]) for verdict in ("equal", "known", "differs")}
    wrong = [sentence for outcome in report.outcomes for sentence in _sentences(outcome)]
    wrong += [f"the known difference {place} does not show" for place in report.stale]
    return Finding(subject=report.set_name, check=check, measured=measured, wrong=first_few(wrong, _MOST_SENTENCES))


def _sentences(outcome: Outcome) -> tuple[str, ...]:
    # Where a stream parts, every event after it differs; the first ones tell.
    told = (f"{outcome.case}: {difference}" for difference in outcome.differences)
    return first_few(told, _MOST_PLACES, f"{outcome.case}: ")
