"""`testbed run` in a guest: the same command, the same files in the results directory, the same exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from testbed.pipeline.ir import Schedule
from testbed.plan import load_plan
from testbed.progress import Reporter
from testbed.vm import kernel, machine
from testbed.vm.boot import OUT, Boot, Command, Text, run_commands

_CALIBRATE_LIMIT_S = 300.0


@dataclass(frozen=True)
class Training:
    """A `testbed run` for a guest. `settings` are --set values."""

    topology: Path
    workload: Path
    directory: Path
    prepared: Mapping[str, Schedule] = field(default_factory=dict)
    """The schedules to train with, generated here: a solver's time limit never passes in virtual time. Empty: the
    workload's, generated there once the guest has measured what its computation takes (no pacing)."""
    settings: tuple[str, ...] = ()
    iterations: int | None = None
    shaper: str = "netem"

    def command(self) -> Command:
        """Its command line in the guest. The results directory may hold an empty `logs` already."""
        words: list[str | Path | Text] = ["run", self.topology, self.workload, "--out", OUT, "--overwrite", "--json"]
        for name in self.prepared:
            words += ["--schedule", name]
        for setting in self.settings:
            words += ["--set", setting]
        if self.iterations is not None:
            words += ["--iterations", str(self.iterations)]
        if self.prepared:
            documents = {name: schedule.as_json() for name, schedule in self.prepared.items()}
            words += ["--prepared", Text(json.dumps(documents))]
        return Command((*words, "--shaper", self.shaper), self.directory)


def prepare(topology: Path, workload: Path, settings: Sequence[str], names: Sequence[str]) -> dict[str, Schedule]:
    """The schedules of a training, generated here. Raises BadInput."""
    plan = load_plan(topology, workload, settings)
    return {choice.schedule: plan.schedule(choice) for choice in plan.choose(list(names))}


def choose_machine(*, virtual: bool, seed: int) -> machine.Machine:
    """The time-travel kernel or the packaged one. Raises MachineLacks naming the command that adds it."""
    return machine.time_travel(kernel.require(), seed) if virtual else machine.packaged()


def train(
    chosen: machine.Machine, trainings: Sequence[Training], *, limit_s: float, reporter: Reporter
) -> tuple[Boot, list[dict[str, Any] | None]]:
    """Run trainings one after another in one boot; returns the boot and their comparisons (None where there is none).

    Raises RunFailed when the guest does not finish; what the trainings have written until then is kept.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds")
    reporter.say(f"booting the {_name(chosen)} kernel ...")
    boot = run_commands(
        chosen,
        [training.command() for training in trainings],
        limit_s=limit_s,
        hear=_teller(reporter),
    )
    documents = []
    for training, ended in zip(trainings, boot.ended, strict=False):
        _sign(training.directory / "manifest.json", started)
        documents.append(json.loads(ended.stdout) if ended.stdout else None)
    return boot, documents


def calibrate(chosen: machine.Machine, topology: Path, *, as_json: bool, reporter: Reporter) -> int:
    """`testbed calibrate` in a guest: prints its table or JSON, returns its exit code. Raises RunFailed."""
    reporter.say(f"booting the {_name(chosen)} kernel ...")
    words = ("calibrate", topology, "--shaper", "netem", *(("--json",) if as_json else ()))
    boot = run_commands(chosen, [Command(words)], training=False, limit_s=_CALIBRATE_LIMIT_S, hear=_teller(reporter))
    sys.stdout.write(boot.ended[0].stdout)
    return boot.ended[0].code


def _name(chosen: machine.Machine) -> str:
    return "time-travel" if chosen.virtual else "packaged"


def _teller(reporter: Reporter) -> Callable[[str], None]:
    """Passes on what a guest's commands say on standard error."""
    return lambda text: reporter.console.print(text, end="", highlight=False, markup=False, soft_wrap=True)


def _sign(manifest: Path, started: str) -> None:
    """The guest knows neither the date nor the command line that the user gave."""
    if not manifest.is_file():
        return
    document = json.loads(manifest.read_text(encoding="utf-8"))
    document |= {"time": started, "command": ["testbed", *sys.argv[1:]]}
    partial = manifest.with_suffix(".partial")
    partial.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    partial.replace(manifest)
