"""A link, an interface or a rank changes during a run: is any run trusted whose quoted time is off?

    python benchmarks/injected_changes.py [--clock virtual,real] [--plans two,cards,replicas,losing,...]
        [--kinds delay,...] [--moments 0,0.2,0.35,0.5,0.8] [--recorded] [--out DIR]

Thirteen kinds of change (parts/changing_links.py: real ones, of qdiscs, links and processes that carry the run) at five
moments of the measured iterations, in six plans: four ranks over two datacenters; the same with network cards, over
three; two replicas of two stages; and, of what the model leaves out, the first two with links that lose one packet of a
thousand, or have 1 ms of jitter, and replicas that add up by gloo's own all-reduce. Prints a row for each: error of the
quoted median against the prediction, trusted or not, and what was named or noted. Exit code 1 when one is trusted whose
error exceeds 0.1 % (virtual clock), 2 % (where the model lacks something) or 2.5 % (real).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from harness import boots, options, report
from harness.options import ROOT
from harness.record import Claim, Topic, finish
from harness.rows import Comparison, Row

from testbed.model.compiled import makespan
from testbed.plan.costs import problem
from testbed.plan.plan import Plan
from testbed.planning import file
from testbed.planning.resolve import generate, make_plan, with_cases
from testbed.planning.schedules import choose
from testbed.spec.topology import load_topology
from testbed.spec.workload import load_workload
from testbed.vm import command

TOPOLOGY, WORKLOAD = ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml"
KINDS = (
    *("delay", "sooner", "rate", "both", "one-way", "interface", "everywhere"),
    *("blip", "slow-rank", "drift", "jitter", "on-and-off", "unshaped"),
)
MOMENTS = (0.0, 0.2, 0.35, 0.5, 0.8)
"""Of the measured iterations, how many are over; 0: before the first one that warms up."""
LIMITS = {"virtual": 0.001, "real": 0.025}
LACKING_LIMIT = 0.02
"""Virtual clock: what the model leaves out may make of a median, and what it may hide."""
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


def two(chance: str = "") -> dict[str, str]:
    """Two datacenters, and what their link leaves to chance."""
    return {
        "datacenters": "{a: {nodes: 2}, b: {nodes: 2}}",
        "links": f"[{{between: [a, b], delay: 5 ms, rate: 200 Mbit/s{chance}}}]",
    }


def three(chance: str = "") -> dict[str, str]:
    """Three datacenters in a row, with network cards, and what their links leave to chance."""
    card = "inside: {delay: 20 us, rate: 500 Mbit/s}"
    links = (
        f"{{between: [a, b], delay: 4 ms, rate: 150 Mbit/s{chance}}}",
        f"{{between: [b, c], delay: 7 ms, rate: 300 Mbit/s{chance}}}",
    )
    return {
        "datacenters": f"{{a: {{nodes: 2, {card}}}, b: {{nodes: 1, {card}}}, c: {{nodes: 1, {card}}}}}",
        "links": f"[{', '.join(links)}]",
    }


PLANS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "two": (two(), {"schedule": "1f1b"}),
    "cards": (three(), {"schedule": "zb-h1"}),
    "replicas": (
        two(),
        {
            "schedule": "crosspipe-greedy",
            "parallelism": "{pipeline: 2, data: 2}",
            "placement": "[a/0, b/0]",
            "data_parallel": "{parameters: 400 kB, replicas: [[b/1, a/1]]}",
        },
    ),
    "losing": (two(", loss: 0.1 %"), {"schedule": "1f1b", "message": "30 kB"}),  # TCP's window stays wide enough
    "jittery": (three(", jitter: 1 ms"), {"schedule": "zb-h1"}),
    "gloo": (
        two(),
        {
            "schedule": "zb-h1",
            "parallelism": "{pipeline: 2, data: 2}",
            "placement": "[a/0, b/0]",
            "data_parallel": "{parameters: 2 MB, algorithm: torch, sharding: none, replicas: [[a/1, b/1]]}",
        },
    ),
}
"""By name: settings of the topology, settings of the workload."""
LACKING = {"losing", "jittery", "gloo"}
"""Those that the model does not have whole."""


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


def shaper_of(plan: Plan, changes: Sequence[Change], path: Path, inner: str = "auto") -> str:
    """A plug-in, written to `path`, that makes a change in each case of the `inner` one's; its name for --shaper."""
    text = (ROOT / "benchmarks/parts/changing_links.py").read_text(encoding="utf-8")
    listed = [(one.kind, after_s(plan, one.moment)) for one in changes]
    path.parent.mkdir(parents=True, exist_ok=True)
    made = f"def changing() -> Changing:\n    return Changing({listed!r}, {inner!r})\n"
    path.write_text(f"{text}\n\n{made}", encoding="utf-8")
    return f"{path.resolve()}:changing"


