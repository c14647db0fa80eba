"""Checkpoints in a neighbour's memory: in the lab against the model, and in the model against the formula.

    python benchmarks/states_in_memory.py [--plans 14] [--first 0] [--seed 1] [--per-boot 14] [--recorded] [--out DIR]
        [--picture FILE.svg]

Drawn with the seed: so many trainings on the virtual clock on two or three datacenters, in a pipeline, with replicas in
other datacenters (ZeRO-1 and plain) and with tensor ranks, one to three streams, states as they are and padded, with
and without a disk behind them; ranks, nodes or datacenters fail by chance. Held against what was foretold: goodput, the
time of every exchange of states, its bytes on every direction; losses, gradients and weights against one process's.
And 40 jobs of the model alone, each trained 40 times with 300 failures and more, against the formula for two copies.
The picture has its curves, and the model's means on them.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from harness import boots, options, plans, report
from harness.record import Claim, Topic, each

from testbed.goodput.intervals import (
    both_lost_share,
    daly_interval_s,
    expected_goodput,
    expected_goodput_in_memory,
)
from testbed.goodput.recovering_plan import spans_of_case, with_recovery
from testbed.goodput.spans import Keeping, KeptIn, Spending, foretold, shares_of
from testbed.plan.mesh import Mesh
from testbed.plan.recovery import Checkpoints, Failure, MemoryCheckpoints, Recovery, drawn_failures
from testbed.plan.state_exchange import restoring
from testbed.planning import file
from testbed.planning.resolve import load_plan
from testbed.vm import command

NEAR, ASKED = 5e-4, 0.01
JOBS, TRAININGS, FAILURES = 40, 40, 300
LONGEST_S = 1e9
SITES = ("oslo", "rome", "lyon")
MESHES: tuple[dict[str, int], ...] = ({"pipeline": 4}, {"data": 3, "pipeline": 2}, {"pipeline": 3, "tensor": 2})


def training(number: int, out: Path, name: str, seed: int) -> command.GuestTraining:
    """A plan whose workers fail, written and loaded. Raises BadInput."""
    draw = random.Random(f"memory/{seed}/{number}")
    ranks = MESHES[number % len(MESHES)]
    replicas, pipeline, tensor = (ranks.get(axis, 1) for axis in ("data", "pipeline", "tensor"))
    sites = list(SITES[: 3 if replicas == 3 else draw.randint(2, 3)])
    draw.shuffle(sites)
    if replicas > 1:
        places = [[f"{site}/{node}" for node in range(pipeline)] for site in sites]
    else:
        # stage after stage: tensor ranks share a datacenter
        at = sorted(draw.randrange(len(sites)) for _ in range(pipeline - len(sites))) + list(range(len(sites)))
        where = [sites[site] for site in sorted(at) for _ in range(tensor)]
        places = [[f"{site}/{where[:place].count(site)}" for place, site in enumerate(where)]]
    job: dict[str, Any] = {
        "name": name,
        "model": {"layers": 2 * pipeline, "d_model": 16, "heads": 4, "sequence": 8},
        "parallelism": ranks,
        "microbatches": draw.randint(2, 5),
        "microbatch_size": 1,
        "placement": places[0],
        "pacing": plans.slots(draw, pipeline, 0.02, 0.7, 1.4),
        "message": f"{draw.randint(10, 300)} kB",
        "memory": 16,
        "streams": draw.choice((1, 1, 3)),
        "receives": draw.choice(("early", "late")),
        "optimizer": {"kind": draw.choice(("adamw", "sgd"))},
        "schedules": [draw.choice(("1f1b", "gpipe", "zb-h1", "pipemorph"))],
        "iterations": draw.randint(8, 12),
        "warmup": 1,
    }
    if replicas > 1:
        sharding = draw.choice(("zero-1", "none"))
        job["data_parallel"] = {"parameters": "300 kB", "sharding": sharding, "replicas": places[1:]}
    links = [
        {"between": list(pair), "delay": f"{draw.uniform(1, 15):.2f} ms", "rate": f"{draw.randint(60, 900)} Mbit/s"}
        for pair in pairwise(sites)
    ]
    used = [place.partition("/")[0] for row in places for place in row]
    network = {"name": "chain", "datacenters": {site: {"nodes": used.count(site)} for site in sites}, "links": links}
    plan = plans.with_every(load_plan(*plans.write(out, name, network, job)))
    return command.GuestTraining(with_recovery(plan, *_failing(draw, plan.jobs[0].mesh.size)), out / name)


def _failing(draw: random.Random, ranks: int) -> tuple[str, Sequence[str], str]:
    """What is saved, and what fails: one rank at least."""
    every = draw.randint(1, 3)
    checkpoint = f"every={every},to=neighbour,save={draw.randint(0, 80)} ms,restart={draw.uniform(2, 4):.2f} s"
    if draw.random() < 0.5:
        checkpoint += f",disk={every * draw.randint(1, 3)},disk-save={draw.randint(0, 400)} ms"
    if draw.random() < 0.7:
        checkpoint += f",state={draw.randint(200, 4000)} kB"
    notice = f",notice={draw.uniform(0.2, 1):.2f} s"
    of = draw.choice(("ranks", "nodes", "datacenters", "cuts", f"cuts,for={draw.uniform(0.2, 4):.2f} s"))
    checkpoint += notice if of.startswith("cuts") else ""
    failure = f"rank {draw.randrange(ranks)} at {draw.uniform(0.8, 3):.3f} s"
    return checkpoint, (failure,), f"mtbf={draw.uniform(2, 5):.2f} s,seed={draw.randrange(1000)},of={of}"


class Exchange(NamedTuple):
    """States that were sent, with the slots around that left out."""

    plan: str
    what: str
    measured_s: float
    predicted_s: float
    carried: bool
    """Over a link."""

    @property
    def off(self) -> float:
        """Against the prediction."""
        return abs(self.measured_s / self.predicted_s - 1)


def exchanges(out: Path, name: str, entry: Mapping[str, Any]) -> Iterator[Exchange]:
    """Of one training, those that came to their end."""
    plan = file.read(out / name)
    expected = spans_of_case(plan, plan.cases[0])
    whole = [span for span in expected if span.what is not Spending.RESTART or span.failure is None]
    broken_s = 0.0
    left = iter(zip(whole, entry["spans"], strict=True))
    for span in expected:
        if span.what is Spending.RESTART and span.failure is not None:
            broken_s += span.seconds
            continue
        same, measured = next(left)
        slots_s = same.ahead_s + same.disk_s + broken_s
        broken_s = 0.0 if span.what is Spending.RESTART else broken_s
        if KeptIn.MEMORY in span.held and span.failure is None:
            took_s, sent_s = (
                measured["end_s"] - measured["begin_s"] - slots_s,
                span.seconds - span.ahead_s - span.disk_s,
            )
            yield Exchange(name, span.what.value, took_s, sent_s, sent_s > 1e-3)


def lab_claims(taken: boots.Taken) -> list[Claim]:
    """Of trainings whose workers failed."""
    entries = {name: one["goodput"][0] for name, one in taken.comparisons.items()}
    failures = sum(entry["failures"] for entry in entries.values())
    off = {name: abs(one["measured"]["goodput"] / one["predicted"]["goodput"] - 1) for name, one in entries.items()}
    sent = [one for name, entry in entries.items() for one in exchanges(taken.out, name, entry)]
    over = [one for one in sent if one.carried]
    rows = [row for entry in entries.values() for row in entry.get("states", ())]
    restarts = [span["held"][0] for one in entries.values() for span in one["spans"] if span["what"] == "restart"]
    for name, entry in entries.items():
        measured, predicted = entry["measured"]["goodput"], entry["predicted"]["goodput"]
        print(f"{name} {entry['failures']:2} failures: goodput {measured:.4%}, foretold {predicted:.4%}")
    shares = [entry["measured"]["goodput"] for entry in entries.values()]
    what = f"{len(entries)} trainings with states in a neighbour's memory, {failures} failures"
    worst = max(off.values(), default=0.0)
    slowest = max(over, key=lambda one: one.off)
    wrong = max(abs(row["wire_bytes"] - row["planned_bytes"]) for row in rows)
    kinds = f"{restarts.count('memory')} restarts from memory, {restarts.count('disk')} from disk or the beginning"
    goodput = f"worst {worst:.4%}; {min(shares):.0%} to {max(shares):.0%}; {kinds}"
    times = (
        f"{len(over)} exchanges of {min(o.predicted_s for o in over):.3f} to {max(o.predicted_s for o in over):.3f} s"
    )
    bytes_ = f"{sum(row['wire_bytes'] for row in rows) / 1e6:.0f} MB on {len(rows)} directions: worst {wrong:.0f} B off"
    return [
        Claim(f"{what}: goodput as foretold", f"<= {NEAR:.2%}", goodput, worst <= NEAR, worst, "share"),
        Claim(
            "states on their way over links, saved and sent again: time as predicted",
            f"<= {NEAR:.2%}",
            f"{times}: worst {slowest.off:.4%}",
            slowest.off <= NEAR,
            slowest.off,
            "share",
        ),
        Claim("the same: bytes as planned", "0", bytes_, wrong == 0, wrong, "B"),
        each(f"{what}: trusted, gradients and weights as one process's", len(taken.untrusted), len(taken.rows)),
    ]


class Setting(NamedTuple):
    """A job of the model alone."""

    iteration_s: float
    mtbf_s: float
    checkpoints: Checkpoints
    rings: tuple[int, ...]
    """Ranks that keep each other's states."""
    send_s: float
    send_again_s: float

    @property
    def ranks(self) -> int:
        """Of all rings."""
        return sum(self.rings)

    @property
    def memory(self) -> MemoryCheckpoints:
        """How it keeps its states."""
        assert self.checkpoints.memory is not None
        return self.checkpoints.memory

    @property
    def expected(self) -> float:
        """By the formula."""
        made, memory = self.checkpoints, self.memory
        assert memory.disk_every is not None
        restart_s = made.restart_s + self.send_again_s
        return expected_goodput_in_memory(
            made.every * self.iteration_s,
            made.save_s + self.send_s,
            restart_s,
            self.mtbf_s,
            per_disk=memory.disk_every // made.every,
            disk_save_s=memory.disk_save_s,
            both_lost=both_lost_share(self.rings, restart_s, self.mtbf_s),
        )

    def keeping(self) -> Keeping:
        """As a session has it."""
        size = self.rings[0]
        mesh = Mesh(size, len(self.rings), 1) if len(self.rings) > 1 else Mesh(1, size, 1)
        lasting: dict[frozenset[int], float | None] = {}

        def again_s(lost: frozenset[int]) -> float | None:
            if lost not in lasting:
                whole = restoring(mesh, (1,) * mesh.size, lost) is not None
                lasting[lost] = self.send_again_s if whole else None
            return lasting[lost]

        return Keeping(_rank_of, self.send_s, again_s)


