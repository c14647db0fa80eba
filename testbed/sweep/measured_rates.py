"""Some of a sweep's rates measured in virtual time: every schedule, all in one boot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from testbed.errors import RunFailed
from testbed.plan.plan import Clock, Plan
from testbed.planning.resolve import require_trainable, with_clock
from testbed.progress import Reporter
from testbed.results.destination import results_directory
from testbed.sweep.knee import Swept
from testbed.vm import command

CLOCK = Clock("virtual")

MeasuredRates = Mapping[float, Mapping[str, Mapping[str, Any]]]
"""Rate -> label -> the entry of comparison.json."""


def spread(count: int, wanted: int) -> list[int]:
    """Places of so many of the rates, evenly, both ends among them."""
    if wanted == 1:
        return [count // 2]
    return sorted({round(number * (count - 1) / (wanted - 1)) for number in range(wanted)})


def measure(
    swept: Sequence[Swept], places: Sequence[int], out: Path | None, *, limit_s: float, reporter: Reporter
) -> MeasuredRates:
    """The schedules at these places of the sweep; kept where `out` is a directory.

    Raises MachineLacks, BadInput, or RunFailed where one rate could not be measured.
    """
    with ExitStack() as stack:
        if out is None:
            base = Path(stack.enter_context(TemporaryDirectory(prefix="testbed-knee-")))
        else:
            base = stack.enter_context(results_directory(out, overwrite=False))
        trainings = []
        for place in places:
            plan = with_clock(_measured_once(swept[place].plan), CLOCK)
            require_trainable(plan)
            trainings.append(command.GuestTraining(plan, base / f"rate-{place:03d}", quiet=True))
        machine = command.choose_machine(CLOCK)
        _, documents = command.train(machine, trainings, limit_s=limit_s, reporter=reporter)
    if len(documents) < len(places) or None in documents:
        raise RunFailed("not every rate could be measured: --out DIR keeps the logs")
    return {
        swept[place].rate_bps: {row["label"]: row for row in (document or {})["schedules"]}
        for place, document in zip(places, documents, strict=True)
    }


def _measured_once(plan: Plan) -> Plan:
    """With a single measured iteration: on the virtual clock every one is the same."""
    (job,) = plan.jobs
    workload = job.workload.model_copy(update={"iterations": 1, "warmup": min(2, job.workload.warmup)})
    return replace(plan, jobs=(replace(job, workload=workload),))
