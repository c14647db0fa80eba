"""Plans run in a guest: the same plan.json, the same files in the results directory, the same exit code."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from testbed import source
from testbed.errors import MachineLacks, listed
from testbed.files import indented_json, saving
from testbed.lab import capabilities, privileges
from testbed.lab.privileges import Privilege
from testbed.lab.shaping import AUTO, RELAY
from testbed.model.simulate import LARGE
from testbed.plan.events import links_change
from testbed.plan.memory_bytes import buffer_bytes
from testbed.plan.plan import Clock, Plan
from testbed.planning import file
from testbed.progress import Replay, Reporter
from testbed.schedule import compile_all
from testbed.vm import guest_machine, kept_guest, kernel
from testbed.vm.boot import MEMORY_MB, Boot, require_virtual, run_assignments
from testbed.vm.guest_work import Assignment

_CALIBRATE_LIMIT_S = 900.0
_BASE_MB, _MB_PER_RANK = 2048, 192
_BUFFERS_IN_KERNEL = 1.5
"""Half as much again: what is on its way lies in the kernel's buffers as well."""


@dataclass(frozen=True)
class GuestTraining:
    """A plan to train in a guest, and where its results go (a directory that may hold an empty `logs` already)."""

    plan: Plan
    directory: Path
    shaper: str = AUTO
    """By default netem, and the relay for a plan whose links change."""
    quiet: bool = False
    strict: bool = False
    shown: tuple[str, ...] = ()
    """Directories that a job's code may read."""

    def assignment(self, *, quiet: bool) -> Assignment:
        """What the guest gets; `quiet` here or there is quiet."""
        document = file.to_json(self.plan)
        quiet = self.quiet or quiet
        shaper = _in_guest(self.shaper, self.plan)
        return Assignment("train", document, self.directory, shaper, quiet, strict=self.strict, shown=self.shown)


def _in_guest(shaper: str, plan: Plan) -> str:
    """The name of a shaper, with what a guest takes by itself."""
    if shaper != AUTO:
        return shaper
    return RELAY if links_change(plan) else "netem"


def choose_machine(clock: Clock) -> guest_machine.GuestMachine:
    """The time-travel kernel or the packaged one. Raises MachineLacks naming the command that adds it."""
    if clock.name == "virtual":
        return guest_machine.time_travel(kernel.require(), clock.seed)
    chosen = guest_machine.packaged()
    require_virtual(chosen)
    return chosen


def require_no_limits(plan: Plan) -> None:
    """Raises MachineLacks, before a guest is booted, where nodes have limits: it has no control groups."""
    if plan.network.limits:
        nodes = listed([limit.node for limit in plan.network.limits])
        raise MachineLacks(f"the topology has limits for its nodes ({nodes}), and a guest has none; use --clock real")


