"""How the check of baselines is told: on a terminal, in JUnit, Markdown and JSON."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from made_baselines import ENVIRONMENT, checked, figures

from testbed.baseline import check_report
from testbed.baseline.junit import junit
from testbed.baseline.regression import CheckResult, CheckVerdict, Finding
from testbed.baseline.tolerance import FigureKind


def mixed(*, allow_faster: bool = False) -> check_report.CheckReport:
    """One the same, one slower with control characters in a reason, one faster; on another kernel."""
    names = ("1f1b", "crosspipe-greedy", "zb-h1", "interleaved-1f1b")
    untrusted = replace(figures(names[3]), trusted=False, reasons=("rank 1 said: <a> & \x1b[31m | " + "long " * 30,))
    now = (figures(), figures(names[1], 0.812, 0.8), figures(names[2], 0.7, 0.8), untrusted)
    environment = ENVIRONMENT | {"kernel": {"key": "7.2-abc"}}
    return check_report.CheckReport((checked(CheckResult(now, "", environment), *map(figures, names)),), allow_faster)


def test_the_table_begins_with_the_verdict_and_fits_80_columns() -> None:
    lines = [line for line, _ in check_report.table(mixed())]
    assert lines[0].startswith("OUTSIDE TOLERANCE: 3 of 4 schedules")
    assert max(map(len, lines)) <= 80
    (slower,) = [line for line in lines if "crosspipe-greedy measured" in line]
    assert " ".join(slower.split()) == "crosspipe-greedy measured 800.000 ms 812.000 ms +12 ms +1.500% slower"
    assert any(line.startswith("kernel: 6.12-abc (01234567) then, 7.2-abc now") for line in lines)
    assert any(line.startswith("  measured: 20 us or 50 ppm (over ten seeds") for line in lines)


def test_all_the_same_is_within_tolerance() -> None:
    good = check_report.CheckReport((checked(CheckResult((figures(),), "", ENVIRONMENT), figures()),), False)
    assert good.verdict == "within tolerance: 1 baseline, 1 schedule"
    assert not good.outside
    assert not good.remarks()


def test_a_difference_of_kernel_alone_is_no_fault() -> None:
    other = ENVIRONMENT | {"kernel": {"key": "7.2-abc"}}
    told = check_report.CheckReport((checked(CheckResult((figures(),), "", other), figures()),), False)
    assert not told.outside
    assert told.remarks() == ["kernel: 6.12-abc (01234567) then, 7.2-abc now (1 baseline)"]


def test_faster_can_be_allowed() -> None:
    assert {finding.schedule for finding in mixed().outside} >= {"zb-h1"}
    assert "zb-h1" not in {f.schedule for f in mixed(allow_faster=True).outside if f.verdict is CheckVerdict.faster}


def test_junit_has_the_times_and_tells_failures_from_errors() -> None:
    (suite,) = ElementTree.fromstring(junit(mixed()))
    counted = {name: suite.get(name) for name in ("name", "tests", "failures", "errors")}
    assert counted == {"name": "longhaul", "tests": "4", "failures": "2", "errors": "1"}
    cases = {case.get("name"): case for case in suite.findall("testcase")}
    assert len(cases["1f1b"]) == 0
    assert cases["crosspipe-greedy"].get("time") == "0.812000000"
    failure, error = cases["crosspipe-greedy"].find("failure"), cases["interleaved-1f1b"].find("error")
    assert failure is not None
    assert failure.text is not None
    assert "800.000 ms -> 812.000 ms" in failure.text
    assert error is not None
    assert (error.get("type"), error.get("message")) == ("untrusted", "measured untrusted")
    assert error.text is not None
    assert "rank 1 said: <a> & [31m |" in error.text, "without the control character"


CHILDREN = {
    "testsuites": ("testsuite",),
    "testsuite": ("properties", "testcase", "system-out", "system-err"),
    "properties": ("property",),
    "testcase": ("skipped", "error", "failure", "system-out", "system-err"),
}
REQUIRED = {
    "testsuite": ("name", "tests", "failures", "errors", "time", "timestamp", "hostname"),
    "testcase": ("name", "classname", "time"),
    "property": ("name", "value"),
    "failure": ("type",),
    "error": ("type",),
}
"""What the schemas of Ant's task and of CI systems have in common: elements in this order, with these attributes."""


def require_junit(element: ElementTree.Element) -> None:
    order = CHILDREN.get(element.tag, ())
    places = [order.index(child.tag) for child in element]
    assert places == sorted(places), element.tag
    for name in REQUIRED.get(element.tag, ()):
        assert element.get(name) is not None, (element.tag, name)
    for name in ("tests", "failures", "errors"):
        assert int(element.get(name, "0")) >= 0
    for name, form in (("time", r"\d+\.\d+"), ("timestamp", r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")):
        assert re.fullmatch(form, element.get(name, "")) or element.get(name) is None
    for child in element:
        require_junit(child)


ODD_LABEL = "a <b> & \"c\" 'd' ]]> \x1b\ufffe é"


def test_junit_is_of_the_structure_that_others_read_whatever_a_label_holds() -> None:
    labels = (ODD_LABEL, "1f1b")
    slower = CheckResult((figures(ODD_LABEL, 0.9), figures("1f1b")), "", ENVIRONMENT)
    nothing = CheckResult((), f"the run ended: {ODD_LABEL}", {})
    told = check_report.CheckReport(
        (checked(slower, *map(figures, labels)), checked(nothing, *map(figures, labels))), False
    )
    root = ElementTree.fromstring(junit(told))
    assert root.tag == "testsuites"
    require_junit(root)
    first, second = root
    assert [case.get("name") for case in first.findall("testcase")] == ["a <b> & \"c\" 'd' ]]>  é", "1f1b"]
    assert (first.get("failures"), first.get("errors")) == ("1", "0")
    assert (second.get("failures"), second.get("errors")) == ("0", "2"), "nothing to compare is no comparison"
    assert 'a &lt;b> &amp; "c"' in check_report.markdown(told)


def test_markdown_has_whole_rows() -> None:
    text = check_report.markdown(mixed())
    assert text.startswith("## Baselines\n\n**OUTSIDE TOLERANCE")
    rows = [line for line in text.splitlines() if line.startswith("| longhaul | ") and "measured" in line]
    assert len(rows) == 3
    assert all(row.replace("\\|", "").count("|") == 9 for row in rows)


def test_json_holds_every_finding() -> None:
    document = check_report.as_document(mixed())
    json.dumps(document, allow_nan=False)
    assert document["within_tolerance"] is False
    found = {f["schedule"]: f for f in document["baselines"][0]["findings"] if f["quantity"] == "measured"}
    assert found["crosspipe-greedy"]["difference"] == pytest.approx(0.012)
    assert found["crosspipe-greedy"]["allowed"] == pytest.approx(40e-6)


def test_values_are_shown_in_the_unit_of_their_quantity() -> None:
    assert check_report.show_value(FigureKind.measured, 1.234567) == "1.23457 s"
    measured = Finding("b", "s", CheckVerdict.same, FigureKind.measured, 0.8, 0.8 - 1.1e-13)
    assert check_report.show_difference(measured) == "0"
    predicted = Finding("b", "s", CheckVerdict.same, FigureKind.predicted, 0.8, 0.8 + 4e-9)
    assert check_report.show_difference(predicted).startswith("+4 ns")
