"""A study on a Ray cluster of several nodes, one of which is lost in the middle: is any cell lost, or measured twice?

    python benchmarks/study_cluster.py [--nodes 3] [--cells 8] [--record [NAME]]

Nodes are Ray's own processes on this machine (ray.cluster_utils), one slot each; a head without slots hands out the
work. One node is killed while its cells are under way. Then the same study in guests of this machine: times may differ
by what ran before a cell in its boot, less than a microsecond. Needs testbed[ray], root and the kernel of the virtual
clock.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from harness import options
from harness.options import ROOT
from harness.record import Claim, Topic, finish

FILES = [str(ROOT / "topologies/two-dc-longhaul.yaml"), str(ROOT / "workloads/tiny-gpt-pp4.yaml")]
LIMIT_S = 3000.0
UNDER_WAY_S = 20.0
"""After the first cells were handed out: guests are up, none has finished."""


def command(cells: int, out: Path, *more: str) -> list[str]:
    delays = f"links.0.delay=1..80ms/{cells}"
    words = ["sweep", *FILES, "--over", delays, "--schedule", "1f1b", "--iterations", "1", "--set", "warmup=1"]
    return [sys.executable, "-m", "testbed", *words, "--out", str(out), "--json", "--quiet", *more]


def on_cluster(nodes: int, cells: int, out: Path) -> dict[str, Any]:
    """What the study prints whose cells a cluster measures that loses a node."""
    from ray.cluster_utils import Cluster  # an extra: --help works without

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        there = [cluster.add_node(num_cpus=1) for _ in range(nodes)]
        cluster.wait_for_nodes()
        study = subprocess.Popen(
            command(cells, out, "--ray", cluster.address, "--jobs", str(2 * nodes)), stdout=subprocess.PIPE, text=True
        )
        time.sleep(UNDER_WAY_S)
        assert study.poll() is None, "it ended before a node could be lost"
        cluster.remove_node(there[-1], allow_graceful=False)  # the command itself is a driver of the first one
        print(f"lost a node of {nodes}", file=sys.stderr, flush=True)
        stdout, _ = study.communicate(timeout=LIMIT_S)
        assert stdout, f"it ended with exit code {study.returncode}"
        found: dict[str, Any] = json.loads(stdout)
        return found
    finally:
        cluster.shutdown()


def main() -> int:
    parser = options.parser(__doc__)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--cells", type=int, default=8)
    arguments = parser.parse_args()
    with TemporaryDirectory(prefix="testbed-cluster-") as scratch:
        there, here = Path(scratch, "there"), Path(scratch, "here")
        document = on_cluster(arguments.nodes, arguments.cells, there)
        subprocess.run(command(arguments.cells, here), check=True, stdout=subprocess.DEVNULL, timeout=LIMIT_S)
        tables = [pd.read_parquet(place / "study.parquet") for place in (there, here)]
    failed = [cell["failed"] for cell in document["cells"] if cell["failed"]]
    once = list(tables[0]["cell"]) == list(range(arguments.cells))
    apart_ns = (tables[0]["measured_s"] - tables[1]["measured_s"]).abs().max() * 1e9
    claims = [
        Claim(
            f"a study on {arguments.nodes} nodes of which one is lost in the middle",
            "no cell lost, none twice",
            f"{len(tables[0])} of {arguments.cells} cells, {'each once' if once else 'some twice or missing'}",
            once and not failed,
            value=float(len(failed)),
            unit="cells",
            taken=arguments.cells,
            of=arguments.cells,
        ),
        Claim(
            "the same cells measured on a cluster and on one machine",
            "within 1 us",
            f"at most {apart_ns:.0f} ns apart",
            bool(apart_ns < 1000),
            value=float(apart_ns),
            unit="ns",
            taken=arguments.cells,
            of=arguments.cells,
        ),
    ]
    return finish(arguments, Topic.STUDIES, claims)


if __name__ == "__main__":
    sys.exit(main())
