"""Do queues that are as long as what is foretold to wait in them lose nothing? Drawn plans, with light models.

    python benchmarks/short_queues.py [--plans 60] [--seed 1] [--first 0] [--per-boot 15] [--recorded] [--out DIR]

One job or two on two or three datacenters, whose ways there and back differ; network cards; one to three streams,
receives posted early and late, replicas; slots of their own or drawn anew; links whose rates change or that are down in
the middle of an iteration; jobs that go on together, or each when it is done itself. Of every plan all queues have
exactly the room that is foretold (planning/queues.py); and once more with three quarters of it, of which a warning says
so before the run: there it is counted how many do lose packets, which tells how much room is foretold in vain.

What waits while ranks connect is foretold as if all began at the same moment. Where one begins later, others may send
it two messages at once: of those plans a verdict that is not "trusted" has to say that a queue was full then.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from harness import boots, options, report
from harness.record import Claim, Topic

from testbed.plan.plan import Clock, Plan
from testbed.planning.light import lighter
from testbed.planning.queues import room_needed
from testbed.planning.resolve import load_plan, with_clock
from testbed.planning.schedules import choose, make, with_selected
from testbed.vm import command

TARGET = 0.0005
SHORT = 0.75
WAYS = {"exact": 1.0, "short": SHORT}
SITES = ("ams", "ber", "cph")
LEAST_BYTES = 18_100
"""Of a queue: two frames."""


def topology(draw: random.Random) -> dict[str, Any]:
    """Without queues: all that comes has room."""
    sites = SITES[: draw.choice((2, 2, 3))]
    datacenters: dict[str, Any] = {site: {"nodes": 12} for site in sites}
    for site in sites:
        if draw.random() < 0.4:
            datacenters[site]["inside"] = {"rate": f"{draw.randint(60, 500)} Mbit/s", "delay": "20 us"}
    links = [
        {
            "name": f"link{number}",
            "between": list(pair),
            "delay": f"{draw.uniform(0.1, 30):.3f} ms",
            "rate": f"{draw.randint(20, 300)} Mbit/s",
            "reverse": {"delay": f"{draw.uniform(0.1, 30):.3f} ms", "rate": f"{draw.randint(20, 300)} Mbit/s"},
        }
        for number, pair in enumerate(pairwise(sites))
    ]
    return {"name": "short-queues", "datacenters": datacenters, "links": links}


def job(draw: random.Random, name: str, sites: Sequence[str], first_node: int) -> dict[str, Any]:
    """One whose ranks are anywhere, each on a node of its own."""
    stages, replicas = draw.choice((2, 2, 3)), draw.choice((1, 1, 2))
    nodes = [f"{draw.choice(sites)}/{first_node + place}" for place in range(stages * replicas)]
    placed = [nodes[replica * stages : (replica + 1) * stages] for replica in range(replicas)]
    slot_ms = draw.uniform(3, 40)
    pacing: dict[str, Any] = {kind: f"{slot_ms * draw.uniform(0.3, 2):.3f} ms" for kind in "FIW"}
    if draw.random() < 0.3:
        pacing["F"] = {"samples": [f"{slot_ms * share:.3f} ms" for share in (1, 1.1, 0.05)]}
    document = {
        "name": name,
        "model": {"layers": 2 * stages, "d_model": 16, "heads": 2, "sequence": 8},
        "parallelism": {"pipeline": stages, "data": replicas},
        "placement": placed[0],
        "microbatches": draw.randint(1, 7),
        "microbatch_size": 1,
        "pacing": pacing,
        "message": f"{draw.randint(40, 500)} kB",
        "memory": 16,
        "receives": draw.choice(("early", "early", "late")),
        "streams": draw.choice((1, 1, 2, 3)),
        "schedules": [draw.choice(("gpipe", "1f1b", "zb-h1"))],
        "iterations": 4,
        "warmup": 1,
    }
    if replicas > 1:
        document["data_parallel"] = {"parameters": f"{draw.randint(50, 900)} kB", "replicas": placed[1:]}
    return document


def changed(draw: random.Random, network: Mapping[str, Any]) -> list[str]:
    """What happens to links in the middle of an iteration; mostly nothing."""
    if draw.random() > 0.4:
        return []
    name, at = draw.choice(network["links"])["name"], f"at iteration {draw.randint(0, 2)} + {draw.randint(1, 60)} ms"
    return [draw.choice((f"link {name} rate {draw.randint(20, 70)} % {at}", f"link {name} down for 40 ms {at}"))]


def asked(number: int, seed: int, out: Path, name: str, share: float) -> Plan:
    """The plan of a number whose queues have this share of what is foretold to wait in them. Raises BadInput."""
    draw = random.Random(f"short-queues/{seed}/{number}")
    network = topology(draw)
    sites, count = list(network["datacenters"]), draw.choice((1, 1, 2))
    jobs = [job(draw, f"job{place}", sites, 6 * place) for place in range(count)]
    network["events"] = changed(draw, network)
    free = len(jobs) > 1 and not network["events"] and draw.random() < 0.5
    for document in jobs if free else ():
        document["iterations"] = 8

    def planned() -> Plan:
        files = [out / f"{name}.topology.yaml", *(out / f"{name}.{each['name']}.yaml" for each in jobs)]
        for path, document in zip(files, (network, *jobs), strict=True):
            path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
        made = with_clock(load_plan(*files), Clock("virtual"))
        selected = [make(made, choose(made, job=place), job=place, strict=True) for place in range(len(jobs))]
        return replace(with_selected(made, selected), rounds="free" if free else "together")

    out.mkdir(parents=True, exist_ok=True)
    roomy = planned()
    (case,) = roomy.cases
    room = [max(LEAST_BYTES, int(share * most) + 1) for most in room_needed(roomy, case)]
    for place, link in enumerate(network["links"]):
        link["queue"], link["reverse"]["queue"] = (f"{each} B" for each in room[2 * place : 2 * place + 2])
    return planned()


def training(number: int, seed: int, share: float, out: Path, *, name: str) -> command.GuestTraining:
    """Its plan, and where its run goes."""
    return command.GuestTraining(lighter(asked(number, seed, out, name, share))[0], out / name)


def dropped(taken: boots.Taken, name: str) -> int:
    """Packets that no queue of a run had room for."""
    return int(pd.read_parquet(taken.out / name / "links.parquet", columns=["dropped"])["dropped"].sum())


def full_before(taken: boots.Taken, name: str) -> list[str]:
    """Labels of a run's cases that began when a queue had been full."""
    evidence = json.loads((taken.out / name / "evidence.json").read_text(encoding="utf-8"))
    return [label for label, found in evidence.items() if found["full_before"]]


