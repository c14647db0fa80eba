"""`testbed run` in a guest: the same command, the same files in the results directory, the same exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from testbed.plan import load_plan
from testbed.progress import Reporter
from testbed.schedule.registry import Generated
from testbed.schedule.schedule_file import as_document
from testbed.spec.choice import ScheduleChoice
from testbed.spec.workload import workload_document
from testbed.vm import kernel, machine
from testbed.vm.boot import MEMORY_MB, OUT, Boot, Command, Text, run_commands

_CALIBRATE_LIMIT_S = 900.0
_BASE_MB, _MB_PER_RANK = 2048, 192

NO_HOST_PRIORITY = ("--host-priority", "off")
"""In a guest the one processor is shared by all, and virtual time would stand still while something spins."""


@dataclass(frozen=True)
class Training:
    """A `testbed run` for a guest. `settings` are --set values, `schedules` names; empty: the workload's."""

    topology: Path
    workload: Path
    directory: Path
    made: Mapping[str, Generated] = field(default_factory=dict)
    """The schedules to train with, generated here: a solver's time limit never passes in virtual time. Empty: `names`,
    generated there once the guest has measured what its computation takes (no pacing)."""
    settings: tuple[str, ...] = ()
    iterations: int | None = None
    shaper: str = "netem"
    names: tuple[str, ...] = ()
    """Schedules by name, where none is made yet; empty: the workload's."""
    choices: tuple[ScheduleChoice, ...] = ()
    """Stand for the workload's own schedules: those that were chosen, with their labels."""

    def command(self) -> Command:
        """Its command line in the guest. The results directory may hold an empty `logs` already."""
        words: list[str | Path | Text] = [
            "run",
            self.topology,
            Text(self.workload_text()),
            "--out",
            OUT,
            "--overwrite",
            "--json",
        ]
        words.append("--no-picture")  # drawn here, from the data
        for name in [choice.label for choice in self.choices] or self.made or self.names:
            words += ["--schedule", name]
        for setting in self.topology_settings():
            words += ["--set", setting]
        if self.iterations is not None:
            words += ["--iterations", str(self.iterations)]
        if self.made:
            words += ["--schedules-from", Text(json.dumps(as_document(self.made)))]
        return Command((*words, "--shaper", self.shaper, *NO_HOST_PRIORITY), self.directory)

    def workload_text(self) -> str:
        """The workload with its settings and with what its files hold: they may lie where the guest sees nothing."""
        pairs = (setting.partition("=") for setting in self.settings if not _of_topology(setting))
        document = workload_document(self.workload, {key: value for key, _, value in pairs})
        if self.choices:
            document["schedules"] = [choice.as_document() for choice in self.choices]
        return yaml.safe_dump(document, sort_keys=False)

    def topology_settings(self) -> tuple[str, ...]:
        """The settings that `workload_text` leaves."""
        return tuple(filter(_of_topology, self.settings))


def _of_topology(setting: str) -> bool:
    return setting.startswith("topology.")


def make(topology: Path, workload: Path, settings: Sequence[str], names: Sequence[str]) -> dict[str, Generated]:
    """The schedules of a training, generated here. Raises BadInput."""
    plan = load_plan(topology, workload, settings)
    return plan.make(plan.choose(list(names)))


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
    commands = [training.command() for training in trainings]
    boot = run_commands(chosen, commands, limit_s=limit_s, hear=_teller(reporter), memory_mb=_memory_mb(trainings))
    documents = []
    for training, ended in zip(trainings, boot.ended, strict=False):
        _sign(training.directory / "manifest.json", started)
        documents.append(json.loads(ended.stdout) if ended.stdout else None)
    return boot, documents


def _memory_mb(trainings: Sequence[Training]) -> int:
    """What a guest needs: memory that is not touched costs nothing, too little makes it reclaim without end."""
    ranks = max(load_plan(one.topology, one.workload, one.settings).n_ranks for one in trainings)
    return max(MEMORY_MB, _BASE_MB + ranks * _MB_PER_RANK)


def calibrate(chosen: machine.Machine, topology: Path, flags: Sequence[str], reporter: Reporter) -> int:
    """`testbed calibrate` in a guest: prints its table or JSON, returns its exit code. Raises RunFailed."""
    reporter.say(f"booting the {_name(chosen)} kernel ...")
    words: tuple[str | Path | Text, ...] = ("calibrate", topology, "--shaper", "netem", *NO_HOST_PRIORITY, *flags)
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
