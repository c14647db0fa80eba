"""Messages at one instant under the virtual clock: what the guest's one processor makes of them, foretold and measured.

    python benchmarks/guest_costs.py [--plans 12] [--seed 1] [--first 0] [--out DIR]

Replicas (2 to 6) and tensor ranks (1, 2 or 4) of one or two stages in one datacenter, with and without network cards,
slots of 1 to 20 ms, every way of exchanging parameters and gradients, shards of 10 to 300 kB; one schedule each, all in
one boot. Prints for every plan by what share the model of the guest (model/guest.py) says that an iteration is longer,
by what share it is, and what is said of it. A fault is a plan that is untrusted, or that counts
as covered and is further than 0.05 % from its prediction or its range; exit code 1 where there is one.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from harness.rows import rows_of
from rich.console import Console
from rich.table import Table

from testbed.model.guest import guest_shares
from testbed.plan.plan import Clock, Plan
from testbed.planning.prediction import loads_of_case
from testbed.planning.resolve import load_plan, with_cases, with_clock
from testbed.planning.schedules import choose, make
from testbed.progress import Lines
from testbed.vm import command

ROOT = Path(__file__).parents[1]
TARGET = 0.0005
LIMIT_S = 3000.0
SHAPES = ((1, 2, 1), (1, 4, 1), (1, 6, 1), (1, 3, 2), (1, 2, 4), (2, 2, 2), (2, 3, 1), (1, 3, 4))
"""Stages, replicas, tensor ranks."""


def plan_of(number: int, seed: int, out: Path) -> Plan:
    """Plan `number`, as files and as the plan that is made of them."""
    draw = random.Random(f"guest-costs/{seed}/{number}")
    pipeline, data, tensor = SHAPES[number % len(SHAPES)]
    card = {"inside": {"delay": "10 us", "rate": "10 Gbit/s"}} if draw.random() < 0.3 else {}
    topology = {
        "name": "one-site",
        "datacenters": {"a": {"nodes": pipeline * data * tensor} | card, "b": {"nodes": 1}},
        "links": [{"between": ["a", "b"], "delay": "1 ms", "rate": "1 Gbit/s"}],
    }
    places = [f"a/{node}" for node in range(pipeline * data * tensor)]
    each = pipeline * tensor
    slot_ms = 10 ** draw.uniform(0, 1.3)
    workload = {
        "name": "at-once",
        "model": {"layers": 2 * pipeline, "d_model": 16, "heads": 4, "sequence": 8},
        "parallelism": {"pipeline": pipeline, "data": data, "tensor": tensor},
        "microbatches": draw.choice((1, 2, 4)),
        "microbatch_size": 1,
        "placement": places[:each],
        "pacing": {kind: f"{slot_ms * draw.uniform(0.7, 1.3):.3f} ms" for kind in ("F", "I", "W")},
        "message": "20 kB",
        "memory": 16,
        "schedules": [draw.choice(("1f1b", "gpipe", "zb-h1"))],
        "data_parallel": {
            "sharding": draw.choice(("zero-1", "none")),
            "algorithm": draw.choice(("ring", "hierarchical")),
            "parameters": f"{10 ** draw.uniform(4, 5.5) * data:.0f} B",
            "replicas": [places[n * each : (n + 1) * each] for n in range(1, data)],
        },
        "receives": draw.choice(("early", "late")),
        "iterations": 2,
        "warmup": 1,
    }
    out.mkdir(parents=True, exist_ok=True)
    files = {}
    for kind, document in (("topology", topology), ("workload", workload)):
        files[kind] = out / f"plan-{number:03d}.{kind}.yaml"
        files[kind].write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    plan = with_clock(load_plan(files["topology"], files["workload"]), Clock("virtual"))
    made = make(plan, choose(plan))
    return with_cases(plan, made.choices, made.made)


def foretold(plan: Plan) -> float:
    """By what share the guest makes an iteration longer, however small."""
    (share,) = guest_shares(loads_of_case(plan, plan.cases[0]), 0.0)
    return share


def report(plans: Sequence[tuple[int, Plan]], documents: Sequence[Mapping[str, Any] | None]) -> int:
    """Print what came of them; 1 where one is a fault."""
    table = Table(title_justify="left")
    for column in (
        "plan",
        "stages x replicas x tensor",
        "slots",
        "exchange",
        "foretold",
        "measured",
        "covered",
        "trusted",
    ):
        table.add_column(column, justify="right")
    faults, apart = [], []
    for (number, plan), document in zip(plans, documents, strict=True):
        mesh, how = plan.jobs[0].mesh, plan.jobs[0].workload.data_parallel
        if document is None:
            faults.append(f"plan {number}: no comparison")
            continue
        (row,) = document["schedules"]
        share, off = foretold(plan), rows_of(f"plan {number}", document, {})[0].missed
        apart.append(abs(row["error"] - share))
        shape = f"{mesh.pp} x {mesh.dp} x {mesh.tp}"
        exchange = f"{how.sharding} {how.algorithm}"
        iteration = f"{1e3 * row['predicted_s']:.1f} ms"
        said = ["yes" if row[name] else "no" for name in ("covered", "trusted")]
        table.add_row(str(number), shape, iteration, exchange, f"{share:.3%}", f"{row['error']:+.3%}", *said)
        if not row["trusted"]:
            faults.append(f"plan {number} {row['error']:+.3%} untrusted: {row['reasons'][0]}")
        elif row["covered"] and off > TARGET:
            faults.append(f"plan {number} {row['error']:+.3%} covered, trusted")
    Console(width=140).print(table)
    if apart:
        print(
            f"{len(apart)} plans; foretold and measured apart by {statistics.median(apart):.3%}, worst {max(apart):.3%}"
        )
    print("\n".join(f"FAULT {one}" for one in faults) or "no fault")
    return int(bool(faults or not apart))


def main() -> int:
    """Measure them; 1 where there is a fault, 0 otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, default=12)
    parser.add_argument("--first", type=int, default=0, help="number of the first plan")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "results/guest-costs")
    arguments = parser.parse_args()
    numbers = range(arguments.first, arguments.first + arguments.plans)
    plans = [(number, plan_of(number, arguments.seed, arguments.out)) for number in numbers]
    trainings = [command.Training(plan, arguments.out / f"plan-{number:03d}") for number, plan in plans]
    machine = command.choose_machine(Clock("virtual"))
    _, documents = command.train(machine, trainings, limit_s=LIMIT_S, reporter=Lines(quiet=True))
    return report(plans, documents)


if __name__ == "__main__":
    sys.exit(main())
