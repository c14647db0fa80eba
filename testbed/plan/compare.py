"""Every schedule for one plan beside each other: time, bubble by cause, memory, distance from the bound."""

from __future__ import annotations

from typing import Any, NamedTuple

from testbed.errors import BadInput
from testbed.model.bounds import Bound, lower_bound
from testbed.model.bubble import TimeByCause, time_by_cause
from testbed.pipeline.memory import peak_in_flight
from testbed.plan import costs
from testbed.plan.plan import Plan
from testbed.plan.resolve import candidate
from testbed.schedule.proof import Proof, Watch
from testbed.schedule.registry import family_of, generate_choice
from testbed.spec.choice import ScheduleChoice


class ComparedSchedule(NamedTuple):
    """One schedule as the model sees it."""

    schedule: str
    label: str
    predicted_s: float
    bubble_predicted: float
    peaks: tuple[float, ...]
    """Most microbatches in flight, per rank."""
    causes: TimeByCause
    memory_s: float | None
    """What the memory limit costs a schedule that could use more; None for one with a fixed order."""
    speedup_predicted: float | None
    bound: Bound
    """No schedule with these stages on these ranks takes less."""
    proof: Proof | None
    """What a solver proved of it; None for a schedule that no solver made."""

    def as_json(self) -> dict[str, Any]:
        """The keys of comparison.json that need no measurement, and the causes."""
        return {
            "schedule": self.schedule,
            "label": self.label,
            "predicted_s": self.predicted_s,
            "bubble_predicted": self.bubble_predicted,
            "peak_in_flight_predicted": max(self.peaks),
            "speedup_predicted": self.speedup_predicted,
            "peak_in_flight_by_rank": list(self.peaks),
            "lower_bound": {"seconds": self.bound.seconds, "cause": self.bound.cause},
            "solver": self.proof and self.proof._asdict(),
            "time_by_cause": self.causes._asdict() | {"memory_s": self.memory_s},
        }


class Comparison(NamedTuple):
    """All schedules of a plan, fastest first, and those that do not fit into memory with the reason."""

    schedules: list[ComparedSchedule]
    left_out: dict[str, str]


def compare_schedules(plan: Plan, choices: list[ScheduleChoice], watch: Watch | None = None) -> Comparison:
    """The comparison of these choices. Raises BadInput when none of them fits."""
    found, left_out = [], {}
    for choice in choices:
        try:
            found.append(candidate(plan, choice, watch))
        except BadInput as error:
            left_out[choice.label] = str(error)
    baseline = next((one.makespan_s for one in found if one.choice.schedule == "1f1b"), None)
    compared = []
    for choice, problem, schedule, makespan_s, proof in sorted(found, key=lambda one: one.makespan_s):
        memory_s = None
        family = family_of(choice)
        if family.uses_spare_memory and not family.solver:
            roomy = problem.with_memory(float(problem.n_microbatches))
            free = generate_choice(choice, roomy).schedule
            memory_s = max(0.0, makespan_s - float(costs.predict(plan, choice, free).makespans()[0]))
        compared.append(
            ComparedSchedule(
                schedule=choice.schedule,
                label=choice.label,
                predicted_s=makespan_s,
                bubble_predicted=float(costs.predict(plan, choice, schedule).bubble_ratios()[0]),
                peaks=peak_in_flight(schedule),
                causes=time_by_cause(problem, schedule),
                memory_s=memory_s,
                speedup_predicted=None if baseline is None else baseline / makespan_s,
                bound=lower_bound(problem),
                proof=proof,
            )
        )
    return Comparison(compared, left_out)
