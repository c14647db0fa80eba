"""Where control groups can be made, by what a machine with version 1, version 2 or none says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_process import run_testbed

from testbed.errors import ExitCode, MachineLacks
from testbed.lab import cgroups
from testbed.lab.cgroups import NodeGroup, NodeLimits, Place, limited, place_of

LIMITS = NodeLimits(memory_bytes=2.0**30, cpus=0.5)


def hierarchy(top: Path, *groups: tuple[str, str]) -> None:
    """Groups of version 2, each with what it hands on to those below."""
    for path, handed_on in groups:
        directory = top / path
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "cgroup.subtree_control").write_text(handed_on)


def test_version_1_has_a_hierarchy_for_each_controller(tmp_path: Path) -> None:
    (tmp_path / "memory/user/one").mkdir(parents=True)
    mounts = f"none /sys/fs/cgroup tmpfs rw 0 0\ncgroup {tmp_path}/memory cgroup rw,nosuid,memory 0 0\n"
    groups = "4:memory:/user/one\n1:cpu,cpuacct:/\n0::/"
    assert place_of("memory", mounts, groups) == Place(1, tmp_path / "memory/user/one")
    assert place_of("cpu", mounts, groups) is None


def test_of_version_2_it_is_the_nearest_group_that_hands_the_controller_on(tmp_path: Path) -> None:
    hierarchy(tmp_path, ("", "cpu memory pids"), ("system.slice", "memory"), ("system.slice/one.service", ""))
    mounts = f"cgroup2 {tmp_path} cgroup2 rw,nsdelegate 0 0\n"
    groups = "0::/system.slice/one.service"
    assert place_of("memory", mounts, groups) == Place(2, tmp_path / "system.slice")
    assert place_of("cpu", mounts, groups) == Place(2, tmp_path)
    assert place_of("io", mounts, groups) is None


def test_in_a_container_the_top_that_is_mounted_is_its_own_group(tmp_path: Path) -> None:
    hierarchy(tmp_path, ("", "memory"))
    mounts = f"cgroup {tmp_path} cgroup2 rw 0 0\n"
    assert place_of("memory", mounts, "0::/../../docker/abc") == Place(2, tmp_path)


def test_without_any_it_is_said_before_anything_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "_place", lambda controller: None)
    with (
        pytest.raises(MachineLacks, match="has limits for its nodes, and no control group here has the cpu controller"),
        limited({"east/0": LIMITS}),
    ):
        pytest.fail("nothing holds the nodes to their limits")


def test_where_none_can_be_made_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "_place", lambda controller: Place(2, tmp_path / "gone"))
    with (
        pytest.raises(MachineLacks, match=r"no control group for cpu can be made in .*gone: "),
        limited({"a/0": LIMITS}),
    ):
        pytest.fail("there is no group")


@pytest.mark.parametrize(
    ("version", "written"),
    [
        (1, {"memory.limit_in_bytes": "1073741824", "cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"}),
        (2, {"memory.max": "1073741824", "cpu.max": "50000 100000"}),
    ],
)
def test_what_is_written(tmp_path: Path, version: int, written: dict[str, str]) -> None:
    place = Place(version, tmp_path)
    group = NodeGroup("one", LIMITS, {"memory": place, "cpu": place})
    found = {path.name: path.read_text() for path in (tmp_path / "one").iterdir()}
    assert found == written
    assert group.joined_by == (str(tmp_path / "one/cgroup.procs"),)


@pytest.mark.parametrize(("version", "file"), [(1, "memory.oom_control"), (2, "memory.events")])
def test_who_was_ended_for_want_of_memory_is_told_once(tmp_path: Path, version: int, file: str) -> None:
    group = NodeGroup("one", NodeLimits(300 * 2.0**20, None), {"memory": Place(version, tmp_path)})
    lab = cgroups.LabGroups({"east/0": group})
    (tmp_path / "one" / file).write_text("oom 1\noom_kill 0\n")
    assert lab.out_of_memory() is None
    (tmp_path / "one" / file).write_text("oom 2\noom_kill 1\n")
    assert lab.out_of_memory() == "east/0 needs more than its 300 MiB of memory"
    assert lab.out_of_memory() is None
    assert lab.joined_by("west/0") == ()


def test_nodes_that_had_no_memory_left_together_are_told_together(tmp_path: Path) -> None:
    """What befell the second one was told of the next schedule, whatever had ended that."""
    places = {"memory": Place(1, tmp_path)}
    nodes = ("east/0", "east/1", "west/0")
    groups = {node: NodeGroup(node.replace("/", "-"), NodeLimits(2.0**28, None), places) for node in nodes}
    lab = cgroups.LabGroups(groups)
    for node, ended in zip(nodes, (1, 1, 0), strict=True):
        (tmp_path / node.replace("/", "-") / "memory.oom_control").write_text(f"oom_kill {ended}\n")
    assert lab.out_of_memory() == (
        "east/0 needs more than its 256 MiB of memory, east/1 needs more than its 256 MiB of memory"
    )
    assert lab.out_of_memory() is None


@pytest.mark.parametrize("words", [("run", "tiny-gpt-pp4"), ("calibrate",), ("calibrate", "--engine", "tiny-gpt-pp4")])
def test_a_guest_is_not_booted_for_limits_that_it_cannot_have(words: tuple[str, ...], tmp_path: Path) -> None:
    topology = tmp_path / "limited.yaml"
    link = "links: [{between: [a, b], delay: 1 ms, rate: 100 Mbit/s}]"
    topology.write_text(f"name: limited\ndatacenters: {{a: {{nodes: 2, memory: 1 GiB}}, b: {{nodes: 2}}}}\n{link}\n")
    out = ["--out", str(tmp_path / "out")] if words[0] == "run" else []
    done = run_testbed(words[0], topology, *words[1:], "--clock", "virtual", *out)
    assert done.returncode == ExitCode.MACHINE_LACKS
    said = "the topology has limits for its nodes (a/0, a/1), and a guest has none; use --clock real"
    assert done.stderr.splitlines()[-1] == f"error: {said}"
    assert list(tmp_path.iterdir()) == [topology]


@pytest.mark.parametrize(
    "words",
    [
        ("knee", "--points", "3", "--measure", "1", "--out"),
        ("advise", "--axes", "4x1x1", "--microbatch-size", "4", "--schedule", "1f1b", "--confirm", "1", "--out"),
        ("test-determinism", "--out"),
        ("baseline", "save", "limited", "--baselines"),
    ],
)
def test_what_measures_in_a_guest_refuses_limits_before_it_is_booted(words: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "out"
    files = "two-dc-longhaul", "tiny-gpt-pp4", "--set", "datacenters.paris.cpus=0.5"
    done = run_testbed(*words, out, *files)
    assert done.returncode == ExitCode.MACHINE_LACKS
    said = done.stderr.splitlines()[-1]
    assert said.startswith("error: the topology has limits for its nodes (paris/0, paris/1, paris/2, paris/3)")
    assert not any(out.rglob("*"))
