"""What a check says of its subject: numbers, what is wrong, what a person may look at or replay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Numbers a person would rather see.

    histogram: `rows` holds one row of values.  line: a row a line, over 0, 1, 2 ...  heat: a row a layer.  `band` is
    the value nothing should pass, drawn where there is one; `names` names the rows.
    """

    kind: Literal["histogram", "line", "heat"]
    title: str
    rows: tuple[tuple[float, ...], ...]
    names: tuple[str, ...] = ()
    x: str = ""
    y: str = ""
    band: float | None = None
    log: bool = False


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One check's outcome on one subject.

    subject: what was held (an op, a recorded set, a route).  check: what was asked of it.  measured: the numbers.
    wrong: a sentence for each thing that is not as it must be.  skipped: why the check could not run; it is then
    neither passed nor failed.  replay: the saved smallest failing case.
    """

    subject: str
    check: str
    measured: Mapping[str, float]
    wrong: tuple[str, ...] = ()
    skipped: str | None = None
    replay: Path | None = None
    plots: tuple[Plot, ...] = ()

    @property
    def verdict(self) -> Literal["passed", "failed", "skipped"]:
        return "failed" if self.wrong else "skipped" if self.skipped is not None else "passed"


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How hard a check tries.

    seed: of everything drawn.  seconds: what this check may take; None lets it take what it needs.  replays: the folder
    that failing cases are saved into.
    """

    seed: int = 0
    seconds: float | None = None
    replays: Path = Path("bloomery-replays")


@dataclass(frozen=True, kw_only=True)
class Check:
    """A check that can be run: chosen by `-k` on "subject name", and run alone or beside others in a process of its
    own."""

    subject: str
    name: str
    run: Callable[[Effort], Iterable[Finding]]
