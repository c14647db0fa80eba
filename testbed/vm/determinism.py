"""Does the same input give the same nanoseconds? Boots of one run compared; the spread over seeds as error bar."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from testbed import source
from testbed.errors import MachineLacks, RunFailed
from testbed.lab import namespaces as ns
from testbed.planning import file
from testbed.progress import Reporter
from testbed.results.destination import is_complete
from testbed.vm.command import Training

_POLL_S = 0.1
_MARGIN_S = 60.0
"""A boot ends itself at its wall-clock limit; this much later it is killed."""

_KEYS = ("schedule", "iteration", "rank", "stage", "kind", "microbatch", "part_begin")
_TIMES = ("reached_s", "ready_s", "start_s", "computed_s", "end_s")


@dataclass(frozen=True)
class BootResult:
    """One boot: the hash of all ranks' timelines in whole nanoseconds, and the median iteration time per schedule."""

    seed: int
    boot: int
    fingerprint: str
    medians_s: dict[str, float]
    trusted: bool
    wall_s: float


@dataclass(frozen=True)
class SeedVerdict:
    """The boots of one seed: how many gave the commonest timelines, and by how much any time of another differs."""

    seed: int
    boots: int
    identical: int
    largest_difference_ns: int


@dataclass(frozen=True)
class SeedSpread:
    """One schedule's iteration time over the seeds (each seed's commonest boots): the virtual clock's error bar."""

    schedule: str
    median_s: float
    lowest_s: float
    highest_s: float
    deviation_s: float
    """Standard deviation; 0 for one seed."""


@dataclass(frozen=True)
class Determinism:
    """What was found."""

    seeds: tuple[SeedVerdict, ...]
    spreads: tuple[SeedSpread, ...]
    boots: tuple[BootResult, ...]

    @property
    def identical(self) -> bool:
        """Whether every boot gave what the other boots of its seed gave."""
        return all(verdict.identical == verdict.boots for verdict in self.seeds)

    def as_json(self) -> dict[str, Any]:
        """JSON-able."""
        return {"identical": self.identical} | asdict(self)


def measure(
    training: Training, *, boots: int, seeds: Sequence[int], jobs: int, limit_s: float, reporter: Reporter
) -> Determinism:
    """Boot `boots` times per seed, `jobs` at once; results go to training.directory/seed-S/boot-B.

    Plan and source are copied there first: all boots have one input, even when the checkout changes meanwhile.

    Raises RunFailed when a boot fails, MachineLacks when there is no kernel to boot.
    """
    file.write(training.plan, training.directory / file.NAME)
    package = source.freeze(training.directory / "source")
    wanted = [(seed, boot) for boot in range(1, boots + 1) for seed in seeds]
    waiting = list(reversed(wanted))
    running: dict[tuple[int, int], tuple[subprocess.Popen[bytes], float, int]] = {}
    cpus = sorted(os.sched_getaffinity(0))
    done: list[BootResult] = []
    with reporter.step(f"{len(wanted)} boots, {jobs} at once", total=len(wanted)) as step:
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    seed, boot = waiting.pop()
                    cpu = min(cpus, key=[used for *_, used in running.values()].count)
                    process = _start(training, package, seed, boot, limit_s, cpu)
                    running[seed, boot] = process, time.monotonic(), cpu
                time.sleep(_POLL_S)
                for (seed, boot), (process, began, _) in list(running.items()):
                    wall_s = time.monotonic() - began
                    if process.poll() is None:
                        if wall_s > limit_s + _MARGIN_S:
                            raise RunFailed(f"seed {seed}, boot {boot}: no end after {wall_s:.0f} s")
                        continue
                    del running[seed, boot]
                    done.append(_collect(training, seed, boot, process.returncode, wall_s))
                    step.advance(f"seed {seed}, boot {boot}: {done[-1].fingerprint[:12]} in {wall_s:.0f} s")
        finally:
            for process, *_ in running.values():
                process.send_signal(signal.SIGTERM)
            for process, *_ in running.values():
                process.wait(timeout=_MARGIN_S)
    return judge(training.directory, done)


