"""Plots of the numbers in docs/bench: a bar a format, and a bar a side.

    python -m tools.bench.plot [--folder docs/bench]

Needs the `bench` extra. Reads what `tools.bench.dequantize` and `tools.bench.speed` wrote with `--out`, and writes an
SVG beside each; a file that is not there is left out. The same numbers give the same bytes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot
from matplotlib.figure import Figure

_OURS, _PEER, _GOAL = "#b5532a", "#5b6b7a", "#222222"


def formats(result: dict[str, Any]) -> Figure:
    """How many times as fast as gguf each format is decoded."""
    rates = {name: line["ratio"] for name, line in result["formats"].items() if line["ratio"] is not None}
    ordered = sorted(rates.items(), key=lambda item: item[1])
    figure, axes = pyplot.subplots(figsize=(7, 0.24 * len(ordered) + 1.2), layout="constrained")
    bars = axes.barh([name for name, _ratio in ordered], [ratio for _name, ratio in ordered], color=_OURS, height=0.7)
    axes.bar_label(bars, fmt="%.1f", padding=3, fontsize=8)
    for goal, what in ((1, "every format"), (2, "K-quants")):
        axes.axvline(goal, color=_GOAL, linewidth=0.8, linestyle="--")
        axes.text(goal, len(ordered) - 0.3, f" {what}", fontsize=7, va="bottom")
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
    axes.tick_params(labelsize=8)
    axes.set_xlabel(f"times the speed of {result['peer']}; dashed: the goals", fontsize=8)
    axes.set_xlim(right=1.25 * ordered[-1][1])
    axes.set_ylim(-0.6, len(ordered) + 0.4)
    return figure


def speeds(result: dict[str, Any]) -> Figure:
    """Tokens a second of every side, a panel for each run and phase."""
    runs = result["runs"]
    peer = next(iter(runs[0]["sides"]))
    figure, grid = pyplot.subplots(len(runs), 2, figsize=(7.5, 1.3 * len(runs)), squeeze=False, layout="constrained")
    for row, run in zip(grid, runs, strict=True):
        for axes, phase in zip(row, ("prompt", "decode"), strict=True):
            names = list(reversed(run["sides"]))
            lines = [run["sides"][name][phase] for name in names]
            rates = [line["tokens_per_second"] for line in lines]
            spread = [
                [rate - line["least"] for rate, line in zip(rates, lines, strict=True)],
                [line["most"] - rate for rate, line in zip(rates, lines, strict=True)],
            ]
            colors = [_PEER if name == peer else _OURS for name in names]
            bars = axes.barh(names, rates, xerr=spread, color=colors, height=0.7, error_kw={"linewidth": 0.8})
            labels = [
                f"{line['tokens_per_second']:.0f}" + (f" (1/{line['times_slower']:.1f})" if name != peer else "")
                for name, line in zip(names, lines, strict=True)
            ]
            axes.bar_label(bars, labels, padding=8, fontsize=7)
            axes.set_xlim(0, 1.5 * max(line["most"] for line in lines))
            axes.set_title(f"{run['model']}, -t {run['threads']}: {phase}", fontsize=8)
            axes.tick_params(labelsize=7)
    figure.supxlabel(
        f"tokens a second, median and range of rounds; in brackets, of {peer}'s speed",
        fontsize=8,
    )
    return figure


def main() -> None:
    """Writes the plots."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("docs/bench"))
    folder = parser.parse_args().folder
    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "bloomery"
    # Letters as letters, not as outlines.
    mpl.rcParams["svg.fonttype"] = "none"
    for name, draw in {"dequantize": formats, "speed": speeds}.items():
        source = folder / f"{name}.json"
        if not source.exists():
            print(f"left out: {source} is not there")
            continue
        figure = draw(json.loads(source.read_text()))
        # Without a date, so that the same numbers give the same bytes.
        figure.savefig(source.with_suffix(".svg"), metadata={"Date": None})
        print(source.with_suffix(".svg"))


if __name__ == "__main__":
    main()
