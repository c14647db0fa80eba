"""Does the same input give the same nanoseconds? Boots of one run compared; the spread over seeds as error bar."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from testbed import source
from testbed.errors import MachineLacks, RunFailed
from testbed.planning import file
from testbed.progress import Reporter
from testbed.results.destination import is_complete
from testbed.vm import kept_guest
from testbed.vm.command import GuestTraining
from testbed.vm.parallel_commands import CommandEnded, ParallelCommand, run_parallel

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
    training: GuestTraining, *, boots: int, seeds: Sequence[int], jobs: int, limit_s: float, reporter: Reporter
) -> Determinism:
    """Boot `boots` times per seed, `jobs` at once; results go to training.directory/seed-S/boot-B.

    Plan and source are copied there first: all boots have one input, even when the checkout changes meanwhile.

    Raises RunFailed when a boot fails, MachineLacks when there is no kernel to boot.
    """
    file.write(training.plan, training.directory / file.NAME)
    package = source.freeze(training.directory / "source")
    wanted = [(seed, boot) for boot in range(1, boots + 1) for seed in seeds]
    commands = {_command(training, seed, boot, limit_s): (seed, boot) for seed, boot in wanted}
    following, done = iter(commands), list[BootResult]()
    with (
        reporter.step(f"{len(commands)} boots, {jobs} at once", total=len(commands)) as step,
        closing(run_parallel(lambda: next(following, None), jobs, package)) as commands_ended,
    ):
        for ended in commands_ended:
            seed, boot = commands[ended.command]
            if ended.code is None:
                raise RunFailed(f"seed {seed}, boot {boot}: no end after {ended.wall_s:.0f} s")
            done.append(_collect(training, seed, boot, ended))
            step.advance(f"seed {seed}, boot {boot}: {done[-1].fingerprint[:12]} in {ended.wall_s:.0f} s")
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


def _command(training: GuestTraining, seed: int, boot: int, limit_s: float) -> ParallelCommand:
    directory = _boot_directory(training.directory, seed, boot)
    directory.mkdir(parents=True)
    words = ["run", str(training.directory / file.NAME), "--clock", "virtual", "--seed", str(seed)]
    words += ["--out", str(directory), "--overwrite", "--json", "--quiet", "--no-picture", "--wall-limit", str(limit_s)]
    log, boots_itself = directory / "stderr.log", ((kept_guest.VARIABLE, "no"),)
    return ParallelCommand(directory.name, ("testbed", *words), log, limit_s + _MARGIN_S, environment=boots_itself)


def _collect(training: GuestTraining, seed: int, boot: int, ended: CommandEnded) -> BootResult:
    directory = _boot_directory(training.directory, seed, boot)
    if not is_complete(directory):
        kind = MachineLacks if ended.code == MachineLacks.exit_code else RunFailed
        raise kind(f"seed {seed}, boot {boot}: exit code {ended.code}: {ended.said()}")
    rows = json.loads((directory / "comparison.json").read_text(encoding="utf-8"))["schedules"]
    return BootResult(
        seed,
        boot,
        fingerprint(nanoseconds(directory)),
        {row["label"]: row["measured_s"] for row in rows},
        all(row["trusted"] for row in rows),
        round(ended.wall_s, 1),
    )
