"""Under the virtual clock: do predictions that are ranges hold? Random plans with late receives and tensor ranks.

    python benchmarks/ranges.py [--plans 300] [--first 0] [--seed 1] [--per-boot 20] [--recorded] [--out DIR]

Half of the plans have late receives, half tensor ranks (early or late); 2 to 12 ranks in 2 to 5 datacenters, a delay
and a rate of every direction for itself, some with network cards, some with replicas, some with equal slots and links;
odd M; three schedules each. A row is good when it is measured within 0.05 % of its prediction or of its range. Prints
the rows that are trusted and not good, how many predictions are ranges, and how wide they are: a range that is always
wide says nothing. With --recorded, what was measured before into --out is held against today's model, without a boot.
Exit 1 when a trusted row is not good, or a correct run is untrusted.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from random_grid import FORWARD_S, equal_topology, topology
from rich.console import Console
from rich.table import Table

from testbed.errors import BadInput
from testbed.plan import file
from testbed.plan.plan import Clock
from testbed.plan.resolve import generate, load_plan, with_cases
from testbed.plan.schedules import choose
from testbed.plan.together import predict_together, ranges_of_case
from testbed.progress import Lines
from testbed.schedule.registry import FAMILIES
from testbed.vm import command

ROOT = Path(__file__).parents[1]
NEAR = 5e-4
"""By what share a measured time may miss its prediction, or the nearer end of its range."""
MOST_RANKS = 12
SCHEDULES = 3
LIMIT_S = 3000.0


class Found(NamedTuple):
    """One schedule of one plan, in seconds."""

    plan: str
    kind: str
    schedule: str
    measured_s: float
    predicted_s: float
    low_s: float
    high_s: float
    trusted: bool

    @property
    def missed(self) -> float:
        """Share of the prediction by which what was measured lies outside of its range."""
        return max(self.low_s - self.measured_s, self.measured_s - self.high_s, 0.0) / self.predicted_s

    @property
    def width(self) -> float:
        """Of the range, as a share of the prediction."""
        return (self.high_s - self.low_s) / self.predicted_s


def documents(number: int, seed: int) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """What kind of plan it is, its topology and its workload."""
    draw = random.Random(f"ranges/{seed}/{number}")
    kind = ("late", "tensor")[number % 2]
    tp = 1 if kind == "late" else draw.choice((2, 2, 2, 4))
    pp = draw.randint(2, 5 if tp == 1 else 3)
    dp = draw.choice([n for n in (1, 1, 2, 3) if n * pp * tp <= MOST_RANKS])
    equal = draw.random() < 0.25
    message = 60e3 if equal else 10 ** draw.uniform(4, 5.7)
    network = (equal_topology if equal else topology)(draw, dp * pp, message)
    stages = [(site, n) for site, spec in network["datacenters"].items() for n in range(spec["nodes"])]
    if draw.random() < 0.5:
        draw.shuffle(stages)
    for spec in network["datacenters"].values():
        spec["nodes"] *= tp
    if draw.random() < 0.3:
        wire_s = FORWARD_S * draw.uniform(0.01, 0.2)
        for spec in network["datacenters"].values():
            rate = min(9e9, max(2e7, 8 * message / wire_s))
            spec["inside"] = {"rate": f"{rate:.0f} bit/s", "delay": f"{draw.choice((0.0, 0.02, 0.1))} ms"}
    nodes = [f"{site}/{tp * n + t}" for site, n in stages for t in range(tp)]
    each = [nodes[replica * pp * tp : (replica + 1) * pp * tp] for replica in range(dp)]
    slots = _slots(draw, pp, equal=equal)
    quick = [name for name, family in FAMILIES.items() if not family.solver and not name.startswith("search")]
    job: dict[str, Any] = {
        "name": f"{kind}-{number}",
        "model": {"layers": 2 * pp, "d_model": 16, "heads": 4, "sequence": 8},
        "parallelism": {"pipeline": pp, "data": dp, "tensor": tp},
        "microbatches": 2 * draw.randint(1, pp + 1) + 1,
        "microbatch_size": 1,
        "placement": each[0],
        "pacing": slots,
        "message": f"{message:.0f} B",
        "memory": 4 * pp + 4,
        "receives": "late" if kind == "late" else draw.choice(("early", "late")),
        "recompute": not equal and draw.random() < 0.3,
        "schedules": draw.sample(quick, SCHEDULES),
        "iterations": 1,
        "warmup": 1,
    }
    if dp > 1:
        job["data_parallel"] = {
            "parameters": f"{10 ** draw.uniform(4.5, 6):.0f} B",
            "sharding": draw.choice(("zero-1", "none")),
            "algorithm": draw.choice(("ring", "hierarchical")),
            "replicas": each[1:],
        }
    return kind, network, job


def _slots(draw: random.Random, pp: int, *, equal: bool) -> dict[str, Any]:
    if equal:
        return dict.fromkeys("FIW", f"{1000.0 * FORWARD_S:g} ms")
    return {kind: [f"{1e3 * FORWARD_S * draw.uniform(0.4, 1.6):.3f} ms" for _ in range(pp)] for kind in "FIW"}


def files(out: Path, number: int, seed: int) -> list[Path]:
    """Topology and workload of a plan, written."""
    _, *both = documents(number, seed)
    out.mkdir(parents=True, exist_ok=True)
    written = [out / f"plan-{number:03d}.{kind}.yaml" for kind in ("topology", "workload")]
    for path, document in zip(written, both, strict=True):
        path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return written


def training(number: int, seed: int, out: Path) -> command.Training:
    """A plan with those of its schedules that fit, and where its run goes."""
    plan, made, choices = load_plan(*files(out, number, seed)), {}, []
    for choice in choose(plan):
        try:
            made[choice.label] = generate(plan, choice)
            choices.append(choice)
        except BadInput as error:
            print(f"plan {number}: {error}", file=sys.stderr)
    return command.Training(with_cases(plan, choices, made), out / f"plan-{number:03d}")


def measure(numbers: range, seed: int, per_boot: int, out: Path) -> None:
    """Train every plan, several in a boot."""
    for begin in numbers[::per_boot]:
        began, batch = time.monotonic(), [n for n in numbers if begin <= n < begin + per_boot]
        machine = command.choose_machine(Clock("virtual"))
        trainings = [training(number, seed, out) for number in batch]
        command.train(machine, trainings, limit_s=LIMIT_S, reporter=Lines(quiet=True))
        print(f"plans {batch[0]} to {batch[-1]}: {time.monotonic() - began:.0f} s", file=sys.stderr)


def found_in(directory: Path, kind: str, *, anew: bool) -> list[Found]:
    """What a run measured, and what was predicted of it: then, or with today's model."""
    try:
        rows = json.loads((directory / "comparison.json").read_text(encoding="utf-8"))["schedules"]
    except FileNotFoundError:
        return []
    predicted = {row["label"]: _then(row) for row in rows}
    if anew:
        plan = file.read(directory)
        for case in plan.cases:
            seconds, (between,) = float(predict_together(plan, case).makespans()[0]), ranges_of_case(plan, case)
            predicted[case.label] = (seconds, *(between or (seconds, seconds)))
    return [
        Found(directory.name, kind, row["label"], row["measured_s"], *predicted[row["label"]], row["trusted"])
        for row in rows
    ]


