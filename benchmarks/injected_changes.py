"""A link, an interface or a rank changes during a run: is any run trusted whose quoted time is off?

    python benchmarks/injected_changes.py [--clock virtual,real] [--plans two,cards,replicas] [--kinds delay,...]
        [--moments 0,0.2,0.35,0.5,0.8] [--out DIR]

Twelve kinds of change (changing_links.py: real ones, of the qdiscs, links and processes that carry the run) at five
moments of the measured iterations, in three plans: four ranks over two datacenters; the same with network cards, over
three; two replicas of two stages. Prints a row for each: error of the quoted median against the prediction, trusted or
not, and what was named or noted. Exit code 1 when one is trusted whose error exceeds 0.1 % (virtual clock) or 2.5 %
(real).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
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
WARM_UP, ITERATIONS = 1, 10
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
    "two": ({"datacenters": "{a: {nodes: 2}, b: {nodes: 2}}", "links": TWO}, {"schedule": "1f1b"}),
    "cards": (
        {
            "datacenters": f"{{a: {{nodes: 2, {CARD}}}, b: {{nodes: 1, {CARD}}}, c: {{nodes: 1, {CARD}}}}}",
            "links": THREE,
        },
        {"schedule": "zb-h1"},
    ),
    "replicas": (
        {"datacenters": "{a: {nodes: 2}, b: {nodes: 2}}", "links": TWO},
        {
            "schedule": "crosspipe-greedy",
            "parallelism": "{pipeline: 2, data: 2}",
            "placement": "[a/0, b/0]",
            "data_parallel": "{parameters: 400 kB, replicas: [[b/1, a/1]]}",
        },
    ),
}
"""By name: settings of the topology, settings of the workload."""


class Change(NamedTuple):
    """One case of a run: what changes in it, and when."""

    kind: str
    moment: float

    @property
    def label(self) -> str:
        """Of the case."""
        return f"{self.kind} at {100 * self.moment:.0f}"


def plan_of(name: str, changes: Sequence[Change]) -> Plan:
    """A plan in which its schedule is trained once for each change."""
    topology, workload = PLANS[name]
    listed = [f"{{schedule: {workload['schedule']}, label: {one.label}}}" for one in changes]
    rest = {key: value for key, value in workload.items() if key != "schedule"}
    asked = COMMON | rest | {"schedules": f"[{', '.join(listed)}]"}
    plan = make_plan(load_topology(TOPOLOGY, topology), load_workload(WORKLOAD, asked))
    choices = choose(plan)
    return with_cases(plan, choices, dict.fromkeys([one.label for one in choices], generate(plan, choices[0])))


def after_s(plan: Plan, moment: float) -> float:
    """How long after its iterations begin a case is there."""
    choice = plan.cases[0].jobs[0].choice
    one_s = makespan(problem(plan, choice), generate(plan, choice).schedule)
    return 0.0 if moment == 0 else (WARM_UP + round(moment * ITERATIONS)) * (one_s + 0.01)


def shaper_of(plan: Plan, changes: Sequence[Change], path: Path) -> str:
    """A plug-in, written to `path`, that makes a change in each case; its name for --shaper."""
    text = (HERE / "changing_links.py").read_text(encoding="utf-8")
    listed = [(one.kind, after_s(plan, one.moment)) for one in changes]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n\ndef changing() -> Changing:\n    return Changing({listed!r})\n", encoding="utf-8")
    return f"{path.resolve()}:changing"


def main() -> int:
    """Run all that is asked for; 1 when one is trusted that must not be, or one could not be measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clock", default="virtual", help="virtual, real or both, comma-separated")
    parser.add_argument("--plans", default=",".join(PLANS))
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--moments", default=",".join(map(str, MOMENTS)))
    parser.add_argument("--out", type=Path, default=ROOT / "results/injected-changes")
    arguments = parser.parse_args()
    moments = [float(moment) for moment in arguments.moments.split(",")]
    changes = [Change(*one) for one in product(arguments.kinds.split(","), moments)]
    found: list[tuple[str, str, Change, dict[str, Any] | None]] = []
    for clock, name in product(arguments.clock.split(","), arguments.plans.split(",")):
        began, out = time.monotonic(), arguments.out / f"{clock}-{name}"
        plan = plan_of(name, changes)
        shaper = shaper_of(plan, changes, arguments.out / f"{clock}-{name}.shaper.py")
        document = (in_a_guest if clock == "virtual" else on_the_real_clock)(plan, shaper, out)
        rows = {row["label"]: row for row in (document or {"schedules": []})["schedules"]}
        found += [(clock, name, change, rows.get(change.label)) for change in changes]
        print(f"{clock}, {name}: {len(rows)} runs, {time.monotonic() - began:.0f} s", file=sys.stderr)
    return report(found)


def in_a_guest(plan: Plan, shaper: str, out: Path) -> dict[str, Any] | None:
    """The comparison, from a boot of the virtual clock."""
    machine, training = command.choose_machine(Clock("virtual")), command.Training(plan, out, shaper, quiet=True)
    _, (document,) = command.train(machine, [training], limit_s=LIMIT_S, reporter=Lines(quiet=True))
    return document


def on_the_real_clock(plan: Plan, shaper: str, out: Path) -> dict[str, Any] | None:
    """The comparison."""
    path = out.with_name(f"{out.name}.plan.json")
    path.write_text(file.to_json(plan), encoding="utf-8")
    _, document, said = testbed("run", str(path), "--shaper", shaper, "--out", str(out), "--overwrite")
    if document is None:
        print(f"{out.name}: {said}", file=sys.stderr)
    return document


def report(found: Sequence[tuple[str, str, Change, dict[str, Any] | None]]) -> int:
    """Print what came of them."""
    table = Table(title_justify="left")
    for column in ("clock", "plan", "change", "at", "error", "trusted", "named"):
        table.add_column(column, justify="right" if column in ("at", "error") else "left")
    failed = [f"{clock}, {name}: {change.label}" for clock, name, change, row in found if row is None]
    known = [(clock, name, change, row) for clock, name, change, row in found if row is not None]
    wrong = []
    for clock, name, change, row in known:
        if row["trusted"] and missed(row) > LIMITS[clock]:
            wrong.append(f"{clock}, {name}: {change.label}")
        said = [*row["reasons"][-1:], *(f"noted: {note}" for note in row["notes"])]
        cells = (clock, name, change.kind, f"{change.moment:.0%}", f"{row['error']:+.3%}")
        table.add_row(*cells, "yes" if row["trusted"] else "no", said[0] if said else "")
    Console(width=240).print(table)
    trusted = sum(row["trusted"] for *_, row in known)
    print(f"{len(known)} runs, {trusted} trusted; trusted and off: {wrong or 'none'}; failed: {failed or 'none'}")
    return int(bool(wrong or failed))


if __name__ == "__main__":
    sys.exit(main())
