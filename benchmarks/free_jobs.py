"""Under the virtual clock: jobs that run freely on a shared link; does each take what the model says of its iterations?

    python benchmarks/free_jobs.py [--plans N] [--recorded] [--out DIR]
        [--picture FILE --pictured NUMBERS]

Pairs and triples drawn by seed, of unequal jobs: their periods, microbatches, slots, messages, schedules, replicas and
warm-ups differ, receives are early or late, each job has its own. Every job trains 30 iterations that count or more,
until the slowest has its 30. What is held against the model is each job's mean, and where the order of messages that
meet decides, its range. With --picture the iteration times of some plans are drawn over time, beside what each job
takes alone.
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
from matplotlib.figure import Figure

from testbed.plan.plan import Clock
from testbed.planning.free_training import free_times
from testbed.planning.prediction import freely, loads_of_case, predict_jobs
from testbed.planning.resolve import with_clock
from testbed.planning.schedules import with_every_job
from testbed.plotting import COLOURS, GRID, INK, plain, save
from testbed.results.run_files import RunFiles
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


def draw(directories: Sequence[Path], path: Path) -> None:
    """Write a picture of what iterations took in runs, a panel for each: measured as points, predicted as lines."""
    figure = Figure(figsize=(9.0, 2.6 * len(directories) + 0.4), layout="constrained", facecolor="white")
    panels = np.atleast_1d(np.asarray(figure.subplots(len(directories), 1)))
    for axis, directory in zip(panels, directories, strict=True):
        files = RunFiles(directory)
        plan, (case,) = files.plan, files.plan.cases
        times = free_times(plan, case, loads_of_case(plan, case))
        for number, one in enumerate(predict_jobs(plan, case)):
            colour, name = COLOURS[number], plan.jobs[number].name
            rows = files.rows(case.label, number)
            axis.plot(times.begins_s[number], 1e3 * times.times_s(number), color=colour, linewidth=1.0)
            measured = [row.begin_s for row in rows], [1e3 * row.makespan_s for row in rows]
            axis.plot(*measured, ".", color=colour, markersize=4, label=name)
            axis.axhline(1e3 * one.alone_s, color=colour, linewidth=0.8, linestyle=(0, (4, 3)))
        axis.grid(color=GRID)
        axis.set_ylabel("iteration [ms]")
        axis.set_title(plain(f"{plan.network.name}: {case.label}"), loc="left", fontsize=9, color=INK)
        axis.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False, ncols=3)
    panels[-1].set_xlabel("begins at [s]   (points: measured; lines: predicted; dashes: alone)")
    save(figure, path)


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
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw iterations into this file")
    listed = options.listed(int)
    parser.add_argument("--pictured", type=listed, default=[0, 12], metavar="NUMBERS", help="of these plans")
    asked = parser.parse_args()
    numbers: Sequence[int] = options.numbers(asked)
    taken = boots.take(asked, {f"free-{number:03d}": partial(training, asked.seed, number) for number in numbers})
    report.show_worst(taken, most=60)
    if asked.picture is not None:
        draw([asked.out / f"free-{number:03d}" for number in asked.pictured], asked.picture)
    return report.close(asked, Topic.TRUTH, taken, claims(taken))


if __name__ == "__main__":
    sys.exit(main())
