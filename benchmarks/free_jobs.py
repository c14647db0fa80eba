"""Under the virtual clock: jobs that run freely on a shared link; does each take what the model says of its iterations?

    python benchmarks/free_jobs.py [--plans N] [--picture FILE] [--recorded] [--out DIR]

Pairs and triples drawn by seed, of unequal jobs: their periods, microbatches, slots, messages, schedules, replicas and
warm-ups differ, receives are early or late, each job has its own. Every job trains 30 iterations that count or more,
until the slowest has its 30. What is held against the model is each job's mean, and where the order of messages that
meet decides, its range. With --picture the iteration times of the first plan are drawn over iterations, beside what
each job takes alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from harness import boots, options, report
from harness.plans import Document, made
from harness.record import Claim, Topic

from testbed.plan.plan import Clock
from testbed.planning.prediction import freely
from testbed.planning.resolve import with_clock
from testbed.planning.schedules import with_every_job
from testbed.spec.document import validate
from testbed.spec.workload import Workload
from testbed.vm import command

TARGET = 1e-3
ITERATIONS = 30
SCHEDULES = ("1f1b", "gpipe", "zb-h1")


def documents(seed: int, number: int) -> tuple[Document, list[Document]]:
    """The topology and the workloads of a plan."""
    draw = np.random.default_rng((seed, number))
    count = 2 if number % 3 else 3
    jobs = [job_of(draw, number, index) for index in range(count)]
    ranks = sum(job["parallelism"]["pipeline"] * job["parallelism"].get("data", 1) for job in jobs)
    link = {
        "between": ["paris", "warsaw"],
        "delay": f"{draw.uniform(1, 15):.3f} ms",
        "rate": f"{draw.integers(80, 300)} Mbit/s",
    }
    sites = {name: {"nodes": ranks // 2} for name in ("paris", "warsaw")}
    return {"name": f"free-{number:03d}", "datacenters": sites, "links": [link]}, jobs


def job_of(draw: np.random.Generator, number: int, index: int) -> Document:
    """One job of a plan: no two are drawn alike."""
    replicas = 2 if index == 0 and number % 4 == 1 else 1
    slots = {kind: f"{draw.uniform(4, 12):.3f} ms" for kind in ("F", "I", "W")}
    return {
        "name": f"job-{'abc'[index]}",
        "model": {"layers": 2, "d_model": 16, "heads": 2, "sequence": 16},
        "parallelism": {"pipeline": 2, "data": replicas},
        "microbatches": int(draw.integers(2, 7)),
        "microbatch_size": 1,
        "pacing": slots,
        "message": f"{draw.integers(40, 260)} kB",
        "memory": 8,
        "iterations": ITERATIONS,
        "warmup": int(draw.integers(1, 4)),
        "receives": "late" if draw.random() < 0.3 else "early",
        "schedules": [str(draw.choice(SCHEDULES))],
        "seed": index + 1,
    }


def training(seed: int, number: int, out: Path) -> command.GuestTraining:
    """A plan's training."""
    name, (topology, jobs) = f"free-{number:03d}", documents(seed, number)
    workloads = [validate(Workload, dict(job), f"{name}.{job['name']}") for job in jobs]
    plan = with_clock(made(topology, *workloads), Clock("virtual"))
    plan = with_every_job(plan)
    return command.GuestTraining(freely(plan), out / name, quiet=True)


def claims(taken: boots.Taken) -> list[Claim]:
    """What is claimed of the jobs of all plans."""
    one_time = [row for row in taken.rows if not row.width]
    ranges = [row for row in taken.rows if row.width]
    worst = max((abs(row.error) for row in one_time), default=1.0)
    beyond = max((row.missed for row in ranges), default=0.0)
    untrusted = len(taken.untrusted)
    got = f"{len(one_time)} jobs: worst {worst:.4%}; {len(ranges)} jobs with ranges: worst {beyond:.4%} outside; "
    got += f"{untrusted} untrusted"
    fine = bool(one_time) and max(worst, beyond) <= TARGET and not untrusted
    what = f"jobs that run freely: each one's mean over {ITERATIONS} iterations or more, against the model"
    count = len(taken.comparisons)
    return [Claim(what, f"<= {TARGET:.1%}, trusted", got, fine, max(worst, beyond), "share", count, taken.asked)]


def main() -> int:
    """Train the plans; 1 when a mean is not as predicted, 0 otherwise."""
    parser = options.parser(__doc__)
    options.add_drawn(parser, "free-jobs", plans=24, per_boot=4)
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the iterations of the first plan")
    asked = parser.parse_args()
    numbers: Sequence[int] = options.numbers(asked)
    taken = boots.take(asked, {f"free-{number:03d}": partial(training, asked.seed, number) for number in numbers})
    report.show_worst(taken, most=60)
    return report.close(asked, Topic.TRUTH, taken, claims(taken))


if __name__ == "__main__":
    sys.exit(main())