def train(
    chosen: guest_machine.GuestMachine, trainings: Sequence[GuestTraining], *, limit_s: float, reporter: Reporter
) -> tuple[Boot, list[dict[str, Any] | None]]:
    """Run trainings one after another in one boot; returns the boot and their comparisons (None where there is none).

    Raises RunFailed when the guest does not finish; what the trainings have written until then is kept.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds")
    work = [training.assignment(quiet=reporter.quiet) for training in trainings]
    boot = _boot(chosen, work, [one.plan for one in trainings], reporter, limit_s=limit_s)
    for training in trainings[: len(boot.ended)]:
        _sign(training.directory / "manifest.json", started, boot.copy)
    return boot, [ended.document for ended in boot.ended]


def _boot(
    chosen: guest_machine.GuestMachine,
    work: Sequence[Assignment],
    trained: Sequence[Plan],
    reporter: Reporter,
    *,
    limit_s: float = _CALIBRATE_LIMIT_S,
) -> Boot:
    """Do the work in one boot; of it some plans are `trained`.

    Raises MachineLacks before that where the messages of one need more memory than there is.
    """
    for plan in trained:
        _require_memory(plan, chosen)
    if privileges.require(capabilities.OF_GUESTS) is Privilege.PLAIN_PROCESS:
        reporter.say(
            "nobody may make namespaces here: the guest's kernel is a plain process, which may do whatever you may"
        )
    # memory that is not touched costs nothing, too little makes a guest reclaim without end
    memory_mb = max([MEMORY_MB, *(_needed_mb(plan, chosen) for plan in trained)])
    kept, why_not = kept_guest.suitable(
        chosen,
        memory_mb,
        training=bool(trained),
        shown=any(one.shown for one in work),
        directories=sum(one.out is not None for one in work),
    )
    if why_not is not None:
        print(why_not, file=sys.stderr)
    booting = f"booting the {'time-travel' if chosen.virtual else 'packaged'} kernel ..."
    reporter.say("copying the kept guest ..." if kept else booting)
    if any(_actions(plan) > LARGE for plan in trained):
        compile_all.event_model()  # guests keep nothing: each of their processes would do it anew
    # a quiet guest says errors only: on standard error itself
    hear = None if reporter.quiet else Replay(reporter)
    training = bool(trained)
    return run_assignments(chosen, work, limit_s=limit_s, training=training, hear=hear, memory_mb=memory_mb, kept=kept)


def _actions(plan: Plan) -> int:
    """As many as the event model executes at most for one of its cases."""
    most = 0
    for case in plan.cases:
        rounds = [job.workload.warmup + job.workload.iterations for job in plan.jobs]
        rows = [sum(map(len, chosen.rows or ())) for chosen in case.jobs]
        groups = [job.mesh.size // len(chosen.rows or (0,)) for job, chosen in zip(plan.jobs, case.jobs, strict=True)]
        most = max(most, sum(map(math.prod, zip(rows, groups, rounds, strict=True))))
    return most


def _needed_mb(plan: Plan, chosen: guest_machine.GuestMachine) -> int:
    ranks = sum(job.mesh.size for job in plan.jobs)
    return _BASE_MB + ranks * _MB_PER_RANK + _messages_mb(plan, chosen)


def _messages_mb(plan: Plan, chosen: guest_machine.GuestMachine) -> int:
    return math.ceil(_BUFFERS_IN_KERNEL * buffer_bytes(plan, padded=not chosen.leaves_unwritten) / 2**20)


def _require_memory(plan: Plan, chosen: guest_machine.GuestMachine) -> None:
    messages_mb = _BASE_MB + _messages_mb(plan, chosen)
    machine_mb = guest_machine.memory_of_machine() // 2**20
    if messages_mb > machine_mb:
        jobs = listed([job.name for job in plan.jobs])
        needed, there = (f"{number / 1024:.1f} GiB" for number in (messages_mb, machine_mb))
        raise MachineLacks(
            f"{jobs}: ranks hold messages, for which a guest needs {needed} of memory, and this "
            f"machine has {there}: fewer microbatches, smaller messages or fewer ranks"
        )


def measure_engine(
    chosen: guest_machine.GuestMachine, plan: Plan, sizes: Sequence[int], *, shaper: str, reporter: Reporter
) -> tuple[int, dict[str, Any] | None]:
    """The exit code and the document of `testbed calibrate --engine` in a guest. Raises RunFailed."""
    shaper = _in_guest(shaper, plan)
    work = [Assignment("engine", file.to_json(plan), shaper=shaper, sizes=tuple(sizes), quiet=reporter.quiet)]
    boot = _boot(chosen, work, [plan], reporter)
    return boot.ended[0].code, boot.ended[0].document


def calibrate(
    chosen: guest_machine.GuestMachine, plan: Plan, *, shaper: str, beside_mininet: bool, reporter: Reporter
) -> tuple[int, dict[str, Any] | None]:
    """The exit code and the document of `testbed calibrate` in a guest. Raises RunFailed."""
    asked, quiet = file.to_json(plan), reporter.quiet
    shaper = _in_guest(shaper, plan)
    work = [Assignment("calibrate", asked, shaper=shaper, beside_mininet=beside_mininet, quiet=quiet)]
    boot = _boot(chosen, work, [], reporter)
    return boot.ended[0].code, boot.ended[0].document


def _sign(manifest: Path, started: str, copy: int | None) -> None:
    """The guest knows neither the date nor the command line that the user gave, nor which commit it runs."""
    if not manifest.is_file():
        return
    document = json.loads(manifest.read_text(encoding="utf-8"))
    document |= {"time": started, "command": ["testbed", *sys.argv[1:]], "git": source.identity()["git"]}
    if copy is not None:
        document["kept_guest"] = {"copy": copy}
    with saving(manifest) as partial:
        partial.write_text(indented_json(document) + "\n", encoding="utf-8")