def judge(directory: Path, done: Sequence[BootResult]) -> Determinism:
    """Compare the boots of every seed, then the seeds."""
    verdicts, typical = [], []
    for seed in sorted({boot.seed for boot in done}):
        boots = sorted((boot for boot in done if boot.seed == seed), key=lambda boot: boot.boot)
        commonest, count = Counter(boot.fingerprint for boot in boots).most_common(1)[0]
        reference = next(boot for boot in boots if boot.fingerprint == commonest)
        others = [boot for boot in boots if boot.fingerprint != commonest]
        times = nanoseconds(_boot_directory(directory, reference.seed, reference.boot))
        differences = [
            largest_difference(times, nanoseconds(_boot_directory(directory, o.seed, o.boot))) for o in others
        ]
        verdicts.append(SeedVerdict(seed, len(boots), count, max(differences, default=0)))
        typical.append(reference)
    spreads = []
    for schedule in typical[0].medians_s:
        values = [boot.medians_s[schedule] for boot in typical]
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        spreads.append(SeedSpread(schedule, statistics.median(values), min(values), max(values), deviation))
    return Determinism(tuple(verdicts), tuple(spreads), tuple(sorted(done, key=lambda boot: (boot.seed, boot.boot))))


def nanoseconds(directory: Path) -> pd.DataFrame:
    """All times of all actions of all ranks that a run measured, as whole nanoseconds, in a fixed order."""
    actions = pd.read_parquet(directory / "actions.parquet")
    actions = actions[actions["source"] == "measured"].astype({"kind": str})
    table = actions.sort_values(list(_KEYS)).reset_index(drop=True)[[*_KEYS, *_TIMES]]
    for name in _TIMES:
        table[name] = np.rint(table[name] * 1e9).astype("int64")
    return table


def fingerprint(table: pd.DataFrame) -> str:
    """A hash of what `nanoseconds` returned."""
    return hashlib.sha256(table.to_csv(index=False).encode()).hexdigest()


def largest_difference(one: pd.DataFrame, other: pd.DataFrame) -> int:
    """Nanoseconds by which any time of any action differs most. Raises RunFailed for different actions."""
    if not one[list(_KEYS)].equals(other[list(_KEYS)]):
        raise RunFailed("two boots of one run did not do the same actions")
    return int(np.abs(one[list(_TIMES)].to_numpy() - other[list(_TIMES)].to_numpy()).max())


def _boot_directory(directory: Path, seed: int, boot: int) -> Path:
    return directory / f"seed-{seed}" / f"boot-{boot}"


def _start(
    training: Training, package: Path, seed: int, boot: int, limit_s: float, cpu: int
) -> subprocess.Popen[bytes]:
    directory = _boot_directory(training.directory, seed, boot)
    directory.mkdir(parents=True)
    words = ["run", str(training.directory / file.NAME), "--clock", "virtual", "--seed", str(seed)]
    words += ["--out", str(directory), "--overwrite", "--json", "--quiet", "--no-picture", "--wall-limit", str(limit_s)]
    with (directory / "stderr.log").open("wb") as errors:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "testbed", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": str(package.parent)},
            preexec_fn=lambda: _prepare_child(cpu),
        )


def _prepare_child(cpu: int) -> None:
    """A boot on a CPU of its own, gone when we are."""
    os.sched_setaffinity(0, {cpu})
    ns.die_with_parent(signal.SIGKILL)


def _collect(training: Training, seed: int, boot: int, code: int, wall_s: float) -> BootResult:
    directory = _boot_directory(training.directory, seed, boot)
    if not is_complete(directory):
        said = (directory / "stderr.log").read_text(errors="replace").strip()
        kind = MachineLacks if code == MachineLacks.exit_code else RunFailed
        raise kind(f"seed {seed}, boot {boot}: exit code {code}: {said}")
    rows = json.loads((directory / "comparison.json").read_text(encoding="utf-8"))["schedules"]
    return BootResult(
        seed,
        boot,
        fingerprint(nanoseconds(directory)),
        {row["label"]: row["measured_s"] for row in rows},
        all(row["trusted"] for row in rows),
        round(wall_s, 1),
    )
