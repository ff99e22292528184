"""The page: whole in itself, escaped, and holding every finding and plot."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from bloomery.conformance.reports.html import html_report
from tests.conformance.fake_checks import HOSTILE, PLOTS, finding, report_of

VOID = {"meta", "input", "br", "hr", "link", "img"}
# In SVG these close themselves.
SELF_CLOSED = {"line", "rect", "circle", "polyline"}


class Page(HTMLParser):
    """The elements of a page; fails on one that is not closed where it should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in SELF_CLOSED
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def test_a_page_holds_every_finding_and_plot() -> None:
    text = html_report(
        report_of(
            finding("shapes", "norm", plots=PLOTS, measured={"p50": 1.5e-6}),
            finding("ties", "norm", wrong=("2 is not 3",), replay=Path("there/case.npz")),
            finding("shapes", "rope", measured={}, skipped="no rope here"),
        )
    )
    page = Page(text)
    assert len(page.named("svg")) == len(PLOTS)
    for words in ("Does not conform", "2 is not 3", "there/case.npz", "no rope here", "1.5e-06", "seed 7"):
        assert any(words in each for each in page.texts), words


def test_every_chip_leads_to_its_finding() -> None:
    page = Page(html_report(report_of(finding("a"), finding("b", wrong=("no",)), finding("c", "other"))))
    targets = {attributes.get("id") for _, attributes in page.elements}
    links = [attributes["href"] for attributes in page.named("a")]
    assert len(links) == 3
    assert {str(link).removeprefix("#") for link in links} <= targets


def test_the_page_loads_nothing() -> None:
    text = html_report(report_of(finding(plots=PLOTS)))
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in page.elements}
    assert not re.search(r"(?:https?:)?//|url\(|@import|\bon\w+=", text)


def test_it_looks_right_in_the_dark() -> None:
    text = html_report(report_of(finding()))
    assert "prefers-color-scheme: dark" in text
    used, defined = set(re.findall(r"var\((--[\w-]+)\)", text)), set(re.findall(r"(--[\w-]+):", text))
    assert used <= defined


def test_hostile_names_are_escaped() -> None:
    hostile = HOSTILE.replace("\ud800", "")
    page = Page(html_report(report_of(finding(hostile, hostile, wrong=(hostile,)), command=hostile)))
    assert "script" not in {tag for tag, _ in page.elements}
    assert any('<script>alert("&")</script>' in each for each in page.texts)


def test_headlines() -> None:
    for findings, headline in (
        ((finding(),), "Conforms"),
        ((finding(), finding("b", wrong=("no",))), "Does not conform"),
        ((finding(measured={}, skipped="s"),), "Nothing ran"),
    ):
        assert headline in Page(html_report(report_of(*findings))).texts
