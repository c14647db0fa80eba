"""Root of a container: which capabilities a run needs, that it is done with these, and what is said without one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from ordinary_user import without_user_namespaces
from smallest_pair import TOPOLOGY, WORKLOAD

from testbed.errors import ExitCode
from testbed.lab.capabilities import CHANGE_USER, OF_GUESTS, OF_LABS, SYS_NICE, Capability
from testbed.lab.privileges import Privilege
from testbed.vm import kernel

ROOT = Path(__file__).parents[2]
NOBODY = 65534
LIMIT_S = 240


@pytest.fixture
def files() -> Iterator[Path]:
    """A directory with the smallest plan, which anybody may write to: pytest's own are for the user that makes them."""
    with tempfile.TemporaryDirectory(prefix="testbed-rights-") as name:
        directory = Path(name)
        directory.chmod(0o777)
        (directory / "topology.yaml").write_text(TOPOLOGY)
        (directory / "workload.yaml").write_text(WORKLOAD)
        yield directory


def dropped(*kept: Capability) -> list[str]:
    """The beginning of a command: root keeps these capabilities alone."""
    if shutil.which("setpriv") is None:
        pytest.skip("no setpriv: Debian's package util-linux")
    mask = int(re.findall(r"CapEff:\s*(\w+)", Path("/proc/self/status").read_text())[0], 16)
    if missing := [capability.name for capability in kept if not mask >> capability.bit & 1]:
        pytest.skip(f"root lacks {', '.join(missing)} here")
    names = "".join(f",+{capability.name.lower()}" for capability in kept)
    return ["setpriv", f"--bounding-set=-all{names}", "--inh-caps=-all"]


def as_nobody() -> list[str]:
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--bounding-set=-all"]


