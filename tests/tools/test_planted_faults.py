"""The list of planted faults is sound; with the marker `fuzz`, every one of them is planted and noticed."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from typing import get_args

import pytest

from tools.planted_faults import FAULTS
from tools.planted_faults.fault import Area, Fault
from tools.planted_faults.planting import CHECKOUT, PACKAGES, PlantingError, planted
from tools.planted_faults.table import BEGIN, END, table, with_table

PAGE = CHECKOUT / "docs" / "conformance.md"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_planted_and_is_still_python(fault: Fault) -> None:
    text = (CHECKOUT / fault.file).read_text()
    faulty = planted(fault, text)
    assert faulty != text
    assert ast.dump(ast.parse(faulty)) != ast.dump(ast.parse(text))


def test_the_suite_itself_is_not_planted_into() -> None:
    assert {fault.file.partition("/")[0] for fault in FAULTS} <= set(PACKAGES) - {"conformance"}


def test_there_are_enough_of_every_area() -> None:
    areas = Counter(fault.area for fault in FAULTS)
    assert sum(areas.values()) >= 72
    assert set(areas) == set(get_args(Area))
    assert min(areas.values()) >= 8
    assert max(Counter(fault.name for fault in FAULTS).values()) == 1


def test_a_fault_whose_place_is_gone_is_refused() -> None:
    for text in ("", FAULTS[0].old * 2):
        with pytest.raises(PlantingError, match="not once"):
            planted(FAULTS[0], text)


def test_the_table_is_the_list() -> None:
    page = PAGE.read_text()
    assert with_table(page, FAULTS) == page
    assert table(FAULTS).count("\n") == len(FAULTS) + 1
    with pytest.raises(ValueError, match="has no"):
        with_table(page.replace(BEGIN, END), FAULTS)


@pytest.mark.fuzz
@pytest.mark.timeout(7200)
def test_every_fault_is_noticed() -> None:
    command = [sys.executable, "-m", "tools.planted_faults"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
