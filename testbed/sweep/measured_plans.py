"""Plans of a sweep measured in virtual time: each as `testbed run` would do it, all in one boot."""

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
from testbed.vm import command

CLOCK = Clock("virtual")


def measure_plans(
    plans: Mapping[str, Plan], out: Path | None, *, what: str, limit_s: float, reporter: Reporter
) -> list[Sequence[Mapping[str, Any]]]:
    """Per plan, by the name of its directory, the entries of comparison.json; kept where `out` is a directory.

    `what` names one of them in errors. Raises MachineLacks, BadInput, or RunFailed where one could not be measured.
    """
    for planned in plans.values():
        command.require_no_limits(planned)
    with ExitStack() as stack:
        if out is None:
            base = Path(stack.enter_context(TemporaryDirectory(prefix="testbed-sweep-")))
        else:
            base = stack.enter_context(results_directory(out, overwrite=None))
        trainings = []
        for name, planned in plans.items():
            plan = with_clock(_measured_once(planned), CLOCK)
            require_trainable(plan)
            trainings.append(command.GuestTraining(plan, base / name, quiet=True))
        machine = command.choose_machine(CLOCK)
        _, documents = command.train(machine, trainings, limit_s=limit_s, reporter=reporter)
    if len(documents) < len(plans) or None in documents:
        raise RunFailed(f"not every {what} could be measured: --out DIR keeps the logs")
    return [(document or {})["schedules"] for document in documents]


def _measured_once(plan: Plan) -> Plan:
    """With a single measured iteration: on the virtual clock every one is the same."""
    (job,) = plan.jobs
    workload = job.workload.model_copy(update={"iterations": 1, "warmup": min(2, job.workload.warmup)})
    return replace(plan, jobs=(replace(job, workload=workload),))
