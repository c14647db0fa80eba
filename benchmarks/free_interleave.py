"""What an offset between jobs is worth when nothing holds them in step, and how long it lasts.

`interleave` moves the starts of jobs against each other, and predicts what that gives for one iteration of all of them.
Here jobs go on for so many iterations, each when its own is done. Pairs of jobs on one link: of one period, and with
slots of the second one longer by 1 %, 10 % and 35 %; with a message that takes 0.5 and 1 slots; slots as they are
written, or as two public traces have them vary (workloads/tiny-gpt-fixed-length.yaml and tiny-gpt-variable-length.yaml,
drawn by seed). Gains are of the worst job's mean iteration, over what it takes alone:

* in step: what the offset gives in rounds, over all jobs beginning at once (without the wait for the other job);
* freely: the same offset, of jobs that run freely; over all jobs beginning at once, and running freely as well;
* no rounds: what running freely gives by itself, over rounds, both without any offset.

A shift is gone when one job begins an iteration a quarter of the shorter iteration or more away from where the offset
has put it against the other job's nearest one: in which iteration that is first, "-": in none.

    python benchmarks/free_interleave.py [--iterations 120] [--predict] [--out DIR]

Without --predict a few of the pairs are trained on the virtual clock, at once and with the offset.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from harness import boots, options
from harness.plans import Document, made
from harness.record import Claim, Topic, finish
from harness.report import show_table
from harness.rows import rows_of

from testbed.model.free_iterations import FreeTimes
from testbed.model.network import Floats
from testbed.plan.plan import Case, Clock, Plan
from testbed.planning.drawn_iterations import times_of_rounds
from testbed.planning.free_training import free_times
from testbed.planning.prediction import freely, loads_of_case, predict_jobs, start_s
from testbed.planning.resolve import with_clock
from testbed.planning.schedules import with_every_job
from testbed.routing.apply import with_policies
from testbed.routing.policies import choose
from testbed.spec.document import validate
from testbed.spec.workload import Workload

SLOT_S, MICROBATCHES = 0.010, 6
RATE_BPS, DELAY_S = 200e6, 0.005
LONGER, MESSAGES = (1.0, 1.01, 1.1, 1.35), (0.5, 1.0)
SLOTS = {"fixed": "fixed", "fixed-length": "CV 2 %", "variable-length": "CV 22 %"}
"""And how they vary forward."""
TRAINED = ((1.0, 1.0, "fixed"), (1.1, 1.0, "fixed"), (1.0, 1.0, "variable-length"))
TARGET = 1e-3


class Pair(NamedTuple):
    """Two jobs."""

    longer: float
    """Slots of the second one over those of the first."""
    message: float
    """Seconds of a message on the link, over a slot."""
    slots: str

    @property
    def name(self) -> str:
        """Of its rows and its directory."""
        return f"x{self.longer:g}, message {self.message:g}, {self.slots}"


class Worth(NamedTuple):
    """What an offset of a pair is worth, of the worst job over what it takes alone."""

    pair: Pair
    offset_s: float
    in_step: tuple[float, float]
    """At once, and with the offset."""
    freely: tuple[float, float]
    gone: int | None
    """The first iteration of the first job in which the shift is gone; None: it never is."""


def pacing(slots: str, slot_s: float) -> Document:
    """Slots of a workload that are so long, as the preset has them vary."""
    if slots == "fixed":
        return dict.fromkeys("FIW", f"{1000.0 * slot_s:.6f} ms")
    given = yaml.safe_load((options.ROOT / f"workloads/tiny-gpt-{slots}.yaml").read_text(encoding="utf-8"))["pacing"]
    factor = slot_s / 0.020
    return {kind: scaled(given[kind], factor) for kind in "FIW"}


def scaled(spread: Any, factor: float) -> Any:
    """A distribution of slots, so many times as long."""
    if isinstance(spread, dict):
        return {name: scaled(value, factor) if name != "each" else value for name, value in spread.items()}
    if isinstance(spread, list):
        return [scaled(one, factor) for one in spread]
    return f"{float(spread.removesuffix(' ms')) * factor:.6f} ms"


def plan_of(pair: Pair, iterations: int = 30) -> Plan:
    """Its jobs under 1F1B, in step: at once."""
    jobs = [
        {
            "name": name,
            "model": {"layers": 2, "d_model": 16, "heads": 2, "sequence": 16},
            "parallelism": {"pipeline": 2},
            "microbatches": MICROBATCHES,
            "microbatch_size": 1,
            "pacing": pacing(pair.slots, slot_s),
            "message": f"{RATE_BPS / 8 * SLOT_S * pair.message / 1e3:.0f} kB",
            "memory": 8,
            "iterations": iterations,
            "warmup": 1,
            "schedules": ["1f1b"],
            "seed": seed,
        }
        for seed, (name, slot_s) in enumerate((("first", SLOT_S), ("second", SLOT_S * pair.longer)), 1)
    ]
    network = {
        "name": "one-link",
        "datacenters": {"paris": {"nodes": 2}, "warsaw": {"nodes": 2}},
        "links": [{"between": ["paris", "warsaw"], "delay": f"{DELAY_S} s", "rate": f"{RATE_BPS / 1e6} Mbit/s"}],
    }
    workloads = [validate(Workload, dict(job), str(job["name"])) for job in jobs]
    return with_every_job(with_clock(made(network, *workloads), Clock("virtual")))


def with_offset(pair: Pair, iterations: int = 30) -> Plan:
    """The pair's plan with two cases: at once, and with the offset that `interleave` chooses for fixed slots."""
    plan = plan_of(pair, iterations)
    fixed = plan_of(pair._replace(slots="fixed"))
    chosen = with_policies(fixed, [choose("interleave")])[0].cases[-1]
    (case,) = plan.cases
    moved = replace(case, label=f"{case.label} with the offset", starts_s=chosen.starts_s)
    return replace(plan, cases=(case, moved))


