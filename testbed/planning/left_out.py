"""What a plan asks for and the model leaves out, in words: predictions say so, on screen and in files."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import pairwise

from testbed.errors import few
from testbed.plan.connecting import least_connecting_s
from testbed.plan.costs import problem_of_case
from testbed.plan.events import at_work, changes_said
from testbed.plan.framing import WARMUP_ROUNDS
from testbed.plan.network_state import network_at, planned
from testbed.plan.plan import Case, Job, Plan
from testbed.planning.drawn_iterations import phase_of, varies
from testbed.planning.prediction import RangesByLabel, predict_together, predict_training, ranges_of_plan
from testbed.planning.queues import of_queues
from testbed.planning.ring_order import of_rings
from testbed.planning.short_slots import of_short_slots
from testbed.planning.slot_room import overruns
from testbed.planning.training_prediction import link_events_of
from testbed.spec.topology import Topology
from testbed.thresholds import OVERRUN_SHARE
from testbed.trace.tables import Trace
from testbed.units import show_size, show_time


def warnings(plan: Plan, ranges: RangesByLabel | None = None) -> list[str]:
    """A line for everything that measured times may show and predicted ones do not; [] where the model has it all.

    With what is left out, predictions that are ranges: `ranges` of the plan, where they are known. And rings whose
    replicas had better stand in another order, slots that are short beside a wait that no rank notices, and those of
    restarts in which no worker can connect.
    """
    by_chance = dict.fromkeys(line for case in _known(plan.cases) for line in of_events(plan, case))
    short = of_short_slots(plan) + of_short_restarts(plan)
    return left_out(plan) + list(by_chance) + of_ties(plan, ranges) + of_rings(plan) + short


def of_short_restarts(plan: Plan) -> list[str]:
    """A line where workers who connect send each other more than fits into the slot of a restart; else []."""
    recovery, job = plan.recovery, plan.jobs[0]
    if recovery is None or not recovery.failures:
        return []
    least_s = least_connecting_s(plan, plan.cases[0], job)
    if least_s <= recovery.restart_s:
        return []
    sent = f"{WARMUP_ROUNDS} messages of {show_size(job.workload.message_bytes())}"
    return [
        f"restart={show_time(recovery.restart_s)} is too short: workers that connect send each neighbour {sent}, which "
        f"takes {show_time(least_s)} at least: goodput will be off, and a run untrusted"
    ]


def left_out(plan: Plan) -> list[str]:
    """A line for everything that is not in the model.

    Of cases whose schedules only a run can make, nothing is known of the queues.
    """
    return _left_out(plan, plan.cases, range(len(plan.jobs)))


def of_changes(asked: Plan | Topology) -> list[str]:
    """What is to be known of times that are those before anything happens to links and ranks; [] where nothing does."""
    said = list(dict.fromkeys(asked.events if isinstance(asked, Topology) else changes_said(asked)))
    then = "these are times before that; `testbed predict` has those of every iteration"
    return [f"links or ranks change ({few(said)}): {then}"] if said else []


def of_events(plan: Plan, case: Case) -> list[str]:
    """A line that names the measured iterations of a case that loss or jitter by events touch, and the events; the
    others are compared with their predictions all the same. And one that names the event for which a training never
    ends. [] where there are none."""
    if not link_events_of(plan, case):
        return []
    training, warmup = predict_training(plan, case, strict=False), plan.jobs[0].workload.warmup
    lines = _of_chance(plan, case, training.by_chance)
    if training.endless is not None:
        number = training.endless.round - warmup
        lines.append(f"iteration {number} never ends, with {training.endless.event.said}: no later one is trained")
    return lines


def _of_chance(plan: Plan, case: Case, rounds: Collection[int]) -> list[str]:
    events = [event for event in link_events_of(plan, case) if event.by_chance]
    measured, warmup = phase_of(plan, case).measured, plan.jobs[0].workload.warmup
    touched = [number - warmup for number in measured if number in rounds]
    if not touched:
        return []
    said, several = few(list(dict.fromkeys(event.said for event in events))), len(touched) > 1
    which = f"iteration{'s' * several} {', '.join(_runs(touched))} {'are' if several else 'is'}"
    others = "" if len(touched) < len(measured) else ", and no other was measured"
    later = "; what is lost leaves TCP smaller windows until the end" if any(event.loss for event in events) else ""
    return [f"loss and jitter by events are not in the model ({said}): {which} not compared{others}{later}"]


def _runs(numbers: Sequence[int]) -> list[str]:
    """Ascending numbers, those that follow each other as "3 to 5"."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][-1] == number - 1:
            found[-1].append(number)
        else:
            found.append([number])
    return [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in found]


