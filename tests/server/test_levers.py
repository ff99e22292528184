"""The registry of levers: a set lever is applied, replaced by its flag with a line, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomery.server.flags import BY_SPELLING
from bloomery.server.given import SettingsError
from bloomery.server.levers import LEVERS, NO_LEVERS, Lever, check_levers, lever_lines, read_levers
from bloomery.server.seats import SEATS
from bloomery.server.setting_values import byte_count


def read(environ: dict[str, str], seat: str | None = None, **replaced: str) -> dict[str, Any]:
    return read_levers(environ, seat, {f"--{name}": by for name, by in replaced.items()}, lambda line: None)


def refusal(environ: dict[str, str], seat: str | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        read(environ, seat)
    return str(caught.value)


def test_rows_name_seats_and_flags_that_there_are() -> None:
    names = [lever.name for lever in LEVERS]
    assert len(set(names)) == len(names)
    assert not NO_LEVERS & set(names)
    for lever in LEVERS:
        assert lever.flag is None or BY_SPELLING[lever.flag].name == lever.flag
        assert set(lever.seats or ()) <= {seat.word for seat in SEATS}
        assert (lever.read is None) == bool(lever.why)


@pytest.mark.parametrize("lever", [lever for lever in LEVERS if lever.read is None], ids=lambda lever: lever.name)
def test_a_lever_that_no_seat_applies_ends_the_start_with_the_remedy(lever: Lever) -> None:
    assert refusal({lever.name: "1"}) == f'{lever.name}="1" is refused: {lever.why}; unset it'


def test_values() -> None:
    environ = {"BLOOMERY_THREADS": " 2 ", "BLOOMERY_HOST_ROOM": "3G", "BLOOMERY_QWEN3_UBATCH": "48"}
    assert read(environ) == {"BLOOMERY_THREADS": 2, "BLOOMERY_HOST_ROOM": 3 << 30, "BLOOMERY_QWEN3_UBATCH": 48}
    assert read({"BLOOMERY_DRAFT": "off"}, "qwen3") == {"BLOOMERY_DRAFT": "off"}
    assert read(dict.fromkeys(NO_LEVERS, "")) == {}


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("1_000", 1000), ("38M", 38 << 20), ("2G", 2 << 30), ("00007", 7)]
)
def test_a_number_of_bytes(text: str, size: int) -> None:
    assert byte_count(text) == size


@pytest.mark.parametrize("text", ["", "1K", "1.5G", "-1", "1__0", "_1", "1 G", "G", "٣", f"{1 << 63}", "9" * 9999])
def test_what_is_no_number_of_bytes(text: str) -> None:
    with pytest.raises(ValueError, match="it takes"):
        byte_count(text)


def test_all_refusals_of_a_start_come_together() -> None:
    lines = refusal({"BLOOMERY_THREADS": "0", "BLOOMERY_DRAFT": "", "BLOOMERY_SPIM": "1", "HOME": "/"}).splitlines()
    assert lines[0].startswith('BLOOMERY_DRAFT="" is refused: it takes off')
    assert lines[1] == (
        'BLOOMERY_SPIM="1" is refused: no row of the lever registry names it (the nearest is BLOOMERY_SPIN);'
        " unset it or fix the name"
    )
    assert lines[2] == 'BLOOMERY_THREADS="0" is refused: it takes 1 to 1024'


def test_a_seat_refuses_the_levers_of_others() -> None:
    assert "the seat nemotron does not act on it; unset it" in refusal({"BLOOMERY_QWEN3_UBATCH": "8"}, "nemotron")
    check_levers({"BLOOMERY_QWEN3_UBATCH": 8, "BLOOMERY_THREADS": 1}, "qwen3")
    with pytest.raises(SettingsError, match="BLOOMERY_QWEN3_UBATCH is refused: the seat nemotron"):
        check_levers({"BLOOMERY_QWEN3_UBATCH": 8, "BLOOMERY_THREADS": 1}, "nemotron")


def test_a_flag_replaces_a_lever_which_is_then_not_even_read() -> None:
    lines: list[str] = []
    assert read_levers({"BLOOMERY_THREADS": "junk"}, None, {"--threads": "-t on the command line"}, lines.append) == {}
    assert lines == ["BLOOMERY_THREADS is not read: -t on the command line replaces it"]


def test_the_listing_has_a_line_a_lever_with_its_value_and_who_applies_it() -> None:
    lines = dict(zip([lever.name for lever in LEVERS], lever_lines({"BLOOMERY_DRAFT": "off"}, {}, None), strict=True))
    assert all(line.startswith(name) for name, line in lines.items())
    assert lines["BLOOMERY_THREADS"].split(None, 1)[1].split("  ")[0] == "unset: the engine chooses"
    assert lines["BLOOMERY_THREADS"].endswith(" applied")
    assert lines["BLOOMERY_DRAFT"].split(None, 1)[1].startswith("set off")
    assert lines["BLOOMERY_DRAFT"].endswith(" applied by qwen3")
    assert lines["BLOOMERY_SPIN"].split(None, 1)[1].split() == ["-", "not", "applied"]
    by_seat = dict(
        zip([lever.name for lever in LEVERS], lever_lines({}, {"--ubatch-size": 48}, "nemotron"), strict=True)
    )
    assert by_seat["BLOOMERY_QWEN3_UBATCH"].split(None, 1)[1].split() == ["-", "not", "applied"]


@given(st.dictionaries(st.text(max_size=12).map(lambda name: f"BLOOMERY_{name}"), st.text(max_size=12), max_size=4))
def test_any_variables_are_read_or_refused_each_in_a_line(environ: dict[str, str]) -> None:
    try:
        values = read(environ)
    except SettingsError as error:
        assert 1 <= len(str(error).split(" is refused: ")) - 1 <= len(environ)
    else:
        assert set(values) | NO_LEVERS >= set(environ)
