"""What would help a job most: by how much its iteration changes with the rate and the delay of each link, and memory.

An elasticity is d ln time / d ln quantity, here from one step: the job predicted again, with its schedule made anew and
its routes chosen anew, where the quantity is a tenth better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from testbed.errors import BadInput
from testbed.plan import costs, counts
from testbed.routing.policies import choose
from testbed.search.incumbent import Watch
from testbed.spec.topology import DirectionSpec, LinkSpec, Topology
from testbed.spec.workload import Workload
from testbed.sweep.advise import planned
from testbed.sweep.variant import Forecast, forecast, varied, with_hbm

MORE, LESS = 1.1, 0.9
"""Of a rate or memory, and of a delay."""

Quantity = Literal["rate", "delay", "memory"]


class Elasticity(NamedTuple):
    """What a change of one quantity does."""

    quantity: Quantity
    link: str
    """Of which it is; "" of memory."""
    factor: float
    """By which it was changed."""
    before_s: float
    after_s: float
    """Iterations, each the most that it may take."""

    @property
    def value(self) -> float:
        """d ln time / d ln quantity: below 0 where more is faster."""
        return math.log(self.after_s / self.before_s) / math.log(self.factor)

    @property
    def gain(self) -> float:
        """The share by which the iteration is shorter."""
        return 1 - self.after_s / self.before_s

    @property
    def matters(self) -> bool:
        """Whether it changes anything that is shown."""
        return abs(self.gain) >= _NOTHING

    @property
    def name(self) -> str:
        """As "rate of paris--warsaw"."""
        return f"{self.quantity} of {self.link}" if self.link else self.quantity

    def sentence(self) -> str:
        """What it means."""
        step = f"{abs(self.factor - 1):.0%} {'more' if self.factor > 1 else 'less'} {self.quantity}"
        of = f" of {self.link}" if self.link else ""
        if not self.matters:
            return f"{step}{of} changes nothing"
        return f"{step}{of} makes an iteration {abs(self.gain):.2%} {'shorter' if self.gain > 0 else 'longer'}"


_NOTHING = 5e-5
"""Shares that are shown as none."""


def with_link(topology: Topology, name: str, *, rate: float = 1.0, delay: float = 1.0) -> Topology:
    """The topology with so many times the rate and the delay on both directions of a link."""

    def scaled(spec: DirectionSpec) -> dict[str, float]:
        factors = {"rate": rate, "delay": delay, "fibre": delay, "equipment_delay": delay}
        given = {field: getattr(spec, field) for field in factors}
        return {field: value * factors[field] for field, value in given.items() if value is not None}

    def changed(link: LinkSpec) -> LinkSpec:
        sides = {side: getattr(link, side) for side in ("forward", "reverse")}
        of_sides = {side: spec.model_copy(update=scaled(spec)) for side, spec in sides.items()}
        return link.model_copy(update={**scaled(link), **of_sides})

    links = tuple(changed(link) if link.resolved_name() == name else link for link in topology.links)
    return topology.model_copy(update={"links": links})


def with_more_memory(workload: Workload, one: Forecast) -> tuple[Workload, float]:
    """The workload of a forecast with a tenth more memory, or with room for one more microbatch on every rank where
    that is more; and the factor.

    The limit that is meant is the one in microbatches where one was given, else HBM.
    """
    problem = costs.problem_of_case(one.plan, one.plan.cases[0])
    full, own = workload.full_scale, one.choice.memory
    if full is not None and own is None and workload.memory is None:
        caps = problem.memory_limit
        each = [_activation_bytes(one, rank) for rank in range(problem.n_ranks)]
        lacks = max((math.floor(cap) + 1 - cap) * size for cap, size in zip(caps, each, strict=True))
        factor = max(MORE, 1 + lacks / full.accelerator.memory)
        return with_hbm(workload, full.accelerator.memory * factor), factor
    limits = [own] if own is not None else workload.memory_limits()
    factor = max(MORE, *((math.floor(limit) + 1) / limit for limit in limits))
    schedules = [
        choice.model_copy(update={"memory": own and own * factor}) if choice.label == one.choice.label else choice
        for choice in workload.schedules
    ]
    more = {} if own is not None else {"memory": [limit * factor for limit in limits]}
    return workload.model_copy(update={"schedules": schedules, **more}), factor


def _activation_bytes(one: Forecast, rank: int) -> float:
    full = one.workload.full_scale
    assert full is not None  # asked for by who calls
    return counts.activation_bytes(full, rank, one.variant.split.pipeline)


def again(topology: Topology, workload: Workload, one: Forecast, watch: Watch | None = None) -> float:
    """The most that an iteration takes of the same variant, schedule and policy elsewhere; infinite where it no longer
    fits. `workload` is the variant's. Raises BadInput.
    """
    prepared = planned(topology, one.variant, workload, [one.choice.label])
    policy = None if one.policy is None else choose(one.policy)
    forecasts, _ = forecast(one.variant, prepared.plan, prepared.choices, (policy,), watch)
    return forecasts[0].worst_s if forecasts else math.inf


def elasticities(
    topology: Topology,
    workload: Workload,
    one: Forecast,
    watch: Watch | None = None,
    tell: Callable[[str | None], None] = lambda _: None,
) -> list[Elasticity]:
    """Of a forecast for a workload (not yet varied) on a topology: of every link's rate and delay, and of memory; what
    helps most first. A rate that the lab cannot have is left out. Raises BadInput.
    """
    mine = varied(topology, workload, one.variant)
    before_s, found = again(topology, mine, one, watch), list[Elasticity]()
    for quantity, link, factor, changed in _changes(topology):
        try:
            found.append(Elasticity(quantity, link, factor, before_s, again(changed, mine, one, watch)))
        except BadInput:
            continue
        tell(None)
    roomier, factor = with_more_memory(mine, one)
    found.append(Elasticity("memory", "", factor, before_s, again(topology, roomier, one, watch)))
    tell(None)
    # signed so that a quantity of which more, or of a delay less, is faster comes first
    return sorted(found, key=lambda each: each.value if each.quantity != "delay" else -each.value)


def _changes(topology: Topology) -> Iterator[tuple[Quantity, str, float, Topology]]:
    for link in topology.links:
        name = link.resolved_name()
        yield "rate", name, MORE, with_link(topology, name, rate=MORE)
        yield "delay", name, LESS, with_link(topology, name, delay=LESS)
