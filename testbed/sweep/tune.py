"""What makes GeoPipe fastest at constant tokens per iteration: microbatch size, sequence length, dN of every cut.

The paper (arXiv 2510.12064, section II) asks this of a genetic heuristic, under the memory of its accelerators. Here
the event model judges every point of the grid, and such a heuristic beside it shows what it would have missed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

from testbed.errors import BadInput
from testbed.full_scale import similitude
from testbed.model.lower import Load
from testbed.model.simulate import makespan
from testbed.pipeline.memory import peak_in_flight
from testbed.pipeline.problem import Problem
from testbed.plan import costs
from testbed.planning import resolve
from testbed.planning.ties import Range, ranges_of_orders, worst_s
from testbed.schedule.geopipe import cuts, fits, unlimited, with_ahead
from testbed.spec.choice import ScheduleChoice
from testbed.spec.topology import Topology
from testbed.spec.workload import Workload
from testbed.sweep.reshape import Shape, flop_per_token, impossible, microbatches_of, reshaped, shape_of

MOST_POINTS = 20_000
"""What some minutes judge."""

GEOPIPE = ScheduleChoice(schedule="geopipe")


class Setting(NamedTuple):
    """One setting: a shape, and dN of every cut."""

    shape: Shape
    extra: tuple[int, ...]


class Pipeline(NamedTuple):
    """The scheduling problem of a shape, and the dN worth trying at each of its cuts."""

    problem: Problem
    cuts: tuple[int, ...]
    most: tuple[int, ...]
    """One more than hides the cut's round trip, where nothing is gained any more; at most M."""
    problem_s: float = 1.0
    """Seconds of the problem per second: those of the lab, where the workload stands for one at full scale."""


class PredictedSetting(NamedTuple):
    """A point and what the model says of it."""

    point: Setting
    seconds: float
    """Of an iteration; infinite where memory does not allow the point."""
    predicted_range: Range | None = None
    """What that may be by who comes first of messages that meet; None where it is one time."""

    @property
    def worst_s(self) -> float:
        """The most that it may be: what points are compared by."""
        return worst_s(self.seconds, self.predicted_range)


class Space(NamedTuple):
    """All points: what there is to choose from, and what was left out and why."""

    workload: Workload
    shapes: dict[Shape, Pipeline]
    left_out: dict[Shape, str]

    @property
    def given(self) -> Shape:
        """The workload's own."""
        return shape_of(self.workload)

    @property
    def tokens(self) -> int:
        """Of every iteration."""
        return microbatches_of(self.workload) * self.given.tokens

    def points(self) -> Iterator[Setting]:
        """Every point that memory allows."""
        for shape, prepared in self.shapes.items():
            for extra in product(*(range(most + 1) for most in prepared.most)):
                if fits(prepared.problem, dict(zip(prepared.cuts, extra, strict=True))):
                    yield Setting(shape, extra)

    def judge(self, point: Setting) -> PredictedSetting:
        """The iteration time of a point by the event model, and its range."""
        prepared = self.shapes.get(point.shape)
        if prepared is None or not fits(prepared.problem, ahead := dict(zip(prepared.cuts, point.extra, strict=True))):
            return PredictedSetting(point, math.inf)
        schedule, receives = with_ahead(prepared.problem, ahead), self.workload.receives
        seconds = makespan(prepared.problem, schedule, receives=receives)
        (predicted_range,) = ranges_of_orders([Load(prepared.problem, schedule, 0.0, receives)])
        return PredictedSetting(
            point, seconds / prepared.problem_s, predicted_range and predicted_range.scaled(1 / prepared.problem_s)
        )

    def in_flight(self, point: Setting) -> float:
        """Microbatches on the rank that holds most."""
        return max(self._in_flight(point))

    def nearest_limit(self, point: Setting) -> tuple[float, float]:
        """Microbatches on the rank that is nearest to its limit, and that limit."""
        each = zip(self._in_flight(point), self.shapes[point.shape].problem.memory_limit, strict=True)
        return max(each, key=lambda held: held[0] / held[1])

    def _in_flight(self, point: Setting) -> tuple[float, ...]:
        prepared = self.shapes[point.shape]
        return peak_in_flight(with_ahead(prepared.problem, dict(zip(prepared.cuts, point.extra, strict=True))))


# --- the grid ------------------------------------------------------------------------------------


