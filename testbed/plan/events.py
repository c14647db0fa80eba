"""Events between the iterations of a training: a link is lost, a job arrives or departs, and another case goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from testbed.errors import BadInput, listed, require
from testbed.plan.moved_weights import require_movable
from testbed.plan.network_state import planned
from testbed.plan.plan import Case, Job, JobSchedule, Plan
from testbed.plan.recovery import cuts_off
from testbed.plan.timeline import (
    Event,
    FlowsMoved,
    JobArrives,
    JobDeparts,
    LinkEvent,
    LinkLost,
    RankSlower,
    ScheduleSwapped,
    StartShifted,
    begins,
    events_until,
)
from testbed.spec.event_text import LEAST_FACTOR, MOST_FACTOR
from testbed.units import show_span

Place = tuple[str, str]
"""How errors name something: a file or an option, and a field."""


def at_work(plan: Plan, case: Case) -> tuple[int, ...]:
    """The numbers of the jobs that train in a case."""
    if case.alone is not None:
        return tuple(number for number, job in enumerate(plan.jobs) if job.name == case.alone)
    names = frozenset(job.name for job in plan.jobs) - {
        arrival.name for arrival in plan.events if isinstance(arrival, JobArrives)
    }
    for event in events_until(plan, case, begins(case)):
        names = event.on_jobs(names)
    return tuple(number for number, job in enumerate(plan.jobs) if job.name in names)


def changes_said(plan: Plan) -> list[str]:
    """What happens to links and ranks, each as somebody wrote it."""
    return [event.said for event in plan.events if isinstance(event, LinkEvent | RankSlower)]


def links_change(plan: Plan) -> bool:
    """Whether links change while jobs train: by events, or as a datacenter is cut off."""
    return any(isinstance(event, LinkEvent) for event in plan.events) or cuts_off(plan.recovery)


def swaps(plan: Plan) -> bool:
    """Whether a training may go on with another schedule: told by an event, or by a controller."""
    return plan.adaptation is not None or any(isinstance(event, ScheduleSwapped) for event in plan.events)


def away(plan: Plan, case: Case) -> tuple[str, ...]:
    """The names of the jobs that do not train in a case: not yet, not any more, or since it is of another one alone."""
    working = at_work(plan, case)
    return tuple(job.name for number, job in enumerate(plan.jobs) if number not in working)


def lost(plan: Plan, case: Case) -> tuple[str, ...]:
    """The switches and links that are gone when a case begins, in the order in which they went."""
    return tuple(event.name for event in events_until(plan, case, begins(case)) if isinstance(event, LinkLost))


def scheduled(plan: Plan, case: Case) -> dict[str, str]:
    """The label of the schedule that each job, by its name, was told to go on with by the time that a case begins."""
    told = (event for event in events_until(plan, case, begins(case)) if isinstance(event, ScheduleSwapped))
    return {event.name: event.schedule for event in told}


def starts_of(plan: Plan, case: Case) -> tuple[float, ...]:
    """Per job, when it begins in a case, in seconds from the common start."""
    return case.starts_s or tuple(job.start_s for job in plan.jobs)


def trainings(cases: Sequence[Case]) -> Iterator[list[Case]]:
    """The cases that go on from each other, together: the first begins on the whole network."""
    together: list[Case] = []
    for case in cases:
        if together and case.continues is None:
            yield together
            together = []
        together.append(case)
    if together:
        yield together


class Changed(NamedTuple):
    """What events changed: names of switches and links, of jobs, labels of schedules that jobs go on with, and names of
    the jobs whose starts are others."""

    lost: tuple[str, ...]
    arrived: tuple[str, ...]
    departed: tuple[str, ...]
    swapped: tuple[str, ...] = ()
    shifted: tuple[str, ...] = ()

    def __str__(self) -> str:
        """As a case's label says it."""
        said = [("to", self.swapped), ("without", self.lost + self.departed), ("with", self.arrived)]
        said += [("with another start of", self.shifted)]
        return " ".join(f"{word} {' + '.join(names)}" for word, names in said if names)


def changed(plan: Plan, before: Case, case: Case) -> Changed:
    """What happened between two cases of a training."""
    absent, starts = (away(plan, before), away(plan, case)), (starts_of(plan, before), starts_of(plan, case))
    return Changed(
        lost(plan, case)[len(lost(plan, before)) :],
        tuple(name for name in absent[0] if name not in absent[1]),
        tuple(name for name in absent[1] if name not in absent[0]),
        tuple(now.choice.label for was, now in zip(before.jobs, case.jobs, strict=True) if now != was),
        tuple(job.name for job, was, now in zip(plan.jobs, *starts, strict=True) if now != was),
    )


class Phase(NamedTuple):
    """The rounds of a training that are a case's; in each all jobs at work train an iteration."""

    rounds: range
    """Counted from the first of the training, which warms up."""
    warmup: int
    """So many of the first of them do not count: at the beginning, and after a job has arrived."""

    @property
    def measured(self) -> range:
        """Those that count."""
        return self.rounds[self.warmup :]