def _then(row: dict[str, Any]) -> tuple[float, float, float]:
    low, high = row["predicted_low_s"], row["predicted_high_s"]
    return row["predicted_s"], row["predicted_s"] if low is None else low, row["predicted_s"] if low is None else high


def report(rows: list[Found], failed: list[int]) -> int:
    """Print what came of it; the exit code."""
    wrong = [row for row in rows if row.trusted and row.missed > NEAR]
    table = Table(title=f"worst of all ({len(wrong)} trusted and off by more than {NEAR:.2%})", title_justify="left")
    for column in ("plan", "kind", "schedule", "error", "outside by", "range", "trusted"):
        table.add_column(column, justify="right")
    for row in sorted(rows, key=lambda row: -row.missed)[:16]:
        cells = f"{row.measured_s / row.predicted_s - 1:+.4%}", f"{row.missed:.4%}", f"{row.width:.2%}"
        table.add_row(row.plan, row.kind, row.schedule, *cells, "yes" if row.trusted else "NO")
    Console(width=100).print(table)
    for kind in ("late", "tensor"):
        mine = [row for row in rows if row.kind == kind]
        wide = sorted(row.width for row in mine if row.width > 0)
        plans = {row.plan for row in mine}
        flagged = {row.plan for row in mine if row.width > 0}
        off = [row for row in mine if abs(row.measured_s / row.predicted_s - 1) > NEAR]
        caught = sum(row.missed <= NEAR for row in off)
        median = f"{statistics.median(wide):.2%}, widest {wide[-1]:.2%}" if wide else "-"
        print(f"{kind}: {len(mine)} runs of {len(plans)} plans; ranges: {len(wide)} runs of {len(flagged)} plans")
        print(f"    median width {median}; off by more than {NEAR:.2%}: {len(off)}, {caught} of them in their range")
    untrusted = [f"{row.plan} {row.schedule}" for row in rows if not row.trusted]
    print(f"{len(rows)} runs, wrong and trusted: {len(wrong)}, untrusted: {untrusted}, failed plans: {failed}")
    return int(not rows or bool(wrong or untrusted or failed))


def main() -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="number of the first plan")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--per-boot", type=int, default=20, help="plans in one boot")
    parser.add_argument("--recorded", action="store_true", help="judge what --out has, with today's model")
    parser.add_argument("--out", type=Path, default=ROOT / "results/ranges")
    arguments = parser.parse_args()
    numbers = range(arguments.first, arguments.first + arguments.plans)
    if not arguments.recorded:
        measure(numbers, arguments.seed, arguments.per_boot, arguments.out)
    rows, failed = [], []
    for number in numbers:
        kind = ("late", "tensor")[number % 2]
        mine = found_in(arguments.out / f"plan-{number:03d}", kind, anew=arguments.recorded)
        rows += mine
        failed += [] if mine else [number]
    return report(rows, failed)


if __name__ == "__main__":
    sys.exit(main())
