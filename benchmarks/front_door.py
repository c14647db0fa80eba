"""What a newcomer meets: labs gated in a row, then the main job again and again, quiet or beside busy processes.

    python benchmarks/front_door.py [--labs 20] [--demos 5] [--busy 0] [--host-priority on|off] [--out DIR]

Every lab is one `testbed calibrate` of the long-haul topology, every demo one `testbed run` of what `make demo` runs.
`--busy N` keeps N processes computing at ordinary priority meanwhile. Prints how many gates passed, at which attempt
and with which round trips; and of every demo the errors, the verdicts and the wall time.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from testbed.lab.namespaces import die_with_parent

ROOT = Path(__file__).parents[1]
TOPOLOGY, WORKLOAD = "topologies/two-dc-longhaul.yaml", "workloads/tiny-gpt-pp4.yaml"
LIMIT_S = 900


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


def testbed(*words: str) -> tuple[int, dict[str, Any] | None, str]:
    """Exit code, document and what was said of a command with --json."""
    command = [sys.executable, "-m", "testbed", *words, "--json", "--quiet"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout.strip() else None, done.stderr.strip()


def gate(number: int, priority: str) -> bool:
    """One lab; whether every direction was as asked."""
    code, document, said = testbed("calibrate", TOPOLOGY, "--host-priority", priority)
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
    code, document, said = testbed(*words)
    wall_s = time.monotonic() - began
    if document is None:
        print(f"demo {number}: exit code {code}: {said}")
        return []
    rows = document["schedules"]
    shown = ", ".join(
        f"{row['schedule']} {row['error']:+.2%}{'' if row['trusted'] else ' (untrusted)'}" for row in rows
    )
    print(f"demo {number}: exit code {code}, {wall_s:.0f} s, {shown}", flush=True)
    for row in rows:
        for reason in row["reasons"]:
            print(f"  {row['schedule']}: {reason}")
    return [row["error"] for row in rows]


def main() -> int:
    """1 when a gate or a demo failed, 0 otherwise; an untrusted demo is a result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labs", type=int, default=20)
    parser.add_argument("--demos", type=int, default=5)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--host-priority", default="on", choices=("on", "off"))
    parser.add_argument("--out", type=Path, default=ROOT / "results/front-door")
    arguments = parser.parse_args()
    with busy(arguments.busy):
        passed = sum(gate(n + 1, arguments.host_priority) for n in range(arguments.labs))
        found = [demo(n + 1, arguments.host_priority, arguments.out) for n in range(arguments.demos)]
    errors = [error for one in found for error in one]
    finished = sum(bool(one) for one in found)
    print(f"{passed} of {arguments.labs} labs gated, {finished} of {arguments.demos} demos finished", end="")
    print(f", errors {min(errors):+.2%} to {max(errors):+.2%}" if errors else "")
    return int(passed < arguments.labs or finished < arguments.demos)


if __name__ == "__main__":
    sys.exit(main())
