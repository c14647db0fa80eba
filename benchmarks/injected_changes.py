"""A link, an interface or a rank changes during a run: is any run trusted whose quoted time is off?

    python benchmarks/injected_changes.py [--clock virtual,real] [--plans two,cards,replicas] [--kinds delay,...]
        [--moments 0,0.2,0.35,0.5,0.8] [--per-boot 25] [--out DIR]

Twelve kinds of change (changing_links.py: real ones, of the qdiscs, links and processes that carry the run) at five
moments of the measured iterations, in three plans: four ranks over two datacenters; the same with network cards, over
three; two replicas of two stages. Prints a row for each: error of the quoted median against the prediction, trusted or
not, and what was named or noted. Exit code 1 when one is trusted whose error exceeds 0.1 % (virtual clock) or 2.5 %
(real).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from front_door import testbed
from random_grid import missed
from rich.console import Console
from rich.table import Table

from testbed.model.compiled import makespan
from testbed.plan import file
from testbed.plan.costs import problem
from testbed.plan.plan import Clock, Plan
from testbed.plan.resolve import generate, make_plan, with_cases
from testbed.plan.schedules import choose
from testbed.progress import Lines
from testbed.spec.topology import load_topology
from testbed.spec.workload import load_workload
from testbed.vm import command

ROOT = Path(__file__).parents[1]
HERE = Path(__file__).parent
TOPOLOGY, WORKLOAD = ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml"
KINDS = (
    *("delay", "rate", "both", "one-way", "interface", "everywhere"),
    *("blip", "slow-rank", "drift", "jitter", "on-and-off", "unshaped"),
)
MOMENTS = (0.0, 0.2, 0.35, 0.5, 0.8)
"""Of the measured iterations, how many are over; 0: before the first one that warms up."""
LIMITS = {"virtual": 0.001, "real": 0.025}
LIMIT_S = 3000.0
WARM_UP, ITERATIONS = 2, 12
COMMON = {
    "model": "{layers: 4, d_model: 16, heads: 2, sequence: 8}",
    "microbatches": "6",
    "warmup": str(WARM_UP),
    "iterations": str(ITERATIONS),
    "message": "100 kB",
    "memory": "8",
    "pacing": "{F: 20 ms, I: 20 ms, W: 20 ms}",
}
TWO = "[{between: [a, b], delay: 5 ms, rate: 200 Mbit/s}]"
THREE = "[{between: [a, b], delay: 4 ms, rate: 150 Mbit/s}, {between: [b, c], delay: 7 ms, rate: 300 Mbit/s}]"
CARD = "inside: {delay: 20 us, rate: 500 Mbit/s}"
PLANS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "two": ({"datacenters": "{a: {nodes: 2}, b: {nodes: 2}}", "links": TWO}, {"schedules": "[1f1b]"}),
    "cards": (
        {
            "datacenters": f"{{a: {{nodes: 2, {CARD}}}, b: {{nodes: 1, {CARD}}}, c: {{nodes: 1, {CARD}}}}}",
            "links": THREE,
        },
        {"schedules": "[zb-h1]"},
    ),
    "replicas": (
        {"datacenters": "{a: {nodes: 2}, b: {nodes: 2}}", "links": TWO},
        {
            "schedules": "[crosspipe-greedy]",
            "parallelism": "{pipeline: 2, data: 2}",
            "placement": "[a/0, b/0]",
            "data_parallel": "{parameters: 400 kB, replicas: [[b/1, a/1]]}",
        },
    ),
}
"""By name: settings of the topology, settings of the workload."""


class Cell(NamedTuple):
    """One run."""

    plan: str
    kind: str
    moment: float
    clock: str

    @property
    def name(self) -> str:
        """Of its files."""
        return f"{self.clock}-{self.plan}-{self.kind}-{100 * self.moment:02.0f}"


def plan_of(name: str) -> Plan:
    """A plan with its schedule."""
    topology, workload = PLANS[name]
    plan = make_plan(load_topology(TOPOLOGY, topology), load_workload(WORKLOAD, COMMON | workload))
    choices = choose(plan)
    return with_cases(plan, choices, {choice.label: generate(plan, choice) for choice in choices})


def after_s(plan: Plan, moment: float) -> float:
    """How long after its iterations begin a run is there."""
    if moment == 0:
        return 0.0
    (case,) = plan.cases
    choice = case.jobs[0].choice
    one_s = makespan(problem(plan, choice), generate(plan, choice).schedule)
    return (WARM_UP + round(moment * ITERATIONS)) * (one_s + 0.01)


def shaper_of(kind: str, wait_s: float, path: Path) -> str:
    """A plug-in, written to `path`, that makes one change; its name for --shaper."""
    text = (HERE / "changing_links.py").read_text(encoding="utf-8")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"{text}\n\ndef changing() -> Changing:\n    return Changing({kind!r}, {wait_s!r})\n", encoding="utf-8"
    )
    return f"{path.resolve()}:changing"


def main() -> int:
    """Run all that is asked for; 1 when one is trusted that must not be, or none could be measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clock", default="virtual", help="virtual, real or both, comma-separated")
    parser.add_argument("--plans", default=",".join(PLANS))
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--moments", default=",".join(map(str, MOMENTS)))
    parser.add_argument("--per-boot", type=int, default=25, help="runs in one boot")
    parser.add_argument("--out", type=Path, default=ROOT / "results/injected-changes")
    arguments = parser.parse_args()
    plans = {name: plan_of(name) for name in arguments.plans.split(",")}
    moments = [float(moment) for moment in arguments.moments.split(",")]
    documents: dict[Cell, dict[str, Any] | None] = {}
    for clock in arguments.clock.split(","):
        cells = [Cell(*cell, clock) for cell in product(plans, arguments.kinds.split(","), moments)]
        size = arguments.per_boot if clock == "virtual" else 1
        for begin in range(0, len(cells), size):
            began, batch = time.monotonic(), cells[begin : begin + size]
            shapers = [
                shaper_of(cell.kind, after_s(plans[cell.plan], cell.moment), arguments.out / f"{cell.name}.shaper.py")
                for cell in batch
            ]
            measure = in_a_guest if clock == "virtual" else on_the_real_clock
            found = measure([plans[cell.plan] for cell in batch], shapers, [arguments.out / one.name for one in batch])
            documents |= dict(zip(batch, found, strict=False))
            print(f"{begin + len(batch)} of {len(cells)} runs: {time.monotonic() - began:.0f} s", file=sys.stderr)
    return report(documents)


