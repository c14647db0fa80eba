"""What happens in a rehearsal, and when: changes of links and ranks from one iteration to another, read from text.

link paris-warsaw delay x4 at 10
link paris-warsaw rate 200 Mbit/s at 10 to 30
link paris-warsaw lost at 10
link paris-warsaw traffic 60 % every 6 at 10
rank 2 slower x1.5 at 10
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from testbed.adaptation.prospects import AdaptableJob
from testbed.errors import BadInput
from testbed.pipeline.problem import Problem
from testbed.plan import costs
from testbed.plan.network_state import changed_directions, planned
from testbed.plan.plan import Case, JobSchedule, Plan
from testbed.plan.timeline import BEGINNING, LinkLost
from testbed.spec.topology import Direction
from testbed.units import RATE, TIME, parse

FORMS = (
    "link NAME delay x4|40 ms, link NAME rate x0.5|200 Mbit/s, link NAME lost, link NAME traffic 60 % every 6, or "
    "rank 2 slower x1.5; behind it: at iteration N, maybe to M"
)

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_WHEN = r"\s+at\s+(?:iteration\s+)?(?P<at>[0-9]+)(?:\s+to\s+(?P<to>[0-9]+))?"
_LINK = re.compile(
    rf"link\s+(?P<name>\S+)\s+(?:(?P<what>delay|rate)\s+(?P<value>x\s*{_NUMBER}|{_NUMBER}\s*\S+|0)|(?P<lost>lost)"
    rf"|traffic\s+(?P<share>{_NUMBER})\s*%\s+every\s+(?P<every>[0-9]+)){_WHEN}"
)
_RANK = re.compile(rf"rank\s+(?P<rank>[0-9]+)\s+slower\s+x\s*(?P<factor>{_NUMBER}){_WHEN}")


@dataclass(frozen=True)
class Change:
    """One of them: what is set is what it does."""

    text: str
    at: int
    """The first iteration under it."""
    to: int | None = None
    """The first iteration without it; None: it stays."""
    link: str = ""
    delay: float | None = None
    """Times, if `times`, else seconds ..."""
    rate: float | None = None
    """... and bit/s."""
    times: bool = False
    lost: bool = False
    share: float = 0.0
    """Of the rate, that other traffic takes for `every` iterations, and then for as many not."""
    every: int = 0
    rank: int | None = None
    factor: float = 1.0

    def applies(self, iteration: int) -> bool:
        """Whether it is so in an iteration."""
        during = self.at <= iteration and (self.to is None or iteration < self.to)
        return during and (not self.every or (iteration - self.at) // self.every % 2 == 0)

    def on_direction(self, direction: Direction) -> Direction:
        """What it makes of one direction of a link."""
        if direction.link != self.link:
            return direction
        delay_s, rate_bps = self.delay, self.rate
        if self.times:
            delay_s = None if delay_s is None else delay_s * direction.delay_s
            rate_bps = None if rate_bps is None else rate_bps * direction.rate_bps
        return direction._replace(
            delay_s=direction.delay_s if delay_s is None else delay_s,
            rate_bps=(direction.rate_bps if rate_bps is None else rate_bps) * (1 - self.share),
        )


def change(text: str, plan: Plan) -> Change:
    """What a text says of a plan. Raises BadInput."""
    words = " ".join(text.split())
    on_rank, on_link = _RANK.fullmatch(words), _LINK.fullmatch(words)
    match = on_rank or on_link
    if match is None:
        raise BadInput.of("--event", "event", text, FORMS)
    at, to = int(match["at"]), None if match["to"] is None else int(match["to"])
    if to is not None and to <= at:
        raise BadInput.of("--event", "to", to, f"more than {at}, when it begins")
    if on_rank is not None:
        ranks = plan.jobs[0].mesh.pp
        if int(on_rank["rank"]) >= ranks:
            raise BadInput.of("--event", "rank", int(on_rank["rank"]), f"0 to {ranks - 1}")
        factor = _positive(float(on_rank["factor"]), words)
        return Change(words, at, to, rank=int(on_rank["rank"]), factor=factor)
    assert on_link is not None
    planned(plan.network).directions_of(on_link["name"])
    return _on_link(Change(words, at, to, link=on_link["name"]), on_link)


def _on_link(plain: Change, match: re.Match[str]) -> Change:
    if match["lost"]:
        return replace(plain, lost=True)
    if match["share"]:
        share, every = float(match["share"]) / 100, int(match["every"])
        if not (0 < share < 1 and every):
            raise BadInput.of("--event", "traffic", plain.text, "more than 0 % and less than 100 %, every 1 or more")
        return replace(plain, share=share, every=every)
    value, what = match["value"], match["what"]
    times = value.startswith("x")
    try:
        units, kind = (TIME, "a time") if what == "delay" else (RATE, "a rate")
        number = float(value[1:]) if times else parse(value, units, kind)
    except ValueError as error:
        raise BadInput.of("--event", what, value, f"{error}, or a factor such as x4") from error
    if what == "rate":
        return replace(plain, rate=_positive(number, plain.text), times=times)
    return replace(plain, delay=number, times=times)


def _positive(number: float, text: str) -> float:
    if number <= 0:
        raise BadInput.of("--event", "value", text, "more than 0")
    return number


class Truth(NamedTuple):
    """How things really are in an iteration; equal where nothing is different."""

    plan: Plan
    slower: tuple[tuple[int, float], ...]
    """(rank, factor)"""


def truth_at(plan: Plan, changes: Sequence[Change], iteration: int) -> Truth:
    """The plan as it really is in an iteration: with its links, and with those lost that are down."""
    now = [each for each in changes if each.applies(iteration)]

    def changed(_: int, direction: Direction) -> Direction:
        for each in now:
            direction = each.on_direction(direction)
        return direction

    network = changed_directions(plan.network, changed)
    lost = dict.fromkeys(each.link for each in now if each.lost)
    factors: dict[int, float] = {}
    for each in now:
        if each.rank is not None:
            factors[each.rank] = factors.get(each.rank, 1.0) * each.factor
    real = replace(
        plan,
        network=network,
        events=tuple(LinkLost(name, BEGINNING) for name in lost),
    )
    return Truth(real, tuple(sorted(factors.items())))


def real_problem(subject: AdaptableJob, truth: Truth) -> Problem:
    """What an iteration really costs. Raises BadInput where lost links leave no route."""
    planned_as, choice = subject.problems[0], subject.choices[0]
    stages = planned_as.stage_to_rank
    case = Case("", (JobSchedule(choice, stages, None, None),), ())
    real = costs.problem_of_case(truth.plan, case)
    for (source, target), (a, b) in subject.pairs(planned_as).items():
        if real.cards.issuperset(real.route(a, b)):
            lost = " + ".join(event.name for event in truth.plan.events)
            raise BadInput.of("--event", "lost", lost, f"a route that is left from {source} to {target}")
    factors = dict(truth.slower)
    of_stages = [factors.get(rank, 1.0) for rank in stages]

    def slower(seconds: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(factor * each for factor, each in zip(of_stages, seconds, strict=False))

    return replace(
        real,
        forward_s=slower(real.forward_s),
        input_s=slower(real.input_s),
        weight_s=slower(real.weight_s),
        backward_s=slower(real.backward_s),
    )