def phases(plan: Plan, cases: Sequence[Case]) -> list[Phase]:
    """Of each case of a training. All jobs ask for as many iterations and warm-ups."""
    workload = plan.jobs[0].workload
    lasts = [workload.warmup + case.continues.after for case in cases if case.continues is not None]
    firsts = [0, *lasts]
    ends = [*lasts, workload.warmup + workload.iterations]
    cold = [True, *(bool(changed(plan, *pair).arrived) for pair in pairwise(cases))]
    return [
        Phase(range(first, end), workload.warmup if new else 0)
        for first, end, new in zip(firsts, ends, cold, strict=True)
    ]


def own_phase(plan: Plan, case: Case, phase: Phase, job: int) -> Phase:
    """The iterations of a job (by number) in a case with this phase: the rounds, or its own where jobs run freely."""
    if plan.rounds == "together":
        return phase
    workload = plan.jobs[job].workload
    count = case.iterations[job] if case.iterations else workload.iterations
    return Phase(range(workload.warmup + count), workload.warmup)


def trained(plan: Plan, cases: Sequence[Case], job: int) -> range:
    """The rounds of a training in which a job (by number) has a part: an iteration of it in each; none where another
    one is trained alone."""
    mine = [
        own_phase(plan, case, phase, job).rounds
        for case, phase in zip(cases, phases(plan, cases), strict=True)
        if job in at_work(plan, case)
    ]
    return range(mine[0].start, mine[-1].stop) if mine else range(0)


# --- what can be ---------------------------------------------------------------------------------


def check_events(plan: Plan, place: Callable[[int], Place]) -> None:
    """Raises BadInput for the first event of a plan that cannot be, by itself or after those before it.

    `place` says of the event of a number how errors name it: a file or an option, and a field.
    """
    total = min((job.workload.iterations for job in plan.jobs), default=0)
    for number, event in enumerate(plan.events):
        (source, field), at = place(number), event.at
        playable = event.between_iterations or event.inside_iterations or event.at_beginnings
        require(playable, source, f"{field}.kind", event.kind, "a kind that model and lab can play; they cannot yet")
        require(at.seconds >= 0, source, f"{field}.at.seconds", at.seconds, "0 s or more")
        expected = f"0, the beginning of an iteration: no {event.kind} can be played inside one"
        require(event.inside_iterations or not at.seconds, source, f"{field}.at.seconds", at.seconds, expected)
        during = 0 <= at.iteration < total or _begins_case(event)
        require(during, source, f"{field}.at.iteration", at.iteration, show_span("0", str(total - 1)))
        in_order = number == 0 or plan.events[number - 1].at <= at
        require(in_order, source, f"{field}.at.iteration", at.iteration, "events in order of time")
    _check_names(plan, place)
    _check_times(plan, place)


def _begins_case(event: Event) -> bool:
    return event.between_iterations and not event.at.seconds


def _check_names(plan: Plan, place: Callable[[int], Place]) -> None:
    """That what events name is there when they happen, and somebody always trains."""
    names = [job.name for job in plan.jobs]
    arrives = {arrival.name: arrival.at for arrival in plan.events if isinstance(arrival, JobArrives)}
    network, working = planned(plan.network), frozenset(names) - arrives.keys()
    seen = set[tuple[object, ...]]()
    for number, event in enumerate(plan.events):
        source, field = place(number)
        there = bool(working) or number > 0
        require(there, source, f"{field}.name", event.name, "one job or more that is there from the beginning")
        if event.of_jobs:
            require(event.name in names, source, f"{field}.name", event.name, f"one of the jobs ({listed(names)})")
        if _begins_case(event):
            mark, once = _mark(event)
            named = ("schedule", event.schedule) if isinstance(event, ScheduleSwapped) else ("name", event.name)
            require(mark not in seen, source, f"{field}.{named[0]}", named[1], once)
            seen.add(mark)
        if isinstance(event, FlowsMoved):
            for end, name in (("source", event.source), ("target", event.target)):
                known = name in network.datacenters
                require(known, source, f"{field}.{end}", name, f"a datacenter ({listed(network.datacenters)})")
        if isinstance(event, RankSlower):
            _check_slower(plan, event, source, field)
        if isinstance(event, JobDeparts) and event.name in arrives:
            came = arrives[event.name]
            expected = f"more than {came.iteration}, when it arrives"
            require(came < event.at, source, f"{field}.at.iteration", event.at.iteration, expected)
        if isinstance(event, ScheduleSwapped | StartShifted):
            require(event.name in working, source, f"{field}.name", event.name, "a job that trains then")
        try:
            after = event.on_network(network)
        except BadInput as error:
            raise BadInput(f"{source}: {field}.{str(error).partition(': ')[2]}") from error
        anew = not isinstance(event, LinkLost) or after.down != network.down
        require(anew, source, f"{field}.name", event.name, "something that is not lost already")
        network, working = after, event.on_jobs(working)
        more = number + 1 < len(plan.events) and plan.events[number + 1].at == event.at
        require(bool(working) or more, source, f"{field}.name", event.name, "one job or more at work after it")


