"""What would help a job most: by how much its iteration changes with the rate and the delay of each link, and memory.

An elasticity is d ln time / d ln quantity, here from one step: the job predicted again, with its schedule made anew and
its routes chosen anew, where the quantity is a tenth better.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Literal, NamedTuple

from testbed.errors import BadInput
from testbed.plan import costs, counts
from testbed.routing.policies import choose
from testbed.search.incumbent import Watch
from testbed.spec.topology import DirectionSpec, LinkSpec, Topology
from testbed.spec.workload import Workload
from testbed.sweep.advise import planned
from testbed.sweep.in_time import in_time
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
    def helps(self) -> float:
        """Its size, above 0 where more rate or memory, or less delay, is faster."""
        return self.value if self.quantity == "delay" else -self.value

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

    Of HBM at full scale, and of the limit in microbatches where there is one: whichever it is that binds.
    """
    problem = costs.problem_of_case(one.plan, one.plan.cases[0])
    full, own = workload.full_scale, one.choice.memory
    limited = full is None or own is not None or workload.memory is not None
    if limited:
        limits = [own] if own is not None else workload.memory_limits()
        factor = max(MORE, *((math.floor(limit) + 1) / limit for limit in limits))
    else:
        each = [_activation_bytes(one, rank) for rank in range(problem.n_ranks)]
        lacks = ((math.floor(cap) + 1 - cap) * size for cap, size in zip(problem.memory_limit, each, strict=True))
        assert full is not None
        factor = max(MORE, 1 + max(lacks) / full.accelerator.memory)
    if limited and own is None:
        workload = workload.model_copy(update={"memory": [limit * factor for limit in limits]})
    schedules = [
        choice.model_copy(update={"memory": own and own * factor}) if choice.label == one.choice.label else choice
        for choice in workload.schedules
    ]
    more = workload.model_copy(update={"schedules": schedules})
    return (more if full is None else with_hbm(more, full.accelerator.memory * factor)), factor


def _activation_bytes(one: Forecast, rank: int) -> float:
    full = one.workload.full_scale
    assert full is not None  # asked for by who calls
    return counts.activation_bytes(full, rank, one.variant.split.pipeline)


def again(
    topology: Topology,
    workload: Workload,
    one: Forecast,
    watch: Watch | None = None,
    *,
    limit_s: float = math.inf,
) -> float:
    """The most that an iteration takes of the same variant, schedule and policy elsewhere; infinite where it no longer
    fits. `workload` is the variant's; solvers and policies that search have `limit_s` for it. Raises BadInput.
    """
    prepared = planned(topology, one.variant, workload, [one.choice])
    policy = None if one.policy is None else choose(one.policy)
    tried = in_time(prepared.choices, (policy,), limit_s)
    forecasts, _ = forecast(one.variant, prepared.plan, *tried, watch)
    return forecasts[0].worst_s if forecasts else math.inf


def elasticities(
    topology: Topology,
    workload: Workload,
    one: Forecast,
    watch: Watch | None = None,
    tell: Callable[[str | None], None] = lambda _: None,
    *,
    limit_s: float = math.inf,
) -> list[Elasticity]:
    """Of a forecast for a workload (not yet varied) on a topology: of memory, and of every link's rate and delay; what
    helps most first. A rate that is the most that the lab can have is lowered instead.

    After `limit_s` links are left out; those that the forecast's messages cross come before the others. Raises
    BadInput.
    """
    until, links = time.monotonic() + limit_s, _crossed_first(topology, one)
    mine = varied(topology, workload, one.variant)

    def asked_again(network: Topology, job: Workload, questions: float) -> float:
        """With its share of the time left, where so many questions are."""
        return again(network, job, one, watch, limit_s=(until - time.monotonic()) / questions)

    before_s = asked_again(topology, mine, 2 + 2 * len(links))
    roomier, factor = with_more_memory(mine, one)
    found = [Elasticity("memory", "", factor, before_s, asked_again(topology, roomier, 1 + 2 * len(links)))]
    tell(None)
    for number, name in enumerate(links):
        if time.monotonic() > until:
            break
        left, rate = 2 * (len(links) - number), MORE
        try:
            after_s = asked_again(with_link(topology, name, rate=rate), mine, left)
        except BadInput:
            rate = 1 / MORE
            after_s = asked_again(with_link(topology, name, rate=rate), mine, left)
        found.append(Elasticity("rate", name, rate, before_s, after_s))
        tell(None)
        after_s = asked_again(with_link(topology, name, delay=LESS), mine, left - 1)
        found.append(Elasticity("delay", name, LESS, before_s, after_s))
        tell(None)
    return sorted(found, key=lambda each: each.helps, reverse=True)


def _crossed_first(topology: Topology, one: Forecast) -> list[str]:
    """The names of all links, those on the routes of a forecast before the others."""
    directions = topology.directions()
    crossed = {directions[index].link for route in one.plan.cases[0].routes for index in route}
    return sorted((link.resolved_name() for link in topology.links), key=lambda name: name not in crossed)
