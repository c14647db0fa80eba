"""What the witnesses of a run cost it: the same runs with and without them, in turn.

    python benchmarks/witness_cost.py [--pairs 5] [--record [NAME]]

The main job's 1F1B and CrossPipe's greedy. Prints the median iteration of every run, and the median over the pairs of
what a run with witnesses takes more than the one without.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path

from harness import options
from harness.options import ROOT
from harness.record import Claim, Topic, finish

from testbed.lab.machine_witness import MachineWitness
from testbed.lab.sandbox import run_in_sandbox
from testbed.planning import resolve, schedules
from testbed.progress import Lines
from testbed.session.machine_report import this_machine
from testbed.session.run import SessionOptions, run

SCHEDULES = ("1f1b", "crosspipe-greedy")


def medians(*, active: bool) -> dict[str, float]:
    """Median iteration time of every schedule in one run. Raises SystemExit when it fails."""
    unfinished = resolve.load_plan(ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml")
    choices = schedules.choose(unfinished, SCHEDULES)
    plan = schedules.with_selected(unfinished, [schedules.make(unfinished, choices, strict=True)])
    with tempfile.TemporaryDirectory() as scratch, MachineWitness(active=active) as witness:
        directory = Path(scratch)

        def body() -> int:
            run(plan, SessionOptions(directory, "auto", this_machine(), witness), Lines(quiet=True))
            return 0

        if code := run_in_sandbox(body):
            raise SystemExit(code)
        rows = json.loads((directory / "comparison.json").read_text())["schedules"]
    return {row["label"]: row["measured_s"] for row in rows}


def main() -> int:
    """Always 0: it reports."""
    parser = options.parser(__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    arguments = parser.parse_args()
    more: dict[str, list[float]] = {name: [] for name in SCHEDULES}
    for number in range(arguments.pairs):
        order = (True, False) if number % 2 else (False, True)  # neither is always the first
        found = {active: medians(active=active) for active in order}
        for name in SCHEDULES:
            with_, without = found[True][name], found[False][name]
            more[name].append(with_ / without - 1)
            print(f"{name}: {with_ * 1e3:.2f} ms with, {without * 1e3:.2f} ms without", flush=True)
    claims = []
    for name, shares in more.items():
        spread = max(shares) - min(shares)
        middle = statistics.median(shares)
        got = f"{middle:+.3%} (pairs spread by {spread:.3%})"
        claims.append(Claim(f"{name}, with witnesses against without", "(report)", got, None, middle, "share"))
    return finish(arguments, Topic.TRUTH, claims, clock="real")


if __name__ == "__main__":
    sys.exit(main())
