"""Unpaced training against its prediction: two ranks with a core each, several schedules, with and without spinners.

    python benchmarks/unpaced.py [--repeat 3] [--ranks 2] [--iterations 15] [--topology FILE] [--out DIR]

The runs with and without (`--host-priority off`) take turns, so that what drifts on the machine meets both. Prints
every run's errors, verdicts and ranking, then per schedule the errors in the order of the runs. Needs root, and a
machine that does nothing else meanwhile. `--kinds` adds what actions took in each case over what was profiled.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pandas as pd

from testbed.results.load import load_traces
from testbed.session.profile import durations
from testbed.trace.tables import KINDS, Trace

ROOT = Path(__file__).parents[1]
WORKLOAD = "workloads/tiny-gpt-pp4.yaml"
SCHEDULES = "[{schedule: gpipe, memory: 8}, 1f1b, zb-h1, {schedule: crosspipe-greedy, n_sub: 4}]"
LIMIT_S = 300


def run(given: argparse.Namespace, priority: str, out: Path) -> dict[str, Any]:
    """The comparison document of one run; its exit code says whether it is trusted."""
    settings = (
        "pacing=none",
        "message=null",  # the tensor itself: carrying 1 MB costs these processors as much as an action
        f"parallelism.pipeline={given.ranks}",
        f"schedules={SCHEDULES}",
        f"iterations={given.iterations}",
    )
    command = [sys.executable, "-m", "testbed", "run", given.topology, WORKLOAD, "--json", "--quiet", "--no-picture"]
    command += [f"--set={setting}" for setting in (*settings, *given.settings)]
    command += ["--host-priority", priority, "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode not in (0, 5):
        sys.exit(f"exit code {done.returncode}: {done.stderr.strip()}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def show(document: dict[str, Any], name: str) -> None:
    ranking = "as predicted" if document["ranking_as_predicted"] else "NOT as predicted"
    print(f"{name}: ranking {ranking}")
    for row in document["schedules"]:
        print(
            f"  {row['label']:18} measured {1e3 * row['measured_s']:8.2f} ms  +- {1e3 * row['measured_iqr_s']:6.2f}"
            f"  predicted {1e3 * row['predicted_s']:8.2f} ms  error {row['error']:+.2%}"
            f"  {'trusted' if row['trusted'] else 'UNTRUSTED'}"
        )
    for reason in dict.fromkeys(reason for row in document["schedules"] for reason in row["reasons"]):
        print(f"    {reason}")
    sys.stdout.flush()


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=15)
    parser.add_argument("--topology", default="topologies/two-dc-longhaul.yaml")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--priorities", nargs="+", default=["on", "off"])
    parser.add_argument("--kinds", action="store_true")
    parser.add_argument("--out", type=Path, help="keep the results here")
    given = parser.parse_args()
    errors: dict[tuple[str, str], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(given.repeat):
            for priority in given.priorities:
                out = (given.out or Path(scratch)) / f"{number}-{priority}"
                document = run(given, priority, out)
                show(document, f"run {number}, host priority {priority}")
                if given.kinds:
                    show_kinds(out)
                for row in document["schedules"]:
                    errors[priority, row["label"]].append(row["error"])
    for (priority, label), found in errors.items():
        print(f"host priority {priority:3}  {label:18} " + "  ".join(f"{error:+.2%}" for error in found))


if __name__ == "__main__":
    main()
