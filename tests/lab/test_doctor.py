"""The doctor tries every feature, says what is missing and how to add it, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.lab.doctor import examine, usable

pytestmark = pytest.mark.root


def test_this_machine_can_run_labs() -> None:
    findings = {finding.name: finding for finding in examine()}
    assert {"root", "namespaces", "mnexec", "mininet", "veth", "tap", "netem", "ping", "torch"} <= set(findings)
    assert {"spinners", "real_time", "halting"} <= set(findings)
    assert usable(list(findings.values())), [f for f in findings.values() if not f.ok]
    for finding in findings.values():
        assert finding.detail
        assert bool(finding.remedy) != finding.ok


def test_it_touches_nothing() -> None:
    interfaces, mounts = set(Path("/sys/class/net").iterdir()), Path("/proc/mounts").read_text()
    network = Path("/proc/thread-self/ns/net").readlink()
    examine()
    assert set(Path("/sys/class/net").iterdir()) == interfaces
    assert Path("/proc/mounts").read_text() == mounts
    assert Path("/proc/thread-self/ns/net").readlink() == network


def test_a_missing_tool_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    findings = {finding.name: finding for finding in examine()}
    assert findings["mnexec"].remedy == "apt-get install mininet"
    assert findings["ping"].remedy == "apt-get install iputils-ping"
    assert not usable(list(findings.values()))
