"""What it is worth to choose routes again when a job arrives or departs: two jobs in a Clos, on the virtual clock.

The jobs, the network and the slots are those of routing_lab.py. The rings train alone; the pipelines arrive; the rings
depart. Each way to route that is a training of its own, and each of its phases a case, predicted and measured:

* POLICY: the policy is asked again at every event, for the jobs that are there then;
* POLICY, at first only: it is asked once, for the rings; the pipelines take default routes, and nothing moves;
* POLICY, for both, never again: it is asked once, for both jobs, as if all were known from the beginning.

Printed: per phase the iteration of each job, measured, and how far that is off the prediction; per event the flows that
moved, and what the controller took to choose (on the machine's own clock; the lab's stands still while it computes).

    python benchmarks/routing_events.py [--predict] [--spines 2 4] [--json] [--out DIR]
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from harness import options
from harness.record import Claim, Topic, finish
from harness.report import show_table
from routing_lab import REACH, documents, jobs, planned, topology, with_iterations

from testbed.plan.events import at_work
from testbed.plan.plan import Case, Plan
from testbed.plan.timeline import JobArrives, JobDeparts, Moment
from testbed.planning.prediction import iteration_times
from testbed.routing.apply import with_policies
from testbed.routing.policies import choose
from testbed.routing.rerouting import Controller, moves, rerouted, with_continuations, with_timeline

EVENTS = (JobArrives("pipelines", Moment(3)), JobDeparts("rings", Moment(7)))
ITERATIONS, WARMUP = 10, 1
"""So that three iterations of every phase count."""

PHASES = ("rings alone", "both", "pipelines alone")
AGAIN = (
    "shortest",
    "ecmp,seed=1",
    "ecmp,seed=2",
    "ecmp,seed=3",
    "greedy",
    "greedy-bytes",
    "greedy-jobs",
    "greedy-time",
)
AT_FIRST = ("ecmp,seed=1", "greedy", "greedy-bytes")
FOR_BOTH = ("greedy", "greedy-bytes")
LARGEST_ERROR = 0.002


class Way(NamedTuple):
    """A way to route: whom to ask at first, of which jobs, and whether again."""

    policy: str
    again: bool
    for_both: bool = False

    def __str__(self) -> str:
        """As the tables call it."""
        if self.again:
            return self.policy
        return f"{self.policy}, {'for both, never again' if self.for_both else 'at first only'}"


WAYS = (
    *(Way(name, again=True) for name in AGAIN),
    *(Way(name, again=False) for name in AT_FIRST),
    *(Way(name, again=False, for_both=True) for name in FOR_BOTH),
)


class Seen(NamedTuple):
    """One job in one phase."""

    job: str
    predicted_s: float
    measured_s: float | None = None
    trusted: bool = True


class Row(NamedTuple):
    """One way to route."""

    way: str
    phases: Sequence[Sequence[Seen]]
    moved: Sequence[str]
    """Per event, flows moved of flows that were there before."""
    choosing_s: float
    """The longer of the controller's two choices."""


def cases_of(plan: Plan, way: Way) -> Plan:
    """The plan whose cases are the phases of a training that is routed this way."""
    early = with_timeline(plan, EVENTS)
    routed, _ = with_policies(plan if way.for_both else early, [choose(way.policy)], REACH)
    begun = replace(early, framing=routed.framing, cases=(replace(early.cases[0], routes=routed.cases[0].routes),))
    found = with_continuations(begun, Controller(way.policy if way.again else None, REACH))
    named = zip(found.cases, PHASES, strict=True)
    return replace(found, cases=tuple(replace(case, label=label_of(str(way), phase)) for case, phase in named))


def label_of(way: str, phase: str) -> str:
    """What the results call a phase."""
    return f"{way} - {phase}".replace(",", "")


def predicted(plan: Plan, way: Way) -> Row:
    """What the model says of its phases; the controller's choices are timed here, compiled and warm."""
    phases = [
        [Seen(plan.jobs[job].name, seconds) for job, seconds in zip(at_work(plan, case), times, strict=True)]
        for case in plan.cases
        for times in [iteration_times(plan, case)]
    ]
    moved, took = [], []
    for before, case in zip(plan.cases, plan.cases[1:], strict=False):
        found = moves(plan, before, case)
        moved.append(f"{found.flows_moved} of {found.flows - found.flows_new}")
        took.append(chosen_in_s(plan, before, case))
    return Row(str(way), phases, moved, max(took))


