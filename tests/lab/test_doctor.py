"""The doctor tries every feature, says what is missing and how to add it, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from testbed.lab.doctor import examine, usable
from testbed.lab.privileges import in_user_namespace

pytestmark = pytest.mark.root


def test_this_machine_can_run_labs() -> None:
    findings = {finding.name: finding for finding in examine()}
    assert {"root", "namespaces", "mnexec", "mininet", "veth", "tap", "netem", "ping", "torch"} <= set(findings)
    assert {"spinners", "real_time", "halting"} <= set(findings)
    assert usable(list(findings.values())), [f for f in findings.values() if not f.ok]
    for finding in findings.values():
        assert finding.detail
        assert bool(finding.remedy) != finding.ok


def test_in_a_user_namespace_one_process_after_another_can_be_started() -> None:
    """The doctor of a user said of all programs but the first that no memory could be allocated."""

    def find() -> str:
        said = [subprocess.run(["echo", word], capture_output=True, text=True, check=True).stdout for word in "abc"]
        return "".join(said)

    if (why := in_user_namespace(lambda: None)) is not None:
        pytest.skip(why)
    assert in_user_namespace(find) == "a\nb\nc\n"


def test_a_user_is_told_why_workers_stay_who_they_are() -> None:
    """It is said after all descriptors have been let go; "the attempt died" was all that came."""

    def find() -> str:
        return next(finding.detail for finding in examine() if finding.name == "isolation")

    if (why := in_user_namespace(lambda: None)) is not None:
        pytest.skip(why)
    assert in_user_namespace(find) == (
        "workers stay who started the lab (a user namespace has one user), without capabilities"
    )


def test_root_of_a_user_namespace_has_a_lab_in_another_one() -> None:
    """It had none: its command left the machine's PID namespace and could not come back, nor could the doctor's."""
    own = ["unshare", "--user", "--map-root-user"]
    if subprocess.run([*own, "true"], check=False).returncode:
        pytest.skip("no user namespaces here")
    ask = "\n".join(
        (
            "from testbed.lab import capabilities, privileges, steadiness",
            "from testbed.lab.doctor import examine, usable",
            "findings = examine()",
            "assert usable(findings), [finding for finding in findings if not finding.ok]",
            "print(privileges.require(capabilities.OF_LABS), privileges.require(capabilities.OF_GUESTS))",
            "print(steadiness.real_time_lacks())",
            "from testbed.lab.sandbox import run_in_sandbox",
            "print(run_in_sandbox(lambda: 7))",
        )
    )
    done = subprocess.run([*own, sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    first, real_time, code = done.stdout.splitlines()
    assert (first, code) == ("user namespace user namespace", "7"), done.stderr
    assert real_time == "None" or "neither CAP_SYS_NICE outside of its user namespace" in real_time


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
