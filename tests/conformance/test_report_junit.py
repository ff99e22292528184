"""The JUnit report is XML that any reader takes, of the shape that CI systems know, whatever the names are."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from bloomery.conformance.finding import Finding
from bloomery.conformance.reports.junit import junit_report, xml_text
from tests.conformance.fake_checks import HOSTILE, finding, report_of

# The elements and attributes of the JUnit schema that the Jenkins plugin publishes: the ones an element must have, the
# ones it may have, and its children in their order.
SCHEMA: dict[str, tuple[set[str], set[str], list[str]]] = {
    "testsuites": (set(), {"name", "time", "tests", "failures", "errors", "skipped"}, ["testsuite"]),
    "testsuite": (
        {"name", "tests"},
        {"failures", "errors", "skipped", "time", "timestamp"},
        ["properties", "testcase"],
    ),
    "properties": (set(), set(), ["property"]),
    "property": ({"name", "value"}, set(), []),
    "testcase": ({"name"}, {"classname", "time"}, ["skipped", "error", "failure", "system-out"]),
    "skipped": (set(), {"message"}, []),
    "failure": (set(), {"message", "type"}, []),
    "system-out": (set(), set(), []),
}


def validate(element: ET.Element) -> None:
    must, may, children = SCHEMA[element.tag]
    assert must <= set(element.attrib) <= must | may, element.tag
    order = [children.index(child.tag) for child in element]
    assert order == sorted(order)
    for count in {"tests", "failures", "errors", "skipped"} & set(element.attrib):
        int(element.attrib[count])
    for child in element:
        validate(child)


def parsed(*findings: Finding) -> ET.Element:
    root = ET.fromstring(junit_report(report_of(*findings)))
    assert root.tag == "testsuites"
    validate(root)
    return root


def test_a_suite_a_subject_and_a_case_a_finding() -> None:
    root = parsed(
        finding("shapes", "norm", measured={"rows": 3.0, "p50": 1.5e-6}),
        finding("ties", "norm", wrong=("2 is not 3", "nor 4"), replay=Path("there/case.npz")),
        finding("shapes", "rope", measured={}, skipped="no rope here"),
    )
    counts = [[int(root.attrib[name]) for name in ("tests", "failures", "errors", "skipped")]]
    counts += [[int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")] for suite in root]
    assert counts == [[3, 1, 0, 1], [2, 1, 0, 0], [1, 0, 0, 1]]
    assert [suite.attrib["name"] for suite in root] == ["norm", "rope"]
    passed, failed, skipped = root.iter("testcase")
    assert (passed.attrib["classname"], passed.attrib["name"], passed.attrib["time"]) == ("norm", "shapes", "0.500")
    assert passed.findtext("system-out") == "rows 3, p50 1.5e-06"
    [failure] = failed.findall("failure")
    assert failure.attrib["message"] == "2 is not 3"
    assert failure.text == "2 is not 3\nnor 4\nreplay: there/case.npz"
    assert [child.attrib for child in skipped] == [{"message": "no rope here"}]
    assert {each.attrib["name"]: each.attrib["value"] for each in root[0][0]}["seed"] == "7"


def test_hostile_names_are_escaped() -> None:
    [case] = parsed(finding(HOSTILE, HOSTILE, wrong=(HOSTILE,))).iter("testcase")
    # A surrogate and two of the characters have no XML; the rest comes back as it was.
    assert case.attrib["name"] == 'x<script>alert("&")</script>\\x00\\x1b[31m\\ud800]]>\\ufffe'


@given(st.text(st.characters(exclude_categories=())))
def test_every_text_survives_or_is_written_as_an_escape(text: str) -> None:
    shown = xml_text(text)
    [case] = parsed(finding(text or "c", "s")).iter("testcase")
    # XML reads every kind of blank in an attribute as a written one only when escaped, which the writer does.
    assert case.attrib["name"] == (shown or "c")
