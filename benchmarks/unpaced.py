"""Unpaced training against its prediction: two ranks with a core each, several schedules, with and without spinners.

    python benchmarks/unpaced.py [--repeat 3] [--ranks 2] [--iterations 15] [--topology FILE] [--out DIR]

The runs with and without (`--host-priority off`) take turns, so that what drifts on the machine meets both. Prints
every run's errors, verdicts and ranking, then per schedule the errors in the order of the runs. Needs root, and a
machine that does nothing else meanwhile. `--kinds` adds what actions took in each case over what was profiled.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from harness import boots, options
from harness.record import Claim, Topic, finish
from harness.report import show_run

from testbed.results.load import load_traces
from testbed.session.profile import durations
from testbed.trace.tables import KINDS, Trace

WORKLOAD = "workloads/tiny-gpt-pp4.yaml"
SCHEDULES = "[{schedule: gpipe, memory: 8}, 1f1b, zb-h1, {schedule: crosspipe-greedy, n_sub: 4}]"
LIMIT_S = 300
TARGET = 0.05


def run(given: argparse.Namespace, priority: str, out: Path) -> dict[str, Any]:
    """The comparison document of one run; its exit code says whether it is trusted."""
    settings = (
        "pacing=none",
        "message=null",  # the tensor itself: carrying 1 MB costs these processors as much as an action
        f"parallelism.pipeline={given.ranks}",
        f"schedules={SCHEDULES}",
        f"iterations={given.iterations}",
    )
    words = (*(f"--set={setting}" for setting in (*settings, *given.settings)), "--host-priority", priority)
    files = (given.topology, WORKLOAD, "--no-picture", "--out", str(out))
    code, document, said = boots.run_testbed("run", *files, *words, limit_s=LIMIT_S)
    if document is None:
        sys.exit(f"exit code {code}: {said}")
    return document


def show_kinds(directory: Path) -> None:
    """Per schedule, rank and kind: what actions took in training over what was profiled."""
    profiled = json.loads((directory / "profile.json").read_text())["few"]["pacing"]
    for (label, source), trace in load_traces(directory).items():
        if source == "measured":
            print(f"  {label:18} " + "  ".join(_ratios(trace, profiled)))


def _ratios(trace: Trace, profiled: dict[str, list[str]]) -> list[str]:
    shown = []
    for rank in range(trace.n_ranks):
        mine = trace.actions[trace.actions["rank"] == rank]
        frame = pd.DataFrame({"iteration": mine["iteration"], "kind": mine["kind"], "part_of": mine["part_of"]})
        frame["part"] = mine["part_end"] - mine["part_begin"]
        frame["s"] = [s for _, one in frame.groupby("iteration") for s in durations(mine[one.index])]
        for code, kind in enumerate(KINDS):
            some = frame[frame["kind"] == code]
            if len(some):
                whole = (
                    some.groupby("iteration")["s"].sum()
                    / (some["part"] / some["part_of"]).groupby(some["iteration"]).sum()
                )
                shown.append(f"{kind}{rank} {whole.median() / float(profiled[str(kind)][rank].split()[0]):.3f}")
    return shown


def main() -> int:
    """Run in turns; 1 where an error is too large, a run is untrusted or schedules are not ranked as predicted."""
    parser = options.parser(__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=15)
    parser.add_argument("--topology", default="topologies/two-dc-longhaul.yaml")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--priorities", nargs="+", default=["on", "off"])
    parser.add_argument("--kinds", action="store_true")
    parser.add_argument("--out", type=Path, help="keep the results here")
    given = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(given.repeat):
            for priority in given.priorities:
                out = (given.out or Path(scratch)) / f"{number}-{priority}"
                found[priority].append(run(given, priority, out))
                show_run(f"run {number}, host priority {priority}", found[priority][-1])
                if given.kinds:
                    show_kinds(out)
    claims = [claim_of(priority, documents, given.ranks) for priority, documents in found.items()]
    return finish(given, Topic.TRUTH, claims, clock="real")


def claim_of(priority: str, documents: Sequence[dict[str, Any]], ranks: int) -> Claim:
    """Print every schedule's errors in the order of the runs; that they are small, trusted and ranked."""
    errors: dict[str, list[float]] = defaultdict(list)
    for row in (row for document in documents for row in document["schedules"]):
        errors[row["label"]].append(row["error"])
    for label, each in errors.items():
        print(f"host priority {priority:3}  {label:18} " + "  ".join(f"{error:+.2%}" for error in each))
    every = [error for each in errors.values() for error in each]
    untrusted = sum(not row["trusted"] for document in documents for row in document["schedules"])
    ranked, worst = sum(document["ranking_as_predicted"] for document in documents), max(map(abs, every))
    got = f"{min(every):+.2%} to {max(every):+.2%}, {untrusted} of {len(every)} untrusted, "
    got += f"{ranked} of {len(documents)} ranked"
    fine = worst <= TARGET and not untrusted and ranked == len(documents)
    what, asked = f"unpaced, {ranks} ranks, host priority {priority}", f"<= {TARGET:.0%}, trusted, ranked"
    return Claim(what, asked, got, fine, worst, "share of the prediction")


if __name__ == "__main__":
    sys.exit(main())
