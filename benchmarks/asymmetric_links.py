"""Under the virtual clock: measured against predicted where the two directions of a link are nothing alike.

    python benchmarks/asymmetric_links.py [--plans 60] [--schedules 3] [--first 0] [--seed 1] [--out DIR]

Plans drawn at random: P = 2, 3 or 4 over 2 to 4 datacenters in a chain, ring or star; the directions of every link are
10 to 200 times apart in rate, and as far in delay, the slow one either way, and not the same for both; messages of
10 kB to 1 MB; unequal stages; odd M; contiguous or scattered placement; early or late receives. So acknowledgements
wait behind messages, and come back long after their messages or at once. Prints the worst runs, whether measuring ranks
the schedules as predicted, and by how much what crossed a link differs from the plan; writes every comparison to --out.
A prediction that is a range is missed by what lies between it and the measured time.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from random_grid import missed
from rich.console import Console
from rich.table import Table

from testbed.plan.plan import Clock, Plan
from testbed.plan.resolve import generate, load_plan, with_cases
from testbed.plan.schedules import choose
from testbed.progress import Lines
from testbed.vm import command

ROOT = Path(__file__).parents[1]
TARGET = 0.0005
FORWARD_S = 0.02
LIMIT_S = 3000.0
SITES = ("oslo", "bonn", "rome", "lima")
SCHEDULES = ("interleaved-1f1b", "zb1p", "looped-bfs", "zb-h1", "crosspipe-greedy", "1f1b")
FASTEST_BPS, SLOWEST_BPS = 10e9, 1e6


def link(draw: random.Random, ends: tuple[str, str], message: int) -> dict[str, Any]:
    """A message takes the slow direction a third of a forward to ten; its delay is 0.03 to 3 forwards."""
    apart_rate, apart_delay = (10 ** draw.uniform(1.0, 2.3) for _ in range(2))
    slow_bps = max(SLOWEST_BPS, 8 * message / (FORWARD_S * 10 ** draw.uniform(-0.5, 1.0)))
    slow_bps = min(slow_bps, FASTEST_BPS / apart_rate)
    far_s = FORWARD_S * 10 ** draw.uniform(-1.5, 0.5)
    rates = [slow_bps, slow_bps * apart_rate]
    delays = [far_s, far_s / apart_delay]
    for pair in (rates, delays):
        draw.shuffle(pair)
    both = [{"delay": f"{1e6 * d:.1f} us", "rate": f"{r:.0f} bit/s"} for d, r in zip(delays, rates, strict=True)]
    return {"between": list(ends), "forward": both[0], "reverse": both[1]}


def documents(number: int, seed: int, schedules: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The topology and the workload of a plan, as files say it."""
    draw = random.Random(f"asymmetric/{seed}/{number}")
    ranks = draw.choice((2, 2, 3, 4))
    message, microbatches = round(10 ** draw.uniform(4, 6)), 2 * draw.randint(1, ranks) + 1
    sites = SITES[: draw.randint(2, ranks)]
    nodes = [1] * len(sites)
    for _ in range(ranks - len(sites)):
        nodes[draw.randrange(len(sites))] += 1
    shape = draw.choice(("chain", "ring", "star") if len(sites) > 2 else ("chain",))
    pairs = [(sites[0], site) for site in sites[1:]] if shape == "star" else list(pairwise(sites))
    pairs += [(sites[-1], sites[0])] if shape == "ring" else []
    topology = {
        "name": f"asymmetric-{shape}",
        "datacenters": {site: {"nodes": n} for site, n in zip(sites, nodes, strict=True)},
        "links": [link(draw, pair, message) for pair in pairs],
    }
    names = [f"{site}/{n}" for site, count in zip(sites, nodes, strict=True) for n in range(count)]

    def times() -> list[str]:
        return [f"{1e3 * FORWARD_S * draw.uniform(0.25, 1.6):.3f} ms" for _ in range(ranks)]

    workload = {
        "name": "asymmetric",
        "model": {"layers": 2 * ranks, "d_model": 16, "heads": 2, "sequence": 8},
        "parallelism": {"pipeline": ranks},
        "microbatches": microbatches,
        "microbatch_size": 1,
        "placement": draw.sample(names, ranks) if draw.random() < 0.5 else names,
        "pacing": {"F": times(), "I": times(), "W": times()},
        "message": f"{message} B",
        "memory": 2 * max(ranks, microbatches),
        "receives": draw.choice(("early", "late")),
        "schedules": draw.sample(SCHEDULES, schedules),
        "iterations": 1,
        "warmup": 1,
    }
    return topology, workload


