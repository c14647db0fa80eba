"""What of a job's time trains what is kept, when workers fail: in the model against Daly's formula, and in the lab.

    python benchmarks/goodput.py [--plans 12] [--first 0] [--seed 1] [--per-boot 12] [--recorded] [--out DIR]
        [--picture FILE.svg]

Drawn with the seed: so many trainings on the virtual clock whose workers really fail, by chance, in a pipeline, with
replicas (ZeRO-1 and plain) and with tensor ranks, early and late receives, checkpoints after 1 to 5 iterations. Every
one is held against what was foretold, its losses, gradients and weights against one process's. And 40 jobs of the model
alone, each trained 600 times over 2,000 iterations (12,000 failures and more), against the formula; for each the best
of all intervals against Daly's. The picture has the formula's curves, and the model's means on them.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from harness import boots, options, plans, report
from harness.record import Claim, Topic, each

from testbed.goodput.intervals import daly_interval_s, expected_goodput
from testbed.goodput.recovering_plan import with_recovery
from testbed.goodput.spans import foretold, shares_of
from testbed.plan.recovery import Checkpoints, Recovery, drawn_failures
from testbed.planning.resolve import load_plan
from testbed.vm import command

NEAR, ASKED = 5e-4, 0.01
JOBS, TRAININGS, ITERATIONS = 40, 600, 2000
MESHES: tuple[dict[str, int], ...] = ({"pipeline": 4}, {"pipeline": 2, "data": 2}, {"pipeline": 2, "tensor": 2})
LONGEST_S = 1e7


class Setting(NamedTuple):
    """A job of the model alone."""

    iteration_s: float
    mtbf_s: float
    checkpoints: Checkpoints

    @property
    def expected(self) -> float:
        """By the formula."""
        made = self.checkpoints
        return expected_goodput(made.every * self.iteration_s, made.save_s, made.restart_s, self.mtbf_s)


def setting(number: int, seed: int) -> Setting:
    """20 to 100 iterations between failures, and a checkpoint every tenth of Daly's interval up to three of them."""
    draw = random.Random(f"goodput/{seed}/{number}")
    iteration_s = 10 ** draw.uniform(-1, 1)
    mtbf_s = iteration_s * 10 ** draw.uniform(1.3, 2)
    save_s, restart_s = mtbf_s * 10 ** draw.uniform(-4, -1.3), mtbf_s * 10 ** draw.uniform(-3, -0.7)
    every = daly_interval_s(save_s, mtbf_s) * 10 ** draw.uniform(-1, 0.5) / iteration_s
    return Setting(iteration_s, mtbf_s, Checkpoints(max(1, round(every)), save_s, restart_s))


def goodput(one: Setting, trainings: int, seed: int) -> float:
    """The mean of the model, by time."""
    kept_s = total_s = 0.0
    for number in range(trainings):
        draws = drawn_failures(one.mtbf_s, LONGEST_S, 4, seed=1000 * seed + number)
        # as many as may come: what is left over does not count
        failures = tuple(failure for failure, _ in zip(draws, range(ITERATIONS), strict=False))
        spans = foretold(lambda _: one.iteration_s, ITERATIONS, Recovery(one.checkpoints, failures))
        shares = shares_of(spans)
        kept_s, total_s = kept_s + shares.kept_s, total_s + shares.total_s
    return kept_s / total_s


def behind_the_best(one: Setting) -> float:
    """By how much the goodput at Daly's interval, in whole iterations, is less than that at the best of all."""
    checkpoints = one.checkpoints
    at = [
        expected_goodput(every * one.iteration_s, checkpoints.save_s, checkpoints.restart_s, one.mtbf_s)
        for every in range(1, 3000)
    ]
    dalys = max(1, round(daly_interval_s(checkpoints.save_s, one.mtbf_s) / one.iteration_s))
    return 1 - at[dalys - 1] / max(at)


def training(number: int, out: Path, name: str, seed: int) -> command.GuestTraining:
    """A plan whose workers fail, written and loaded. Raises BadInput."""
    draw = random.Random(f"recovery/{seed}/{number}")
    ranks = MESHES[number % len(MESHES)]
    half = ranks["pipeline"] * ranks.get("tensor", 1) // 2
    job: dict[str, Any] = {
        "name": name,
        "model": {"layers": 2 * ranks["pipeline"], "d_model": 16, "heads": 4, "sequence": 8},
        "parallelism": ranks,
        "microbatches": draw.randint(2, 6),
        "microbatch_size": 1,
        "placement": [f"{site}/{node}" for site in ("oslo", "rome") for node in range(half)],
        "pacing": plans.slots(draw, ranks["pipeline"], 0.02, 0.7, 1.4),
        "message": f"{draw.randint(10, 400)} kB",
        "memory": 16,
        "receives": draw.choice(("early", "late")),
        "optimizer": {"kind": draw.choice(("adamw", "sgd"))},
        "schedules": [draw.choice(("1f1b", "gpipe", "zb-h1", "crosspipe-greedy", "pipemorph"))],
        "iterations": draw.randint(6, 12),
        "warmup": 1,
    }
    if "data" in ranks:
        replica = [f"{site}/{half + node}" for site in ("oslo", "rome") for node in range(half)]
        sharding = draw.choice(("zero-1", "none"))
        job["data_parallel"] = {"parameters": "300 kB", "sharding": sharding, "replicas": [replica]}
    link = {
        "between": ["oslo", "rome"],
        "delay": f"{draw.uniform(1, 20):.2f} ms",
        "rate": f"{draw.randint(50, 900)} Mbit/s",
    }
    sites = {site: {"nodes": 2 * half} for site in ("oslo", "rome")}
    files = plans.write(out, name, {"name": "pair", "datacenters": sites, "links": [link]}, job)
    plan = plans.with_every(load_plan(*files))
    checkpoint = f"every={draw.randint(1, 5)},save={draw.randint(0, 300)} ms,restart={draw.uniform(2, 4):.2f} s"
    plan = with_recovery(plan, checkpoint, (), f"mtbf={draw.uniform(3, 9):.2f} s,seed={draw.randrange(1000)}")
    return command.GuestTraining(plan, out / name)


