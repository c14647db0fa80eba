"""Jobs that go on with the replicas that are left: in the lab against the model, and in the model against a formula.

    python benchmarks/elastic_replicas.py [--plans 12] [--first 0] [--seed 1] [--per-boot 12] [--real] [--recorded]
        [--out DIR]

Drawn with the seed: so many trainings on the virtual clock on two or three datacenters, of two to four replicas
anywhere, of one to three stages, some with tensor ranks, slower replicas or several streams, each collective; every
other one shares an optimizer (ZeRO-1), whose shards are copied every one to three iterations. Ranks, nodes or
datacenters are lost by chance, for good or until they are repaired. Held against what was foretold: goodput, samples,
every iteration with the replicas that take part, how long copies took, bytes of states on every direction; losses,
gradients and weights against one process's that takes the same samples. And 40 jobs of the model alone, each trained 20
times with some 250 failures, against the formula for replicas that fail and are repaired independently; and 20 that
share an optimizer: failures that would take a shard and its copy, and end a training, are left out. --real trains so
many of the same plans in labs of their own on this machine's clock, and asks no formula.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from harness import boots, options, plans, report
from harness.record import Claim, Topic, each, finish

from testbed.errors import BadInput
from testbed.goodput.elastic_goodput import ElasticSetting, expected_elastic_goodput
from testbed.goodput.elastic_spans import ElasticTimes, ends_early, foretold_elastic
from testbed.goodput.recovering_plan import spans_of_case, with_recovery
from testbed.goodput.spans import Spending, shares_of
from testbed.plan.moved_weights import shared
from testbed.plan.plan import Plan
from testbed.plan.recovery import Elastic, Failure, drawn_failures
from testbed.planning.resolve import load_plan
from testbed.results.run_files import RunFiles
from testbed.trace.predictions import predicted_times_s
from testbed.vm import command

NEAR, ASKED = 5e-4, 0.01
NEAR_ON_THIS_MACHINE = 0.02
SHARDING = ("none", "zero-1")
JOBS, TRAININGS, FAILURES = 40, 20, 250
LONGEST_S = 1e9
SITES = ("oslo", "rome", "lyon")
MESHES: tuple[dict[str, int], ...] = (
    {"data": 3, "pipeline": 2},
    {"data": 2, "pipeline": 3},
    {"data": 4, "pipeline": 2},
    {"data": 2, "pipeline": 2, "tensor": 2},
    {"data": 4, "pipeline": 1},
)


def training(number: int, out: Path, name: str, seed: int) -> command.GuestTraining:
    """A plan whose replicas are lost, written and loaded. Raises BadInput."""
    draw = random.Random(f"elastic/{seed}/{number}")
    ranks = MESHES[number % len(MESHES)]
    replicas, pipeline, tensor = (ranks.get(axis, 1) for axis in ("data", "pipeline", "tensor"))
    sites = list(SITES[: draw.randint(2, 3)])
    draw.shuffle(sites)
    # a site for every stage of every replica, whose tensor ranks share it; each site has one at least
    at = sites + [draw.choice(sites) for _ in range(replicas * pipeline - len(sites))]
    draw.shuffle(at)
    where = [site for site in at for _ in range(tensor)]
    nodes = [f"{site}/{where[:place].count(site)}" for place, site in enumerate(where)]
    each_has = pipeline * tensor
    places = [nodes[first : first + each_has] for first in range(0, len(nodes), each_has)]
    exchange: dict[str, Any] = {"parameters": f"{draw.randint(100, 400)} kB", "replicas": places[1:]}
    exchange["sharding"] = SHARDING[number % 2]
    exchange["algorithm"] = draw.choice(("ring", "hierarchical", "direct"))
    job: dict[str, Any] = {
        "name": name,
        "model": {"layers": 2 * pipeline, "d_model": 16, "heads": 4, "sequence": 8},
        "parallelism": ranks,
        "microbatches": draw.randint(2, 5),
        "microbatch_size": draw.randint(1, 2),
        "placement": places[0],
        "pacing": plans.slots(draw, pipeline, 0.02, 0.7, 1.4),
        "data_parallel": exchange,
        "message": f"{draw.randint(10, 300)} kB",
        "memory": 16,
        "streams": draw.choice((1, 1, 3)),
        "receives": draw.choice(("early", "late")),
        "optimizer": {"kind": draw.choice(("adamw", "sgd"))},
        "schedules": [draw.choice(("1f1b", "gpipe", "zb-h1") if pipeline > 1 else ("1f1b", "gpipe"))],
        "iterations": draw.randint(8, 12),
        "warmup": 1,
    }
    if draw.random() < 0.4:
        factors = [[round(draw.uniform(1, 1.5), 2) for _ in range(pipeline)] for _ in range(replicas)]
        job["pacing"]["factors"] = factors
    links = [
        {"between": list(pair), "delay": f"{draw.uniform(1, 15):.2f} ms", "rate": f"{draw.randint(60, 900)} Mbit/s"}
        for pair in pairwise(sites)
    ]
    network = {"name": "chain", "datacenters": {site: {"nodes": where.count(site)} for site in sites}, "links": links}
    plan = plans.with_every(load_plan(*plans.write(out, name, network, job)))
    return command.GuestTraining(_failing(draw, plan), out / name)


def _failing(draw: random.Random, plan: Plan) -> Plan:
    """Some replica is lost, and what is needed to go on is always left: the first seed of which that is so."""
    elastic = f"restart={draw.uniform(3, 5):.2f} s"
    if shared(plan.jobs[0].workload):
        elastic += f",every={draw.randint(1, 3)}"
    if draw.random() < 0.6:
        elastic += f",repair={draw.uniform(0.5, 8):.2f} s"
    of = draw.choice(("ranks", "ranks", "nodes", "datacenters"))
    rank, at_s, mtbf_s = draw.randrange(plan.jobs[0].mesh.size), draw.uniform(0.1, 2), draw.uniform(2, 6)
    while True:
        chaos = f"mtbf={mtbf_s:.2f} s,seed={draw.randrange(1000)},of={of}"
        try:
            return with_recovery(plan, None, (f"rank {rank} at {at_s:.3f} s",), chaos, elastic)
        except BadInput:
            mtbf_s *= 1.1


def lab_claims(taken: boots.Taken) -> list[Claim]:
    """Of trainings whose replicas were lost."""
    entries = {name: one["goodput"][0] for name, one in taken.comparisons.items()}
    failures = sum(entry["failures"] for entry in entries.values())
    what = f"{len(entries)} trainings that go on with the replicas that are left, {failures} failures"
    for name, entry in entries.items():
        measured, predicted = entry["measured"], entry["predicted"]
        print(f"{name} {entry['failures']:2} failures: goodput {measured['goodput']:.4%}, {predicted['goodput']:.4%}")
    off = [_off(entry, "goodput") for entry in entries.values()]
    rates = [_off(entry, "samples_per_s") for entry in entries.values()]
    shares = [entry["measured"]["goodput"] for entry in entries.values()]
    spans = [span for entry in entries.values() for span in entry["spans"]]
    sets = {name: {len(s["replicas"]) for s in entry["spans"]} for name, entry in entries.items()}
    alone, back = sum(1 in found for found in sets.values()), sum(bool(span.get("joining")) for span in spans)
    worst, ranges = max(*off, *rates), sum(row.width > 0 for row in taken.rows)
    missed = [share for name in entries for share in iterations_off(taken.out / name)]
    got = f"worst {worst:.4%}; goodput {min(shares):.0%} to {max(shares):.0%}; {alone} came down to one replica"
    copied = [off for name in entries for off in copies_off(taken.out / name, entries[name]["spans"])]
    again = sum(entry["trained_again"] for entry in entries.values())
    of_shards = f"{len(copied)} times, {again} iterations trained again, worst {max(copied):.4%}"
    rows = [row for entry in entries.values() for row in entry.get("states", ())]
    wrong = max((abs(row["wire_bytes"] - row["planned_bytes"]) for row in rows), default=0)
    carried = f"{sum(row['wire_bytes'] for row in rows) / 1e6:.1f} MB on {len(rows)} directions; {back} times back"
    return [
        Claim(f"{what}: goodput and samples/s as foretold", f"<= {NEAR:.2%}", got, worst <= NEAR, worst, "share"),
        Claim(
            "the same: every iteration as predicted with the replicas that take part",
            f"<= {NEAR:.2%}",
            f"{len(missed)} iterations, worst {max(missed):.4%}; {ranges} of the trainings predicted as ranges",
            max(missed) <= NEAR,
            max(missed),
            "share",
        ),
        Claim(
            "the same: shards copied to the next replica, in the time foretold",
            f"<= {NEAR:.2%}",
            of_shards,
            max(copied) <= NEAR,
            max(copied),
            "share",
        ),
        Claim(
            "the same: states to replicas that are back, shards copied and cut anew, bytes as planned",
            "0",
            f"{carried}: worst {wrong:.0f} B off",
            wrong == 0,
            wrong,
            "B",
        ),
        each(f"{what}: trusted, gradients and weights as one process's", len(taken.untrusted), len(taken.rows)),
    ]


def real_claims(taken: boots.Taken) -> list[Claim]:
    """Of the same on this machine's clock: times of those that it is quiet enough to trust, numbers of all."""
    entries = {name: one["goodput"][0] for name, one in taken.comparisons.items()}
    trusted = {row.plan for row in taken.rows if row.trusted}
    for row in taken.untrusted:
        print(f"untrusted: {row.plan}: {'; '.join(row.found['reasons'])}")
    failures = sum(entry["failures"] for entry in entries.values())
    off = [_off(entries[name], "goodput") for name in trusted]
    missed = [abs(row.error) for row in taken.rows if row.trusted]
    worst = max(*off, *missed, 0.0)
    got = f"{len(trusted)} trusted: goodput within {max(off, default=0):.2%}, iterations {max(missed, default=0):.2%}"
    rows = [row for entry in entries.values() for row in entry.get("states", ())]
    wrong = max((abs(row["wire_bytes"] - row["planned_bytes"]) for row in rows), default=0)
    carried = sum(row["wire_bytes"] for row in rows) / 1e6
    asked_of = [check for row in taken.rows for check in row.found["checks"] if "one process" in check["question"]]
    what = f"{len(entries)} trainings that go on with the replicas that are left, {failures} failures, real clock"
    of, limit = (len(entries), taken.asked), NEAR_ON_THIS_MACHINE
    return [
        Claim(
            f"{what}: off what was foretold",
            f"none trusted beyond {limit:.0%}",
            got,
            worst <= limit,
            worst,
            "share",
            *of,
        ),
        Claim(
            "the same: states and shards between replicas, bytes as planned",
            "0",
            f"{carried:.1f} MB on {len(rows)} directions: worst {wrong:.0f} B off",
            wrong == 0,
            wrong,
            "B",
        ),
        each("the same: gradients and weights as one process's", sum(not c["ok"] for c in asked_of), len(asked_of)),
    ]


