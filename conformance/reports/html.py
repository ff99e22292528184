"""A report as one HTML page that needs nothing beside itself: styles and plots are inside, and nothing is loaded."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from bloomery.conformance.finding import Plot
from bloomery.conformance.reports.plot_svg import plot_svg
from bloomery.conformance.reports.report import PASSED, Report, number_text

_HEADLINES = {0: "Conforms", 1: "Does not conform", 2: "Nothing ran"}


@cache
def _template() -> Template:
    # Names and sentences come from files and servers, so all of them are escaped.
    environment = Environment(
        loader=PackageLoader("bloomery.conformance.reports", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number_text
    environment.filters["drawn"] = _drawn
    return environment.get_template("report.html.jinja")


def _headline(report: Report) -> str:
    """The verdict, and that something was not looked at."""
    n_skipped = sum(map(len, report.skipped().values()))
    unseen = f", but for {n_skipped} that did not run" if report.exit_code == PASSED and n_skipped else ""
    return _HEADLINES[report.exit_code] + unseen


def _drawn(plot: Plot) -> Markup:
    return Markup(plot_svg(plot))  # noqa: S704 - every text in a plot is escaped where it is drawn


def html_report(report: Report) -> str:
    """The page, valid on its own."""
    numbered = list(enumerate(report.findings()))
    subjects: dict[str, list[tuple[int, object]]] = {}
    for number, finding in numbered:
        subjects.setdefault(finding.subject, []).append((number, finding))
    return _template().render(
        report=report,
        headline=_headline(report),
        verdict="passed" if report.exit_code == PASSED else "failed" if report.exit_code == 1 else "skipped",
        counts=report.counts,
        subjects=subjects,
        failures=[(number, finding) for number, finding in numbered if finding.verdict == "failed"],
        skipped=report.skipped(),
    )