def left_out_of(plan: Plan, case: Case, job: int) -> list[str]:
    """The same of one job in one case: what its measured time may show and its predicted one does not."""
    return _left_out(plan, (case,), (job,))


def _left_out(plan: Plan, cases: Sequence[Case], jobs: Sequence[int]) -> list[str]:
    """Of the network in these cases of a plan, and of these jobs."""
    lines = of_links(plan, cases)
    if plan.transport != "otn-lossless":
        lines.append(
            f"transport {plan.transport} is not in the model: slow start, delayed acknowledgements and drops "
            "take longer than predicted"
        )
    for job in (plan.jobs[number] for number in jobs):
        lines += of_gloo(plan, job)
    lines += _of_processors(plan, [node for number in jobs for node in plan.jobs[number].nodes])
    return lines + _of_tensor_ranks(plan, _known(cases)) + of_queues(plan, _known(cases))


def _of_processors(plan: Plan, nodes: Sequence[str]) -> list[str]:
    """Nodes that may have less than a processor for every rank; `nodes`: of each rank."""
    limits = [(limit.node, limit.cpus) for limit in plan.network.limits if limit.cpus is not None]
    short = [f"{node} {cpus:g}" for node, cpus in limits if cpus < nodes.count(node)]
    if not short:
        return []
    return [f"limits of processors are not in the model ({few(short)}): what ranks there do may take its turn late"]


def _called(plan: Plan, case: Case, number: int) -> str:
    """A job in a case."""
    return case.label if len(plan.jobs) == 1 else f"{case.label}: {plan.jobs[number].name}"


def _of_tensor_ranks(plan: Plan, cases: Sequence[Case]) -> list[str]:
    """Slots that are too short for what tensor ranks send each other in them over network cards."""
    short: dict[str, None] = {}
    for case in cases if any(job.mesh.tp > 1 and job.workload.pacing for job in plan.jobs) else ():
        trace, least = predict_together(plan, case), 0.0
        if varies(plan, case) and plan.rounds != "free":
            trace, least = _first_iterations(predict_training(plan, case, strict=False).trace), _WITH_OTHERS
        for number in at_work(plan, case):
            job = plan.jobs[number]
            if job.mesh.tp > 1 and job.workload.pacing:
                found = overruns(problem_of_case(plan, case, job=number), job, trace)
                for (kind, stage), over in sorted(found.worst.items()) if found.share > least else ():
                    takes, slot = show_time(over.takes_s), show_time(over.slot_s)
                    short[f"{job.name}: {kind} of stage {stage} {takes} of {slot}"] = None
    if not short:
        return []
    return [
        "slots have no room for what tensor ranks send each other over network cards, with messages of their own: "
        f"actions will overrun ({few(list(short))})"
    ]


_WITH_OTHERS = OVERRUN_SHARE.value / 2
"""Of the actions: each may have the one behind it end late, too, such as a W of no length."""

_MOST_ITERATIONS = 20
"""Of slots that are drawn anew; all of a long training would take long to look at."""


def _first_iterations(trace: Trace) -> Trace:
    return trace.without(trace.iterations()[_MOST_ITERATIONS:].tolist())