def worth(pair: Pair, iterations: int) -> Worth:
    """What its offset is worth, predicted."""
    plan = with_offset(pair, iterations)
    alone = [one.alone_s for one in predict_jobs(plan, plan.cases[0])]
    steps = [times_of_rounds(plan, case, loads_of_case(plan, case)).mean(axis=0) for case in plan.cases]
    in_step = [worst(each.tolist(), alone) for each in steps]
    times = [times_of(replace(plan, rounds="free"), case, iterations) for case in plan.cases]
    free = [worst([float(each.times_s(job).mean()) for job in range(2)], alone) for each in times]
    offset_s = start_s(plan, plan.cases[1], 1) - start_s(plan, plan.cases[1], 0)
    gone = first_gone(times[1], offset_s, min(alone))
    return Worth(pair, offset_s, (in_step[0], in_step[1]), (free[0], free[1]), gone)


def times_of(plan: Plan, case: Case, iterations: int) -> FreeTimes:
    """A case predicted freely."""
    return free_times(plan, case, loads_of_case(plan, case), iterations)


def worst(times_s: Sequence[float], alone_s: Sequence[float]) -> float:
    """Of two jobs, each over what it takes alone."""
    return max(one / alone for one, alone in zip(times_s, alone_s, strict=True))


def shifts_s(times: FreeTimes) -> Floats:
    """Per iteration of the first job, how much later the nearest one of the second job begins."""
    first, second = times.begins_s
    apart = second[None, :] - first[first <= second[-1], None]
    found: Floats = apart[np.arange(len(apart)), np.abs(apart).argmin(axis=1)]
    return found


def first_gone(times: FreeTimes, offset_s: float, shortest_s: float) -> int | None:
    """The first iteration in which the shift is no longer where the offset has put it."""
    away = np.abs(shifts_s(times) - offset_s) >= shortest_s / 4
    return int(away.argmax()) if away.any() else None


def trained(out: Path) -> list[Claim]:
    """A few of the pairs on the virtual clock, and what is claimed of them."""
    plans = {Pair(*one).name.replace(", ", "-").replace(" ", "-"): freely_of(Pair(*one)) for one in TRAINED}
    found = boots.all_in_a_boot(plans, out)
    rows = [row for name, document in found.items() for row in rows_of(name, document, {})]
    lines = [(row.plan, row.label, f"{row.found['measured_s'] * 1e3:.2f} ms", f"{row.error:+.4%}") for row in rows]
    show_table("trained freely", ("plan", "case", "mean", "error"), lines, 100)
    worst_row = max(row.missed for row in rows)
    untrusted = sum(not row.trusted for row in rows)
    got = f"{len(rows)} jobs: worst {worst_row:.4%}, {untrusted} untrusted"
    what = "the same trained, at once and with the offset: means against the model"
    fine = worst_row <= TARGET and not untrusted
    return [Claim(what, f"<= {TARGET:.1%}, trusted", got, fine, worst_row, "share", len(found), len(TRAINED))]


def freely_of(pair: Pair) -> Plan:
    """Both cases of a pair, trained freely."""
    return freely(with_offset(pair))


def main() -> int:
    """1 where what is trained is not as predicted."""
    parser = options.parser(__doc__)
    parser.add_argument("--iterations", type=int, default=120, help="of each job, predicted")
    parser.add_argument("--predict", action="store_true", help="nothing is trained")
    options.add_out(parser, "free-interleave", recorded=False)
    asked = parser.parse_args()
    found = [worth(Pair(*one), asked.iterations) for one in product(LONGER, MESSAGES, SLOTS)]
    lines = [
        (
            f"x{one.pair.longer:g}",
            f"{one.pair.message:g}",
            SLOTS[one.pair.slots],
            f"{1e3 * one.offset_s:.1f} ms",
            f"{1 - one.in_step[1] / one.in_step[0]:+.1%}",
            f"{1 - one.freely[1] / one.freely[0]:+.1%}",
            f"{1 - one.freely[0] / one.in_step[0]:+.1%}",
            "-" if one.gone is None else str(one.gone),
        )
        for one in found
    ]
    columns = ("longer", "message", "slots", "offset", "in step", "freely", "no rounds", "gone")
    show_table(f"what an offset is worth, {asked.iterations} iterations", columns, lines)
    gains = [1 - one.freely[1] / one.freely[0] for one in found]
    steps = [1 - one.in_step[1] / one.in_step[0] for one in found]
    got = f"in step {min(steps):+.1%} to {max(steps):+.1%}, freely {min(gains):+.1%} to {max(gains):+.1%}; "
    got += f"gone in {sum(one.gone is not None for one in found)} of {len(found)}"
    what = f"interleave of {len(found)} pairs: what its offset gives the worst job, {asked.iterations} iterations"
    claims = [Claim(what, "(report)", got)]
    if not asked.predict:
        claims += trained(asked.out)
    return finish(asked, Topic.ROUTING, claims)


if __name__ == "__main__":
    sys.exit(main())
