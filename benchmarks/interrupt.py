"""How long a command still runs after Ctrl-C: on the real clock and in a virtual run, at several moments of each.

    python benchmarks/interrupt.py [--clock real virtual] [--moments 1 4 8 12] [--repeat 2] [--record [NAME]]

A moment is so many seconds after the command began. Ctrl-C reaches the whole process group, as a terminal's does.
Prints the seconds until the command has ended, its exit code and its last line. Needs root. Exit code 1 when one takes
longer than two seconds to end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import options
from harness.options import ROOT
from harness.record import Claim, Topic, finish

LIMIT_S = 60
PROMISED_S = 2.0
PLAN = ["topologies/two-dc-longhaul.yaml", "workloads/tiny-gpt-pp4.yaml", "--set", "iterations=60"]


def interrupted(clock: str, moment_s: float, out: Path) -> tuple[float, int, str]:
    """Seconds that a run takes to end, its exit code, and the last line that it wrote."""
    words = [sys.executable, "-m", "testbed", "run", *PLAN, "--clock", clock, "--out", str(out)]
    with subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as command:
        time.sleep(moment_s)
        began = time.monotonic()
        os.killpg(command.pid, signal.SIGINT)
        said, _ = command.communicate(timeout=LIMIT_S)
        took_s = time.monotonic() - began
    return took_s, command.returncode, (said.strip().splitlines() or [""])[-1]


def main() -> int:
    """Interrupt; print a line for every run. Returns the exit code."""
    parser = options.parser(__doc__)
    parser.add_argument("--clock", nargs="+", default=["real", "virtual"])
    parser.add_argument("--moments", nargs="+", type=float, default=[1, 4, 8, 12])
    parser.add_argument("--repeat", type=int, default=2)
    args = parser.parse_args()
    claims = []
    for clock in args.clock:
        seconds = []
        for moment_s in args.moments:
            for _ in range(args.repeat):
                with tempfile.TemporaryDirectory() as folder:
                    took_s, code, last = interrupted(clock, moment_s, Path(folder) / "out")
                seconds.append(took_s)
                where = last.replace(folder, "...")[-60:]
                print(f"{clock:8} after {moment_s:4g} s: ended {took_s:5.2f} s later, exit {code}: {where}", flush=True)
        claim = f"Ctrl-C {min(args.moments):g} to {max(args.moments):g} s after the beginning, {clock} clock"
        got, worst_s = f"{min(seconds):.2f} to {max(seconds):.2f} s", max(seconds)
        claims.append(Claim(claim, f"<= {PROMISED_S:g} s", got, worst_s <= PROMISED_S, worst_s, "s"))
    return finish(args, Topic.ROBUSTNESS, claims, clock=" and ".join(args.clock))


if __name__ == "__main__":
    sys.exit(main())
