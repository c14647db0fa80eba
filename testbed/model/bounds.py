"""Lower bounds on the makespan without a solver: no valid schedule is predicted to be faster than this.

They hold for everything `validate` accepts: sub-blocks, fused B or split I and W, microbatches in any order. Costs are
those of the event model. Sources: the largest head + work + tail over the subsets of a single machine's jobs
(Carlier 1982; the optimum of the preemptive problem, so cutting blocks gains nothing); an energy argument for memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from testbed.model.gather import idle_gather_s, idle_reduction_s
from testbed.pipeline.problem import Problem


class Bound(NamedTuple):
    """A proven lower bound."""

    seconds: float
    cause: str
    """What binds: "critical path", "rank r", "link l (r -> q)" or "memory of rank r"."""


class _Load(NamedTuple):
    """Work for one machine: not before `head_s`, `work_s` in total, and `tail_s` after its end."""

    head_s: float
    work_s: float
    tail_s: float


def lower_bound(problem: Problem) -> Bound:
    """The largest of four bounds, in seconds from the common start to the last end on any rank.

    Critical path: one microbatch through all stages and back. Rank: earliest first start + all of a set of blocks +
    shortest tail after the last of them, for the best set. Link: the same for the messages that cross one direction.
    Memory: a microbatch occupies its share from F until W or B ends, at least a round trip to the last stage and
    back; M shares must go through the limit.
    """
    ways = _Ways(problem)
    candidates = [Bound(ways.whole_s, "critical path")]
    candidates += [_rank_bound(problem, ways, rank) for rank in range(problem.n_ranks)]
    candidates += _link_bounds(problem, ways)
    candidates += [_memory_bound(problem, ways, rank) for rank in range(problem.n_ranks)]
    return max(candidates, key=lambda bound: bound.seconds)  # the first of equals: the simplest cause


class _Ways:
    """Along the way of one microbatch: per stage, earliest starts of F and I, and shortest rests behind their ends."""

    def __init__(self, problem: Problem) -> None:
        n, f, i, w = problem.n_stages, problem.forward_s, problem.least_input_s, problem.least_weight_s
        self.down_s = [_transfer(problem, s, s + 1) for s in range(n - 1)]
        """Per boundary, seconds a message takes from stage s to s + 1 on idle links."""
        self.up_s = [_transfer(problem, s + 1, s) for s in range(n - 1)]
        gathered_s = [idle_gather_s(problem, stage) for stage in range(n)]
        self.reduced_s = [idle_reduction_s(problem, stage) for stage in range(n)]
        """Per stage, seconds from its last W's end until its gradients are reduced, on idle links."""
        self.forward_s, self.input_s = [gathered_s[0]] * n, [0.0] * n
        for s in range(1, n):
            arrival = self.forward_s[s - 1] + f[s - 1] + self.down_s[s - 1]
            self.forward_s[s] = max(arrival, gathered_s[s])
        self.input_s[-1] = self.forward_s[-1] + f[-1]
        for s in range(n - 2, -1, -1):
            self.input_s[s] = self.input_s[s + 1] + i[s + 1] + self.up_s[s]
        self.away_s = [0.0] * n
        """Per stage, seconds from the end of a microbatch's F to the start of its I, on idle links."""
        for s in range(n - 2, -1, -1):
            self.away_s[s] = self.down_s[s] + f[s + 1] + self.away_s[s + 1] + i[s + 1] + self.up_s[s]
        self.after_input_s, self.after_forward_s = [w[0] + self.reduced_s[0]] + [0.0] * (n - 1), [0.0] * n
        for s in range(1, n):
            self.after_input_s[s] = max(
                w[s] + self.reduced_s[s], self.up_s[s - 1] + i[s - 1] + self.after_input_s[s - 1]
            )
        self.after_forward_s[-1] = i[-1] + self.after_input_s[-1]
        for s in range(n - 2, -1, -1):
            self.after_forward_s[s] = self.down_s[s] + f[s + 1] + self.after_forward_s[s + 1]
        self.whole_s = max(self.forward_s[s] + f[s] + self.after_forward_s[s] for s in range(n))


