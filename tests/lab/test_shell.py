"""`testbed shell`: Mininet's command line in a lab, on a real (pseudo-)terminal with Ctrl-C, and from a pipe."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from in_sandbox import command_for
from networks import two_datacenters
from terminal import Terminal

from testbed.spec.workload import workload_document

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.root


def shell() -> int:
    from testbed.lab.command_line import open_shell
    from testbed.lab.lab import Lab

    with Lab(two_datacenters("1 ms", nodes=2), shaper="relay") as lab:
        open_shell(lab)
    return 0


shell.interactive = True  # type: ignore[attr-defined]


def test_commands_pingall_and_ctrl_c() -> None:
    terminal = Terminal(shell)
    terminal.expect("mininet> ")
    terminal.type(b"a/0 ping -c 1 b/1\n")
    terminal.expect("1 received")
    terminal.expect("mininet> ")
    terminal.type(b"pingall\n")
    terminal.expect("0% dropped (30/30 received)")
    terminal.expect("mininet> ")
    terminal.type(b"a/0 ping b/1\n")
    terminal.expect("icmp_seq=2")
    terminal.type(b"\x03")  # ends the ping, not the shell
    terminal.expect("packets transmitted")
    terminal.expect("mininet> ")
    time.sleep(0.5)  # a second Ctrl-C within 0.3 s counts as the same one
    terminal.type(b"\x03")
    terminal.expect("mininet> ")
    time.sleep(2.2)  # longer than an interrupted lab may live: this one was not told to end
    terminal.type(b"exit\n")
    assert terminal.exit_code() == 0


COMMANDS = """\
a/0 ping -c 1 -W 1 b/1
sh cat
a ip route show dev wan0-b
link a b down
a/0 ping -c 1 -W 1 b/1
link a b up
a ip route show dev wan0-b
link a/0 a down
link a/0 a up
a/0 ping -c 1 -W 1 b/1
link a nowhere up
source nowhere.txt
iperf a/0 b/1
"""


def test_commands_from_a_pipe_links_come_back_with_their_routes_and_iperf() -> None:
    done = subprocess.run(
        command_for(shell, (), -1), input=COMMANDS, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert said.count("1 packets transmitted") == 3, said  # every command was read, none eaten by another
    assert said.count("1 packets transmitted, 1 received") == 2, said
    before, after = _routes(said)
    assert before == after
    assert "via 10.128.0.2" in before
    assert "no node nowhere" in said
    assert "nowhere.txt: No such file or directory" in said
    assert "bit/s of payload" in said


def test_the_end_of_a_nodes_own_shell_ends_the_command() -> None:
    """It was waited for, for ever, and Ctrl-C did not help."""
    text = "a/0 exit 3\na/0 echo on\n"
    said = subprocess.run(
        command_for(shell, (), -1), input=text, capture_output=True, text=True, timeout=60, check=False
    )
    assert said.returncode == 4, said.stdout
    assert "container a/0 has ended: its shell ended with exit code 3" in said.stderr
    terminal = Terminal(shell)
    terminal.expect("mininet> ")
    terminal.type(b"a/0 exit\n")
    terminal.expect("container a/0 has ended: its shell ended with exit code 0")
    assert terminal.exit_code() == 4


def _routes(said: str) -> tuple[str, str]:
    """The routes over the link as they were shown, sorted, before it went down and after it came up."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", said)  # some versions of ip have colours on a terminal
    lines = [line.strip() for line in plain.splitlines() if "10.128." in line and "ping" not in line.lower()]
    half = len(lines) // 2
    return "\n".join(sorted(lines[:half])), "\n".join(sorted(lines[half:]))


THREE = {"a": 3, "b": 3, "c": 1}


def test_a_plan_has_the_routes_of_its_case(tmp_path: Path) -> None:
    """Two jobs from a to b: greedy sends one of them over c, one router more, and all else stays where it is."""
    ends = ({"between": list(pair), "delay": "1 ms", "rate": "500 Mbit/s"} for pair in ("ab", "ac", "cb"))
    sites = {name: {"nodes": nodes} for name, nodes in THREE.items()}
    (tmp_path / "three.yaml").write_text(
        json.dumps({"name": "three", "datacenters": sites, "links": list(ends)}), encoding="utf-8"
    )
    for number in range(2):
        settings = {"parallelism.pipeline": "2", "placement": f"[a/{number}, b/{number}]", "name": f"job{number}"}
        job = workload_document(ROOT / "workloads/tiny-gpt-pp4.yaml", {**settings, "memory": "8"})
        (tmp_path / f"job{number}.yaml").write_text(json.dumps(job), encoding="utf-8")
    jobs = [f"job{number}.yaml" for number in range(2)]
    policies = ["--policy", "shortest", "--policy", "greedy", "--elephants-from", "100 kB"]
    _testbed(tmp_path, "plan", "three.yaml", *jobs, "--schedule", "1f1b", *policies)
    pings = "".join(f"a/{number} ping -c 1 -W 1 b/{number}\n" for number in range(3))
    hops = {
        label: re.findall(r"ttl=(\d+)", _testbed(tmp_path, "shell", "plan.json", *asked, text=pings))
        for label, asked in {"first": (), "greedy": ("--case", "1f1b on greedy")}.items()
    }
    assert hops["first"] == ["62", "62", "62"]
    assert sorted(hops["greedy"][:2]) in (["60", "62"], ["61", "62"])
    assert hops["greedy"][2] == "62"


def _testbed(place: Path, *words: str, text: str = "") -> str:
    """What a command prints."""
    command = [sys.executable, "-m", "testbed", *words]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False, cwd=place)
    assert done.returncode == 0, done.stderr
    return done.stdout
