"""Does a job that adapts in a lab gain what it should, and is every part of it predicted and trusted?

    python benchmarks/adapting_lab.py [--iterations 24] [--out DIR] [--real] [--record [NAME]]

The demo's job on the virtual clock, beginning with the schedule that is fastest as planned, while its link changes in
the ways below; and while nothing changes. Two have replicas, or tensor ranks; two leave a route that recovers, which
only a look at it shows, beside iterations in one and between them in the other. The controller sees the job's own times
and a probe, as `testbed run --adapt` has it. Printed are what all measured iterations took, what they would have taken
with the first schedule (by the model, which knows the events), the swaps, and the share of an oracle's gain, swaps paid
for. Exit 1 where a part is untrusted or off its prediction, where adapting took longer than that, or where a job swaps
while nothing happens. --real runs one training for each thing that may change on this machine's clock instead, among
them the starts of two jobs: every iteration of every part is held against its prediction.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import adapting_starts
import yaml
from events_on_the_wire import Iteration, iterations_of, judged, show
from harness import options
from harness.options import ROOT
from harness.record import Claim, Topic, each, finish
from parts.recovering_routes import TRIANGLE

from testbed.cli.adaptation_tables import share_of_oracle, what_a_swap_took

NEAR = 5e-4
LIMIT_S = 1800.0
SCHEDULES = ("crosspipe-greedy", "1f1b", "zb-h1", "gpipe")
LINK = "link paris--warsaw"
REPLICAS, TENSOR = "replicas, delay x 6", "tensor ranks, rate / 8"
CUT, CUT_REPLICAS = "microbatches, delay x 6", "microbatches and replicas, rate / 8"
ROUTES, COMES_BACK = "routes, rate of one / 5", "routes, rate / 5, then the other's delay x 5"
BACK, SHARED = "routes, rate / 8, and back", "routes, one that shares a link, rate / 8, and back"
STAGES, ALL = "stages, rate x 0.7", "stages, microbatches and routes, rate of one / 5"
TIMELINES: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "delay x 6": (f"{LINK} delay 60 ms at iteration 5",),
    "delay x 6, and back": (f"{LINK} delay 60 ms at iteration 5", f"{LINK} delay 10.2 ms at iteration 15"),
    "rate / 8": (f"{LINK} rate 125 Mbit/s at iteration 5",),
    "both, inside an iteration": (
        f"{LINK} delay 40 ms at iteration 6 + 100 ms",
        f"{LINK} rate 250 Mbit/s at iteration 6 + 150 ms",
    ),
    REPLICAS: (f"{LINK} delay 60 ms at iteration 5",),
    TENSOR: (f"{LINK} rate 125 Mbit/s at iteration 5",),
    CUT: (f"{LINK} delay 60 ms at iteration 8",),
    CUT_REPLICAS: (f"{LINK} rate 125 Mbit/s at iteration 8",),
    ROUTES: ("link north rate 200 Mbit/s at iteration 5",),
    COMES_BACK: (
        "link north rate 200 Mbit/s at iteration 5",
        "link north rate 1 Gbit/s at iteration 10",
        "link south delay 70 ms at iteration 15",
    ),
    BACK: ("link north rate 125 Mbit/s at iteration 4", "link north rate 1 Gbit/s at iteration 14"),
    SHARED: ("link ac rate 125 Mbit/s at iteration 4", "link ac rate 1 Gbit/s at iteration 14"),
    STAGES: (f"{LINK} rate 700 Mbit/s at iteration 2",),
    ALL: ("link north rate 200 Mbit/s at iteration 8",),
}
HALF = ("parallelism.pipeline=2", "microbatches=6", "memory=6")
SETTINGS = {
    REPLICAS: (*HALF, "parallelism.data=2"),
    TENSOR: (*HALF, "parallelism.tensor=2"),
    CUT_REPLICAS: (*HALF, "parallelism.data=2"),
    BACK: ("message=900 kB",),
    SHARED: ("message=900 kB", "placement=[a/0, a/1, b/0, c/0]"),
}
CUTS, TWO = ("--vary", "microbatches=16,4"), ("--vary", "routes=2")
FREE = ("--vary", "stages")
V_SHAPED = ("--schedule", "zb-v")
MORE = {
    STAGES: (*FREE, *V_SHAPED),
    ALL: (*FREE, *CUTS, *TWO, *V_SHAPED),
    CUT: CUTS,
    CUT_REPLICAS: ("--vary", "microbatches=12"),
    ROUTES: TWO,
    COMES_BACK: (*TWO, *CUTS),
    BACK: TWO,
    SHARED: TWO,
}
"""What else a job may change beside its schedule."""
REAL = {"schedule": "delay x 6", "microbatches": CUT, "routes": ROUTES, "looks": BACK, "stages": STAGES, "starts": None}
"""On the real clock, by what changes, the timeline; None: that of several jobs."""
TWO_LINKS = """
name: two-links
description: Two datacenters with two links between them
datacenters: {paris: {nodes: 2}, warsaw: {nodes: 2}}
links:
  - {name: north, between: [paris, warsaw], delay: 10.2 ms, rate: 1 Gbit/s}
  - {name: south, between: [warsaw, paris], delay: 14 ms, rate: 1 Gbit/s}