def _mark(event: Event) -> tuple[tuple[object, ...], str]:
    """What no two events between iterations may share, and in words that there is one of it."""
    if isinstance(event, ScheduleSwapped):
        return (event.kind, event.name, event.at), "one schedule at a time"
    if isinstance(event, StartShifted):
        return (event.kind, event.name, event.at), "one start at a time"
    if isinstance(event, FlowsMoved):
        return (event.kind, event.name, event.at, event.source, event.target), "one route at a time"
    return (isinstance(event, JobArrives), event.name), "each name once"


def _check_slower(plan: Plan, event: RankSlower, source: str, field: str) -> None:
    job = next(job for job in plan.jobs if job.name == event.name)
    ranks = job.mesh.size
    require(0 <= event.rank < ranks, source, f"{field}.rank", event.rank, show_span("0", str(ranks - 1)))
    within = LEAST_FACTOR <= event.factor <= MOST_FACTOR
    require(within, source, f"{field}.factor", event.factor, f"{LEAST_FACTOR:g} to {MOST_FACTOR:g}")
    over = event.until is None or event.until > event.at.iteration
    require(over, source, f"{field}.until", event.until, f"more than {event.at.iteration}, when it begins")
    paced = job.workload.pacing is not None
    require(
        paced, source, f"{field}.name", event.name, "a job with times for F, I and W: there are no slots to stretch"
    )


def _check_times(plan: Plan, place: Callable[[int], Place]) -> None:
    """That there are iterations before, between and after events, and more than those that warm up."""
    between = [(number, change) for number, change in enumerate(plan.events) if _begins_case(change)]
    for job in plan.jobs:
        warmup, total, before, earlier = job.workload.warmup, job.workload.iterations, 0, set[int]()
        begun = ""
        for number, event in between:
            after = event.at.iteration
            if after in earlier:
                continue
            together = [other for _, other in between if other.at == event.at]
            cold = warmup if any(isinstance(change, JobArrives) for change in together) else 0
            last = total - 1 - cold
            why = f", and the first {cold} after an arrival warm up" if cold else begun
            expected = f"{show_span(str(before + 1), str(last))}: some measured iterations come before, some after{why}"
            if last <= before:
                expected = f"more iterations than {total} (--iterations N): some before, some after{why}"
            source, field = place(number)
            require(before < after <= last, source, f"{field}.at.iteration", after, expected)
            before = after + cold
            begun = f", and the first {cold} after the arrival at {after} warm up" if cold else ""
            earlier.add(after)


def _check_swap(job: Job, before: JobSchedule, after: JobSchedule, label: str, source: str, field: str) -> None:
    """Raises BadInput for a schedule that is not the one that a training goes on with, or cannot be."""
    require(after.choice.label == label, source, field, after.choice.label, f"{label}, with which the training goes on")
    if label == before.choice.label:
        require(after == before, source, field, label, "the same schedule as in the case before it")
    require_movable(job.workload, before.stage_to_rank, after.stage_to_rank, source, f"{field}.stage_to_rank")


def check_training(plan: Plan, cases: Sequence[Case], where: Sequence[Place]) -> None:
    """Raises BadInput for the first case of a training that does not go on where the plan's events say.

    `where` says of every case how errors name it.
    """
    first, (source, field) = cases[0], where[0]
    require(first.continues is None, source, field, first.label, "a case before it that it goes on from")
    for (before, case), (source, field) in zip(pairwise(cases), where[1:], strict=True):
        shifted = {e.name: e.start_s for e in events_until(plan, case, begins(case)) if isinstance(e, StartShifted)}
        starts = [shifted.get(job.name, was) for job, was in zip(plan.jobs, starts_of(plan, first), strict=True)]
        expected = "the starts of the case before it, but for those that events shift"
        require(list(starts_of(plan, case)) == starts, source, field, case.label, expected)
        told = scheduled(plan, case) if first.alone is None else {}
        for job, was, now in zip(plan.jobs, before.jobs, case.jobs, strict=True):
            _check_swap(job, was, now, told.get(job.name, was.choice.label), source, field)
    if first.alone is not None:
        return
    iterations = list(dict.fromkeys(event.at.iteration for event in plan.events if _begins_case(event)))
    going_on = [case.continues.after for case in cases if case.continues is not None]
    for number, after in enumerate(going_on):
        expected = f"{iterations[number]}, as the events" if number < len(iterations) else "no more cases than events"
        fits = number < len(iterations) and after == iterations[number]
        source, field = where[number + 1]
        require(fits, source, f"{field}.continues.after", after, expected)
    if len(going_on) < len(iterations):
        expected = f"a case behind it that goes on after iteration {iterations[len(going_on)]}, as the events say"
        require(False, *where[-1], cases[-1].label, expected)
