"""Under the virtual clock: measured against predicted on cells drawn at random; no constant was found on any of them.

    python benchmarks/random_grid.py [--cells 100] [--schedules 6] [--first 0] [--seed 1] [--equal] [--out DIR]

P = 3, 5, 6 or 7 over 2 to 5 unequal datacenters in a chain, ring or star; delay and rate of every direction for itself;
stages of unequal length; messages of 10 kB to 4 MB; odd M; contiguous or scattered placement; early or late receives;
with or without recompute; six schedules that need no solver. Prints the worst cells, what distinguishes them, and
whether measuring ranks the schedules as predicted; writes every comparison to --out. With --equal, plans in which much
happens at one instant: equal slots and links, delays and rates in whole quarters of a slot, ranks placed in turns. A
prediction that is a range, by who comes first, is missed by what lies between it and the measured time.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from testbed.errors import BadInput
from testbed.plan.framing import wire_bytes
from testbed.plan.plan import Clock, Plan
from testbed.plan.resolve import generate, load_plan, with_cases
from testbed.plan.schedules import choose
from testbed.progress import Lines
from testbed.schedule.registry import FAMILIES
from testbed.vm import command

ROOT = Path(__file__).parents[1]
TARGET = 0.001
FORWARD_S = 0.02
LIMIT_S = 3000.0
NAMES = ("oslo", "bonn", "rome", "lima", "cairo")


def topology(draw: random.Random, ranks: int, message: float) -> dict[str, Any]:
    """Unequal datacenters with room for all ranks, and directions that differ."""
    count = draw.randint(2, min(5, ranks))
    sites = NAMES[:count]
    nodes = [1] * count
    for _ in range(ranks - count):
        nodes[draw.randrange(count)] += 1
    shape = draw.choice(("chain", "ring", "star") if count > 2 else ("chain",))
    pairs = [(sites[0], site) for site in sites[1:]] if shape == "star" else list(pairwise(sites))
    pairs += [(sites[-1], sites[0])] if shape == "ring" else []

    def direction() -> dict[str, str]:
        wire_s = FORWARD_S * 10 ** draw.uniform(-1.5, 0.3)
        rate = min(10e9, max(2e6, 8 * message / wire_s))
        return {"delay": f"{10 ** draw.uniform(-0.5, 1.6):.3f} ms", "rate": f"{rate:.0f} bit/s"}

    links = [{"between": list(pair), "forward": direction(), "reverse": direction()} for pair in pairs]
    datacenters = {site: {"nodes": n} for site, n in zip(sites, nodes, strict=True)}
    return {"name": f"random-{shape}", "datacenters": datacenters, "links": links}


def workload(draw: random.Random, ranks: int, message: float, nodes: list[str], schedules: int) -> dict[str, Any]:
    """Unequal stages, an odd number of microbatches, memory for any schedule."""
    microbatches = 2 * draw.randint(1, ranks) + 1

    def times() -> list[str]:
        return [f"{1e3 * FORWARD_S * draw.uniform(0.4, 1.6):.3f} ms" for _ in range(ranks)]

    placed = draw.sample(nodes, ranks) if draw.random() < 0.5 else nodes
    names = draw.sample([name for name, family in FAMILIES.items() if not family.solver], schedules)
    return {
        "name": "random",
        "model": {"layers": 2 * ranks, "d_model": 16, "heads": 2, "sequence": 16},
        "parallelism": {"pipeline": ranks},
        "microbatches": microbatches,
        "microbatch_size": 1,
        "placement": placed,
        "pacing": {"F": times(), "I": times(), "W": times()},
        "message": f"{message:.0f} B",
        "memory": 2 * max(ranks, microbatches),
        "receives": draw.choice(("early", "late")),
        "recompute": draw.random() < 0.3,
        "schedules": names,
        "iterations": 1,
        "warmup": 2,
    }


def equal_topology(draw: random.Random, ranks: int, message: float) -> dict[str, Any]:
    """Datacenters with links that are all alike, of delays and rates in whole quarters of a slot."""
    count = draw.randint(2, min(4, ranks))
    sites = NAMES[:count]
    nodes = {site: {"nodes": ranks // count + (place < ranks % count)} for place, site in enumerate(sites)}
    shape = draw.choice(("chain", "ring", "star") if count > 2 else ("chain",))
    pairs = [(sites[0], site) for site in sites[1:]] if shape == "star" else list(pairwise(sites))
    pairs += [(sites[-1], sites[0])] if shape == "ring" else []
    delay_s = FORWARD_S * draw.choice((0.25, 0.5, 1.0, 2.0))
    rate_bps = 8 * wire_bytes(round(message)) / (FORWARD_S * draw.choice((0.25, 0.5, 1.0, 1.5)))
    link = {"delay": f"{1e3 * delay_s:g} ms", "rate": f"{rate_bps:.0f} bit/s"}
    return {
        "name": f"equal-{shape}",
        "datacenters": nodes,
        "links": [{"between": list(pair), **link} for pair in pairs],
    }


def equal_workload(draw: random.Random, ranks: int, message: float, nodes: list[str], schedules: int) -> dict[str, Any]:
    """Stages of one length, placed datacenter by datacenter, in turns, or anyhow."""
    job = workload(draw, ranks, message, nodes, schedules)
    in_turns = sorted(nodes, key=lambda node: int(node.partition("/")[2]))
    slot = f"{1e3 * FORWARD_S:g} ms"
    quick = [name for name, family in FAMILIES.items() if not family.solver and name != "search"]
    return job | {
        "name": "equal",
        "microbatches": draw.choice((ranks, ranks + 1, 2 * ranks)),
        "placement": draw.choice((nodes, in_turns, in_turns, draw.sample(nodes, ranks))),
        "pacing": {"F": slot, "I": slot, "W": draw.choice((slot, f"{5e2 * FORWARD_S:g} ms"))},
        "receives": draw.choice(("early", "early", "late")),
        "recompute": False,
        "schedules": draw.sample(quick, schedules),
        "warmup": 1,
    }


def training(number: int, seed: int, schedules: int, equal: bool, out: Path) -> command.Training:
    """A cell as files, with its schedules made; those that do not fit are left out."""
    draw = random.Random(f"equal/{seed}/{number}" if equal else f"{seed}/{number}")
    ranks = draw.choice((3, 4, 5, 6) if equal else (3, 5, 6, 7))
    message = 60e3 if equal else 10 ** draw.uniform(4, 6.6)
    network = (equal_topology if equal else topology)(draw, ranks, message)
    nodes = [f"{site}/{n}" for site, spec in network["datacenters"].items() for n in range(spec["nodes"])]
    job = (equal_workload if equal else workload)(draw, ranks, message, nodes, schedules)
    directory = out / f"cell-{number:03d}"
    directory.mkdir(parents=True, exist_ok=True)
    files = [out / f"cell-{number:03d}.{kind}.yaml" for kind in ("topology", "workload")]
    for path, document in zip(files, (network, job), strict=True):
        path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return command.Training(made(load_plan(*files), number), directory)


def made(plan: Plan, number: int) -> Plan:
    """A cell's plan with its schedules; those that do not fit are left out."""
    found, choices = {}, []
    for choice in choose(plan):
        try:
            found[choice.label] = generate(plan, choice)
            choices.append(choice)
        except BadInput as error:
            print(f"cell {number}: {error}", file=sys.stderr)
    return with_cases(plan, choices, found)


