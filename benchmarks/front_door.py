"""What a newcomer meets: labs gated in a row, then the main job again and again, quiet or beside busy processes.

    python benchmarks/front_door.py [--labs 20] [--demos 5] [--busy 0] [--host-priority on|off] [--out DIR]

Every lab is one `testbed calibrate` of the long-haul topology, every demo one `testbed run` of what `make demo` runs.
`--busy N` keeps N processes computing at ordinary priority meanwhile. Prints how many gates passed, at which attempt
and with which round trips; and of every demo the errors, the verdicts and the wall time.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness import options
from harness.boots import run_testbed
from harness.record import Claim, Topic, finish
from harness.report import show_run

from testbed.lab.namespaces import die_with_parent

TOPOLOGY, WORKLOAD = "topologies/two-dc-longhaul.yaml", "workloads/tiny-gpt-pp4.yaml"


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that compute without a pause."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command, preexec_fn=lambda: die_with_parent(signal.SIGKILL)) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def gate(number: int, priority: str) -> bool:
    """One lab; whether every direction was as asked."""
    code, document, said = run_testbed("calibrate", TOPOLOGY, "--host-priority", priority)
    if document is None:
        print(f"lab {number}: exit code {code}: {said}")
        return False
    links = document["links"]
    trips = [1e3 * link["measured"]["rtt_s"]["median"] for link in links if link["measured"]["rtt_s"]]
    attempts = max(link["attempts"] for link in links)
    shown = ", ".join(f"{trip:.2f}" for trip in trips)
    print(f"lab {number}: exit code {code}, RTT {shown} ms of 20.4, attempt {attempts}", flush=True)
    return code == 0


def demo(number: int, priority: str, out: Path) -> list[float]:
    """One main job; the errors of its schedules, none when it gave no result."""
    began = time.monotonic()
    words = ("run", TOPOLOGY, WORKLOAD, "--out", str(out), "--overwrite", "--host-priority", priority)
    code, document, said = run_testbed(*words)
    wall_s = time.monotonic() - began
    if document is None:
        print(f"demo {number}: exit code {code}: {said}")
        return []
    show_run(f"demo {number}: exit code {code}, {wall_s:.0f} s", document)
    return [row["error"] for row in document["schedules"]]


def main() -> int:
    """1 when a gate or a demo failed, 0 otherwise; an untrusted demo is a result."""
    parser = options.parser(__doc__)
    parser.add_argument("--labs", type=int, default=20)
    parser.add_argument("--demos", type=int, default=5)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--host-priority", default="on", choices=("on", "off"))
    options.add_out(parser, "front-door", recorded=False)
    asked = parser.parse_args()
    with busy(asked.busy):
        passed = sum(gate(n + 1, asked.host_priority) for n in range(asked.labs))
        found = [demo(n + 1, asked.host_priority, asked.out) for n in range(asked.demos)]
    errors = [error for one in found for error in one]
    finished = sum(bool(one) for one in found)
    beside = f" beside {asked.busy} busy processes" if asked.busy else ""
    spread = f"{min(errors):+.2%} to {max(errors):+.2%}" if errors else "none"
    claims = [
        Claim(f"labs gated in a row{beside}", "all", f"{passed} gated", passed == asked.labs, passed),
        Claim(f"main jobs in a row{beside}", "all", f"{finished} finished", finished == asked.demos, finished),
        Claim(f"their errors{beside}", "(report)", spread, value=max(errors, default=None), unit="share"),
    ]
    return finish(asked, Topic.FRONT_DOOR, claims, clock="real", directories=[asked.out])


if __name__ == "__main__":
    sys.exit(main())