def iterations_off(directory: Path) -> list[float]:
    """By what share each iteration of a run that counts took other than predicted of it."""
    files = RunFiles(directory)
    (case,) = files.plan.cases
    rows = [row for row in files.rows(case.label, 0) if not row.warmup]
    predicted_s = predicted_times_s(files.parts(case.label, "predicted")[0], [row.iteration for row in rows])
    return [abs(row.makespan_s / float(own_s) - 1) for row, own_s in zip(rows, predicted_s, strict=True)]


def copies_off(directory: Path, measured: Sequence[Mapping[str, Any]]) -> list[float]:
    """By what share each copy of shards took other than foretold, of those that came to their end; of a replica
    by itself there is none. Of one that takes less than a millisecond, as inside a datacenter, by what share of that:
    it is told to some nanoseconds."""
    plan = RunFiles(directory).plan
    expected = [span for span in spans_of_case(plan, plan.cases[0]) if span.what is Spending.SAVE]
    took = [span for span in measured if span["what"] == Spending.SAVE.value]
    return [
        abs(one["end_s"] - one["begin_s"] - foretold.seconds) / max(foretold.seconds, 1e-3)
        for one, foretold in zip(took, expected, strict=True)
        if foretold.failure is None and foretold.seconds
    ]


def _off(entry: Mapping[str, Any], name: str) -> float:
    return abs(float(entry["measured"][name]) / float(entry["predicted"][name]) - 1)


