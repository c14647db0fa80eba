"""How long does a user wait for `testbed predict` of the main job?

    python benchmarks/command_speed.py [--repeats 15] [--record [NAME]]

The command is started anew every time, as a shell does it; once before, so that files are read. Printed are the median
and the extremes of the time from its start to its end. On a busy machine it says how long commands take there.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

from harness import options
from harness.options import ROOT
from harness.record import Claim, Topic, finish

MOST_S = 0.5
LIMIT_S = 60.0
COMMAND = ["predict", "topologies/two-dc-longhaul.yaml", "workloads/tiny-gpt-pp4.yaml"]


def once() -> float:
    """Seconds from start to end."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "testbed", *COMMAND]
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, timeout=LIMIT_S, check=True)
    return time.perf_counter() - began


def main() -> int:
    parser = options.parser(__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    once()
    load = os.getloadavg()[0]
    taken_s = sorted(once() for _ in range(arguments.repeats))
    median_s = statistics.median(taken_s)
    got = f"{median_s:.2f} s ({taken_s[0]:.2f} to {taken_s[-1]:.2f} s, {len(taken_s)} starts, load {load:.1f})"
    claim = Claim(
        "`testbed predict` of the main job (median)",
        f"<= {MOST_S} s",
        got,
        median_s <= MOST_S,
        value=median_s,
        unit="s",
    )
    return finish(arguments, Topic.SPEED, [claim], clock="real")


if __name__ == "__main__":
    sys.exit(main())
