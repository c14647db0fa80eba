"""Several jobs in rounds, one controller that shifts their starts: does it come near one that knows what will happen?

    python benchmarks/adapting_starts.py [--plans 12] [--seed 1] [--iterations 45] [--recorded] [--out DIR]

On the virtual clock: timelines of our own, pairs and triples of jobs on a link whose rate changes, one with a slower
rank beside that, some that nothing happens to, as paced and with slots drawn with a coefficient of variation of 3 %.
Every job in every part of each is held against its prediction. In the event model: as many drawn by seed, of two or
three jobs, with one or two changes. Jobs begin when that is best as planned. What counts is the mean of the jobs'
iterations, each from its own start, against never shifting and an oracle, which knows every change and may begin when
that is best in each state. The share of its gain is of timelines in which that is 0.5 % of all time or more.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from harness import boots, options
from harness.plans import Document, made
from harness.record import Claim, Topic, each, finish
from harness.report import show_table
from parts.modelled_lab import adapted

from testbed.adaptation.adapting_plan import with_adaptation
from testbed.adaptation.may_change import MayChange
from testbed.cli.adaptation_tables import share_of_oracle
from testbed.plan.plan import Clock, Plan
from testbed.planning.resolve import with_clock
from testbed.planning.schedules import with_every_job
from testbed.spec.document import validate
from testbed.spec.workload import Workload
from testbed.vm import command

NEAR, LEAST_SHARE, WORTH_KNOWING, MOST_LOST = 5e-4, 0.9, 0.005, 0.005
STEPS, BEFORE, VARIATION = 8, 5, 0.03
PAIR = ((12.3, 5, 250, "zb-h1"), (10.9, 6, 280, "1f1b"))
TRIPLE = (*PAIR, (8.7, 4, 190, "gpipe"))
"""Of each job: a slot in ms, microbatches, kB of a message, schedule."""

HALF, BACK = "link shared rate x0.5 at iteration 5", "link shared rate 300 Mbit/s at iteration 25"
OWN: dict[str, tuple[tuple[tuple[float, int, int, str], ...], tuple[str, ...]]] = {
    "nothing": (PAIR, ()),
    "nothing, slots of 3 % CV": (PAIR, ()),
    "nothing, three jobs": (TRIPLE, ()),
    "rate / 2": (PAIR, (HALF,)),
    "rate / 2, and back": (PAIR, (HALF, BACK)),
    "rate / 2, three jobs": (TRIPLE, (HALF,)),
    "rate / 2, later a slower rank": (PAIR, (HALF, "a rank 1 slower x1.3 at iteration 25")),
    "delay x 3 and rate x 0.6": (PAIR, ("link shared delay x3 at iteration 5", "link shared rate x0.6 at iteration 5")),
}


class Adapted(NamedTuple):
    """What came of a timeline."""

    name: str
    steady: bool
    found: Mapping[str, Any]
    """`adaptation` of comparison.json."""

    def total_s(self, what: str) -> float:
        """Of all iterations."""
        return float(sum(row[what] for row in self.found["iterations"]))

    @property
    def swaps(self) -> list[int]:
        """The iterations behind which starts were shifted."""
        return [row["iteration"] for row in self.found["iterations"] if row["swapped_to"] is not None]

    @property
    def most(self) -> float:
        """What the oracle gains, as a share of all time."""
        return 1 - self.total_s("oracle_predicted_s") / self.total_s("never_predicted_s")

    @property
    def gain(self) -> float:
        """What the controller does."""
        return 1 - self.total_s("measured_s") / self.total_s("never_predicted_s")

    @property
    def share(self) -> float | None:
        """Of the oracle's gain, shifts paid for by both; None where that is next to nothing."""
        return share_of_oracle(self.found) if self.most >= WORTH_KNOWING else None


def own(name: str, iterations: int) -> tuple[Document, list[Document]]:
    """Topology and workloads of one of our timelines."""
    jobs, events = OWN[name]
    topology = _topology(f"own-{list(OWN).index(name)}", len(jobs), 4.0, 300.0, events)
    return topology, [_job(place, *job, iterations, varies="CV" in name) for place, job in enumerate(jobs)]


def drawn(seed: int, number: int, iterations: int) -> tuple[Document, list[Document]]:
    """The same of a drawn one."""
    draw = random.Random(f"starts/{seed}/{number}")
    count = draw.choice((2, 2, 3))
    jobs = []
    for place in range(count):
        schedule = draw.choice(("1f1b", "zb-h1", "gpipe"))
        of = round(draw.uniform(8, 14), 2), draw.randint(3, 7), draw.randint(80, 300)
        jobs.append(_job(place, *of, schedule, iterations))
    delay_ms, rate_mbps = draw.uniform(1, 12), draw.uniform(150, 400)
    kinds = ["rate", *draw.sample(("delay", "rank", "back"), draw.choice((0, 1)))]
    words = {
        "rate": f"link shared rate x{draw.uniform(0.3, 0.8):.2f} at iteration {BEFORE}",
        "delay": f"link shared delay x{draw.uniform(1.5, 4):.2f} at iteration {BEFORE}",
        "rank": f"{'abc'[draw.randrange(count)]} rank {draw.randrange(2)} slower x{draw.uniform(1.1, 1.5):.2f} "
        f"at iteration {BEFORE}",
        "back": f"link shared rate {rate_mbps:.0f} Mbit/s at iteration {BEFORE + 20}",
    }
    return _topology(f"drawn-{number}", count, delay_ms, rate_mbps, [words[kind] for kind in kinds]), jobs


