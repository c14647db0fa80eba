"""A schedule's times do not depend on what was trained before it: plans in both orders of their schedules.

    python benchmarks/schedule_order.py [--later] [--plans 24] [--first 0] [--seed 1] [--schedules 2] [--per-boot 12]
        [--light] [--recorded] [--out DIR]

The plans are rows of the arrays of option_pairs.py, so that every kind of option has a part, each with as many
schedules as asked for. Each is measured twice on the virtual clock, the second time with its schedules in the opposite
order, and a schedule's median iteration and verdict are compared. What is left of one training (windows that TCP has
grown or lost, receives that are posted ahead, routes, queues) would show in the next one. Rows that the model does not
cover are left out: where packets are lost by chance, other packets are lost. The two may be as far apart as each from
its prediction, since the kernel decides who goes first of tensor ranks that send at the same instant. Prints every
schedule of which they are further apart, and the worst ones; exit code 1 where there is one.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import option_pairs
from harness import boots, options, report
from harness.record import Claim, Topic

from testbed.plan.plan import Case
from testbed.vm import command

SAME_S = 1e-6
_BACKWARDS = "-backwards"


class BothOrders(NamedTuple):
    """A schedule in both orders."""

    plan: str
    label: str
    there_s: float
    back_s: float
    same_verdict: bool

    @property
    def off(self) -> float:
        """By what share the second median differs from the first."""
        return abs(self.back_s / self.there_s - 1)


def backwards(cell: option_pairs.Cell, asked: Namespace, out: Path) -> command.GuestTraining:
    """A cell's training with its schedules in the opposite order. Raises BadInput."""
    made = option_pairs.training(cell, asked.seed, asked.schedules, asked.light, out)
    own: list[list[Case]] = []
    for case in made.plan.cases:  # one that goes on from another one's training stays behind it
        if case.continues is None and case.alone_of is None:
            own.append([])
        own[-1].append(case)
    plan = replace(made.plan, cases=tuple(case for each in reversed(own) for case in each))
    return replace(made, plan=plan, directory=Path(f"{made.directory}{_BACKWARDS}"))


def compared(taken: boots.Taken) -> list[BothOrders]:
    """Every schedule, of every job, that was measured in both orders and that the model covers: the worst first."""
    found = {(row.plan, row.label): row for row in taken.rows if row.covered}
    pairs = [(row, found.get((f"{plan}{_BACKWARDS}", label))) for (plan, label), row in found.items()]
    both = [
        BothOrders(
            one.plan, one.label, one.found["measured_s"], other.found["measured_s"], one.trusted == other.trusted
        )
        for one, other in pairs
        if other is not None
    ]
    return sorted(both, key=lambda each: -each.off)


def claim_of(taken: boots.Taken, both: Sequence[BothOrders]) -> Claim:
    """Print what differs and the worst ones."""
    rows = [
        (one.plan, one.label, f"{1e3 * one.there_s:.4f}", f"{1e6 * (one.back_s - one.there_s):+.3f}") for one in both
    ]
    report.show_table("differ most", ("plan", "schedule", "median, ms", "backwards, us"), rows[:10])
    wrong = [one for one in both if one.off > option_pairs.TARGET or not one.same_verdict]
    for one in wrong:
        print(f"FAULT {one}")
    worst_s = max((abs(one.back_s - one.there_s) for one in both), default=0.0)
    same = sum(abs(one.back_s - one.there_s) <= SAME_S for one in both)
    got = f"{len(both) - len(wrong)} of {len(both)} schedules, {same} to the microsecond, worst {1e6 * worst_s:.2f} us"
    what = "a schedule's median iteration and verdict, whatever schedule was trained before it"
    return report.count(what, taken, len(wrong), f"<= {option_pairs.TARGET:.2%} apart, in both orders", got)


def main() -> int:
    """Measure the plans in both orders; 1 where a schedule's times depend on it, 0 otherwise."""
    parser = options.parser(__doc__)
    option_pairs.add_rows(parser, "schedule-order", plans=24, schedules=2)
    asked = parser.parse_args()
    plans: dict[str, Callable[[Path], command.GuestTraining]] = {}
    for cell in option_pairs.cells(asked.seed, asked.plans, asked.first, later=asked.later):
        name = option_pairs.name_of(cell)
        plans[name] = partial(option_pairs.training, cell, asked.seed, asked.schedules, asked.light)
        plans[f"{name}{_BACKWARDS}"] = partial(backwards, cell, asked)
    taken = boots.take(asked, plans)
    return report.close(asked, Topic.TRUTH, taken, [claim_of(taken, compared(taken))])


if __name__ == "__main__":
    sys.exit(main())