def setting(number: int, seed: int) -> ElasticSetting:
    """8 to 16 replicas, 20 to 100 iterations between two failures of any, a restart of up to 6 % of that time, and a
    repair of a tenth of it up to all of it: some replica is always left."""
    draw = random.Random(f"elastic-model/{seed}/{number}")
    replicas, iteration_s = draw.randint(8, 16), 10 ** draw.uniform(-1, 1)
    mtbf_s = iteration_s * 10 ** draw.uniform(1.3, 2)
    restart_s, repair_s = mtbf_s * 10 ** draw.uniform(-3, -1.2), mtbf_s * 10 ** draw.uniform(-1, 0)
    return ElasticSetting(replicas, iteration_s, restart_s, restart_s * draw.random(), repair_s, replicas * mtbf_s)


def sharing(number: int, seed: int) -> ElasticSetting:
    """The same of one to four iterations between copies of shards, each of up to a fifth of an iteration."""
    one, draw = setting(number, seed), random.Random(f"elastic-sharing/{seed}/{number}")
    copy_s, cut_s = one.iteration_s * draw.uniform(0.01, 0.2), one.restart_s * draw.uniform(0.01, 1)
    return one._replace(every=draw.randint(1, 4), copy_s=copy_s, cut_s=cut_s)


class Goodput(NamedTuple):
    """Of several trainings of the model."""

    share: float
    """Their mean, by time."""
    failures: int
    fatal: int
    """Those that were left out, as a training would have ended with them."""