def _topology(name: str, jobs: int, delay_ms: float, rate_mbps: float, events: Any) -> Document:
    link = {
        "name": "shared",
        "between": ["east", "west"],
        "delay": f"{delay_ms:.3f} ms",
        "rate": f"{rate_mbps:.0f} Mbit/s",
    }
    sites = {site: {"nodes": jobs} for site in ("east", "west")}
    return {"name": name, "datacenters": sites, "links": [link], "events": list(events)}


def _job(
    place: int,
    slot_ms: float,
    microbatches: int,
    kilobytes: int,
    schedule: str,
    iterations: int,
    *,
    varies: bool = False,
) -> Document:
    """A job of two stages, one in either datacenter."""
    slot: Any = f"{slot_ms} ms"
    if varies:
        slot = {"median": slot, "p95": f"{slot_ms * math.exp(1.645 * VARIATION):.3f} ms"}
    return {
        "name": "abc"[place],
        "model": {"layers": 2, "d_model": 16, "heads": 2, "sequence": 16},
        "parallelism": {"pipeline": 2},
        "placement": [f"east/{place}", f"west/{place}"],
        "microbatches": microbatches,
        "microbatch_size": 1,
        "pacing": dict.fromkeys("FIW", slot),
        "message": f"{kilobytes} kB",
        "memory": 8,
        "schedules": [schedule],
        "iterations": iterations,
        "warmup": 1,
        "seed": place + 1,
    }


def planned(topology: Document, jobs: list[Document]) -> Plan:
    """What `testbed plan --adapt ski-rental --vary starts=8 --clock virtual` makes of them."""
    workloads = [validate(Workload, dict(job), str(job["name"])) for job in jobs]
    plan = with_every_job(with_clock(made(topology, *workloads), Clock("virtual")))
    return with_adaptation(plan, "ski-rental", may=MayChange(starts=STEPS))


def training(name: str, iterations: int, out: Path) -> command.GuestTraining:
    """One of our timelines in the lab."""
    return command.GuestTraining(planned(*own(name, iterations)), out / _directory(name), quiet=True)


def _directory(name: str) -> str:
    return f"own-{list(OWN).index(name)}"


def shown(every: list[Adapted], title: str) -> None:
    """A row for each."""
    rows = []
    for one in every:
        share = "-" if one.share is None else f"{one.share:.1%}"
        rows.append((one.name, f"{one.gain:.2%}", f"{one.most:.2%}", share, one.swaps))
    show_table(title, ("timeline", "gain", "oracle", "share", "shifts behind"), rows)


def shares(claim: str, every: list[Adapted]) -> Claim:
    """Of all that have something to gain; and that nobody loses."""
    found = sorted(one.share for one in every if one.share is not None)
    lost = max((-one.gain for one in every), default=0.0)
    false = sum(len(one.swaps) for one in every if one.steady)
    few = sum(share < LEAST_SHARE for share in found)
    worst = found[0] if found else 0.0
    got = f"{len(found) - few} of {len(found)}, worst {worst:.1%}; {len(every) - len(found)} with less to gain; "
    got += f"{max(0.0, lost):.2%} lost at most; {false} shifts while nothing happens"
    limit = f">= {LEAST_SHARE:.0%} each, <= {MOST_LOST:.1%} lost, 0"
    kept = bool(found) and not few and lost <= MOST_LOST and not false
    return Claim(claim, limit, got, kept, worst, "share", len(every), len(every))


def main() -> int:
    """1 where a claim is missed."""
    parser = options.parser(__doc__)
    options.add_drawn(parser, "adapting-starts", plans=12, per_boot=4)
    parser.add_argument("--iterations", type=int, default=45)
    asked = parser.parse_args()
    taken = boots.take(asked, {_directory(name): partial(training, name, asked.iterations) for name in OWN})
    lab = [
        Adapted(name, not OWN[name][1], taken.comparisons[_directory(name)]["adaptation"])
        for name in OWN
        if _directory(name) in taken.comparisons
    ]
    shown(lab, "on the virtual clock")
    rows = [row for one in taken.comparisons.values() for row in one["schedules"]]
    off = [row for row in rows if not row["trusted"] or abs(row["error"]) > NEAR]
    for row in off:
        print(f"{row['label']}, {row['job']}: {row['error']:+.4%}, {'; '.join(row['reasons']) or 'trusted'}")
    numbers = range(asked.plans)
    model = [Adapted(f"drawn {n}", False, adapted(planned(*drawn(asked.seed, n, asked.iterations)))) for n in numbers]
    shown(model, "in the event model")
    worst = max((abs(row["error"]) for row in rows), default=1.0)
    claims = [
        each(
            f"jobs whose starts are shifted, parts of {len(lab)} of {len(OWN)} trainings: trusted, within {NEAR:.2%}",
            len(off) + len(OWN) - len(lab),
            len(rows),
            more=f"; worst {worst:.4%}",
        ),
        shares("the same: share of an oracle's gain, measured; shifts while nothing happens", lab),
        shares(f"the same of drawn jobs and changes, in the event model (seed {asked.seed})", model),
    ]
    return finish(asked, Topic.SCHEDULES, claims)


if __name__ == "__main__":
    sys.exit(main())
