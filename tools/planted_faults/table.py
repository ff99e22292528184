"""The table of planted faults in the documentation."""

from __future__ import annotations

from collections.abc import Iterable

from tools.planted_faults.fault import Fault

BEGIN, END = "<!-- planted faults: begin -->", "<!-- planted faults: end -->"


def table(faults: Iterable[Fault]) -> str:
    """Every fault with its file and the check that notices it."""
    rows = [f"| {fault.area} | {_cell(fault.name)} | `{fault.file}` | {_cell(fault.caught_by)} |" for fault in faults]
    return "\n".join(["| area | fault | file | caught by |", "|---|---|---|---|", *rows])


def with_table(page: str, faults: Iterable[Fault]) -> str:
    """The page with the table between its marks.  Raises ValueError for a page without them."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page has no {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n{table(faults)}\n{END}{after}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
