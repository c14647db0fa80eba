"""What makes GeoPipe fastest at constant tokens per iteration: microbatch size, sequence length, dN of every cut.

The paper (arXiv 2510.12064, section II) asks this of a genetic heuristic, under the memory of its accelerators. Here
the event model judges every point of the grid, and such a heuristic beside it shows what it would have missed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

from testbed.errors import BadInput
from testbed.full_scale import similitude
from testbed.model.lower import Load
from testbed.model.simulate import makespan
from testbed.pipeline.memory import peak_in_flight
from testbed.pipeline.problem import Problem
from testbed.plan import costs, counts
from testbed.planning import resolve
from testbed.planning.ties import Range, ranges_of_orders, worst_s
from testbed.schedule.geopipe import cuts, fits, unlimited, with_ahead
from testbed.spec.choice import ScheduleChoice
from testbed.spec.document import validate
from testbed.spec.topology import Topology
from testbed.spec.workload import MAX_MICROBATCHES, MOST_MESSAGE_BYTES, Pacing, Workload
from testbed.units import show_size

MOST_POINTS = 20_000
"""What some minutes judge."""

GEOPIPE = ScheduleChoice(schedule="geopipe")


class Shape(NamedTuple):
    """What a microbatch is."""

    microbatch_size: int
    sequence: int

    @property
    def tokens(self) -> int:
        """Of one microbatch."""
        return self.microbatch_size * self.sequence


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
        return _microbatches(self.workload) * self.given.tokens

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
        prepared = self.shapes[point.shape]
        return max(peak_in_flight(with_ahead(prepared.problem, dict(zip(prepared.cuts, point.extra, strict=True)))))


# --- the grid ------------------------------------------------------------------------------------


def shape_of(workload: Workload) -> Shape:
    """The microbatch of a workload, at full scale where it has one. Raises BadInput where tokens are not known."""
    if workload.full_scale is not None:
        return Shape(workload.full_scale.microbatch_size, workload.full_scale.sequence)
    sequence = getattr(workload.model, "sequence", None)
    if not isinstance(sequence, int):
        raise BadInput.of(workload.name, "model.sequence", "none", "a model with a sequence length, such as gpt")
    return Shape(workload.microbatch_size, sequence)


def _microbatches(workload: Workload) -> int:
    """Of every pipeline in an iteration."""
    return workload.microbatches if workload.full_scale is None else workload.full_scale.microbatches


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
        reason = _impossible(workload, shape)
        if reason is None:
            made = reshaped(workload, shape, fixed_s)
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
        raise BadInput.of(workload.name, "grid", "nothing that can be tried", "; ".join(sorted({*left_out.values()})))
    count = sum(math.prod(most + 1 for most in prepared.most) for prepared in shapes.values())
    if count > MOST_POINTS:
        expected = f"at most {MOST_POINTS}: fewer microbatch sizes or sequence lengths"
        raise BadInput.of(workload.name, "points of the grid", count, expected)
    return Space(workload, shapes, left_out)


def _impossible(workload: Workload, shape: Shape) -> str | None:
    """Why the tokens of an iteration cannot come in such microbatches; None where they can."""
    given = shape_of(workload)
    tokens = _microbatches(workload) * given.tokens
    if tokens % shape.tokens:
        return f"{tokens} tokens are no whole number of microbatches"
    if tokens // shape.tokens > MAX_MICROBATCHES:
        return f"more than {MAX_MICROBATCHES} microbatches"
    if workload.full_scale is not None:
        return None  # the lab's messages stay as they are, and HBM decides
    size = workload.message_bytes() * shape.tokens / given.tokens
    if size > MOST_MESSAGE_BYTES:
        return f"messages of {show_size(size)}"
    limit = min(workload.memory_limits()) * given.tokens / shape.tokens
    return None if limit >= 1 else "no room in memory for one microbatch"


def reshaped(workload: Workload, shape: Shape, fixed_s: float = 0.0) -> Workload:
    """The workload with microbatches of another shape and as many tokens; schedules are GeoPipe's alone.

    Slots grow as FLOP do, messages and activations as tokens, so the memory limit, which counts microbatches, shrinks.
    At full scale all of that follows; a workload that does not say `memory` there has all that HBM holds.
    """
    if workload.full_scale is not None:
        return _reshaped_at_full_scale(workload, shape, fixed_s)
    given = shape_of(workload)
    tokens = shape.tokens / given.tokens
    document: dict[str, Any] = workload.model_dump(exclude_none=True)
    document |= {
        "microbatches": round(workload.microbatches / tokens),
        "microbatch_size": shape.microbatch_size,
        "model": {**document["model"], "sequence": shape.sequence},
        "memory": [limit / tokens for limit in workload.memory_limits()],
        "schedules": [GEOPIPE.as_document()],
    }
    if workload.message is not None:
        document["message"] = workload.message * tokens
    if workload.pacing is not None:
        document["pacing"] = _slots(workload, workload.pacing, shape, fixed_s)
    return validate(Workload, document, workload.name, "numbers are SI units")


def _reshaped_at_full_scale(workload: Workload, shape: Shape, fixed_s: float) -> Workload:
    full = workload.full_scale
    assert full is not None
    if fixed_s:
        raise BadInput.of("--fixed", "option", f"{fixed_s:g} s", "0 beside full_scale, where FLOP give every slot")
    given = shape_of(workload)
    changed = {
        "microbatch_size": shape.microbatch_size,
        "sequence": shape.sequence,
        "global_batch": full.global_batch * given.sequence // shape.sequence,
    }
    limits = [limit * given.tokens / shape.tokens for limit in workload.memory_limits()]
    memory = None if workload.memory is None else limits
    return workload.model_copy(
        update={"full_scale": full.model_copy(update=changed), "memory": memory, "schedules": [GEOPIPE]}
    )


def _slots(workload: Workload, pacing: Pacing, shape: Shape, fixed_s: float) -> dict[str, list[float]]:
    given, ranks = shape_of(workload), range(workload.parallelism.pipeline)
    before, after = (flop_per_token(workload, shaped.sequence) for shaped in (given, shape))
    found: dict[str, list[float]] = {}
    for kind in ("F", "I", "W", *(("B",) if pacing.B is not None else ())):
        grown = after[kind] / before[kind] * shape.tokens / given.tokens
        slots = [pacing.of(kind, rank) for rank in ranks]
        if min(slots) < fixed_s:
            expected = f"at most the shortest slot of {kind} ({min(slots):g} s)"
            raise BadInput.of("--fixed", "option", f"{fixed_s:g} s", expected)
        found[kind] = [fixed_s + (slot - fixed_s) * grown for slot in slots]
    return found


def flop_per_token(workload: Workload, sequence: int) -> dict[str, float]:
    """FLOP of one layer per token, by kind of action.

    Products 2 x (4 d^2 + 2 d d_ff) in F, I and W each. Causal attention on top, 2 s d in F and 5 s d in I, which
    recomputes it (Dao 2023, FlashAttention-2, section 4.1; the counts of CrossPipe, Appendix E). For a model that is no
    gpt: products alone, as the width is not known.
    """
    if workload.full_scale is not None:
        layer = counts.layer_flop(workload.full_scale.shape, 1, sequence)
        per_token = {"F": layer.forward / sequence, "I": layer.input / sequence, "W": layer.weight / sequence}
        return per_token | {"B": per_token["I"] + per_token["W"]}
    fields = workload.model.model_dump()
    width = fields.get("d_model")
    if not width:
        return dict.fromkeys("FIWB", 1.0)
    products = 8.0 * width**2 + 4.0 * width * (fields.get("d_ff") or 4 * width)
    scores = float(sequence * width)
    found = {"F": products + 2 * scores, "I": products + 5 * scores, "W": products}
    return found | {"B": found["I"] + found["W"]}


def efficiency_remark(workload: Workload) -> str | None:
    """What tuning cannot know of microbatches at full scale; None where slots are not made of FLOP."""
    full = workload.full_scale
    if full is None or not isinstance(full.accelerator.efficiency, float):
        return None
    return (
        f"the accelerator's efficiency is {full.accelerator.efficiency:g} for every microbatch here, so that a smaller "
        "one never costs more per token: the fastest microbatch is the smallest by assumption, not by measurement. "
        "full_scale.accelerator.efficiency can be a curve: a list of {tokens, share}"
    )


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
