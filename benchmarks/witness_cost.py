"""What the witnesses of a run cost it: the same runs with and without them, in turn.

    python benchmarks/witness_cost.py [--pairs 5]

The main job's 1F1B and CrossPipe's greedy. Prints the median iteration of every run, and the median over the pairs of
what a run with witnesses takes more than the one without.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from testbed.lab.machine_witness import MachineWitness
from testbed.lab.sandbox import run_in_sandbox
from testbed.planning import resolve, schedules
from testbed.progress import Lines
from testbed.session.machine_report import this_machine
from testbed.session.run import SessionOptions, run

ROOT = Path(__file__).parents[1]
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    more: dict[str, list[float]] = {name: [] for name in SCHEDULES}
    for number in range(parser.parse_args().pairs):
        order = (True, False) if number % 2 else (False, True)  # neither is always the first
        found = {active: medians(active=active) for active in order}
        for name in SCHEDULES:
            with_, without = found[True][name], found[False][name]
            more[name].append(with_ / without - 1)
            print(f"{name}: {with_ * 1e3:.2f} ms with, {without * 1e3:.2f} ms without", flush=True)
    for name, shares in more.items():
        spread = max(shares) - min(shares)
        print(f"{name}: {statistics.median(shares):+.3%} with witnesses (pairs spread by {spread:.3%})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