def _rank_of(failure: Failure) -> frozenset[int]:
    return frozenset(() if failure.rank is None else (failure.rank,))


def setting(number: int, seed: int) -> Setting:
    """A checkpoint every third to thrice Daly's interval, a restart of a hundredth of the time between failures to half
    of it, 2 to 16 ranks in one ring, or replicas of 2 to 6 stages. Each iteration is all between two checkpoints."""
    draw = random.Random(f"memory-model/{seed}/{number}")
    mtbf_s = 10 ** draw.uniform(0, 3)
    send_s, save_s = mtbf_s * 10 ** draw.uniform(-4, -2), mtbf_s * 10 ** draw.uniform(-5, -3)
    interval_s = max(0.02 * mtbf_s, daly_interval_s(save_s + send_s, mtbf_s) * 10 ** draw.uniform(-0.5, 0.5))
    memory = MemoryCheckpoints(draw.randint(1, 12), mtbf_s * 10 ** draw.uniform(-3, -1))
    checkpoints = Checkpoints(1, save_s, mtbf_s * 10 ** draw.uniform(-2, -0.3), memory)
    rings = (draw.randint(2, 16),) if draw.random() < 0.5 else (draw.randint(2, 4),) * draw.randint(2, 6)
    return Setting(interval_s, mtbf_s, checkpoints, rings, send_s, send_s * draw.uniform(0.2, 2))


