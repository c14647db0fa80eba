"""Under the virtual clock: is any undisturbed run called untrusted? Plans as unlike each other as can be drawn.

    python benchmarks/undisturbed.py [--plans 60] [--first 0] [--seed 7] [--real] [--per-boot 15] [--out DIR]

A third are cells of random_grid.py (unequal links and stages), a third plans in which much happens at one instant
(its --equal), a third meshes with replicas and tensor ranks, with and without equal network cards. One schedule each,
five measured iterations. Prints every run that is untrusted with its reasons, and those of which something is noted;
exit code 1 where one is untrusted whose time is within 0.1 % of its prediction. With --real, each plan on the real
clock, where a run may rightly be untrusted (a busy processor, slow message handling): no exit code 1.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import hybrid_grid
import random_grid
import yaml
from front_door import testbed

from testbed.plan.plan import Clock
from testbed.plan.resolve import load_plan
from testbed.progress import Lines
from testbed.vm import command

ROOT = Path(__file__).parents[1]
LIMIT = 0.001
ITERATIONS = 5
LIMIT_S = 3000.0
MESHES = ((2, 2, 1), (2, 1, 4), (1, 2, 2), (2, 2, 2), (4, 1, 1), (2, 1, 2), (1, 2, 4))


def training(number: int, seed: int, out: Path) -> command.Training:
    """Plan `number`, as files and with its schedule made."""
    if number % 3 < 2:
        drawn = random_grid.training(number, seed, 1, number % 3 == 1, out)
        files = [out / f"{drawn.directory.name}.{kind}.yaml" for kind in ("topology", "workload")]
        plan = load_plan(*files, settings=(f"iterations={ITERATIONS}", "warmup=1"))
        return replace(drawn, plan=random_grid.made(plan, number))
    return hybrid(number, seed, out)


def hybrid(number: int, seed: int, out: Path) -> command.Training:
    """A mesh over three datacenters; in every other one nodes have network cards, all alike."""
    draw = random.Random(f"undisturbed/{seed}/{number}")
    mesh = MESHES[number // 3 % len(MESHES)]
    chosen = draw.choice(hybrid_grid.cells((mesh,)))
    message = 10 ** draw.uniform(4.5, 5.3)
    topology, workload = hybrid_grid.topology(chosen, draw, message), hybrid_grid.workload(chosen, draw, message)
    if number % 2:
        card = {"delay": "20 us", "rate": f"{draw.choice((200, 500, 1000))} Mbit/s"}
        for site in topology["datacenters"].values():
            site["inside"] = card
    workload |= {"schedules": [draw.choice(hybrid_grid.SCHEDULES)], "iterations": ITERATIONS, "warmup": 1}
    out.mkdir(parents=True, exist_ok=True)
    name = f"cell-{number:03d}"
    for kind, document in (("topology", topology), ("workload", workload)):
        (out / f"{name}.{kind}.yaml").write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    plan = load_plan(*(out / f"{name}.{kind}.yaml" for kind in ("topology", "workload")))
    return command.Training(random_grid.made(plan, number), out / name)


def main() -> int:
    """Run them; 1 where a run that nothing disturbed is untrusted, or one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, default=60)
    parser.add_argument("--first", type=int, default=0, help="number of the first plan")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--real", action="store_true", help="on the real clock")
    parser.add_argument("--per-boot", type=int, default=15, help="plans in one boot")
    parser.add_argument("--out", type=Path, default=ROOT / "results/undisturbed")
    arguments = parser.parse_args()
    numbers = range(arguments.first, arguments.first + arguments.plans)
    trainings = {number: training(number, arguments.seed, arguments.out) for number in numbers}
    found: dict[int, dict[str, Any] | None] = {}
    per_boot = 1 if arguments.real else arguments.per_boot
    for begin in numbers[::per_boot]:
        began, batch = time.monotonic(), [number for number in numbers if begin <= number < begin + per_boot]
        each = [trainings[number] for number in batch]
        found |= dict(zip(batch, measured(each, real=arguments.real), strict=False))
        print(f"plans {batch[0]} to {batch[-1]}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    return report(found, real=arguments.real)


def measured(batch: list[command.Training], *, real: bool) -> list[dict[str, Any] | None]:
    """Comparison of each, None where it failed."""
    if real:
        return [on_the_real_clock(one.directory) for one in batch]
    machine = command.choose_machine(Clock("virtual"))
    _, documents = command.train(machine, batch, limit_s=LIMIT_S, reporter=Lines(quiet=True))
    return documents


def on_the_real_clock(directory: Path) -> dict[str, Any] | None:
    """Its comparison."""
    files = [str(directory.with_name(f"{directory.name}.{kind}.yaml")) for kind in ("topology", "workload")]
    few = ("--iterations", str(ITERATIONS), "--set", "warmup=2")
    _, document, said = testbed("run", *files, *few, "--out", str(directory), "--overwrite")
    if document is None:
        print(f"{directory.name}: {said}", file=sys.stderr)
    return document


def report(found: dict[int, dict[str, Any] | None], *, real: bool) -> int:
    """Print what came of them."""
    rows = [(number, row) for number, document in found.items() if document for row in document["schedules"]]
    wrongly = 0
    for number, row in rows:
        missed = random_grid.missed(row)
        if not row["trusted"]:
            wrongly += missed <= LIMIT
            print(f"plan {number}, {row['label']}: off by {missed:.4%}, untrusted: {' | '.join(row['reasons'])}")
        elif row.get("notes"):
            print(f"plan {number}, {row['label']}: off by {missed:.4%}, noted: {' | '.join(row['notes'])}")
    failed = [number for number, document in found.items() if document is None]
    untrusted = sum(not row["trusted"] for _, row in rows)
    worst = max((random_grid.missed(row) for _, row in rows), default=0.0)
    print(f"{len(rows)} runs, worst off by {worst:.4%}; untrusted {untrusted}, wrongly {wrongly}; failed: {failed}")
    print(json.dumps([number for number, row in rows if not row["trusted"]]))
    return int(bool(failed or not rows or (wrongly and not real)))


if __name__ == "__main__":
    sys.exit(main())
