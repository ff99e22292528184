"""What a known difference is: a rule with its reason and its places, and the names of the sets it may name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from bloomery.conformance.rewrites import Rewrite

Cases = Mapping[str, Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class KnownDifference:
    """A rule.

    name: what docs/differences.md calls it.  why: one sentence.  source: where it comes from: the design of this
    server, which wants it so; our judgement, where nothing is prescribed; or only how the two servers were started.
    cases: patterns of case names by set; a `*` stands for any text.  without: takes the difference out of two answers.
    owed: whether an answer of ours without the difference is at fault.
    """

    name: str
    why: str
    source: Literal["design", "judgement", "start"]
    cases: Cases
    without: Rewrite
    owed: bool = False

    def patterns_for(self, set_name: str, case_name: str) -> tuple[str, ...]:
        """The patterns that name a case."""
        return tuple(each for each in self.cases.get(set_name, ()) if _matcher(each).fullmatch(case_name))


@cache
def _matcher(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))))


EVERY = ("*",)
TEXT, THINK, CALLS, BRANCH = "http-text", "http-think", "http-calls", "http-branch"
PROBABILITIES, RANDOM = "http-probabilities", "http-random"
REFUSALS, STATUS, ALIAS, KEYS, TOKENIZER = "http-refusals", "http-status", "http-alias", "http-keys", "http-tokenizer"
COUNTS = "http-counts"
LINES, BARE = FUNCTIONS = ("http-function-lines", "http-function-bare")
GENERATING = (TEXT, THINK, CALLS, *FUNCTIONS, BRANCH, PROBABILITIES, RANDOM)


def every_case(*sets: str) -> Cases:
    """All cases of these sets."""
    return dict.fromkeys(sets, EVERY)
