"""Under the virtual clock: slots that vary, as the two presets have them; is their distribution what the model says?

    python benchmarks/varying_slots.py [--iterations 500] [--presets NAMES] [--recorded] [--out DIR]

Fixed length: a coefficient of variation of 2 to 2.5 % and one slow rank. Variable length: 22 % forward, 37 % backward,
a long tail. Every preset is trained on two-dc-longhaul under all of its schedules, whose measured median and 95th
percentile are held against the model's of the same draws, and the order of schedules by either. Beside it the model of
other draws (`apart`): how far so many iterations tell of the distribution itself. Writes every comparison to --out.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from harness import boots, options, report
from harness.options import ROOT
from harness.plans import with_schedules
from harness.record import Claim, Topic

from testbed.plan.plan import Plan
from testbed.planning import file
from testbed.planning.prediction import predicted_rows
from testbed.planning.resolve import load_plan
from testbed.thresholds import TIE
from testbed.vm import command

TARGET = 0.01
PRESETS = ("fixed-length", "variable-length")
TOPOLOGY = ROOT / "topologies/two-dc-longhaul.yaml"


class Spread(NamedTuple):
    """Of iterations of a schedule, in seconds."""

    median_s: float
    p95_s: float

    def off(self, other: Spread) -> tuple[float, float]:
        """By what shares another one's numbers are more."""
        return other.median_s / self.median_s - 1, other.p95_s / self.p95_s - 1


class Held(NamedTuple):
    """A schedule of a preset."""

    preset: str
    label: str
    measured: Spread
    predicted: Spread
    apart: Spread
    """The model of other draws."""
    trusted: bool


def training(preset: str, iterations: int, out: Path) -> command.GuestTraining:
    """A preset's training, with all its schedules."""
    workload = ROOT / f"workloads/tiny-gpt-{preset}.yaml"
    plan = load_plan(TOPOLOGY, workload, settings=[f"iterations={iterations}", "warmup=1"])
    return command.GuestTraining(with_schedules(plan, preset), out / preset, quiet=True)


def spreads(plan: Plan) -> dict[str, Spread]:
    """What the model says, by label."""
    return {
        row.case.label: Spread(row.predicted_s, row.predicted_p95_s or row.predicted_s) for row in predicted_rows(plan)
    }


def of_other_draws(plan: Plan) -> Plan:
    """The plan with another seed, and so other slots."""
    (job,) = plan.jobs
    workload = job.workload.model_copy(update={"seed": job.workload.seed + 1})
    return replace(plan, jobs=(replace(job, workload=workload),))


def held(taken: boots.Taken) -> list[Held]:
    """Every schedule that was measured beside the model."""
    found = []
    for preset, comparison in taken.comparisons.items():
        plan = file.read(taken.out / preset)
        own, other = spreads(plan), spreads(of_other_draws(plan))
        for row in comparison["schedules"]:
            measured = Spread(row["measured_s"], row["measured_p95_s"])
            label = row["label"]
            found.append(Held(preset, label, measured, own[label], other[label], row["trusted"]))
    return found


def misordered(rows: Sequence[Held]) -> int:
    """Pairs of a preset's schedules that were measured in another order than predicted, by median and by p95."""
    wrong = 0
    for one, other in combinations(rows, 2):
        for place in range(len(Spread._fields)) if one.preset == other.preset else ():
            predicted_s = one.predicted[place], other.predicted[place]
            apart_s, measured_s = predicted_s[0] - predicted_s[1], one.measured[place] - other.measured[place]
            wrong += abs(apart_s) > TIE * predicted_s[0] and apart_s * measured_s < 0
    return wrong


def claims(rows: Sequence[Held], asked: int, taken: int) -> list[Claim]:
    """What is claimed of schedules that were measured; `taken` of so many presets."""
    off = [abs(share) for row in rows for share in row.predicted.off(row.measured)]
    apart: Mapping[str, list[tuple[float, float]]] = {
        preset: [row.predicted.off(row.apart) for row in rows if row.preset == preset] for preset in PRESETS
    }
    chance = "; ".join(
        f"{preset} {max(abs(one) for one, _ in shares):.1%} and {max(abs(one) for _, one in shares):.1%}"
        for preset, shares in apart.items()
        if shares
    )
    untrusted, wrong = sum(not row.trusted for row in rows), misordered(rows)
    got = f"{len(rows)} runs: worst {max(off, default=1.0):.4%}, {untrusted} untrusted; other draws: {chance}"
    fine = bool(rows) and max(off) <= TARGET and not untrusted
    what = "slots that vary, fixed and variable length: median and p95 of the iterations against the model"
    count = 2 * sum(one.preset == other.preset for one, other in combinations(rows, 2))
    order = f"{count - wrong} of {count} pairs as predicted"
    return [
        Claim(what, f"<= {TARGET:.0%}, trusted", got, fine, max(off, default=1.0), "share", taken, asked),
        Claim(
            "the same: order of schedules by median and by p95", "all", order, not wrong, wrong, "pairs", taken, asked
        ),
    ]


def main() -> int:
    """Train the presets; 1 when a median, a percentile or an order is not as predicted, 0 otherwise."""
    parser = options.parser(__doc__)
    parser.add_argument("--iterations", type=int, default=500, help="of every schedule")
    parser.add_argument("--presets", type=options.listed(str), default=list(PRESETS), metavar="NAMES")
    options.add_per_boot(parser, 1)
    options.add_out(parser, "varying-slots")
    asked = parser.parse_args()
    plans = {preset: partial(training, preset, asked.iterations) for preset in asked.presets}
    taken = boots.take(asked, plans)
    rows = held(taken)
    columns = ("preset", "schedule", "median", "p95", "off", "p95 off", "apart", "p95 apart", "trusted")
    shown = [
        (
            row.preset,
            row.label,
            *(f"{1e3 * seconds:.2f} ms" for seconds in row.measured),
            *(f"{share:+.4%}" for share in row.predicted.off(row.measured)),
            *(f"{share:+.2%}" for share in row.predicted.off(row.apart)),
            "yes" if row.trusted else "NO",
        )
        for row in rows
    ]
    report.show_table(f"measured on the virtual clock, {asked.iterations} iterations", columns, shown, width=120)
    return report.close(asked, Topic.TRUTH, taken, claims(rows, taken.asked, len(taken.comparisons)))


if __name__ == "__main__":
    sys.exit(main())
