"""Links that change while jobs train, as the plan says: does every iteration take what is predicted of it?

    python benchmarks/events_on_the_wire.py [--plans 40] [--first 0] [--schedules 2] [--seed 1] [--per-boot 20]
        [--recorded] [--real] [--out DIR]

Plans are drawn at random (two to four stages, one or two replicas, two or three datacenters, routes over one link or
two, early and late receives), and for each of them events: a rate or a delay that steps, a link that sends nothing for
a while and may come back otherwise, a datacenter out of reach, in both directions or one, at any time of an iteration;
ranks that become slower, where slots are the same and where they are drawn. Under the virtual clock each measured
iteration is held against its own prediction, the one in which an event comes included. Beside them GeoPipe's step of a
link from 400 to 200 Gbit/s, at the scale of topologies/geopipe-three-region, which is to lose nothing: alone, and with
messages that fill links, where GeoPipe's extra forwards are chosen again and the training goes on with them. --real
runs one plan for each kind of event on this machine's clock instead; those with what the model has not (loss, jitter)
are judged by the iterations that they do not touch.
"""

from __future__ import annotations

import random
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from harness import boots, options, plans, report
from harness.options import ROOT
from harness.record import Claim, Topic, finish

from testbed.plan.costs import problem
from testbed.plan.plan import Clock
from testbed.plan.timeline import Moment, ScheduleSwapped
from testbed.planning.resolve import load_plan, with_clock
from testbed.planning.schedules import choose
from testbed.results.run_files import RunFiles
from testbed.routing.rerouting import Controller, with_continuations, with_timeline
from testbed.schedule.geopipe import chosen
from testbed.trace.predictions import predicted_times_s
from testbed.vm import command

LIMITS = {"virtual": 0.0005, "real": 0.02}
SLOT_S = 0.02
SITES = ("oslo", "bonn", "rome")
GEOPIPE, RECHOSEN = "geopipe", "geopipe-rechosen"
FULL, FEWER = "4.2 MB", 20
"""A message that takes nearly as long on a link of geopipe-three-region as a microbatch on a rank, and so many
microbatches that every rank has room for the messages of two iterations."""
STEP = "link region-a--region-b rate 500 Mbit/s at iteration 2 + 400 ms"
"""A port of 400 Gbit/s is 1 Gbit/s there."""
REAL = {
    "rate": "link wuqing--runze rate 30 % at iteration 3 + 200 ms",
    "delay": "link wuqing--runze delay 15 ms at iteration 3 + 200 ms",
    "down": "link wuqing--runze down for 300 ms then delay 9 ms at iteration 3 + 200 ms",
    "restored": "link wuqing--runze down for 8 s then rate 50 % at iteration 3 + 200 ms",
    "datacenter": "datacenter runze down for 500 ms at iteration 3 + 200 ms",
    "cuts": "link wuqing--runze cut for 40 ms every 600 ms until 2 s seed 3 at iteration 2",
    "traffic": "link wuqing--runze shared 60 % for 300 ms every 1 s until 3 s at iteration 1",
    "rank": "rank 2 slower x1.5 at iteration 3",
    "loss": "link wuqing--runze loss 1 % for 300 ms at iteration 4 + 200 ms",
    "jitter": "link wuqing--runze jitter 400 us for 300 ms at iteration 3 + 200 ms",
}
"""By the kind of event, one of topologies/two-dc-metro."""


class Iteration(NamedTuple):
    """One that was measured."""

    plan: str
    label: str
    number: int
    measured_s: float
    predicted_s: float
    missed: float
    """Share by which it is off its prediction, or the nearer end of its range."""


def iterations_of(plan: str, directory: Path, label: str, job: int = 0) -> list[Iteration]:
    """Each measured iteration of a case against its own prediction."""
    files = RunFiles(directory)
    rows = [row for row in files.rows(label, job) if not row.warmup]
    known = files.known_of(label, job)["range_s"]
    of_each = predicted_times_s(files.parts(label, "predicted")[job], [row.iteration for row in rows])
    middle = float(np.median(of_each))
    less, more = (middle - known[0], known[1] - middle) if known else (0.0, 0.0)
    return [
        Iteration(
            plan,
            label,
            row.iteration,
            row.makespan_s,
            own,
            max(own - less - row.makespan_s, row.makespan_s - own - more, 0.0) / own,
        )
        for row, own in zip(rows, of_each.tolist(), strict=True)
    ]


