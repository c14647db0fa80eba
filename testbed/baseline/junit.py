"""A check as JUnit XML, in the structure that Ant's task writes and that CI systems read."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from xml.etree import ElementTree

from testbed.baseline.check_report import Checked, CheckReport, cells_of
from testbed.baseline.regression import CheckVerdict, Finding, is_regression
from testbed.baseline.tolerance import Mode
from testbed.grouping import grouped

_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold, such as a log's control characters."""

_ERRORS = (CheckVerdict.untrusted, CheckVerdict.failed, CheckVerdict.machine)
"""There was nothing to compare: an error in JUnit's words; what was compared and is outside is a failure."""


def junit(report: CheckReport) -> str:
    """A test suite per baseline, a test case per schedule; `time` is the seconds of its iteration.

    What is outside its tolerance is a failure, what could not be trusted, is the machine's or did not run an error,
    each with the comparison as its text.
    """
    now = datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="seconds")  # the structure has no time zone
    suites = ElementTree.Element("testsuites", name="testbed baseline check")
    for check in report.checked:
        suites.append(_suite(check, now, allow_faster=report.allow_faster))
    for count in ("tests", "failures", "errors"):
        suites.set(count, str(sum(int(suite.get(count, "0")) for suite in suites)))
    suites.set("time", _seconds(sum(float(suite.get("time", "0")) for suite in suites)))
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _suite(check: Checked, now: str, *, allow_faster: bool) -> ElementTree.Element:
    name, mode = check.baseline.name, str(check.mode)
    suite = ElementTree.Element("testsuite", name=_xml_text(name), timestamp=now, hostname="localhost")
    properties = ElementTree.SubElement(suite, "properties")
    ElementTree.SubElement(properties, "property", name="mode", value=mode)
    times_s = {
        figures.name: figures.predicted_s if check.mode is Mode.predict else figures.measured_s
        for figures in check.outcome.figures
    }
    for schedule, findings in grouped((finding.schedule, finding) for finding in check.findings).items():
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=_xml_text(f"baseline.{name}"),
            name=_xml_text(schedule),
            time=_seconds(times_s.get(schedule) or 0.0),
        )
        bad = [
            finding
            for finding in findings
            if is_regression(finding, allow_faster=allow_faster) or finding.verdict is CheckVerdict.machine
        ]
        if bad:
            message = ", ".join(f"{finding.quantity or ''} {finding.verdict}".strip() for finding in bad)
            kind = "error" if bad[0].verdict in _ERRORS else "failure"
            found = ElementTree.SubElement(case, kind, message=message, type=str(bad[0].verdict))
            found.text = _xml_text("\n".join(map(_explained, bad)))
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("errors", str(len(suite.findall("testcase/error"))))
    suite.set("time", _seconds(sum(float(case.get("time", "0")) for case in cases)))
    ElementTree.SubElement(suite, "system-out").text = _xml_text("\n".join([check.title, *check.hints]))
    ElementTree.SubElement(suite, "system-err")
    return suite


def _seconds(value: float) -> str:
    """To the nanosecond, without an exponent."""
    return f"{value:.9f}"


def _explained(finding: Finding) -> str:
    _, what, before, now, difference, verdict = cells_of(finding)
    return f"{what}: {before} -> {now} ({difference}): {verdict} {finding.note}".strip()


def _xml_text(text: str) -> str:
    return _NO_XML.sub("", text)