def main() -> int:
    """Measure them; 1 where a queue with all the room loses something, 0 otherwise."""
    parser = options.parser(__doc__)
    options.add_drawn(parser, "short-queues", plans=60, per_boot=15)
    arguments = parser.parse_args()
    exact, short = (
        boots.take(
            arguments,
            {
                f"plan-{n:03d}-{which}": partial(training, n, arguments.seed, share, name=f"plan-{n:03d}-{which}")
                for n in options.numbers(arguments)
            },
        )
        for which, share in WAYS.items()
    )
    report.show_worst(exact, most=10)
    claims = [*of_exact(exact), of_short(short)]
    return report.close(arguments, Topic.TRUTH, exact, claims)


def of_exact(taken: boots.Taken) -> list[Claim]:
    """Nothing is lost while iterations go on; where something was while ranks connected, that is said."""
    losing = [name for name in taken.comparisons if dropped(taken, name)]
    for name in losing:
        print(f"{name} dropped {dropped(taken, name)}")
    early = {(name, label) for name in taken.comparisons for label in full_before(taken, name)}
    begun = [row for row in taken.rows if (row.plan, row.label.partition(" of ")[0]) in early]
    rest, untrusted = [row for row in taken.rows if row not in begun], [row for row in begun if not row.trusted]
    unsaid = [row for row in untrusted if "while ranks connected" not in "".join(row.found["reasons"])]
    none_lost = f"{len(losing)} of {len(taken.comparisons)}"
    of_begun = f"{len(untrusted) - len(unsaid)} of {len(untrusted)}, of {len(begun)} where one was"
    connecting = "such runs that are untrusted, as a queue was full while ranks connected: it is said"
    return [
        report.truth("plans whose queues have exactly the room that is foretold", taken, TARGET, rest),
        report.count("such queues that drop a packet", taken, len(losing), "none", none_lost),
        report.count(connecting, taken, len(unsaid), "each", of_begun),
    ]


def of_short(taken: boots.Taken) -> Claim:
    """What drops packets was told of; a training may end by that, as an iteration takes too long."""
    full = [name for name in taken.comparisons if dropped(taken, name)]
    unnamed = [
        name for name in full if not any("queue overflows" in line for line in taken.comparisons[name]["warnings"])
    ]
    ended = f", {len(taken.failed)} ended by that" if taken.failed else ""
    got = f"{len(unnamed)} of {len(full)} that drop some, of {len(taken.comparisons)}{ended}"
    what = f"with {SHORT:.0%} of it: plans that drop packets and were not told of it"
    return Claim(what, "none", got, not unnamed, float(len(unnamed)), "wrong", taken.asked, taken.asked)


if __name__ == "__main__":
    sys.exit(main())
