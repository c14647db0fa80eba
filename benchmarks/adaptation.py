"""Does a job that adapts come near one that knows what will happen? Rehearsals in the event model.

    python benchmarks/adaptation.py [--own 10] [--drawn 10] [--routes 12] [--steady 500] [--seed 1] [--picture FILE]

Ten timelines of our own: a rate halved, a delay four times as long, a link lost where there is a detour, cross-traffic
that comes and goes every 3, 5, 10 and 30 iterations, a rank 1.5 times slower, two at once, two after each other. Ten
drawn by seed: two or three datacenters, 4 to 6 ranks, 6 to 16 microbatches, memory for P to 2 P of them, one or two
changes. Each trains 5 iterations before the first change and 40 after it. A swap is taken to cost 20 ms. Beside them
six of jobs that may change microbatches, routes or the ranks of their stages as well as schedules, and
steady iterations, with slots as paced and with slots drawn with a coefficient of variation of 3 % and 37 %. And jobs
that leave a route which recovers after 40 to 60 iterations, of our own and drawn; they see that by looks alone. Of who
sees: of the gain of an oracle that knows all, but of a change that never happened before not until its first iteration
has ended. The picture is of the last timeline of our own.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness import options
from harness.plans import joined
from harness.record import Claim, Topic, finish
from harness.report import show_table
from parts import recovering_routes

from testbed.adaptation import controller
from testbed.adaptation.adaptable_job import AdaptableJob, adaptable_job, planned_belief
from testbed.adaptation.may_change import NOTHING, MayChange
from testbed.adaptation.rehearsal import Rehearsal, rehearse
from testbed.adaptation.rehearsal_changes import change
from testbed.adaptation.rehearsal_picture import draw
from testbed.adaptation.rehearsal_world import AS_PACED, SlotVariation
from testbed.planning.resolve import load_plan
from testbed.planning.schedules import choose

SCHEDULES = ("1f1b", "zb-h1", "zb-h2", "geopipe", "pipemorph", "crosspipe-greedy")
V_SHAPED = ("zb-v", "wave-greedy")
SOON = "routes: one recovers soon"
BEFORE, AFTER = 5, 40
SWAP_S = 0.02
LEAST_SHARE, WITHIN, MOST_LOST = 0.9, 3, 0.005
DEVELOPED_ON = 1
"""The seed that controllers were made with: what others draw is what they had no part in."""

VARIATION = 0.03
VARIABLE_LENGTH = 0.37
"""Of backward passes of sequences of any length; of forward passes it is 22 %."""

LONGHAUL = options.ROOT / "topologies/two-dc-longhaul.yaml"
JOB = options.ROOT / "workloads/tiny-gpt-pp4.yaml"
BETWEEN = "paris--warsaw"
RING = {
    "name": "ring",
    "datacenters": {"a": {"nodes": 2}, "b": {"nodes": 2}, "c": {"nodes": 1}},
    "links": [
        {"name": "direct", "between": ["a", "b"], "delay": "5 ms", "rate": "1 Gbit/s"},
        {"name": "first", "between": ["a", "c"], "delay": "20 ms", "rate": "1 Gbit/s"},
        {"name": "second", "between": ["c", "b"], "delay": "20 ms", "rate": "1 Gbit/s"},
    ],
}


class Timeline(NamedTuple):
    """What is trained, and what happens."""

    name: str
    subject: AdaptableJob
    events: Sequence[str]
    iterations: int = BEFORE + AFTER

    def rehearsed(self) -> Rehearsal:
        """All three jobs through it."""
        changes = [change(event, self.subject.plan) for event in self.events]
        return rehearse(self.subject, changes, self.iterations, controller.choose("ski-rental"), swap_s=SWAP_S)


TWO_LINKS = {
    "name": "two-links",
    "datacenters": {"paris": {"nodes": 2}, "warsaw": {"nodes": 2}},
    "links": [
        {"name": "north", "between": ["paris", "warsaw"], "delay": "10 ms", "rate": "1 Gbit/s"},
        {"name": "south", "between": ["paris", "warsaw"], "delay": "14 ms", "rate": "1 Gbit/s"},
    ],
}


UNLIKE_LINKS = {
    "name": "unlike-links",
    "datacenters": {"paris": {"nodes": 2}, "warsaw": {"nodes": 2}},
    "links": [
        {"name": "north", "between": ["paris", "warsaw"], "delay": "10 ms", "rate": "1 Gbit/s"},
        {"name": "south", "between": ["paris", "warsaw"], "delay": "40 ms", "rate": "300 Mbit/s"},
    ],
}


def subject(
    topology: Path | dict[str, Any], workload: Path | dict[str, Any], *settings: str, may: MayChange = NOTHING
) -> AdaptableJob:
    """A job with the schedules that it may swap between."""
    plan = load_plan(topology, workload, settings=settings)
    return adaptable_job(plan, choose(plan, (*SCHEDULES, *(V_SHAPED if may.stages else ()))), may)


def own() -> list[Timeline]:
    """Ten, one for each kind of change and for some together."""
    plain, large = subject(LONGHAUL, JOB, "memory=8"), subject(LONGHAUL, JOB, "memory=8", "message=2.5 MB")
    ring = subject(RING, JOB, "memory=8", "placement=[a/0, a/1, b/0, b/1]")
    traffic = [
        Timeline(f"cross-traffic every {every}", large, [f"link {BETWEEN} traffic 60 % every {every} at {BEFORE}"])
        for every in (3, 5, 10, 30)
    ]
    return [
        Timeline("delay x 4", plain, [f"link {BETWEEN} delay x4 at {BEFORE}"]),
        Timeline("rate halved", large, [f"link {BETWEEN} rate x0.5 at {BEFORE}"]),
        Timeline("link lost, with a detour", ring, [f"link direct lost at {BEFORE}"]),
        *traffic,
        Timeline("rank 1.5 times slower", plain, [f"rank 1 slower x1.5 at {BEFORE}"]),
        Timeline("two at once", plain, [f"link {BETWEEN} delay x4 at {BEFORE}", f"rank 0 slower x1.5 at {BEFORE}"]),
        Timeline(
            "two after each other",
            large,
            [f"link {BETWEEN} delay x4 at {BEFORE}", f"link {BETWEEN} rate x0.5 at {BEFORE + AFTER}"],
            BEFORE + 2 * AFTER,
        ),
    ]


def varied() -> list[Timeline]:
    """Jobs that may change more than their schedule."""
    cuts, routes, stages = MayChange((16, 4)), MayChange(routes=2), MayChange(stages=True)
    moving = subject(LONGHAUL, JOB, "memory=8", may=stages)
    two = subject(TWO_LINKS, JOB, "memory=8", "message=2.5 MB", may=routes)
    all_of_it = MayChange((16, 4), 2, stages=True)
    return [
        Timeline(
            "microbatches: delay x 6",
            subject(LONGHAUL, JOB, "memory=8", may=cuts),
            [f"link {BETWEEN} delay x6 at {BEFORE}"],
        ),
        Timeline("routes: rate of one / 5", two, [f"link north rate x0.2 at {BEFORE}"]),
        Timeline(
            SOON,
            two,
            [f"link north rate x0.2 at {BEFORE} to {BEFORE + 10}", f"link south delay x5 at {BEFORE + AFTER}"],
            BEFORE + 2 * AFTER,
        ),
        Timeline("stages: delay x 6", moving, [f"link {BETWEEN} delay x6 at {BEFORE}"]),
        Timeline("stages: rate / 5", moving, [f"link {BETWEEN} rate x0.2 at {BEFORE}"]),
        Timeline(
            "all of it: rate of one / 5",
            subject(TWO_LINKS, JOB, "memory=8", may=all_of_it),
            [f"link north rate x0.2 at {BEFORE}"],
        ),
    ]


def recovering(count: int, seed: int) -> list[Timeline]:
    """Routes that are left, and recover 40 iterations later or more: two of our own, and so many drawn."""
    routes = MayChange(routes=2)
    pair = subject(UNLIKE_LINKS, JOB, "memory=8", "message=1.2 MB", may=routes)
    around = subject(
        recovering_routes.TRIANGLE, JOB, "memory=8", "message=1.2 MB", "placement=[a/0, a/1, b/0, c/0]", may=routes
    )
    slow = f"rate x0.1 at {BEFORE} to {BEFORE + AFTER}"
    own = [
        Timeline("route: rate / 10", pair, [f"link north {slow}"], BEFORE + 2 * AFTER),
        Timeline("route that shares a link: rate / 10", around, [f"link ac {slow}"], BEFORE + 2 * AFTER),
    ]
    every = [recovering_routes.drawn(number, seed, SCHEDULES) for number in range(count)]
    return own + [Timeline(one.name, one.subject, [one.event], one.iterations) for one in every]


def drawn(number: int, seed: int) -> Timeline:
    """The timeline of a number."""
    draw = random.Random(f"adaptation/{seed}/{number}")
    ranks, sites = draw.randint(4, 6), [f"dc{index}" for index in range(draw.choice((2, 2, 3)))]
    _, datacenters, pairs = joined(draw, sites, ranks)
    links = [recovering_routes.link(draw, f"{a}{b}", [a, b]) for a, b in pairs]
    workload = recovering_routes.job(draw, ranks, slots_ms=(12, 25), message_mb=(0.1, 1))
    kinds = draw.sample(("delay", "rate", "traffic", "rank"), draw.choice((1, 1, 2)))
    events = [_event(draw, kind, [f"{a}{b}" for a, b in pairs], ranks) for kind in kinds]
    topology = {"name": "drawn", "datacenters": datacenters, "links": links}
    return Timeline(f"drawn {number}: {', '.join(kinds)}", subject(topology, workload), events)


def _event(draw: random.Random, kind: str, links: Sequence[str], ranks: int) -> str:
    link = draw.choice(links)
    words = {
        "delay": f"link {link} delay x{draw.uniform(2, 6):.2f}",
        "rate": f"link {link} rate x{draw.uniform(0.1, 0.5):.3f}",
        "traffic": f"link {link} traffic {draw.uniform(50, 90):.0f} % every {draw.randint(3, 30)}",
        "rank": f"rank {draw.randrange(ranks)} slower x{draw.uniform(1.2, 2):.2f}",
    }
    return f"{words[kind]} at {BEFORE}"


class Judged(NamedTuple):
    """A timeline after its rehearsal."""

    name: str
    comes_and_goes: bool
    whole: Rehearsal
    found: Rehearsal
    """From the first change on."""

    @property
    def noticed(self) -> bool:
        """In time."""
        after = self.found.noticed_after(BEFORE)
        return after is not None and after <= WITHIN

    @property
    def lost(self) -> float:
        """Share of the time that adapting has cost; less than 0 where it has brought something."""
        return -self.found.gain_s / self.found.total_s("never")


def judged(timelines: Sequence[Timeline]) -> list[Judged]:
    """All rehearsed, and shown in a table."""
    every, rows = [], []
    for timeline in timelines:
        whole = timeline.rehearsed()
        found = whole.since(BEFORE)
        every.append(Judged(timeline.name, any(" traffic " in event for event in timeline.events), whole, found))
        never_s = found.total_s("never")
        share, late_share = ("-" if each is None else f"{each:.1%}" for each in (found.share, found.late_share))
        gains = f"{found.gain_s / never_s:.2%}", f"{found.most_gain_s / never_s:.2%}"
        after = found.noticed_after(BEFORE)
        rows.append((timeline.name, *gains, share, late_share, len(found.swaps), found.oracle_swaps, after))
        print(f"{timeline.name}: {share}", flush=True)
    columns = ("timeline", "gain", "oracle's", "share", "of who sees", "swaps", "oracle's", "seen after")
    show_table("gain over never adapting", columns, rows)
    return every


def shares(claim: str, every: Sequence[Judged], asked_for: int) -> Claim:
    """What is claimed of timelines of one sort."""
    found = sorted(one.found.share for one in every if one.found.share is not None)
    few = sum(share < LEAST_SHARE for share in found)
    late, most = sum(not one.noticed for one in every), max((one.lost for one in every), default=0.0)
    worst, median = (found[0], found[len(found) // 2]) if found else (1.0, 1.0)
    swaps = max((len(one.found.swaps) for one in every), default=0)
    can = sorted(one.found.late_share for one in every if one.found.late_share is not None)
    of_seeing = f" (of what can be had by who has to see a change first: worst {can[0]:.1%})" if can else ""
    nothing = f"{len(every) - len(found)} with nothing to gain"
    got = (
        f"{len(found) - few} of {len(found)}, worst {worst:.1%}{of_seeing}, median {median:.1%}; "
        f"{nothing}; {late} noticed late, {max(0.0, most):.2%} lost at most, {swaps} swaps at most"
    )
    limit = f">= {LEAST_SHARE:.0%} each, noticed within {WITHIN} iterations, <= {MOST_LOST:.1%} lost"
    kept = not few and not late and most <= MOST_LOST
    return Claim(claim, limit, got, kept, worst, "share", len(every), asked_for)


def soon(one: Judged) -> Claim:
    """Of a route that recovers while the other one is as good: it matters when that is slow."""
    claim = "a job that left a route which recovers 10 iterations later, of gain that can be had by seeing"
    share, of_oracle = one.found.late_share or 0.0, f"{one.found.share or 0.0:.1%} of an oracle's, which knows"
    got = f"{share:.1%} ({of_oracle}), {max(0.0, one.lost):.2%} lost, {len(one.found.looks)} looks"
    kept = one.lost <= MOST_LOST and share >= LEAST_SHARE
    limit = f">= {LEAST_SHARE:.0%}, <= {MOST_LOST:.1%} lost"
    return Claim(claim, limit, got, kept, share, "share", 1, 1)


def waited(every: Sequence[Judged]) -> Claim:
    """What looks take from jobs."""
    shares_of = [sum(row.look_s for row in one.found.rows) / one.found.total_s("adapted") for one in every]
    looks = [look for one in every for look in one.found.looks]
    got = (
        f"{max(shares_of):.2%} at most; {len(looks)} looks, {sum(look.beside for look in looks)} beside iterations, "
        f"of {sum(look.wire_bytes for look in looks) / len(looks) / 1e3:.0f} kB each way"
    )
    claim = "the same: time that a job waits for looks"
    return Claim(
        claim, f"<= {MOST_LOST:.1%}", got, max(shares_of) <= MOST_LOST, max(shares_of), "share", len(every), len(every)
    )


def steady(iterations: int, seed: int) -> Claim:
    """Nothing happens, and nothing must be done."""
    swaps, lost, looks = [], 0.0, 0
    plain, two = subject(LONGHAUL, JOB, "memory=8"), subject(TWO_LINKS, JOB, "memory=8", may=MayChange(routes=2))
    for slots in (AS_PACED, SlotVariation(VARIATION, seed), SlotVariation(VARIABLE_LENGTH, seed)):
        swaps.append(0)
        for job in (plain, two):
            found = rehearse(job, [], iterations, controller.choose("ski-rental"), swap_s=SWAP_S, drawn=slots)
            swaps[-1] += len(found.swaps)
            looks += len(found.looks)
            lost = max(lost, -found.gain_s / found.total_s("never"))
    varied = f"{swaps[1]} with slots of {VARIATION:.0%} CV, {swaps[2]} of {VARIABLE_LENGTH:.0%}"
    got = f"{swaps[0]} as paced, {varied}; {lost:.2%} lost; {looks} looks at other routes"
    claim = f"swaps in {iterations} steady iterations, with one route and with two" + (
        "" if seed == DEVELOPED_ON else f" (seed {seed})"
    )
    return Claim(claim, "0", got, not any(swaps) and lost <= MOST_LOST, float(sum(swaps)), "swaps", 6, 6)


def main() -> int:
    """1 where a claim is missed."""
    parser = options.parser(__doc__)
    parser.add_argument("--own", type=int, default=10, metavar="N", help="timelines of our own")
    parser.add_argument("--drawn", type=int, default=10, metavar="N", help="drawn ones")
    parser.add_argument("--varied", type=int, default=6, metavar="N", help="of jobs that may change more")
    parser.add_argument("--routes", type=int, default=12, metavar="N", help="drawn ones of routes that recover")
    parser.add_argument("--steady", type=int, default=500, metavar="N", help="steady iterations")
    parser.add_argument("--seed", type=int, default=DEVELOPED_ON, help="of what is drawn")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the last timeline of our own")
    asked = parser.parse_args()
    timelines = own()[: asked.own] + [drawn(number, asked.seed) for number in range(asked.drawn)]
    every = judged(timelines)
    if asked.picture is not None:
        last = timelines[asked.own - 1]
        problem = last.subject.planned
        draw(
            every[asked.own - 1].whole, planned_belief(last.subject), problem.message_bytes[0], asked.picture, last.name
        )
    going = [one for one in every if one.comes_and_goes]
    staying = [one for one in every if not one.comes_and_goes]
    drawn_by = "" if asked.seed == DEVELOPED_ON else f" (seed {asked.seed})"
    claims = [
        shares(f"a job that adapts, where a change stays: share of an oracle's gain{drawn_by}", staying, len(staying)),
        shares(f"the same where cross-traffic comes and goes every 3 to 30 iterations{drawn_by}", going, len(going)),
        steady(asked.steady, asked.seed),
    ]
    if more := judged(varied()[: asked.varied]):
        seen = [one for one in more if one.name != SOON]
        claim = "the same of jobs that may change microbatches, routes or stages too"
        claims.append(shares(claim, seen, len(seen)))
        claims += [soon(one) for one in more if one.name == SOON]
    if left := judged(recovering(asked.routes, asked.seed)) if asked.routes else []:
        claim = f"the same of jobs that leave a route which recovers 40 to 60 iterations later{drawn_by}"
        claims += [shares(claim, left, len(left)), waited(left)]
    return finish(asked, Topic.SCHEDULES, claims)


if __name__ == "__main__":
    sys.exit(main())
