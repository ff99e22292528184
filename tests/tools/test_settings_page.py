"""docs/settings.md is what the tables of flags and levers say."""

from __future__ import annotations

from bloomery.server.flags import FLAGS, REFUSED
from bloomery.server.levers import LEVERS
from tools.settings_page import PAGE, page


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tools.settings_page writes it anew"


def test_every_flag_and_lever_has_a_row() -> None:
    rows = page().splitlines()
    names = [*(flag.name for flag in FLAGS), *(refused.name for refused in REFUSED), *(lever.name for lever in LEVERS)]
    for name in names:
        assert sum(row.startswith((f"| `{name}` |", f"| `{name}`, ")) for row in rows) == 1, name
    columns = [row.replace("\\|", "").count("|") for row in rows if row.startswith("|")]
    assert min(columns) >= 3