def plan_of(number: int, seed: int, schedules: int, place: Path) -> Plan:
    """A plan with its schedules made; its files are left in `place`."""
    place.mkdir(parents=True, exist_ok=True)
    files = [place / f"plan-{number:03d}.{kind}.yaml" for kind in ("topology", "workload")]
    for path, document in zip(files, documents(number, seed, schedules), strict=True):
        path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    plan = load_plan(*files)
    choices = choose(plan)
    return with_cases(plan, choices, {choice.label: generate(plan, choice) for choice in choices})


def main() -> int:
    """Run the plans; 1 when an error exceeds the target, a run is untrusted or a ranking differs, 0 otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, default=60)
    parser.add_argument("--first", type=int, default=0, help="number of the first plan")
    parser.add_argument("--schedules", type=int, default=3, help="per plan")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--per-boot", type=int, default=10, help="plans in one boot")
    parser.add_argument("--out", type=Path, default=ROOT / "results/asymmetric-links")
    arguments = parser.parse_args()
    found: dict[int, dict[str, Any] | None] = {}
    numbers = range(arguments.first, arguments.first + arguments.plans)
    for begin in numbers[:: arguments.per_boot]:
        began, batch = time.monotonic(), numbers[begin - numbers.start :][: arguments.per_boot]
        trainings = [
            command.Training(
                plan_of(n, arguments.seed, arguments.schedules, arguments.out), directory(arguments.out, n)
            )
            for n in batch
        ]
        machine = command.choose_machine(Clock("virtual"))
        _, documents = command.train(machine, trainings, limit_s=LIMIT_S, reporter=Lines(quiet=True))
        found |= dict.fromkeys(batch) | dict(zip(batch, documents, strict=False))
        print(f"plans {batch[0]} to {batch[-1]}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return report(found, arguments.out)


def directory(out: Path, number: int) -> Path:
    """Where the results of a plan go."""
    return out / f"plan-{number:03d}"


def off_the_plan(found: Path) -> float:
    """By how many bytes the links carried more or less than planned in all, as a share of what was planned."""
    links = pd.read_parquet(found / "links.parquet")
    return float((links["wire_bytes"] - links["planned_bytes"]).abs().sum() / links["planned_bytes"].sum())


def report(found: dict[int, dict[str, Any] | None], out: Path) -> int:
    """Print what came of the plans."""
    rows = []
    for number, document in found.items():
        job = yaml.safe_load((out / f"plan-{number:03d}.workload.yaml").read_text(encoding="utf-8"))
        rows += [(missed(row), number, job, row) for row in (document or {"schedules": []})["schedules"]]
    rows.sort(key=lambda row: -row[0])
    table = Table(title="worst of all", title_justify="left")
    for column in ("plan", "schedule", "P", "M", "message", "receives", "error", "trusted"):
        table.add_column(column, justify="right")
    for _, number, job, row in rows[:12]:
        cells = (row["schedule"], job["parallelism"]["pipeline"], job["microbatches"], job["message"], job["receives"])
        table.add_row(str(number), *map(str, cells), f"{row['error']:+.4%}", "yes" if row["trusted"] else "NO")
    Console(width=110).print(table)
    for receives in ("early", "late"):
        errors = [error for error, _, job, _ in rows if job["receives"] == receives]
        if errors:
            print(f"{receives}: {len(errors)} runs, worst {max(errors):.4%}, median {statistics.median(errors):.4%}")
    missing = [number for number, document in found.items() if document is None]
    if bytes_off := [off_the_plan(directory(out, number)) for number in found if number not in missing]:
        print(f"bytes on links off the plan: worst {max(bytes_off):.4%}, median {statistics.median(bytes_off):.4%}")
    untrusted = [(number, row["schedule"], row["reasons"]) for _, number, _, row in rows if not row["trusted"]]
    misranked = [number for number, document in found.items() if document and not document["ranking_as_predicted"]]
    ranges = sum(row["predicted_low_s"] is not None for *_, row in rows)
    print(f"{len(rows)} runs, {ranges} predictions are ranges, not ranked as predicted: {misranked}, failed: {missing}")
    for number, schedule, reasons in untrusted:
        print(f"untrusted: plan {number}, {schedule}: {'; '.join(reasons)}")
    (out / "summary.json").write_text(json.dumps([[n, r] for _, n, _, r in rows], indent=1), encoding="utf-8")
    return int(bool(missing or untrusted or misranked or not rows or rows[0][0] > TARGET))


if __name__ == "__main__":
    sys.exit(main())