"""


UNLIKE_LINKS = """
name: unlike-links
datacenters: {paris: {nodes: 2}, warsaw: {nodes: 2}}
links:
  - {name: north, between: [paris, warsaw], delay: 10 ms, rate: 1 Gbit/s}
  - {name: south, between: [warsaw, paris], delay: 40 ms, rate: 300 Mbit/s}
"""
TOPOLOGIES = {
    ROUTES: TWO_LINKS,
    COMES_BACK: TWO_LINKS,
    ALL: TWO_LINKS,
    BACK: UNLIKE_LINKS,
    SHARED: json.dumps(TRIANGLE),
}


class AdaptedRun(NamedTuple):
    """What came of a timeline."""

    name: str
    rows: list[dict[str, Any]]
    adaptation: dict[str, Any]

    @property
    def iterations(self) -> list[dict[str, Any]]:
        """What was seen, believed and decided in each."""
        found: list[dict[str, Any]] = self.adaptation["iterations"]
        return found

    @property
    def looks(self) -> str:
        """At routes that it does not use."""
        looked = [row for row in self.iterations if row["looked_at"]]
        kilobytes, waited_s = (sum(row[name] for row in looked) for name in ("look_bytes", "look_s"))
        return f"{len(looked)} looks, {kilobytes / 1e3:.0f} kB each way, waited for {waited_s * 1e3:.2f} ms"

    @property
    def swaps(self) -> int:
        """How often it went on with another schedule."""
        return sum(row["swapped_to"] is not None for row in self.iterations)

    @property
    def share(self) -> float | None:
        """Of what an oracle would gain, as predicted, swaps paid for by both; None where that is less than 1 %."""
        gains = [row["never_predicted_s"] - row["oracle_predicted_s"] for row in self.iterations]
        never_s = sum(row["never_predicted_s"] for row in self.iterations)
        return share_of_oracle(self.adaptation) if sum(gains) > 0.01 * never_s else None

    @property
    def gain(self) -> float:
        """Share of what it would have taken without adapting."""
        measured_s, never_s = (
            sum(row[name] for row in self.iterations) for name in ("measured_s", "never_predicted_s")
        )
        return float(1 - measured_s / never_s)


def adapted(name: str, iterations: int, out: Path, clock: str = "virtual") -> AdaptedRun:
    """Train through a timeline."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as other:
        other.write(TOPOLOGIES.get(name, ""))
        other.flush()
        topology = other.name if name in TOPOLOGIES else "two-dc-longhaul"
        return _adapted(name, topology, iterations, out, clock)


def _adapted(name: str, topology: str, iterations: int, out: Path, clock: str) -> AdaptedRun:
    words = ["run", topology, "tiny-gpt-pp4", "--clock", clock, "--adapt", "ski-rental", *MORE.get(name, ())]
    words += ["--iterations", str(iterations), *(word for label in SCHEDULES for word in ("--schedule", label))]
    words += [word for setting in SETTINGS.get(name, ()) for word in ("--set", setting)]
    words += [word for text in TIMELINES[name] for word in ("--event", text)]
    return _run(name, words, out)


def _run(name: str, words: Sequence[str], out: Path) -> AdaptedRun:
    command = [sys.executable, "-m", "testbed", *words, "--no-picture", "--quiet", "--overwrite", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, timeout=LIMIT_S, check=False)
    if done.returncode not in (0, 5):
        raise RuntimeError(f"{name}: exit code {done.returncode}")
    document = json.loads((out / "comparison.json").read_text())
    return AdaptedRun(name, document["schedules"], document["adaptation"])


