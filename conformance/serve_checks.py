"""Hold a running server against the recorded exchanges of a set.

    report = check_server("http://127.0.0.1:8080", load_set("http-calls"))
    assert report.passed, report

The server serves the set's model, started as the set's manifest says, and answered nothing before: every exchange is
asked for in the recorded order, because what a slot holds from one shows in the next. Answers are compared as JSON,
streams event by event. What differs must be a known difference (`differences`), and every known difference must show
where it says it does.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from bloomery.conformance.answers import Difference, Json, as_json, differences
from bloomery.conformance.cases import Exchange
from bloomery.conformance.differences import DIFFERENCES
from bloomery.conformance.known_difference import KnownDifference
from bloomery.conformance.recording import RecordingSet
from bloomery.conformance.wire import Answer, KeptConnection, WireError, ask

Verdict: TypeAlias = Literal["equal", "known", "differs"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One case: what differs, and which known differences, by name and pattern, were taken out before."""

    case: str
    differences: tuple[Difference, ...]
    known: tuple[tuple[KnownDifference, str], ...] = ()

    @property
    def verdict(self) -> Verdict:
        """equal, equal but for known differences, or neither."""
        return "differs" if self.differences else "known" if self.known else "equal"


@dataclass(frozen=True, kw_only=True)
class ServeReport:
    """All outcomes of a server on one set.

    connections: how many were opened.  stale: the known differences that did not show, with their places.
    """

    set_name: str
    server: str
    outcomes: tuple[Outcome, ...]
    connections: int
    stale: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether something was asked, nothing unknown differs and every known difference shows."""
        return bool(self.outcomes) and not self.stale and not any(each.differences for each in self.outcomes)

    @property
    def counts(self) -> Counter[Verdict]:
        """How many cases came out how."""
        return Counter(outcome.verdict for outcome in self.outcomes)

    @property
    def known(self) -> Counter[str]:
        """In how many cases each known difference shows."""
        return Counter(name for outcome in self.outcomes for name in {rule.name for rule, _ in outcome.known})

    def __str__(self) -> str:
        counts = ", ".join(f"{self.counts[verdict]} {verdict}" for verdict in ("equal", "known", "differs"))
        lines = [f"{self.set_name} at {self.server}: {'passed' if self.passed else 'FAILED'} ({counts})"]
        lines += [f"  {count} x {name}" for name, count in self.known.most_common()]
        for outcome in self.outcomes:
            if outcome.differences:
                lines.append(f"  {outcome.case}")
                lines += [f"    {difference}" for difference in outcome.differences[:20]]
        lines += [f"  did not show: {sentence}" for sentence in self.stale]
        return "\n".join(lines)


def compare(case: Exchange, answer: Answer, set_name: str, known: Iterable[KnownDifference] = DIFFERENCES) -> Outcome:
    """Hold one answer against the recorded one.

    A known difference counts where taking it out leaves fewer differences. Otherwise the answers stay as they are, but
    for what is owed.
    """
    theirs = as_json(case.status, case.response_headers, case.response)
    ours = as_json(answer.status, answer.headers, answer.body)
    left = tuple(differences(theirs, ours))
    found: list[tuple[KnownDifference, str]] = []
    for rule in known:
        patterns = rule.patterns_for(set_name, case.name)
        if not patterns:
            continue
        pair = _without(rule, case, theirs, ours)
        if pair is None:
            continue
        others = tuple(differences(*pair))
        if len(others) < len(left):
            found += [(rule, pattern) for pattern in patterns]
        elif not rule.owed:
            continue
        (theirs, ours), left = pair, others
    return Outcome(case=case.name, differences=left, known=tuple(found))


def _without(rule: KnownDifference, case: Exchange, theirs: Json, ours: Json) -> tuple[Json, Json] | None:
    try:
        return rule.without(case, copy.deepcopy(theirs), copy.deepcopy(ours))
    except (AttributeError, LookupError, TypeError, ValueError):
        # A rewrite reads the shape it expects; an answer of another shape does not have its difference.
        return None


def check_server(
    url: str,
    recording: RecordingSet,
    *,
    known: Sequence[KnownDifference] = DIFFERENCES,
    keep_alive: bool = False,
) -> ServeReport:
    """Ask a running server every exchange of a set, each on a connection of its own or all on kept ones.

    Raises ValueError for a URL that is none of a plain HTTP server.
    """
    address = address_of(url)
    with KeptConnection(address) as kept:

        def answer(case: Exchange) -> Answer:
            if keep_alive:
                return kept.ask(case.method, case.path, case.body, case.headers)
            return ask(address, case.method, case.path, case.body, case.headers)

        outcomes = tuple(_outcome(case, answer, recording.name, known) for case in recording.cases(Exchange))
    return ServeReport(
        set_name=recording.name,
        server=url,
        outcomes=outcomes,
        connections=kept.opened if keep_alive else len(outcomes),
        stale=_stale(recording.name, known, outcomes),
    )


def address_of(url: str) -> tuple[str, int]:
    """Host and port of a plain HTTP server's URL.  Raises ValueError for any other."""
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None or parts.path not in {"", "/"}:
        raise ValueError(f"{url}: not the address of an HTTP server, as in http://127.0.0.1:8080")
    return parts.hostname, parts.port or 80


def _outcome(
    case: Exchange, answer: Callable[[Exchange], Answer], set_name: str, known: Sequence[KnownDifference]
) -> Outcome:
    try:
        answered = answer(case)
    except (OSError, WireError) as error:
        return Outcome(case=case.name, differences=(Difference("answer", case.status, error),))
    return compare(case, answered, set_name, known)


def _stale(set_name: str, known: Iterable[KnownDifference], outcomes: Iterable[Outcome]) -> tuple[str, ...]:
    shown = {(id(rule), pattern) for outcome in outcomes for rule, pattern in outcome.known}
    return tuple(
        f"{rule.name} in {pattern}"
        for rule in known
        for pattern in rule.cases.get(set_name, ())
        if (id(rule), pattern) not in shown
    )