def chosen_in_s(plan: Plan, before: Case, case: Case) -> float:
    """Seconds for the controller's choice, the demands predicted anew included; the best of three."""
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        rerouted(plan, before, case)
        times.append(time.perf_counter() - begin)
    return min(times)


def measured(plans: Mapping[int, Plan], rows: Mapping[int, Sequence[Row]], out: Path) -> dict[int, list[Row]]:
    """The same with what was measured, all plans in one boot. Raises RunFailed where one failed."""
    found = documents({f"{spines} spines": plan for spines, plan in plans.items()}, out)
    return {
        spines: [with_measured(row, document) for row in rows[spines]]
        for spines, document in zip(plans, found.values(), strict=True)
    }


def with_measured(row: Row, document: Mapping[str, Any]) -> Row:
    """A row with what the results say of it."""
    lines = {(line["label"], line["job"]): line for line in document["schedules"]}
    phases = []
    for phase, jobs_there in zip(PHASES, row.phases, strict=True):
        mine = [lines[label_of(row.way, phase), one.job] for one in jobs_there]
        for line in mine:
            if not line["trusted"]:
                print(f"{line['label']}: {line['job']}: {'; '.join(line['reasons'])}", file=sys.stderr)
        phases.append([Seen(one["job"], one["predicted_s"], one["measured_s"], one["trusted"]) for one in mine])
    return row._replace(phases=phases)


def report(title: str, rows: Sequence[Row]) -> None:
    """A row per way to route, the fastest while both are there first."""
    rows = sorted(rows, key=lambda row: max(one.predicted_s for one in row.phases[1]))
    columns = {"routes": [row.way for row in rows]}
    for number, phase in enumerate(PHASES):
        for index, one in enumerate(rows[0].phases[number]):
            columns[f"{phase}: {one.job}, ms"] = [cell(row.phases[number][index]) for row in rows]
    for number, what in enumerate(("arrival", "departure")):
        columns[f"moved: {what}"] = [row.moved[number] for row in rows]
    columns["chosen in, ms"] = [f"{row.choosing_s * 1e3:.1f}" for row in rows]
    show_table(title, list(columns), list(zip(*columns.values(), strict=True)), 180)


def cell(one: Seen) -> str:
    """Measured, and how far off the prediction; else predicted."""
    if one.measured_s is None:
        return f"{one.predicted_s * 1e3:.1f}"
    return f"{one.measured_s * 1e3:.1f} ({one.measured_s / one.predicted_s - 1:+.3%})"


def main() -> int:
    """1 where something measured is not as predicted."""
    parser = options.parser(__doc__)
    parser.add_argument("--predict", action="store_true", help="nothing is trained")
    parser.add_argument("--spines", type=int, nargs="+", default=[2])
    parser.add_argument("--json", action="store_true")
    options.add_out(parser, "routing-events", recorded=False)
    asked = parser.parse_args()
    plans: dict[int, Plan] = {}
    rows: dict[int, list[Row]] = {}
    for spines in asked.spines:
        base = with_iterations(planned(topology(spines), jobs()), ITERATIONS, WARMUP)
        each = [(cases_of(base, way), way) for way in WAYS]
        of_first, _ = each[0]
        assert all(replace(plan, cases=of_first.cases) == of_first for plan, _ in each)
        plans[spines] = replace(of_first, cases=tuple(case for plan, _ in each for case in plan.cases))
        rows[spines] = [predicted(plan, way) for plan, way in each]
    if not asked.predict:
        rows = measured(plans, rows, asked.out)
    claims = []
    for spines, found in rows.items():
        report(f"{spines} spines", found)
        every = [one for row in found for phase in row.phases for one in phase if one.measured_s is not None]
        if every:
            worst = max(abs((one.measured_s or 0.0) / one.predicted_s - 1) for one in every)
            trusted = all(one.trusted for one in every)
            what = f"a job arrives, another departs, {spines} spines: phases of jobs"
            got = f"{len(every)}, worst {worst:.3%}, {'all' if trusted else 'NOT all'} trusted"
            fine = worst <= LARGEST_ERROR and trusted
            claims.append(Claim(what, f"<= {LARGEST_ERROR:.1%}, trusted", got, fine, worst, "share of the prediction"))
    if asked.json:
        print(json.dumps({spines: [row._asdict() for row in found] for spines, found in rows.items()}))
    return 0 if asked.predict else finish(asked, Topic.ROUTING, claims)


if __name__ == "__main__":
    sys.exit(main())
