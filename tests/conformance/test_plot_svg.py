"""Plots are well-formed, say what they show, and bear any numbers."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomery.conformance.finding import Plot
from bloomery.conformance.reports.plot_svg import HEIGHT, WIDTH, plot_svg
from tests.conformance.fake_checks import PLOTS

numbers = st.floats(allow_nan=True, allow_infinity=True)


def drawn(plot: Plot) -> ET.Element:
    return ET.fromstring(plot_svg(plot))


def of_class(root: ET.Element, *kinds: str) -> list[ET.Element]:
    return [each for each in root.iter() if set(kinds) <= set(each.attrib.get("class", "").split())]


def number(element: ET.Element, name: str) -> float:
    return float(element.attrib[name])


@given(
    kind=st.sampled_from(["histogram", "line", "heat"]),
    rows=st.lists(st.lists(numbers, max_size=9).map(tuple), max_size=4).map(tuple),
    band=st.none() | numbers,
    log=st.booleans(),
    names=st.lists(st.text(st.characters(exclude_categories=["C"])), max_size=3).map(tuple),
)
def test_any_numbers_are_drawn_inside_the_frame(
    kind: str, rows: tuple[tuple[float, ...], ...], band: float | None, log: bool, names: tuple[str, ...]
) -> None:
    root = drawn(Plot(kind=kind, title="t", rows=rows, band=band, log=log, names=names))  # type: ignore[arg-type]
    for element in root.iter():
        for name, size in (("x", WIDTH), ("x1", WIDTH), ("x2", WIDTH), ("y", HEIGHT), ("y1", HEIGHT), ("y2", HEIGHT)):
            if name in element.attrib:
                assert 0 <= number(element, name) <= size, (element.tag, name)


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.kind)
def test_a_plot_is_labelled_and_escaped(plot: Plot) -> None:
    root = drawn(plot)
    title = root.findtext("title")
    assert title is not None
    assert title.startswith(plot.title)
    assert root.attrib["aria-label"] == title


def test_numbers_that_are_not_finite_are_counted_in_the_title() -> None:
    assert drawn(PLOTS[1]).findtext("title") == "KL (1 not finite)"
    only = Plot(kind="line", title="t", rows=((math.inf,),))
    assert "no numbers" in [each.text for each in drawn(only).iter()]


def test_a_histogram_counts_every_value_and_marks_those_past_the_band() -> None:
    values = (0.5,) * 6 + (0.9,) * 3 + (2.0,) * 3
    root = drawn(Plot(kind="histogram", title="t", rows=(values,), band=1.0))
    bars = of_class(root, "bar")
    heights = sorted(round(number(bar, "height")) for bar in bars)
    assert heights[0] * 2 == pytest.approx(heights[-1], abs=2)
    assert len(bars) == 3
    [over] = of_class(root, "bar", "over")
    [band] = of_class(root, "band")
    assert number(over, "x") > number(band, "x1") > max(number(bar, "x") for bar in bars if bar is not over)


def test_a_line_goes_up_where_its_values_do() -> None:
    root = drawn(Plot(kind="line", title="t", rows=((1.0, 10.0, 100.0),), band=50.0, log=True))
    [line] = of_class(root, "line")
    points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    assert points[0][0] < points[1][0] < points[2][0]
    # The higher value is nearer to the top; in decades the steps are equal.
    assert points[0][1] - points[1][1] == pytest.approx(points[1][1] - points[2][1], abs=0.2)
    [band] = of_class(root, "band")
    assert points[1][1] > number(band, "y1") > points[2][1]


def test_a_heat_map_is_darker_where_it_is_hotter() -> None:
    root = drawn(PLOTS[2])
    cells = of_class(root, "cell")
    shades = [number(cell, "fill-opacity") for cell in cells]
    assert shades == sorted(shades)
    assert len(set(shades)) == 4
    assert [("over" in cell.attrib["class"]) for cell in cells] == [False, False, False, True]


def test_many_numbers_make_no_large_drawing() -> None:
    rows = tuple(tuple(float(n % 97) for n in range(20_000)) for _ in range(200))
    for kind in ("histogram", "line", "heat"):
        few = rows if kind != "line" else rows[:4]
        assert len(plot_svg(Plot(kind=kind, title="t", rows=few))) < 1_000_000  # type: ignore[arg-type]


def test_thinning_keeps_the_peak() -> None:
    row = [1.0] * 5000
    row[3210] = 50.0
    [line] = of_class(drawn(Plot(kind="line", title="t", rows=(tuple(row),))), "line")
    heights = [float(point.split(",")[1]) for point in line.attrib["points"].split()]
    assert min(heights) < min(sorted(heights)[1:]) - 50
    [_, *others] = sorted(heights)
    assert len(set(others)) == 1
