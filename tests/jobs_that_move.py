"""Two jobs in a Clos with three spines, of which one arrives later and the other leaves, for tests on every clock."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result

from testbed.cli import app

TOPOLOGY = """
name: clos
datacenters:
  pod: {clos: {leaves: 2, spines: 3, hosts: 3, rate: RATE, delay: 100 us}}
"""
COMMON = """
microbatches: 4
microbatch_size: 2
pacing: {F: SLOT, I: SLOT, W: SLOT}
memory: 4
schedules: [1f1b]
iterations: 6
warmup: 1
"""
FIRST = """
name: first
model: {layers: 2, d_model: 16, heads: 2, sequence: 16}
parallelism: {pipeline: 2, data: 2}
placement: [pod-leaf0/0, pod-leaf1/0]
data_parallel: {replicas: [[pod-leaf0/1, pod-leaf1/1]], sharding: none}
message: 500 kB
"""
SECOND = """
name: second
model: {layers: 2, d_model: 16, heads: 2, sequence: 16}
parallelism: {pipeline: 2}
placement: [pod-leaf0/2, pod-leaf1/2]
message: 700 kB
seed: 2
"""


def files(directory: Path, *, rate: str = "200 Mbit/s", slot: str = "10 ms") -> list[str]:
    """A topology and two workloads, written to a directory."""
    texts = {"clos": TOPOLOGY, "first": FIRST + COMMON, "second": SECOND + COMMON}
    for name, text in texts.items():
        (directory / f"{name}.yaml").write_text(text.replace("RATE", rate).replace("SLOT", slot))
    return [str(directory / f"{name}.yaml") for name in texts]


def planned(directory: Path, *options: str) -> Result:
    """`testbed plan` of the two, to plan.json beside their files."""
    words = ["plan", *files(directory), "--policy", "greedy", "--elephants-from", "100 kB", *options]
    return CliRunner().invoke(app, [*words, "-o", str(directory / "plan.json")])