def events(draw: random.Random, links: Mapping[str, tuple[str, str]], iterations: int) -> list[str]:
    """Some of them, in lines as a topology has them."""
    found = []
    for _ in range(draw.randint(2, 4)):
        name = draw.choice(list(links))
        source, target = draw.sample(links[name], 2)
        which = draw.choice((f"link {name}", f"link {name}", f"link {name} {source} -> {target}"))
        back = draw.choice(
            ("", f" then delay {draw.uniform(1, 25):.3f} ms", f" then rate {draw.uniform(30, 120):.1f} %")
        )
        what = draw.choice(
            (
                f"{which} rate {draw.uniform(25, 150):.1f} %",
                f"{which} rate {draw.uniform(20, 300):.2f} Mbit/s",
                f"{which} delay {draw.uniform(0.5, 30):.3f} ms",
                f"{which} down for {draw.uniform(5, 60):.3f} ms{back}",
                f"{which} down for {draw.uniform(0.2, 8):.3f} s{back}",
                f"datacenter {source} down for {draw.uniform(0.02, 2):.3f} s",
            )
        )
        within = draw.choice(("", f" + {draw.uniform(0, 400):.3f} ms", f" + {draw.uniform(0, 400):.3f} ms"))
        found.append(f"{what} at iteration {draw.randrange(iterations - 1)}{within}")
    return found


def slower(draw: random.Random, ranks: int, iterations: int) -> list[str]:
    """None or one rank that becomes slower, for a while or for good."""
    at = draw.randrange(iterations - 1)
    until = draw.choice(("", f" to {draw.randint(at + 1, iterations - 1)}"))
    event = f"rank {draw.randrange(ranks)} slower x{draw.uniform(1.05, 2.5):.3f} at iteration {at}{until}"
    return [event] if draw.random() < 0.5 else []