def goodput(one: ElasticSetting, trainings: int, seed: int) -> Goodput:
    """What the model says."""
    mtbf_s, kept_s, total_s = one.replica_mtbf_s / one.replicas, 0.0, 0.0
    copy_s = (lambda there: one.copy_s) if one.copy_s else None
    times = ElasticTimes(
        lambda replicas, number: one.iteration_s,
        lambda there, joining, kept_by: one.send_s if joining else one.cut_s,
        copy_s,
    )
    iterations, came, fatal = round(FAILURES * mtbf_s / one.iteration_s), 0, 0
    for number in range(trainings):
        draws = drawn_failures(mtbf_s, LONGEST_S, one.replicas, seed=1000 * seed + number)
        # as many as may come: what is left over does not count
        failures = list(islice(draws, 4 * FAILURES))
        made = iterations, one.replicas, Elastic(one.restart_s, one.repair_s, one.every)
        while (last := ends_early(spans := foretold_elastic(times, *made, failures, _replica_of))) is not None:
            failures.remove(last)
            fatal += 1
        came += sum(span.failure is not None for span in spans)
        shares = shares_of(spans, one.replicas)
        kept_s, total_s = kept_s + shares.kept_s, total_s + shares.total_s
    return Goodput(kept_s / total_s, came, fatal)


def _replica_of(failure: Failure) -> frozenset[int]:
    return frozenset(() if failure.rank is None else (failure.rank,))


def model_claim(settings: Sequence[ElasticSetting], trainings: int) -> Claim:
    """Of jobs of the model alone, all of which share an optimizer, or none."""
    found = [goodput(one, trainings, number) for number, one in enumerate(settings)]
    off = [abs(got.share / expected_elastic_goodput(one) - 1) for got, one in zip(found, settings, strict=True)]
    shares, count = [got.share for got in found], len(settings)
    said = f"{count} jobs, {trainings} trainings each, goodput {min(shares):.0%} to {max(shares):.0%}: "
    said += f"worst {max(off):.2%}, median {np.median(off):.2%}"
    if fatal := sum(got.fatal for got in found):
        said += f"; {fatal / (fatal + sum(got.failures for got in found)):.2%} of failures left out"
    claim = "goodput with the replicas that are left, lost by chance and repaired, in the model, against our formula"
    claim += ", where they share an optimizer" if settings[0].copy_s else ""
    return Claim(claim, f"<= {ASKED:.0%}", said, max(off) <= ASKED, max(off), "share", count, count)


def main(words: Sequence[str] | None = None) -> int:
    """Train, and ask the model; 1 when something is further off than it may be, 0 otherwise."""
    parser = options.parser(__doc__)
    options.add_drawn(parser, "elastic-replicas", plans=12, per_boot=12)
    parser.add_argument("--real", action="store_true", help="on this machine's clock")
    asked = parser.parse_args(words)
    every = boots.of_numbers(asked, training)
    if asked.real:
        claims = real_claims(boots.on_the_real_clock(asked.out, every))
        return finish(asked, Topic.ROBUSTNESS, claims, clock="real", directories=[asked.out / name for name in every])
    taken = boots.take(asked, every)
    models = [
        model_claim([setting(number, asked.seed) for number in range(JOBS)], TRAININGS),
        model_claim([sharing(number, asked.seed) for number in range(JOBS // 2)], TRAININGS),
    ]
    return report.close(asked, Topic.ROBUSTNESS, taken, [*lab_claims(taken), *models])


if __name__ == "__main__":
    sys.exit(main())