_GLOO_SEGMENT_BYTES = 1 << 20
"""The longest segment of gloo's all-reduce (kMaxSegmentSize)."""


def gloo_all_reduce_s(members: int, size_bytes: float, round_trip_s: float, rate_bps: float) -> float:
    """About how long gloo's own all-reduce takes where its slowest edge has this round trip and rate.

    Each member's share goes round in segments of at most 1 MiB, two at least. A segment is sent when it has been asked
    for, and two are asked for at once, so that two take a round trip: (members - 1) times the segments of a share, for
    reducing and gathering together, and once the time of all bytes on the wire. Within 5 % of what benchmarks/
    collectives.py measures.
    """
    segments = max(2, math.ceil(size_bytes / (members * _GLOO_SEGMENT_BYTES)))
    return (members - 1) * segments * round_trip_s + 8 * size_bytes / rate_bps


def of_gloo(plan: Plan, job: Job) -> list[str]:
    """Of a job whose replicas add up their gradients by gloo's own all-reduce; [] for another."""
    if not job.workload.data_parallel.collective.by_gloo:
        return []
    network = planned(plan.network)
    node_of = dict(zip(job.mesh.ranks, job.nodes, strict=True))
    trips, rates = [0.0], [math.inf]
    for rank in range(job.mesh.pp):
        members = [node_of[job.mesh.rank(replica, rank)] for replica in range(job.mesh.dp)]
        for one, other in pairwise([*members, members[0]]):
            ways = (*network.default_route(one, other), *network.default_route(other, one))
            trips.append(sum(network.links[index].delay_s for index in ways))
            rates += [network.links[index].rate_bps for index in ways]
    size = job.workload.stage_bytes(job.mesh.pp)
    about_s = gloo_all_reduce_s(job.mesh.dp, size, max(trips), min(rates))
    takes = f"one of {show_size(size)} takes about {show_time(about_s)} here" if about_s else "no link is on its way"
    return [
        "gloo's own all-reduce is not in the model: predicted as a ring of messages, but its segments are sent when "
        f"they are asked for, two at once; {takes}"
    ]


def of_links(plan: Plan, cases: Sequence[Case]) -> list[str]:
    """Of losses and jitter of the links that are used in these cases, a line each."""
    crossed = {
        (index, links[index])
        for case in cases
        for links in [network_at(plan, case).links]
        for route in case.routes
        for index in route
    }
    directions = [direction for _, direction in sorted(crossed)]
    lossy = [f"{direction.label} {100 * direction.loss:g} %" for direction in directions if direction.loss]
    jittery = [f"{direction.label} {show_time(direction.jitter_s)}" for direction in directions if direction.jitter_s]
    lines = []
    if lossy:
        lines.append(f"loss is not in the model ({few(lossy)}): what is lost is sent again, later than predicted")
    if jittery:
        lines.append(f"jitter is not in the model ({few(jittery)}): predicted with the delay alone")
    return lines


def of_ties(plan: Plan, ranges: RangesByLabel | None = None) -> list[str]:
    """A line that names the predictions that are ranges; [] where none is. `ranges` as in `warnings`."""
    ranged, known = [], ranges_of_plan(plan) if ranges is None else ranges
    for case in _known(plan.cases):
        for number, predicted_range in zip(at_work(plan, case), known[case.label], strict=True):
            if predicted_range is not None and predicted_range.order_sensitive:
                least, most = map(show_time, predicted_range)
                ranged.append(f"{_called(plan, case, number)} {least} to {most}")
    who = "who comes first of messages that meet at a link within microseconds decides"
    return [f"{who} ({few(ranged)})"] if ranged else []


def _known(cases: Sequence[Case]) -> list[Case]:
    """Those whose schedules are made."""
    return [case for case in cases if all(chosen.rows is not None for chosen in case.jobs)]