def in_a_guest(plans: list[Plan], shapers: list[str], outs: list[Path]) -> list[dict[str, Any] | None]:
    """Their comparisons, from one boot of the virtual clock."""
    trainings = [command.Training(*one, quiet=True) for one in zip(plans, outs, shapers, strict=True)]
    machine = command.choose_machine(Clock("virtual"))
    _, documents = command.train(machine, trainings, limit_s=LIMIT_S, reporter=Lines(quiet=True))
    return documents


def on_the_real_clock(plans: list[Plan], shapers: list[str], outs: list[Path]) -> list[dict[str, Any] | None]:
    """Their comparisons."""
    documents = []
    for plan, shaper, out in zip(plans, shapers, outs, strict=True):
        path = out.with_name(f"{out.name}.plan.json")
        path.write_text(file.to_json(plan), encoding="utf-8")
        _, document, said = testbed("run", str(path), "--shaper", shaper, "--out", str(out), "--overwrite")
        if document is None:
            print(f"{out.name}: {said}", file=sys.stderr)
        documents.append(document)
    return documents


def report(documents: dict[Cell, dict[str, Any] | None]) -> int:
    """Print what came of them."""
    table = Table(title_justify="left")
    for column in ("clock", "plan", "change", "at", "error", "trusted", "named"):
        table.add_column(column, justify="right" if column in ("at", "error") else "left")
    wrong, failed = [], []
    for cell, document in documents.items():
        if document is None or not document["schedules"]:
            failed.append(cell.name)
            continue
        (row,) = document["schedules"]
        if row["trusted"] and missed(row) > LIMITS[cell.clock]:
            wrong.append(cell.name)
        said = [*row["reasons"], *(f"noted: {note}" for note in row.get("notes", ()))]
        trusted = "yes" if row["trusted"] else "no"
        cells = (cell.clock, cell.plan, cell.kind, f"{cell.moment:.0%}", f"{row['error']:+.3%}", trusted)
        table.add_row(*cells, said[0] if said else "")
    Console(width=220).print(table)
    trusted = sum(row["trusted"] for one in documents.values() if one for row in one["schedules"])
    print(f"{len(documents)} runs, {trusted} trusted; trusted and off: {wrong}; failed: {failed}")
    print(json.dumps({"wrong": wrong, "failed": failed}))
    return int(bool(wrong) or len(failed) == len(documents))


if __name__ == "__main__":
    sys.exit(main())
