"""A report as JUnit XML, as CI systems read it: a suite a subject, a case a finding."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter

from bloomery.conformance.finding import Finding
from bloomery.conformance.reports.report import Report, measured_text

# What XML 1.0 has no way to write: most control characters, surrogates, U+FFFE and U+FFFF.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def xml_text(text: str) -> str:
    """The text with what XML cannot hold written as Python writes it."""
    return _NOT_XML.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def junit_report(report: Report) -> bytes:
    """The document, in UTF-8."""
    root = ET.Element("testsuites", name="bloomery-conformance", time=_seconds(report.seconds))
    _count(root, list(report.findings()))
    for subject, cases in _by_subject(report).items():
        time = _seconds(sum(seconds for _, seconds in cases))
        suite = ET.SubElement(root, "testsuite", name=xml_text(subject), timestamp=report.started, time=time)
        _count(suite, [finding for finding, _ in cases])
        properties = ET.SubElement(suite, "properties")
        for name, value in (("command", report.command), ("version", report.version), ("seed", str(report.seed))):
            ET.SubElement(properties, "property", name=name, value=xml_text(value))
        for finding, seconds in cases:
            _case(suite, finding, seconds)
    ET.indent(root)
    document: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _by_subject(report: Report) -> dict[str, list[tuple[Finding, float]]]:
    """Each subject's findings with their seconds: a check's time is its findings' together, an equal part each."""
    subjects: dict[str, list[tuple[Finding, float]]] = {}
    for result in report.results:
        for finding in result.findings:
            subjects.setdefault(finding.subject, []).append((finding, result.seconds / len(result.findings)))
    return subjects


def _seconds(value: float) -> str:
    return f"{value:.3f}"


def _count(element: ET.Element, findings: list[Finding]) -> None:
    counts = Counter(finding.verdict for finding in findings)
    element.set("tests", str(len(findings)))
    element.set("failures", str(counts["failed"]))
    element.set("errors", "0")
    element.set("skipped", str(counts["skipped"]))


def _case(suite: ET.Element, finding: Finding, seconds: float) -> None:
    case = ET.SubElement(
        suite,
        "testcase",
        classname=xml_text(finding.subject),
        name=xml_text(finding.check),
        time=_seconds(seconds),
    )
    if finding.verdict == "failed":
        failure = ET.SubElement(case, "failure", type="nonconforming", message=xml_text(finding.wrong[0]))
        replay = [] if finding.replay is None else [f"replay: {finding.replay}"]
        failure.text = xml_text("\n".join([*finding.wrong, *replay]))
    elif finding.verdict == "skipped":
        ET.SubElement(case, "skipped", message=xml_text(str(finding.skipped)))
    if finding.measured:
        ET.SubElement(case, "system-out").text = xml_text(measured_text(finding))