def measured(clock: str, name: str, changes: Sequence[Change], out: Path) -> Comparison | None:
    """The comparison of a plan with all changes on a clock; None where there is none."""
    out.mkdir(parents=True, exist_ok=True)
    plan, place = plan_of(name, changes), out / f"{clock}-{name}"
    shaper = shaper_of(plan, changes, out / f"{clock}-{name}.shaper.py")
    if clock == "virtual":
        return boots.in_a_boot([command.GuestTraining(plan, place, shaper, quiet=True)])[0]
    path = out / f"{clock}-{name}.plan.json"
    path.write_text(file.to_json(plan), encoding="utf-8")
    return boots.run(place.name, str(path), "--shaper", shaper, "--out", str(place), "--overwrite")


def main() -> int:
    """Run all that is asked for; 1 when one is trusted that must not be, or one could not be measured."""
    parser = options.parser(__doc__)
    parser.add_argument("--clock", default="virtual", help="virtual, real or both, comma-separated")
    parser.add_argument("--plans", default=",".join(PLANS))
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--moments", default=",".join(map(str, MOMENTS)))
    options.add_out(parser, "injected-changes")
    asked = parser.parse_args()
    changes = [Change(kind, float(at)) for kind, at in product(asked.kinds.split(","), asked.moments.split(","))]
    claims, clocks, plans = list[Claim](), asked.clock.split(","), asked.plans.split(",")
    alike = [[name for name in plans if (name in LACKING) == lacking] for lacking in (False, True)]
    for clock, names in product(clocks, filter(None, alike)):
        limit = LACKING_LIMIT if clock == "virtual" and LACKING.issuperset(names) else LIMITS[clock]
        rows = list[Row]()
        for name in names:
            place = f"{clock}-{name}"
            found = (
                boots.comparison_of(asked.out / place) if asked.recorded else measured(clock, name, changes, asked.out)
            )
            taken = boots.collected(asked.out, {place: found}, {}, today=asked.recorded)
            rows += shown(taken, place, changes)
        claims.append(judged(rows, clock, names, limit, len(names) * len(changes)))
    places = [asked.out / f"{clock}-{name}" for clock, name in product(clocks, plans)]
    return finish(asked, Topic.TRUTH, claims, clock=" ".join(clocks), directories=places)


def shown(taken: boots.Taken, place: str, changes: Sequence[Change]) -> list[Row]:
    """Print what came of a plan's changes; the rows of these."""
    labels, cells = {change.label for change in changes}, []
    rows = [row for row in taken.rows if row.found["label"] in labels]
    for row in rows:
        said = [*row.found["reasons"][-1:], *(f"noted: {note}" for note in row.found["notes"])]
        cells.append((row.label, f"{row.error:+.3%}", "yes" if row.trusted else "no", said[0] if said else ""))
    report.show_table(place, ("change", "error", "trusted", "named"), cells)
    return rows


def judged(rows: Sequence[Row], clock: str, names: Sequence[str], limit: float, asked: int) -> Claim:
    """That none of some plans is trusted and off by more than a limit."""
    wrong = [row for row in rows if row.trusted and row.missed > limit]
    trusted = sum(row.trusted for row in rows)
    got = f"{len(wrong)} trusted and off{': ' if wrong else ''}{', '.join(row.label for row in wrong)}"
    got += f"; {trusted} of {len(rows)} runs trusted"
    what = f"link, interface or rank that changes in a run ({', '.join(names)}), {clock} clock"
    wanted, fine = f"none trusted beyond {limit:.1%}", bool(rows) and not wrong
    return Claim(what, wanted, got, fine, float(len(wrong)), "runs", len(rows), asked)


if __name__ == "__main__":
    sys.exit(main())
