"""Do labs in a row leave anything behind? Processes, namespaces, mounts, interfaces, descriptors, files, memory.

    python benchmarks/labs_in_a_row.py [--labs 200] [--record [NAME]]

So many labs of two datacenters, half of them each in a sandbox of its own, started by one process, the
other half one after another in one sandbox. What stands behind the tenth lab of each half is held against what stands
behind its last. Needs root, or user namespaces and a /dev/net/tun that the user may open.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from harness import options
from harness.options import ROOT
from harness.record import Claim, Topic, finish
from harness.report import show_table
from parts.labs_of_a_process import Standing, labs_in_a_row, labs_in_one_sandbox

from testbed.planning.resolve import measurement_of
from testbed.spec.document import read_yaml, validate
from testbed.spec.topology import Topology

FIRST = 10
"""Labs until everything is imported that labs import."""
MOST_KIB = 1024
"""Of memory, that a half may add: Python's own arenas, not something for each lab."""


def halves(labs: int) -> dict[str, list[Standing]]:
    """What stands behind each lab."""
    path = ROOT / "topologies/two-dc-metro.yaml"
    plan = measurement_of(validate(Topology, read_yaml(path), str(path)))
    with tempfile.TemporaryDirectory(prefix="testbed-row-") as name:
        temporary = Path(name)
        tempfile.tempdir = name
        rows = []
        for number, found in enumerate(labs_in_a_row(plan, labs // 2, temporary)):
            rows.append(found)
            print(f"lab {number + 1}: {found}", flush=True)
        read, write = os.pipe()
        with os.fdopen(read) as answers:
            labs_in_one_sandbox(plan, labs - labs // 2, temporary, write)
            os.close(write)
            inside = [Standing(*map(int, line.split())) for line in answers]
    return {"a sandbox each": rows, "one sandbox": inside}


def main() -> int:
    """Build them; returns the exit code."""
    parser = options.parser(__doc__)
    parser.add_argument("--labs", type=int, default=200)
    asked = parser.parse_args()
    found = halves(asked.labs)
    grown: dict[str, int] = {}
    table = []
    for name, rows in found.items():
        first, last = rows[min(FIRST, len(rows)) - 1], rows[-1]
        for field, before, after in zip(Standing._fields, first, last, strict=True):
            table.append((name, field, before, after))
            grown[field] = max(grown.get(field, 0), after - before)
    show_table("what stands", ["labs", "of", f"after {FIRST}", "after the last"], table)
    memory_kib = grown.pop("memory_kib")
    most = max(grown.values())
    claims = [
        Claim(
            f"{asked.labs} labs in a row: processes, namespaces, mounts, interfaces, descriptors, files, memory grow",
            f"by 0, and {MOST_KIB} KiB",
            f"by {most}, and {memory_kib} KiB",
            most <= 0 and memory_kib <= MOST_KIB,
            float(max(most, 0)),
            "things",
        )
    ]
    return finish(asked, Topic.ROBUSTNESS, claims, clock="real")


if __name__ == "__main__":
    sys.exit(main())