def starts_shifted(iterations: int, out: Path) -> AdaptedRun:
    """Two jobs, whose starts are shifted as their link has half of its rate, on this machine's clock."""
    topology, workloads = adapting_starts.own("rate / 2", iterations)
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for number, document in enumerate((topology, *workloads)):
        written.append(str(out / f"{number}.yaml"))
        Path(written[-1]).write_text(yaml.safe_dump(dict(document)))
    words = ["run", *written, "--clock", "real", "--adapt", "ski-rental", "--vary", "starts=8"]
    return _run("starts", words, out / "run")


def real(arguments: Namespace) -> int:
    """One training for each thing that may change, on this machine's clock."""
    found, untrusted, swapped = list[Iteration](), list[str](), list[str]()
    with tempfile.TemporaryDirectory(prefix="testbed-adapting-") as scratch:
        place = arguments.out or Path(scratch)
        for axis, name in REAL.items():
            out = place / axis
            if name is None:
                run, out = starts_shifted(arguments.iterations, out), out / "run"
            else:
                run = adapted(name, arguments.iterations, out, "real")
            swapped += [axis] if run.swaps else []
            for row in run.rows:
                job = [row["job"] for row in run.rows].index(row["job"]) if "job" in row else 0
                found += iterations_of(axis, out, row["label"], job)
                untrusted += [] if row["trusted"] else [f"{axis}, {row['label']}: {'; '.join(row['reasons'])}"]
            print(f"{axis}: {run.swaps} swaps, gain {run.gain:+.2%}", flush=True)
    show(found, 40)
    print("\n".join(untrusted))
    what = "jobs that adapt on the real clock, one training for each thing that may change"
    claim = judged(what, found, untrusted, "real", len(swapped), len(REAL))
    return finish(arguments, Topic.SCHEDULES, [claim], clock="real")


def shown(share: float | None) -> str:
    """In per cent."""
    return "-" if share is None else f"{share:.0%}"


def main() -> int:
    parser = options.parser(__doc__)
    parser.add_argument("--iterations", type=int, default=24)
    parser.add_argument("--out", type=Path, help="where results go; default: nowhere afterwards")
    parser.add_argument("--real", action="store_true", help="this machine's clock, one training for each thing")
    arguments = parser.parse_args()
    if arguments.real:
        return real(arguments)
    found = []
    with tempfile.TemporaryDirectory(prefix="testbed-adapting-") as scratch:
        for number, name in enumerate(TIMELINES):
            run = adapted(name, arguments.iterations, (arguments.out or Path(scratch)) / str(number))
            print(f"{name}: {run.swaps} swaps, gain {run.gain:+.2%}, share of an oracle's {shown(run.share)}")
            print(f"  {run.looks}", flush=True)
            for line in what_a_swap_took(run.adaptation):
                print(f"  {line}")
            for row in run.rows:
                print(f"  {row['label']}: {row['error']:+.4%}, {'; '.join(row['reasons']) or 'trusted'}")
            found.append(run)
    rows = [row for run in found for row in run.rows]
    worst = max(abs(row["error"]) for row in rows)
    steady = sum(run.swaps for run in found if not TIMELINES[run.name])
    behind = sum(run.gain < -NEAR for run in found)
    gains = ", ".join(f"{run.name} {run.gain:+.1%} ({shown(run.share)})" for run in found)
    looks = ", ".join(f"{run.name}: {run.looks}" for run in found if run.name in (BACK, SHARED))
    came = all(not run.rows[-1]["label"].count(" over ") for run in found if run.name in (BACK, SHARED))
    claims = [
        each(
            f"a job that adapts in the lab, parts of {len(found)} trainings: trusted, within {NEAR:.2%}",
            sum(not row["trusted"] or abs(row["error"]) > NEAR for row in rows),
            len(rows),
            more=f"; worst {worst:.4%}",
        ),
        Claim(
            "the same: measured over never adapting, as predicted (share of an oracle's gain); "
            "swaps while nothing happens",
            "never behind, 0",
            f"{gains}; {steady} swaps",
            behind == 0 and steady == 0,
            value=float(behind),
            unit="cases",
        ),
        Claim("the same: routes that were left and recover are taken again", "both", looks, came),
    ]
    return finish(arguments, Topic.SCHEDULES, claims)


if __name__ == "__main__":
    sys.exit(main())