def goodput(one: Setting, trainings: int, seed: int) -> float:
    """The mean of the model, by time."""
    keeping, kept_s, total_s = one.keeping(), 0.0, 0.0
    iterations = round(FAILURES * one.mtbf_s / one.iteration_s)
    for number in range(trainings):
        draws = drawn_failures(one.mtbf_s, LONGEST_S, one.ranks, seed=1000 * seed + number)
        # as many as may come: what is left over does not count
        failures = tuple(failure for failure, _ in zip(draws, range(20 * FAILURES), strict=False))
        shares = shares_of(
            foretold(lambda _: one.iteration_s, iterations, Recovery(one.checkpoints, failures), keeping)
        )
        kept_s, total_s = kept_s + shares.kept_s, total_s + shares.total_s
    return kept_s / total_s


def model_claim(seed: int) -> Claim:
    """Of jobs of the model alone."""
    settings = [setting(number, seed) for number in range(JOBS)]
    off = [abs(goodput(one, TRAININGS, number) / one.expected - 1) for number, one in enumerate(settings)]
    lost = [both_lost_share(one.rings, one.checkpoints.restart_s, one.mtbf_s) for one in settings]
    got = f"{JOBS} jobs, {TRAININGS} trainings each: worst {max(off):.2%}, median {np.median(off):.2%}"
    got += f"; up to {max(lost):.0%} of failures lose both holders"
    claim = "goodput with two copies in memory and some on disk, in the model, against the formula"
    return Claim(claim, f"<= {ASKED:.0%}", got, max(off) <= ASKED, max(off), "share", JOBS, JOBS)