def call(before: Sequence[str], directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [*before, sys.executable, "-P", "-m", "testbed", *words]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def run(before: Sequence[str], files: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return call(before, files, "run", "topology.yaml", "workload.yaml", "--out", "results", *words)


def without(capability: Capability, needed: Sequence[Capability]) -> list[Capability]:
    return [other for other in needed if other is not capability]


@pytest.mark.root
def test_a_run_on_the_real_clock_needs_no_more_than_these(files: Path) -> None:
    """In a network namespace of its own, as a container's is."""
    done = run(["unshare", "--net", *dropped(*OF_LABS)], files, "--again=0")
    assert done.returncode in (ExitCode.OK, ExitCode.UNTRUSTED), done.stderr
    manifest = json.loads((files / "results/manifest.json").read_text())
    assert manifest["confinement"] == {"user": None, "stays": "no CAP_SETUID", "capabilities": []}
    assert (files / "results/comparison.json").is_file()


@pytest.mark.root
@pytest.mark.parametrize("capability", OF_LABS, ids=lambda one: one.name)
def test_each_that_is_missing_is_named_and_nothing_started(files: Path, capability: Capability) -> None:
    done = run(dropped(*without(capability, OF_LABS)), files)
    assert done.returncode == ExitCode.MACHINE_LACKS
    assert done.stderr.splitlines()[-1].startswith(f"error: root lacks CAP_{capability.name}, which ")
    assert f"docker run --cap-add {capability.name} (" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (files / "results").exists()


@pytest.mark.root
@pytest.mark.parametrize("capability", OF_GUESTS, ids=lambda one: one.name)
def test_without_any_one_of_a_guests_its_kernel_is_a_plain_process(capability: Capability) -> None:
    """What a guest's boot asks, and what it then does with none of them: below."""
    ask = "from testbed.lab import capabilities, privileges; print(privileges.require(capabilities.OF_GUESTS))"
    before = [*without_user_namespaces(), *dropped(*without(capability, OF_GUESTS))]
    done = subprocess.run([*before, sys.executable, "-c", ask], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == Privilege.PLAIN_PROCESS


@pytest.mark.root
def test_the_virtual_clock_needs_none_of_its_own(files: Path) -> None:
    if not list(kernel.cache_directory().glob("*/build.json")):
        pytest.skip("no kernel of the virtual clock")
    done = run([*without_user_namespaces(), *dropped()], files, "--clock", "virtual")
    assert done.returncode == ExitCode.OK, done.stderr
    assert "the guest's kernel is a plain process" in done.stderr


@pytest.mark.root
def test_a_study_has_what_is_missing_as_the_outcome_of_every_cell(files: Path) -> None:
    cells = {"name": "mine", "topologies": ["topology.yaml"], "workloads": ["workload.yaml"], "clock": "real"}
    over = {"m": {"field": "microbatches", "values": [2, 4]}}
    study = cells | {"over": over, "claims": ["1f1b < 1 s at m=2", "error <= 5 %"]}
    (files / "study.yaml").write_text(json.dumps(study))
    missing = OF_LABS[0]
    done = call(dropped(*without(missing, OF_LABS)), files, "study", "study.yaml", "--out", "out", "--json")
    assert done.returncode == ExitCode.MACHINE_LACKS, done.stderr
    document = json.loads(done.stdout)
    assert [cell["outcome"] for cell in document["cells"]] == ["cannot here"] * 2
    assert all(cell["failed"].startswith(f"cannot here: root lacks CAP_{missing.name}") for cell in document["cells"])
    assert [claim["verdict"] for claim in document["claims"]] == ["undecided"] * 2
    table = (files / "out/study.csv").read_text()
    assert table.count(f"cannot here: root lacks CAP_{missing.name}") == 2


@pytest.mark.root
def test_without_a_tun_device_the_relay_says_how_a_container_gets_it(files: Path) -> None:
    hidden = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /dev/net && exec "$@"', "sh"]
    if not Path("/dev/net").is_dir():
        pytest.skip("no /dev/net here")
    done = run(hidden, files, "--shaper", "relay")
    assert done.returncode == ExitCode.MACHINE_LACKS
    assert "error: the relay has no TAP: /dev/net/tun: No such file or directory" in done.stderr
    assert "--device /dev/net/tun" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.root
def test_the_doctor_takes_a_container_with_them_for_a_machine_that_can() -> None:
    done = call(["unshare", "--net", *dropped(*OF_LABS)], ROOT, "doctor", "--json")
    found = {one["name"]: one for one in json.loads(done.stdout)["findings"]}
    assert done.returncode == ExitCode.OK, [one for one in found.values() if one["needed"] and not one["ok"]]
    assert found["tcp_mem"]["detail"].startswith("the machine's net.ipv4.tcp_mem is not seen")
    done = call(dropped(*OF_GUESTS), ROOT, "doctor", "--json")
    assert done.returncode == ExitCode.MACHINE_LACKS
    lacking = {one["name"]: one["detail"] for one in json.loads(done.stdout)["findings"]}
    assert lacking["root"].startswith("root lacks CAP_NET_RAW, which ")


@pytest.mark.root
def test_who_is_not_root_predicts_and_reads_and_is_told_what_a_run_needs(files: Path) -> None:
    before = as_nobody()
    if call(before, files, "--version").returncode:
        pytest.skip(f"user {NOBODY} may not read this checkout")
    for words in (
        ("predict", "topology.yaml", "workload.yaml"),
        ("plan", "topology.yaml", "workload.yaml"),
        ("schedule", "compare", "topology.yaml", "workload.yaml", "--schedule", "gpipe", "--schedule", "1f1b"),
        ("report", str(ROOT / "tests/runs/demo")),
        ("report", str(ROOT / "tests/runs/demo"), "--html", "page.html"),
    ):
        done = call(before, files, *words)
        assert done.returncode == ExitCode.OK, (words, done.stderr)
    done = run([*without_user_namespaces(), *before], files)
    assert done.returncode == ExitCode.MACHINE_LACKS
    assert done.stderr.splitlines()[-1].startswith(f"error: user {NOBODY} cannot make the lab's namespaces: ")
    assert done.stderr.rstrip().endswith("or run as root")


@pytest.mark.root
def test_what_takes_namespaces_is_not_tried_where_there_can_be_none() -> None:
    done = call([*without_user_namespaces(), *dropped()], ROOT, "doctor", "--json")
    assert done.returncode == ExitCode.MACHINE_LACKS, done.stderr
    document = json.loads(done.stdout)
    found = {one["name"]: one for one in document["findings"]}
    for name in ("namespaces", "veth", "tap", "ping"):
        assert not found[name]["tried"], name
        assert not found[name]["remedy"]
    assert "docker run --cap-add SYS_ADMIN" in found["root"]["detail"] + found["root"]["remedy"]
    assert "sudo" not in done.stdout
    virtual = "yes, as root, as a plain process" if found["time-travel"]["ok"] else "no: time-travel"
    assert document["ways"] == {"real clock": "no: root", "virtual clock": virtual}


def test_the_page_names_exactly_these() -> None:
    page = (ROOT / "docs/ci.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| `([A-Z_]+)` \| (real|both)\b", page, re.MULTILINE))
    assert told == {
        capability.name: "both" if capability in OF_GUESTS else "real"
        for capability in (*OF_LABS, *CHANGE_USER, SYS_NICE)
    }
    (command,) = [line for line in page.splitlines() if line.startswith("podman run") and "NET_RAW" in line]
    assert set(re.findall(r"[A-Z_]{6,}", command)) == set(told)
