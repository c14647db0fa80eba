"""Lower bounds on the makespan without a solver: no valid schedule is predicted to be faster than this.

They hold for everything `validate` accepts: sub-blocks, fused B or split I and W, microbatches in any order. Costs are
those of the event model, with its logical clock: a wait that a rank does not notice does not delay it. Sources: the
largest head + work + tail over the subsets of a single machine's jobs (Carlier 1982; the optimum of the preemptive
problem, so cutting blocks gains nothing); an energy argument for memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from testbed.model.filling import filling_bounds
from testbed.model.microbatch_path import EarliestStarts, hand_over_s, route
from testbed.pipeline.memory import TOLERANCE
from testbed.pipeline.problem import Problem


class Bound(NamedTuple):
    """A proven lower bound."""

    seconds: float
    cause: str
    """What binds: "critical path", "rank r", "link l (r -> q)", "memory of rank r" or "fill and drain of rank r"."""


class _Load(NamedTuple):
    """Work for one machine: not before `head_s`, `work_s` in total, and `tail_s` after its end."""

    head_s: float
    work_s: float
    tail_s: float


def lower_bound(problem: Problem) -> Bound:
    """The largest of five bounds, in seconds from the common start to the last end on any rank.

    Critical path: one microbatch through all stages and back. Rank: earliest first start + all of a set of blocks +
    shortest tail after the last of them, for the best set. Link: the same for the messages that cross one direction.
    Memory: a microbatch occupies its share from F until W or B ends, at least a round trip to the last stage and
    back; M shares must go through the limit. Fill and drain: a rank's work, and how long it is idle at both ends as
    its memory holds no more until the first gradients are back (filling.py).
    """
    earliest = EarliestStarts(problem)
    candidates = [Bound(earliest.whole_s, "critical path")]
    candidates += [_rank_bound(problem, earliest, rank) for rank in range(problem.n_ranks)]
    candidates += _link_bounds(problem, earliest)
    candidates += [_memory_bound(problem, earliest, rank) for rank in range(problem.n_ranks)]
    best = max(candidates, key=lambda bound: bound.seconds)  # the first of equals: the simplest cause
    if best.seconds > 0:
        fill = filling_bounds(problem, earliest, best.seconds)
        candidates += [Bound(seconds, f"fill and drain of rank {rank}") for rank, seconds in enumerate(fill)]
    first = max(candidates, key=lambda bound: bound.seconds)
    return first if first.seconds > best.seconds * (1 + 1e-9) else best


def _best_subset(loads: Iterable[_Load]) -> float:
    """The most that earliest head + total work + shortest tail comes to, over all subsets of the loads."""
    loads = [load for load in loads if load.work_s > 0]
    most = 0.0
    for head in {load.head_s for load in loads}:
        late = sorted((load for load in loads if load.head_s >= head), key=lambda load: -load.tail_s)
        work = 0.0
        for load in late:
            work += load.work_s
            most = max(most, head + work + load.tail_s)
    return most


def _rank_bound(problem: Problem, earliest: EarliestStarts, rank: int) -> Bound:
    m, loads = problem.n_microbatches, []
    for s in (s for s, r in enumerate(problem.stage_to_rank) if r == rank):
        f, i, w = problem.forward_s[s], problem.least_input_s[s], problem.least_weight_s[s]
        loads += [
            _Load(earliest.forward_s[s], m * f, earliest.after_forward_s[s]),
            _Load(earliest.input_s[s], m * i, earliest.after_input_s[s]),
            _Load(earliest.input_s[s] + i, m * w, earliest.reduced_s[s]),
        ]
    return Bound(_best_subset(loads), f"rank {rank}")


def _link_bounds(problem: Problem, earliest: EarliestStarts) -> list[Bound]:
    loads: list[list[_Load]] = [[] for _ in problem.links]
    ends: list[str] = [""] * len(problem.links)
    m = problem.n_microbatches
    for s in range(problem.n_stages - 1):
        ready_down = earliest.forward_s[s] + problem.forward_s[s]
        rest_down = problem.forward_s[s + 1] + earliest.after_forward_s[s + 1]
        ready_up = earliest.input_s[s + 1] + problem.least_input_s[s + 1]
        rest_up = problem.least_input_s[s] + earliest.after_input_s[s]
        for source, target, ready, rest in ((s, s + 1, ready_down, rest_down), (s + 1, s, ready_up, rest_up)):
            crossed = route(problem, source, target)
            for hop, index in enumerate(crossed):
                link = problem.links[index]
                before = sum(problem.links[other].delay_s for other in crossed[:hop])
                behind = sum(problem.links[other].delay_s for other in crossed[hop:]) + hand_over_s(problem)
                # the other tensor ranks' parts of a boundary tensor, without which nothing behind it begins
                ends_of = problem.stage_to_rank[source], problem.stage_to_rank[target]
                parts = sum(index in pipeline.route(*ends_of) for pipeline in problem.pipelines[: problem.tensor])
                work = m * parts * problem.message_bytes[s] * link.seconds_per_byte
                loads[index].append(_Load(ready + before, work, behind + rest))
                ends[index] = f"link {index} ({problem.stage_to_rank[source]} -> {problem.stage_to_rank[target]})"
    for s, rank in enumerate(problem.stage_to_rank):
        collective = problem.reduction(s)
        # whichever replica sends: no stage has its gradients before it has run all its blocks
        blocks_s = m * (problem.forward_s[s] + problem.least_input_s[s] + problem.least_weight_s[s])
        for step in (step for step in collective.steps if step.own):
            crossed = collective.route(step)
            for hop, index in enumerate(crossed):
                link = problem.links[index]
                before = sum(problem.links[other].delay_s for other in crossed[:hop])
                behind = sum(problem.links[other].delay_s for other in crossed[hop:])
                work = collective.size(step) * link.seconds_per_byte
                loads[index].append(_Load(blocks_s + before, work, behind))
                ends[index] = ends[index] or f"link {index} (replicas of rank {rank})"
    return [Bound(_best_subset(load), name) for load, name in zip(loads, ends, strict=True)]


def _memory_bound(problem: Problem, earliest: EarliestStarts, rank: int) -> Bound:
    """Memory x time that M microbatches need, through the limit, behind the earliest first forward.

    A block in parts takes and frees its memory part by part; half of F and half of what frees is a lower bound on
    the mean for any number of parts, so only halves are counted.
    """
    stages = [s for s, r in enumerate(problem.stage_to_rank) if r == rank]
    occupied = 0.0
    for s in stages:
        extra = min(0.0, problem.input_memory[s]) if problem.input_memory else 0.0
        share = max(0.0, problem.activation[s] + extra)  # an I that frees memory leaves only the rest behind
        f, i, w = problem.forward_s[s], problem.least_input_s[s], problem.least_weight_s[s]
        occupied += share * (f / 2 + earliest.away_s[s] + (i + w) / 2)
    first = min((earliest.forward_s[s] for s in stages), default=0.0)
    limit = problem.memory_limit[rank] + TOLERANCE
    seconds = first + problem.n_microbatches * occupied / limit if limit > 0 else 0.0
    return Bound(seconds, f"memory of rank {rank}")