def draw_picture(path: Path) -> None:
    """Goodput over the mean time between failures: on disk alone, and in memory with a disk behind it."""
    from matplotlib.figure import Figure

    from testbed.plotting import COLOURS, GRID, save

    restart_s, disk_s, send_s, ranks = 10.0, 5.0, 0.2, 16
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    times_s = np.geomspace(15, 3000, 60)

    def in_memory(mtbf_s: float) -> Setting:
        interval_s = daly_interval_s(send_s, mtbf_s)
        # on disk by how rarely both holders are lost
        lost_s = mtbf_s / both_lost_share((ranks,), restart_s + send_s, mtbf_s)
        memory = MemoryCheckpoints(max(1, round(daly_interval_s(disk_s, lost_s) / interval_s)), disk_s)
        return Setting(interval_s, mtbf_s, Checkpoints(1, 0.0, restart_s, memory), (ranks,), send_s, send_s)

    disk = [expected_goodput(daly_interval_s(disk_s, mtbf_s), disk_s, restart_s, mtbf_s) for mtbf_s in times_s]
    axes.plot(times_s, disk, color=COLOURS[0], label=f"on disk, {disk_s:g} s each, Daly's interval")
    memory = [in_memory(mtbf_s).expected for mtbf_s in times_s]
    axes.plot(times_s, memory, color=COLOURS[1], label=f"in a neighbour's memory, {send_s:g} s each, some on disk")
    at = times_s[::6]
    axes.plot(at, [goodput(in_memory(mtbf_s), 5, 7) for mtbf_s in at], "o", color=COLOURS[1], markersize=4)
    bound = np.exp(-restart_s / times_s)
    axes.plot(times_s, bound, "--", color="0.6", label="of restarts alone")
    axes.set_xscale("log")
    axes.set_ylim(0, 1)
    axes.set_xlabel("mean time between failures, s")
    axes.set_ylabel("goodput")
    axes.set_title(f"Goodput of {ranks} ranks, restarts of {restart_s:g} s: formula (lines), model (dots)", fontsize=10)
    axes.grid(color=GRID)
    axes.legend(frameon=False)
    save(figure, path)


def main(words: Sequence[str] | None = None) -> int:
    """Train, and ask the model; 1 when something is further off than it may be, 0 otherwise."""
    parser = options.parser(__doc__)
    options.add_drawn(parser, "states-in-memory", plans=14, per_boot=14)
    parser.add_argument("--picture", type=Path, help="draw the curves into this file")
    asked = parser.parse_args(words)
    if asked.picture:
        draw_picture(asked.picture)
    taken = boots.take(asked, boots.of_numbers(asked, training))
    return report.close(asked, Topic.ROBUSTNESS, taken, [*lab_claims(taken), model_claim(asked.seed)])


if __name__ == "__main__":
    sys.exit(main())