def main() -> int:
    """Run the grid; 1 when an error exceeds the target, a run is untrusted or a ranking differs, 0 otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="number of the first cell")
    parser.add_argument("--schedules", type=int, default=6, help="per cell")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--per-boot", type=int, default=25, help="cells in one boot")
    parser.add_argument("--equal", action="store_true", help="plans in which much happens at one instant")
    parser.add_argument("--out", type=Path, default=ROOT / "results/random-grid")
    arguments = parser.parse_args()
    reporter, found = Lines(quiet=True), {}
    numbers = range(arguments.first, arguments.first + arguments.cells)
    for begin in numbers[:: arguments.per_boot]:
        began = time.monotonic()
        batch = [n for n in numbers if begin <= n < begin + arguments.per_boot]
        trainings = [training(n, arguments.seed, arguments.schedules, arguments.equal, arguments.out) for n in batch]
        made_s, machine = time.monotonic() - began, command.choose_machine(Clock("virtual"))
        _, documents = command.train(machine, trainings, limit_s=LIMIT_S, reporter=reporter)
        found |= dict(zip(batch, documents, strict=False))
        took_s = time.monotonic() - began
        print(f"cells {batch[0]} to {batch[-1]}: {took_s:.0f} s, {made_s:.0f} of it for schedules", file=sys.stderr)
    return report(found, arguments.out)


def missed(row: dict[str, Any]) -> float:
    """By what share a measured time misses its prediction, or the nearer end of its range."""
    low, high = row["predicted_low_s"] or row["predicted_s"], row["predicted_high_s"] or row["predicted_s"]
    return float(max(low - row["measured_s"], row["measured_s"] - high, 0.0) / row["predicted_s"])


def report(found: dict[int, dict[str, Any] | None], out: Path) -> int:
    """Print what came of the cells."""
    rows = []
    for number, document in found.items():
        job = yaml.safe_load((out / f"cell-{number:03d}.workload.yaml").read_text(encoding="utf-8"))
        for row in (document or {"schedules": []})["schedules"]:
            rows.append((missed(row), number, job, row))
    rows.sort(key=lambda row: -row[0])
    table = Table(title="worst of all", title_justify="left")
    for column in ("cell", "schedule", "P", "M", "message", "receives", "error", "trusted"):
        table.add_column(column, justify="right")
    for _, number, job, row in rows[:12]:
        cells = (row["schedule"], job["parallelism"]["pipeline"], job["microbatches"], job["message"], job["receives"])
        table.add_row(str(number), *map(str, cells), f"{row['error']:+.4%}", "yes" if row["trusted"] else "NO")
    console = Console(width=110)
    console.print(table)
    missing = [number for number, document in found.items() if document is None]
    untrusted = sum(not row["trusted"] for *_, row in rows)
    misranked = [n for n, document in found.items() if document and not document["ranking_as_predicted"]]
    for receives in ("early", "late"):
        errors = sorted(error for error, _, job, _ in rows if job["receives"] == receives)
        if errors:
            middle = errors[len(errors) // 2]
            print(f"{receives}: {len(errors)} runs, worst {errors[-1]:.4%}, median {middle:.4%}")
    ranges = [row for *_, row in rows if (row["predicted_low_s"] or 0.0) < (row["predicted_high_s"] or 0.0)]
    off = sum(abs(row["error"]) > TARGET for row in ranges)
    print(f"{len(ranges)} predictions are ranges, {off} of these runs are off the single prediction by > {TARGET:.1%}")
    print(f"{len(rows)} runs, {untrusted} untrusted, not ranked as predicted: {misranked}, failed cells: {missing}")
    (out / "summary.json").write_text(json.dumps([[n, r] for _, n, _, r in rows], indent=1), encoding="utf-8")
    return int(bool(missing or untrusted or misranked or not rows or rows[0][0] > TARGET))


if __name__ == "__main__":
    sys.exit(main())
