"""Every schedule for one plan beside each other: time, bubble by cause, memory, distance from the bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from testbed.full_scale.similitude_bound import FullScaleTime, full_scale_time
from testbed.model.bounds import Bound, lower_bound
from testbed.model.bubble import TimeByCause, time_by_cause
from testbed.model.lower import Load
from testbed.pipeline.memory import peak_in_flight
from testbed.pipeline.problem import Problem
from testbed.plan import costs
from testbed.plan.plan import Plan
from testbed.planning.noise import NoisySchedule, noisy_schedules, require_draws
from testbed.planning.schedules import make
from testbed.planning.ties import Range, ranges_of_orders, worst_s
from testbed.schedule.evaluation import PredictedSchedule, ScheduleRequest, generate_each, kept_processes
from testbed.schedule.registry import family_of
from testbed.search.incumbent import Watch
from testbed.search.proof import Proof
from testbed.spec.choice import ScheduleChoice

BRIEF: Mapping[str, float] = {"time_limit_s": 1.0}
"""Options with which a family is asked what it would make of any memory: that takes a second at most, as the comparison
is to cost about what making the schedules does. With room for all microbatches most are at the bound at once."""

_AT_BOUND = 1e-9
"""Share of a bound that is rounding."""


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
    remarks: tuple[str, ...] = ()
    """What a user should know of it: what memory has cost it, or that it is the fastest of several."""
    full_scale: FullScaleTime | None = None
    """Its iteration at full scale; every other time is one of the lab. None for a workload without full scale."""
    predicted_range: Range | None = None
    """Of `predicted_s`, by who comes first of messages that meet; None where nothing hangs on that."""

    @property
    def low_s(self) -> float:
        """The least that it may take."""
        return self.predicted_s if self.predicted_range is None else self.predicted_range.low_s

    @property
    def high_s(self) -> float:
        """The most that it may take."""
        return worst_s(self.predicted_s, self.predicted_range)

    def as_json(self) -> dict[str, Any]:
        """The keys of comparison.json that need no measurement, and the causes."""
        return {
            "schedule": self.schedule,
            "label": self.label,
            "predicted_s": self.predicted_s,
            "predicted_low_s": self.predicted_range and self.predicted_range.low_s,
            "predicted_high_s": self.predicted_range and self.predicted_range.high_s,
            "bubble_predicted": self.bubble_predicted,
            "peak_in_flight_predicted": max(self.peaks),
            "speedup_predicted": self.speedup_predicted,
            "peak_in_flight_by_rank": list(self.peaks),
            "lower_bound": {"seconds": self.bound.seconds, "cause": self.bound.cause},
            "solver": self.proof and self.proof._asdict(),
            "remarks": list(self.remarks),
            "full_scale": self.full_scale and self.full_scale.as_json(),
            "time_by_cause": self.causes._asdict() | {"memory_s": self.memory_s},
        }


class Comparison(NamedTuple):
    """All schedules of a plan, fastest first, and those that do not fit into memory with the reason."""

    schedules: list[ComparedSchedule]
    left_out: dict[str, str]
    noisy: list[NoisySchedule]
    """The same over draws of their slots, the one with the least 95th percentile first; [] where nobody asked."""


def compare_schedules(
    plan: Plan,
    choices: Sequence[ScheduleChoice],
    watch: Watch | None = None,
    *,
    source: str | None = None,
    strict: bool = False,
    noise: int = 0,
) -> Comparison:
    """The comparison of these choices. Raises BadInput when none of them fits, or `strict` and one does not.

    `source` is what errors call the workload: its file; default: its name. `noise`: over so many draws of slots too;
    all else goes by their medians.
    """
    if noise:
        require_draws(plan.jobs[0], ("--noise", "option"), noise)
    with kept_processes():
        return _compared(plan, choices, watch, source=source, strict=strict, noise=noise)


def _compared(
    plan: Plan, choices: Sequence[ScheduleChoice], watch: Watch | None, *, source: str | None, strict: bool, noise: int
) -> Comparison:
    selected = make(plan, choices, None, watch, source=source, strict=strict)
    problems = {choice.label: costs.problem(plan, choice) for choice in selected.fitting}
    bounds = bounds_of(problems)
    traces = {
        choice.label: costs.predict(plan, choice, selected.made[choice.label].schedule) for choice in selected.fitting
    }
    seconds = {label: float(trace.makespans()[0]) for label, trace in traces.items()}
    roomy_s = _with_any_memory(plan, selected.fitting, problems, seconds)
    baseline = next((seconds[choice.label] for choice in selected.fitting if choice.schedule == "1f1b"), None)
    compared = []
    for choice in sorted(selected.fitting, key=lambda choice: seconds[choice.label]):
        label, problem = choice.label, problems[choice.label]
        schedule, proof, remarks = selected.made[label]
        (predicted_range,) = ranges_of_orders([Load(problem, schedule, 0.0, plan.jobs[0].workload.receives)])
        compared.append(
            ComparedSchedule(
                schedule=choice.schedule,
                label=label,
                predicted_s=seconds[label],
                bubble_predicted=float(traces[label].bubble_ratios()[0]),
                peaks=peak_in_flight(schedule),
                causes=time_by_cause(problem, schedule),
                memory_s=max(0.0, seconds[label] - roomy_s.get(label, seconds[label])) if _could_use(choice) else None,
                speedup_predicted=None if baseline is None else baseline / seconds[label],
                bound=bounds[label],
                proof=proof,
                remarks=remarks,
                full_scale=full_scale_time(plan, plan.jobs[0], problem, schedule),
                predicted_range=predicted_range,
            )
        )
    loads = {
        label: Load(problem, selected.made[label].schedule, 0.0, plan.jobs[0].workload.receives)
        for label, problem in problems.items()
    }
    return Comparison(compared, selected.left_out, noisy_schedules(plan.jobs[0], loads, noise) if noise else [])


def bounds_of(problems: Mapping[str, Problem]) -> dict[str, Bound]:
    """By label, the bound of its problem; most families have the same one, for which it is found once."""
    known: list[tuple[Problem, Bound]] = []
    found = {}
    for label, problem in problems.items():
        bound = next((bound for other, bound in known if other == problem), None)
        if bound is None:
            bound = lower_bound(problem)
            known.append((problem, bound))
        found[label] = bound
    return found


def _briefly(choice: ScheduleChoice) -> ScheduleChoice:
    """The choice with what its family has of the options in BRIEF."""
    names = [name for name in family_of(choice).option_names() if name in BRIEF]
    return choice.model_copy(update={name: min(BRIEF[name], choice.options().get(name, BRIEF[name])) for name in names})


def _could_use(choice: ScheduleChoice) -> bool:
    """Whether its family makes something else of more memory, and soon."""
    return family_of(choice).uses_spare_memory and not family_of(choice).solver


def _with_any_memory(
    plan: Plan, choices: Sequence[ScheduleChoice], problems: Mapping[str, Problem], seconds: Mapping[str, float]
) -> dict[str, float]:
    """By label, seconds of what the families that could use more memory make of as much as they like.

    Where no rank's limit is below all microbatches they have that already, and nothing is made again; nor where the
    schedule takes no longer than the bound for any memory.
    """
    roomy = {
        choice.label: problem.with_memory(float(problem.n_microbatches))
        for choice in choices
        if _could_use(choice)
        for problem in [problems[choice.label]]
        if min(problem.memory_limit) < problem.n_microbatches
    }
    bounds = bounds_of(roomy)
    tasks = [
        ScheduleRequest(_briefly(choice), roomy[choice.label])
        for choice in choices
        if choice.label in roomy and seconds[choice.label] > bounds[choice.label].seconds * (1 + _AT_BOUND)
    ]
    made = zip(tasks, generate_each(tasks), strict=True)
    return {
        task.choice.label: predicted.makespan_s for task, predicted in made if isinstance(predicted, PredictedSchedule)
    }