def around(shape: Shape) -> tuple[list[int], list[int]]:
    """Microbatch sizes and sequence lengths to try unless told: doubled and halved, three times and once."""
    sizes = {max(1, shape.microbatch_size * 2**power // 8) for power in range(7)}
    return sorted(sizes), sorted({max(2, shape.sequence // 2), shape.sequence, 2 * shape.sequence})


def space(
    topology: Topology, workload: Workload, sizes: Iterable[int], sequences: Iterable[int], fixed_s: float = 0.0
) -> Space:
    """All points of a grid on a topology. `fixed_s` is the part of every slot that does not depend on its microbatch.

    Raises BadInput where nothing can be tried, the workload has no times, or there are more points than MOST_POINTS.
    """
    shapes: dict[Shape, Pipeline] = {}
    left_out: dict[Shape, str] = {}
    for shape in (Shape(size, sequence) for sequence in sequences for size in sizes):
        reason = impossible(workload, shape)
        if reason is None:
            made = reshaped(workload, shape, fixed_s, [GEOPIPE])
            plan = resolve.make_plan(topology, made)
            problem = costs.problem(plan, GEOPIPE)
            scales = similitude.scales(made, plan.host_costs.gloo_bytes)
            places = tuple(cuts(problem))
            if fits(problem, dict.fromkeys(places, 0)):
                hiding = unlimited(problem)
                most = tuple(min(problem.n_microbatches, hiding[place] + 1) for place in places)
                shapes[shape] = Pipeline(problem, places, most, 1.0 if scales is None else scales.seconds)
                continue
            reason = "no room in memory, not even for 1F1B"
        left_out[shape] = reason
    if not shapes:
        expected = f"a microbatch and a sequence that fit ({'; '.join(sorted({*left_out.values()}))})"
        raise BadInput.of(workload.name, "grid", "nothing that can be tried", expected)
    count = sum(math.prod(most + 1 for most in prepared.most) for prepared in shapes.values())
    if count > MOST_POINTS:
        expected = f"at most {MOST_POINTS}: fewer microbatch sizes or sequence lengths"
        raise BadInput.of(workload.name, "points of the grid", count, expected)
    return Space(workload, shapes, left_out)


def altered(workload: Workload, sequence: int) -> str | None:
    """What a sequence length makes of the workload, in words; None for its own."""
    given = shape_of(workload).sequence
    if sequence == given:
        return None
    before, after = (flop_per_token(workload, length) for length in (given, sequence))
    more = (after["F"] + after["B"]) / (before["F"] + before["B"]) - 1
    words = f"sequence {sequence} is another workload: attention looks at {sequence} tokens instead of {given}"
    words += f", {more:+.1%} FLOP for the same tokens"
    parameters = _more_parameters(workload, sequence)
    return f"{words}, and {parameters:+} parameters: another model" if parameters else words


def _more_parameters(workload: Workload, sequence: int) -> int:
    """What the model has more with sequences of that length: learned positions."""
    if workload.full_scale is not None:
        shape = workload.full_scale.shape
        return max(0, sequence - shape.positions) * shape.hidden if shape.positions else 0
    model = reshaped(workload, Shape(1, sequence)).model
    return model.parameter_count() - workload.model.parameter_count()


# --- searching -----------------------------------------------------------------------------------


def exhaustive(grid: Space, tell: Callable[[], None] = lambda: None) -> list[PredictedSetting]:
    """Every point, the fastest at worst first; of equally fast ones that which holds least over all ranks."""
    judged = []
    for point in grid.points():
        judged.append(grid.judge(point))
        tell()
    return sorted(judged, key=lambda setting: _order(grid, setting))


def _order(grid: Space, setting: PredictedSetting) -> tuple[float, int, Shape]:
    """By the most that it may take, then by what all ranks hold more; times that differ by rounding are equal."""
    pipeline = grid.shapes.get(setting.point.shape)
    places = pipeline.cuts if pipeline else ()
    held = sum(more * (place + 1) for more, place in zip(setting.point.extra, places, strict=False))
    return float(f"{setting.worst_s:.12g}"), held, setting.point.shape


class Evolved(NamedTuple):
    """What the genetic heuristic came to."""

    best: PredictedSetting
    evaluations: int
    """Points that the model judged, each once."""
    best_after: int
    """How many of them it had judged when it had the best."""


POPULATION, GENERATIONS, MUTATED, PARENTS = 16, 20, 0.2, 3


def genetic(grid: Space, seed: int = 1) -> Evolved:
    """The same by a genetic heuristic: tournaments of 3, uniform crossover, steps of one, the best one kept.

    The paper names the kind of heuristic; its parameters are not known to us, these are ours: 16 points in 20
    generations, every fifth choice changed. A point that memory does not allow counts as infinitely slow.
    """
    draw, judged, best_after = random.Random(seed), dict[Setting, PredictedSetting](), 0
    sizes, sequences = (sorted({shape[axis] for shape in grid.shapes}) for axis in (0, 1))
    most = [
        max(prepared.most[cut] for prepared in grid.shapes.values())
        for cut in range(len(next(iter(grid.shapes.values())).cuts))
    ]
    lengths = [len(sizes), len(sequences), *(steps + 1 for steps in most)]

    def judge(genes: Sequence[int]) -> PredictedSetting:
        nonlocal best_after
        point = Setting(Shape(sizes[genes[0]], sequences[genes[1]]), tuple(genes[2:]))
        if point not in judged:
            found = grid.judge(point)
            if all(_order(grid, found) < _order(grid, other) for other in judged.values()):
                best_after = len(judged) + 1
            judged[point] = found
        return judged[point]

    def fittest(population: Sequence[list[int]]) -> list[int]:
        return min(draw.sample(population, PARENTS), key=lambda genes: _order(grid, judge(genes)))

    population = [[draw.randrange(length) for length in lengths] for _ in range(POPULATION)]
    for _ in range(GENERATIONS):
        children = [min(population, key=lambda genes: _order(grid, judge(genes)))]
        while len(children) < POPULATION:
            pairs = zip(fittest(population), fittest(population), strict=True)
            child = [draw.choice(pair) for pair in pairs]
            for place, length in enumerate(lengths):
                if draw.random() < MUTATED:
                    child[place] = min(max(child[place] + draw.choice((-1, 1)), 0), length - 1)
            children.append(child)
        population = children
    for genes in population:
        judge(genes)
    return Evolved(min(judged.values(), key=lambda setting: _order(grid, setting)), len(judged), best_after)