def lab_claims(taken: boots.Taken) -> list[Claim]:
    """Of trainings whose workers failed."""
    entries = [entry for one in taken.comparisons.values() for entry in one["goodput"]]
    failures = sum(entry["failures"] for entry in entries)
    off = [abs(entry["measured"]["goodput"] / entry["predicted"]["goodput"] - 1) for entry in entries]
    for entry in entries:
        measured, predicted = entry["measured"]["goodput"], entry["predicted"]["goodput"]
        print(f"{entry['label']:18} {entry['failures']:2} failures: goodput {measured:.4%}, foretold {predicted:.4%}")
    what = f"{len(entries)} trainings in the lab with {failures} workers that fail"
    worst = max(off, default=0.0)
    return [
        Claim(
            f"{what}: goodput as foretold",
            f"<= {NEAR:.2%}",
            f"worst {worst:.4%}; {min(entry['measured']['goodput'] for entry in entries):.0%} to "
            f"{max(entry['measured']['goodput'] for entry in entries):.0%}",
            worst <= NEAR,
            worst,
            "share",
        ),
        each(f"{what}: trusted, gradients and weights as one process's", len(taken.untrusted), len(taken.rows)),
    ]


def model_claim(seed: int) -> Claim:
    """Of jobs of the model alone."""
    settings = [setting(number, seed) for number in range(JOBS)]
    off = [abs(goodput(one, TRAININGS, number) / one.expected - 1) for number, one in enumerate(settings)]
    behind = [behind_the_best(one) for one in settings]
    got = f"{JOBS} jobs, {TRAININGS} trainings each: worst {max(off):.2%}, median {np.median(off):.2%}"
    got += f"; Daly's interval at most {max(behind):.2%} behind the best one"
    claim = "goodput under failures by chance, in the model, against Daly's formula"
    return Claim(claim, f"<= {ASKED:.0%}", got, max(off) <= ASKED, max(off), "share", JOBS, JOBS)


def draw_picture(path: Path) -> None:
    """Goodput over the interval between checkpoints, for three times between failures."""
    from matplotlib.figure import Figure

    from testbed.plotting import COLOURS, GRID, save

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    iteration_s, save_s, restart_s = 0.65, 1.0, 10.0
    for colour, mtbf_s in zip(COLOURS, (60.0, 300.0, 1800.0), strict=False):
        every = np.unique(np.geomspace(1, 600, 40).round().astype(int))
        curve = [expected_goodput(n * iteration_s, save_s, restart_s, mtbf_s) for n in every]
        axes.plot(every * iteration_s, curve, color=colour, label=f"a failure every {mtbf_s:g} s")
        at = every[::5]
        means = [goodput(Setting(iteration_s, mtbf_s, Checkpoints(int(n), save_s, restart_s)), 40, 7) for n in at]
        axes.plot(at * iteration_s, means, "o", color=colour, markersize=4)
        best_s = daly_interval_s(save_s, mtbf_s)
        axes.plot([best_s], [expected_goodput(best_s, save_s, restart_s, mtbf_s)], "|", color=colour, markersize=16)
    axes.set_xscale("log")
    axes.set_ylim(0, 1)
    axes.set_xlabel("training between two checkpoints, s")
    axes.set_ylabel("goodput")
    axes.set_title("Goodput: Daly's formula (lines; | its best interval), the model (dots)", fontsize=10)
    axes.grid(color=GRID)
    axes.legend(frameon=False)
    save(figure, path)


def main(words: Sequence[str] | None = None) -> int:
    """Train, and ask the model; 1 when something is further off than it may be, 0 otherwise."""
    parser = options.parser(__doc__)
    options.add_drawn(parser, "goodput", plans=12, per_boot=12)
    parser.add_argument("--picture", type=Path, help="draw the curves into this file")
    asked = parser.parse_args(words)
    if asked.picture:
        draw_picture(asked.picture)
    taken = boots.take(asked, boots.of_numbers(asked, training))
    return report.close(asked, Topic.ROBUSTNESS, taken, [*lab_claims(taken), model_claim(asked.seed)])


if __name__ == "__main__":
    sys.exit(main())
