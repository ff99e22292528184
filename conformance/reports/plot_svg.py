"""Plots as SVG, drawn here so that a report is one file: histograms, lines and heat maps.

The drawing names classes (`bar`, `band`, `line s0`, `axis` ...) and no colours: the page that holds it says how they
look in light and in dark. Numbers that are not finite are not drawn; the title says how many there were.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from bloomery.conformance.finding import Plot
from bloomery.conformance.reports.report import number_text

WIDTH, HEIGHT = 560, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 30, 40
_BINS = 36
# More points than pixels show nothing more; the largest of each group is kept, because the eye looks for it.
_MAX_POINTS = 480
_MAX_ROWS = 96
_MAX_CELLS = 3000
N_COLOURS = 6
_MAX_LEGEND = 8
_TEXT_WIDTH = 6.2
_MAX_SIZE = 1e300


class _Scale:
    """From values to pixels, linear or by decades; `ticks` are values with their labels."""

    def __init__(self, low: float, high: float, pixels: tuple[float, float], *, log: bool) -> None:
        self._log = log
        if log:
            low = float(math.floor(math.log10(low)))
            high = max(float(math.ceil(math.log10(high))), low + 1)
        elif high - low < 1 / _MAX_SIZE:
            high = low + 1.0
        self.low, self.high, self._pixels = low, high, pixels

    def position(self, value: float) -> float:
        """The unit position, 0 at the low end and 1 at the high end, clipped to both."""
        if self._log:
            value = math.log10(value) if value > 0 else self.low
        share = value / (self.high - self.low) - self.low / (self.high - self.low)
        return min(1.0, max(0.0, share))

    def __call__(self, value: float) -> float:
        start, end = self._pixels
        return start + (end - start) * self.position(value)

    def ticks(self) -> list[tuple[float, str]]:
        if self._log:
            decades = range(int(self.low), int(self.high) + 1, max(1, math.ceil((self.high - self.low) / 6)))
            return [(10.0**power, f"1e{power}") for power in decades]
        step = _nice((self.high - self.low) / 5)
        first = math.ceil(self.low / step)
        values = [(first + index) * step for index in range(8)]
        return [(value, number_text(round(value, 12))) for value in values if value <= self.high * (1 + 1e-9)]


def _nice(rough: float) -> float:
    """The smallest of 1, 2, 5, 10 times a power of ten that is at least `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))


def _bounds(values: Sequence[float], band: float | None, *, log: bool) -> tuple[float, float]:
    """The least and the largest of the values, zero or a decade included, and the band."""
    if band is not None and _drawable(band) and (band > 0 or not log):
        values = [*values, band]
    if log:
        positive = [value for value in values if value > 0] or [1e-3, 1.0]
        # Numbers further than twenty decades from the largest are noise that would flatten all others.
        return max(min(positive), max(positive) * 1e-20), max(positive)
    return min([*values, 0.0]), max([*values, 0.0])


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _shortened(text: str, pixels: float) -> str:
    room = max(4, int(pixels / _TEXT_WIDTH))
    return text if len(text) <= room else f"{text[: room - 1]}…"


def _drawable(value: float) -> bool:
    """Whether a number has a place on an axis: past this size differences and powers of ten overflow."""
    return abs(value) <= _MAX_SIZE


def _finite(row: Sequence[float]) -> list[float]:
    return [float(value) for value in row if _drawable(value)]


def plot_svg(plot: Plot) -> str:
    """The plot as an `svg` element.  Every text in it is escaped."""
    lost = sum(len(row) - len(_finite(row)) for row in plot.rows)
    title = plot.title + (f" ({lost} not finite)" if lost else "")
    body = _body(plot) if any(map(_finite, plot.rows)) else [_text(WIDTH / 2, HEIGHT / 2, "no numbers")]
    return "".join(
        [
            f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
            f"<title>{escape(title)}</title>",
            _text(_LEFT, 16, _shortened(title, WIDTH - _LEFT), "name", "start"),
            *body,
            _text((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 5, _shortened(plot.x, WIDTH - _LEFT), "label"),
            "</svg>",
        ]
    )


def _body(plot: Plot) -> list[str]:
    match plot.kind:
        case "histogram":
            return _histogram(plot)
        case "line":
            return _lines(plot)
        case "heat":
            return _heat(plot)


def _axes(x: _Scale, y: _Scale | None) -> list[str]:
    bottom = HEIGHT - _BOTTOM
    parts = [_line(_LEFT, bottom, WIDTH - _RIGHT, bottom, "axis")]
    for value, label in x.ticks():
        at = x(value)
        parts += [_line(at, bottom, at, bottom + 4, "axis"), _text(at, bottom + 16, label)]
    if y is not None:
        for value, label in y.ticks():
            at = y(value)
            parts += [_line(_LEFT, at, WIDTH - _RIGHT, at, "grid"), _text(_LEFT - 6, at + 4, label, "", "end")]
    return parts


def _horizontal(values: Sequence[float], plot: Plot) -> _Scale:
    return _Scale(*_bounds(values, plot.band, log=plot.log), (_LEFT, WIDTH - _RIGHT), log=plot.log)


def _vertical(low: float, high: float, *, log: bool = False) -> _Scale:
    return _Scale(low, high, (HEIGHT - _BOTTOM, _TOP), log=log)


def _histogram(plot: Plot) -> list[str]:
    values = [value for row in plot.rows for value in _finite(row)]
    x = _horizontal(values, plot)
    counts = [0] * _BINS
    over = [0] * _BINS
    for value in values:
        index = min(_BINS - 1, int(x.position(value) * _BINS))
        counts[index] += 1
        over[index] += plot.band is not None and value > plot.band
    y = _vertical(0, max(counts))
    parts = _axes(x, y)
    step = (WIDTH - _RIGHT - _LEFT) / _BINS
    for index, count in enumerate(counts):
        at = _LEFT + index * step
        for height, base, kind in ((count - over[index], 0, "bar"), (over[index], count - over[index], "bar over")):
            if height:
                top, foot = y(base + height), y(base)
                parts.append(
                    f'<rect x="{at + 0.5:.1f}" y="{top:.1f}" width="{step - 1:.1f}" '
                    f'height="{max(foot - top, 0.7):.1f}" class="{kind}"/>'
                )
    if plot.band is not None and _drawable(plot.band):
        at = x(plot.band)
        parts += [_line(at, _TOP, at, HEIGHT - _BOTTOM, "band"), _text(at - 4, _TOP + 9, "band", "band-name", "end")]
    parts.append(_text(_LEFT - 6, _TOP - 6, _shortened(plot.y or "count", _LEFT), "label", "end"))
    return parts


def _thinned(row: Sequence[float]) -> list[tuple[int, float]]:
    """At most `_MAX_POINTS` of the finite points: the largest of each group, at its own index."""
    points = [(index, float(value)) for index, value in enumerate(row) if _drawable(value)]
    group = math.ceil(len(points) / _MAX_POINTS)
    return [max(points[at : at + group], key=lambda point: point[1]) for at in range(0, len(points), max(group, 1))]


def _lines(plot: Plot) -> list[str]:
    lines = [_thinned(row) for row in plot.rows]
    values = [value for points in lines for _, value in points]
    x = _Scale(0, max(len(row) for row in plot.rows) - 1, (_LEFT, WIDTH - _RIGHT), log=False)
    y = _vertical(*_bounds(values, plot.band, log=plot.log), log=plot.log)
    parts = _axes(x, y)
    for number, points in enumerate(lines):
        kind = f"s{number % N_COLOURS}"
        if len(points) == 1:
            parts.append(f'<circle cx="{x(points[0][0]):.1f}" cy="{y(points[0][1]):.1f}" r="3" class="dot {kind}"/>')
        path = " ".join(f"{x(index):.1f},{y(value):.1f}" for index, value in points)
        parts.append(f'<polyline points="{path}" class="line {kind}"/>')
    if plot.band is not None and _drawable(plot.band):
        at = y(plot.band)
        parts += [
            _line(_LEFT, at, WIDTH - _RIGHT, at, "band"),
            _text(WIDTH - _RIGHT, at - 4, "band", "band-name", "end"),
        ]
    room = (WIDTH - _LEFT - _RIGHT) / max(1, min(len(plot.names), _MAX_LEGEND))
    for number, name in enumerate(plot.names[:_MAX_LEGEND]):
        kind = f"key s{number % N_COLOURS}"
        parts.append(_text(_LEFT + number * room + 2, _TOP - 2, _shortened(name, room), kind, "start"))
    parts.append(_text(_LEFT - 6, _TOP - 2, _shortened(plot.y, _LEFT), "label", "end"))
    return parts


def _pooled(row: Sequence[float], columns: int) -> list[float | None]:
    """The row in `columns` cells: the largest finite value of each, None where there is none."""
    cells: list[float | None] = []
    for index in range(columns):
        start = index * len(row) // columns
        part = _finite(row[start : max((index + 1) * len(row) // columns, start + 1)])
        cells.append(max(part) if part else None)
    return cells


def _heat(plot: Plot) -> list[str]:
    rows = plot.rows[:_MAX_ROWS]
    columns = min(_MAX_CELLS // len(rows), max(len(row) for row in rows))
    values = [value for row in rows for value in _finite(row)]
    scale = _Scale(*_bounds(values, plot.band, log=plot.log), (0.0, 1.0), log=plot.log)
    x = _Scale(0, max(max(len(row) for row in rows) - 1, 1), (_LEFT, WIDTH - _RIGHT), log=False)
    parts = _axes(x, None)
    wide, high = (WIDTH - _RIGHT - _LEFT) / columns, (HEIGHT - _BOTTOM - _TOP) / len(rows)
    every = max(1, math.ceil(len(rows) * 11 / (HEIGHT - _BOTTOM - _TOP)))
    for number, row in enumerate(rows):
        top = _TOP + number * high
        if number % every == 0:
            name = plot.names[number] if number < len(plot.names) else str(number)
            parts.append(_text(_LEFT - 6, top + high / 2 + 4, _shortened(name, _LEFT - 8), "", "end"))
        for column, value in enumerate(_pooled(row, columns) if row else ()):
            if value is None:
                continue
            over = " over" if plot.band is not None and value > plot.band else ""
            opacity = 0.05 + 0.95 * scale(value)
            parts.append(
                f'<rect x="{_LEFT + column * wide:.1f}" y="{top:.1f}" width="{wide + 0.1:.1f}" '
                f'height="{high + 0.1:.1f}" class="cell{over}" fill-opacity="{opacity:.2f}">'
                f"<title>{escape(number_text(value))}</title></rect>"
            )
    if len(plot.rows) > len(rows):
        parts.append(_text(WIDTH - _RIGHT, _TOP - 4, f"first {len(rows)} of {len(plot.rows)} rows", "label", "end"))
    return parts