def documents(number: int, seed: int, schedules: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The topology and the workload of a plan, as files say it."""
    draw = random.Random(f"events/{seed}/{number}")
    pp, dp = draw.choice((2, 3, 4)), draw.choice((1, 1, 1, 2))
    names = SITES[: draw.choice((2, 3))] if pp > 2 else SITES[:2]
    pairs = list(pairwise(names))
    message, parameters, iterations = 10 ** draw.uniform(4.3, 5.7), 10 ** draw.uniform(5.2, 6.0), 6

    def direction() -> dict[str, str]:
        wire_s = SLOT_S * 10 ** draw.uniform(-1.0, 0.1)
        return {"delay": f"{10 ** draw.uniform(0, 1.3):.3f} ms", "rate": f"{8 * message / wire_s:.0f} bit/s"}

    links = [{"between": list(pair), "forward": direction(), "reverse": direction()} for pair in pairs]
    where = [names[rank * len(names) // pp] for rank in range(pp)]
    turned = [where, where[::-1]][:dp] if draw.random() < 0.5 else [where] * dp
    free = {site: iter(range(1000)) for site in names}
    placed = [[f"{site}/{next(free[site])}" for site in replica] for replica in turned]
    workload: dict[str, Any] = {
        "name": f"dp{dp}-pp{pp}",
        "model": {"layers": 2 * pp, "d_model": 16, "heads": 2, "sequence": 8},
        "parallelism": {"pipeline": pp, "data": dp},
        "microbatches": 2 * draw.randint(1, pp + 1),
        "microbatch_size": 1,
        "placement": placed[0],
        "pacing": plans.slots(draw, pp, SLOT_S, 0.7, 1.4),
        "message": f"{message:.0f} B",
        "memory": 16,
        "receives": draw.choice(("early", "early", "late")),
        "schedules": draw.sample(plans.quick_schedules(), schedules),
        "iterations": iterations,
        "warmup": 1,
    }
    if dp > 1:
        workload["data_parallel"] = {"parameters": f"{parameters:.0f} B", "replicas": placed[1:]}
    nodes = {site: {"nodes": max(1, sum(replica.count(site) for replica in turned))} for site in names}
    if draw.random() < 0.3:
        median = f"{1e3 * SLOT_S * draw.uniform(0.7, 1.4):.3f} ms"
        workload["pacing"]["F"] = {"median": median, "p95": f"{1.4 * float(median.split()[0]):.3f} ms"}
    happens = slower(draw, pp * dp, iterations) + events(draw, {f"{a}--{b}": (a, b) for a, b in pairs}, iterations)
    return {"name": "changing", "datacenters": nodes, "links": links, "events": happens}, workload


def geopipe(out: Path) -> command.GuestTraining:
    """GeoPipe's step, with the first schedule of its workload."""
    settings = ["warmup=1", "iterations=5"]
    plan = load_plan(Path("geopipe-three-region"), Path("geopipe-llama2-13b"), settings=settings, events=[STEP])
    return command.GuestTraining(with_clock(plans.with_every(plan, ["1f1b"]), Clock("virtual")), out / GEOPIPE)


def rechosen(out: Path) -> command.GuestTraining:
    """The same step under messages that fill links: GeoPipe's extra forwards for links as planned, and from two
    iterations behind the step on those for half of the rate."""
    files = Path("geopipe-three-region"), Path("geopipe-llama2-13b")
    full = [f"message={FULL}", "memory=135", f"microbatches={FEWER}"]
    numbers = []
    for halved in ([], ["topology.links.0.rate=500 Mbit/s"]):
        plan = load_plan(*files, settings=[*full, *halved])
        ahead = chosen(problem(plan, choose(plan, ["geopipe"])[0]))
        numbers.append([ahead[cut] for cut in sorted(ahead)])
    listed = [{"schedule": "geopipe", "label": label_of(each), "extra": each} for each in numbers]
    settings = [*full, "warmup=1", "iterations=7", f"schedules={listed}"]
    plan = plans.with_every(load_plan(*files, settings=settings, events=[STEP]))
    swap = ScheduleSwapped(plan.jobs[0].name, Moment(4), label_of(numbers[1]))
    plan = with_continuations(with_timeline(plan, [swap]), Controller())
    return command.GuestTraining(with_clock(plan, Clock("virtual")), out / RECHOSEN)


def label_of(numbers: Sequence[int]) -> str:
    """What a schedule with these extra forwards is called."""
    return f"geopipe {'+'.join(map(str, numbers))}"


def judged(what: str, found: list[Iteration], untrusted: list[str], clock: str, taken: int, of: int) -> Claim:
    """That each iteration takes what is predicted of it, and each run is trusted."""
    limit, worst = LIMITS[clock], max((one.missed for one in found), default=0.0)
    over = sum(one.missed > limit for one in found)
    got = f"{taken} plans, {len(found)} iterations: worst {worst:.4%}, {over} beyond, {len(untrusted)} untrusted"
    fine = bool(found) and not over and not untrusted
    return Claim(
        what, f"each iteration <= {limit:.2%}, trusted", got, fine, worst, "share of the prediction", taken, of
    )


def show(found: list[Iteration], most: int = 12) -> None:
    """Print the iterations that are furthest off."""
    worst = sorted(found, key=lambda one: -one.missed)[:most]
    cells = [
        (one.plan, one.label, one.number, f"{one.measured_s:.6f}", f"{one.predicted_s:.6f}", f"{one.missed:.4%}")
        for one in worst
    ]
    report.show_table("furthest off", ("plan", "schedule", "iteration", "measured s", "predicted s", "error"), cells)


def shown(taken: boots.Taken) -> tuple[list[Iteration], list[str]]:
    """Every iteration that was measured, and which cases were not trusted, why; the furthest, and what was refused, are
    printed."""
    found = [
        one
        for name, comparison in taken.comparisons.items()
        for row in comparison["schedules"]
        for one in iterations_of(name, taken.out / name, row["label"])
    ]
    untrusted = [f"{row.plan}, {row.label}: {'; '.join(row.found['reasons'])}" for row in taken.untrusted]
    show(found)
    for line in [*untrusted, *(f"refused: {name}: {said}" for name, said in taken.refused.items())]:
        print(line)
    return found, untrusted


def virtual(asked: Namespace) -> tuple[list[Claim], list[Path]]:
    """Drawn plans, and GeoPipe's step; with where the drawn ones lie."""
    taken = boots.drawn(asked, partial(documents, seed=asked.seed, schedules=asked.schedules))
    step = boots.take(asked, {GEOPIPE: geopipe, RECHOSEN: rechosen})
    found, untrusted = shown(taken)
    what = f"links that change while jobs train, drawn with seed {asked.seed}, virtual clock"
    claims = [judged(what, found, untrusted, "virtual", len(taken.comparisons), taken.asked)]
    claims += [
        stepped(step, GEOPIPE, "GeoPipe's step from 400 to 200 Gbit/s, 1/400: iterations before, across and after it"),
        stepped(
            step, RECHOSEN, "the same with full links, and GeoPipe's extra forwards chosen again two iterations on"
        ),
    ]
    return claims, [taken.out / name for name in taken.comparisons]


def stepped(step: boots.Taken, name: str, what: str) -> Claim:
    """That GeoPipe's step loses nothing, and every iteration is as predicted."""
    rows = [row for row in step.rows if row.plan == name]
    of_step = [one for row in rows for one in iterations_of(name, step.out / name, row.label)]
    show(of_step)
    counted = [RunFiles(step.out / name).network(row.label) for row in rows]
    lost = sum(one.drops + one.retransmits + sum(one.other.values()) for one in counted)
    untrusted = [row.label for row in step.untrusted if row.plan == name]
    claim = judged(what, of_step, untrusted, "virtual", int(name in step.comparisons), 1)
    labels = ", then ".join(row.label for row in rows) if len(rows) > 1 else ""
    got = f"{claim.got}; {lost} lost or sent again{f'; {labels}' if labels else ''}"
    return Claim(
        claim.claim,
        f"{claim.asked}, no loss",
        got,
        bool(claim.passed) and not lost,
        claim.value,
        claim.unit,
        claim.taken,
        claim.of,
    )


def real(asked: Namespace) -> tuple[list[Claim], list[Path]]:
    """One run for each kind of event on this machine's clock; with where they lie."""
    asked.out.mkdir(parents=True, exist_ok=True)
    found, untrusted, taken = [], [], 0
    files = [str(ROOT / "topologies/two-dc-metro.yaml"), str(ROOT / "workloads/tiny-gpt-pp4.yaml")]
    for kind, event in REAL.items():
        words = ["--schedule", "1f1b", "--set", "warmup=1", "--iterations", "6", "--no-picture", "--event", event]
        out = asked.out / f"real-{kind}"
        comparison = (
            boots.comparison_of(out)
            if asked.recorded
            else boots.run(kind, *files, *words, "--out", str(out), "--overwrite")
        )
        for row in comparison["schedules"] if comparison else ():
            taken += 1
            found += iterations_of(kind, out, row["label"])
            untrusted += [] if row["trusted"] else [f"{kind}: {'; '.join(row['reasons'])}"]
    show(found, 40)
    print("\n".join(untrusted))
    what = "links that change while a job trains, one run for each kind of event, real clock"
    claim = judged(what, found, untrusted, "real", taken, len(REAL))
    return [claim], [asked.out / f"real-{kind}" for kind in REAL]


def main() -> int:
    """Run what is asked for; 1 when a claim is missed, 0 otherwise."""
    parser = options.parser(__doc__)
    options.add_drawn(parser, "events-on-the-wire", plans=40, per_boot=20, schedules=2)
    parser.add_argument("--real", action="store_true", help="this machine's clock, one plan for each kind of event")
    asked = parser.parse_args()
    claims, directories = real(asked) if asked.real else virtual(asked)
    return finish(asked, Topic.TRUTH, claims, clock="real" if asked.real else "virtual", directories=directories)


if __name__ == "__main__":
    sys.exit(main())
