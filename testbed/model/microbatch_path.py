"""The way of one microbatch through a pipeline: when each block can start at the earliest, and what must follow it.

All times are those of the event model at its kindest: links that carry nothing else, and ranks that wait for nobody.
"""

from __future__ import annotations

from testbed.model.gather import idle_gather_s, idle_reduction_s
from testbed.pipeline.link import crossing_s
from testbed.pipeline.problem import Problem


class EarliestStarts:
    """Per stage, earliest starts of F and I, and shortest rests behind their ends."""

    def __init__(self, problem: Problem) -> None:
        n, f, i, w = problem.n_stages, problem.forward_s, problem.least_input_s, problem.least_weight_s
        self.down_s = [transfer_s(problem, s, s + 1) for s in range(n - 1)]
        """Per boundary, seconds from the end of F on stage s to the earliest start of F on s + 1."""
        self.up_s = [transfer_s(problem, s + 1, s) for s in range(n - 1)]
        gathered_s = [max(0.0, idle_gather_s(problem, stage) - problem.unnoticed_wait_s) for stage in range(n)]
        self.reduced_s = [idle_reduction_s(problem, stage) for stage in range(n)]
        """Per stage, seconds from its last W's end until its gradients are reduced, on idle links."""
        self.forward_s, self.input_s = [gathered_s[0]] * n, [0.0] * n
        for s in range(1, n):
            arrival = self.forward_s[s - 1] + f[s - 1] + self.down_s[s - 1]
            self.forward_s[s] = max(arrival, gathered_s[s])
        self.input_s[-1] = self.forward_s[-1] + f[-1]
        for s in range(n - 2, -1, -1):  # behind its own forward too: a wait that is not noticed may hide a transfer
            self.input_s[s] = max(self.input_s[s + 1] + i[s + 1] + self.up_s[s], self.forward_s[s] + f[s])
        self.away_s = [0.0] * n
        """Per stage, seconds from the end of a microbatch's F to the start of its I, on idle links."""
        for s in range(n - 2, -1, -1):
            away = self.down_s[s] + f[s + 1] + self.away_s[s + 1] + i[s + 1] + self.up_s[s]
            self.away_s[s] = max(0.0, away)
        self.after_input_s, self.after_forward_s = [w[0] + self.reduced_s[0]] + [0.0] * (n - 1), [0.0] * n
        for s in range(1, n):
            self.after_input_s[s] = max(
                w[s] + self.reduced_s[s], self.up_s[s - 1] + i[s - 1] + self.after_input_s[s - 1]
            )
        self.after_forward_s[-1] = i[-1] + self.after_input_s[-1]
        for s in range(n - 2, -1, -1):
            onward = self.down_s[s] + f[s + 1] + self.after_forward_s[s + 1]
            self.after_forward_s[s] = max(onward, i[s] + self.after_input_s[s])
        self.whole_s = max(self.forward_s[s] + f[s] + self.after_forward_s[s] for s in range(n))
        """One microbatch through all stages and back."""


def transfer_s(problem: Problem, source: int, target: int) -> float:
    """Seconds from a producer's end to its consumer's earliest start: all delays, and the slowest time on a wire.

    A rank is not delayed by a wait that its logical clock does not notice, so it may be early by that, and the result
    below 0.
    """
    if problem.stage_to_rank[source] == problem.stage_to_rank[target]:
        return 0.0
    size = problem.message_bytes[min(source, target)] if problem.message_bytes else 0.0
    links = [problem.links[index] for index in route(problem, source, target)]
    return crossing_s(links, size) + hand_over_s(problem)


def hand_over_s(problem: Problem) -> float:
    """Seconds from a message's last bit to the earliest start of who takes it; below 0 where waits go unnoticed."""
    return problem.handover_s - problem.unnoticed_wait_s


def route(problem: Problem, source: int, target: int) -> tuple[int, ...]:
    """The links between the ranks of two stages; none on one rank."""
    ranks = problem.stage_to_rank[source], problem.stage_to_rank[target]
    return () if ranks[0] == ranks[1] else problem.route(*ranks)