def _transfer(problem: Problem, source: int, target: int) -> float:
    """Seconds from a producer's end to the arrival on idle links: all delays and the slowest hop's time on the wire."""
    route = _route(problem, source, target)
    if not route:
        return 0.0
    size = problem.message_bytes[min(source, target)]
    links = [problem.links[index] for index in route]
    return sum(link.delay_s for link in links) + max(link.seconds_per_byte * size for link in links)


def _route(problem: Problem, source: int, target: int) -> tuple[int, ...]:
    ranks = problem.stage_to_rank[source], problem.stage_to_rank[target]
    return () if ranks[0] == ranks[1] else problem.route(*ranks)


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


def _rank_bound(problem: Problem, ways: _Ways, rank: int) -> Bound:
    m, loads = problem.n_microbatches, []
    for s in (s for s, r in enumerate(problem.stage_to_rank) if r == rank):
        f, i, w = problem.forward_s[s], problem.least_input_s[s], problem.least_weight_s[s]
        loads += [
            _Load(ways.forward_s[s], m * f, ways.after_forward_s[s]),
            _Load(ways.input_s[s], m * i, ways.after_input_s[s]),
            _Load(ways.input_s[s] + i, m * w, ways.reduced_s[s]),
        ]
    return Bound(_best_subset(loads), f"rank {rank}")


def _link_bounds(problem: Problem, ways: _Ways) -> list[Bound]:
    loads: list[list[_Load]] = [[] for _ in problem.links]
    ends: list[str] = [""] * len(problem.links)
    m = problem.n_microbatches
    for s in range(problem.n_stages - 1):
        ready_down = ways.forward_s[s] + problem.forward_s[s]
        rest_down = problem.forward_s[s + 1] + ways.after_forward_s[s + 1]
        ready_up = ways.input_s[s + 1] + problem.least_input_s[s + 1]
        rest_up = problem.least_input_s[s] + ways.after_input_s[s]
        for source, target, ready, rest in ((s, s + 1, ready_down, rest_down), (s + 1, s, ready_up, rest_up)):
            route = _route(problem, source, target)
            for hop, index in enumerate(route):
                link = problem.links[index]
                before = sum(problem.links[other].delay_s for other in route[:hop])
                behind = sum(problem.links[other].delay_s for other in route[hop:])
                work = m * problem.message_bytes[s] * link.seconds_per_byte
                loads[index].append(_Load(ready + before, work, behind + rest))
                ends[index] = f"link {index} ({problem.stage_to_rank[source]} -> {problem.stage_to_rank[target]})"
    for s, rank in enumerate(problem.stage_to_rank):
        collective = problem.reduction(s)
        # whichever replica sends: no stage has its gradients before it has run all its blocks
        blocks_s = m * (problem.forward_s[s] + problem.least_input_s[s] + problem.least_weight_s[s])
        for route in (collective.route(step) for step in collective.steps if step.own):
            for hop, index in enumerate(route):
                link = problem.links[index]
                before = sum(problem.links[other].delay_s for other in route[:hop])
                behind = sum(problem.links[other].delay_s for other in route[hop:])
                work = collective.wire_bytes * link.seconds_per_byte
                loads[index].append(_Load(blocks_s + before, work, behind))
                ends[index] = ends[index] or f"link {index} (replicas of rank {rank})"
    return [Bound(_best_subset(load), name) for load, name in zip(loads, ends, strict=True)]


def _memory_bound(problem: Problem, ways: _Ways, rank: int) -> Bound:
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
        occupied += share * (f / 2 + ways.away_s[s] + (i + w) / 2)
    first = min((ways.forward_s[s] for s in stages), default=0.0)
    limit = problem.memory_limit[rank]
    seconds = first + problem.n_microbatches * occupied / limit if limit > 0 else 0.0
    return Bound(seconds, f"memory of rank {rank}")
