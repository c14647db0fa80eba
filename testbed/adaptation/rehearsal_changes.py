"""What happens in a rehearsal, and when: changes of links and ranks from one iteration to another.

They are written as events of a run are (spec/event_text.py); those within an iteration no rehearsal can play.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from testbed.adaptation.adaptable_job import AdaptableJob
from testbed.adaptation.candidate import JobSetting
from testbed.errors import BadInput, listed, meant
from testbed.pipeline.problem import Problem
from testbed.plan.network_state import planned
from testbed.plan.plan import Plan
from testbed.plan.timeline import BEGINNING, LinkEvent, LinkLost
from testbed.planning.link_events import direction_events
from testbed.spec.document import FieldError
from testbed.spec.event_text import EventText, blamed_on, check_names, read_event
from testbed.units import show_span

FORMS = (
    "link NAME delay x4|40 ms, link NAME rate x0.5|60 %|200 Mbit/s, link NAME lost, link NAME traffic 60 % every 6, or "
    "rank 2 slower x1.5; behind it: at iteration N, maybe to M"
)


@dataclass(frozen=True)
class Change:
    """One of them, from an iteration on."""

    read: EventText

    @property
    def text(self) -> str:
        """As somebody wrote it."""
        return self.read.text

    @property
    def lost(self) -> bool:
        """Whether a link is gone."""
        return self.read.lost

    def applies(self, iteration: int) -> bool:
        """Whether it is so in an iteration."""
        at, to, traffic = self.read.iteration, self.read.until, self.read.traffic
        during = at <= iteration and (to is None or iteration < to)
        return during and (traffic is None or (iteration - at) // traffic.every % 2 == 0)


def change(text: str, plan: Plan, source: str = "--event") -> Change:
    """What a text says of a plan. Raises BadInput, as of `source`: the option that gave it, or a topology."""
    try:
        read = read_event(text)
        forward_last = reversed(planned(plan.network).links)
        check_names(read, {link.link: (link.source, link.target) for link in forward_last})
    except FieldError as error:
        raise blamed_on(source, text, error) from error
    becomes, names = read.becomes, [job.name for job in plan.jobs]
    by_chance = becomes.loss is not None or becomes.jitter_s is not None
    inside = read.seconds or read.for_s is not None or read.down_s or read.comes_and_goes or read.trace
    if read.what == "datacenter" or by_chance or inside:
        raise BadInput.of(source, "event", text, FORMS)
    if read.what == "link":
        if read.lost and len(names) > 1:
            raise BadInput.of(source, "event", text, "no lost link: several jobs keep their routes")
        changes_of_links(plan, [found := Change(read)])  # or it is refused, as in a run
        return found
    if not read.name and len(names) > 1:
        raise BadInput.of(source, "event", text, f"JOB rank {read.rank} ..., of jobs {listed(names)}")
    if read.name not in ("", *names):
        raise BadInput.of(source, "job", read.name, f"one of the jobs ({listed(names)}){meant(read.name, names)}")
    job = plan.jobs[_job_of(read, plan)]
    if job.mesh.dp > 1:
        raise BadInput.of(source, "event", text, "no slower rank of a job with replicas: `run --adapt` has that")
    if read.rank >= job.mesh.pp:
        raise BadInput.of(source, "rank", read.rank, show_span("0", str(job.mesh.pp - 1)))
    return Change(read)


def _job_of(read: EventText, plan: Plan) -> int:
    """The number of the job whose rank it is."""
    return [job.name for job in plan.jobs].index(read.name) if read.name else 0


class Truth(NamedTuple):
    """How things really are in an iteration; equal where nothing is different."""

    plan: Plan
    slower: tuple[tuple[tuple[int, int], float], ...]
    """Of every job and pipeline rank that is, ((job, rank), factor)."""

    def slow(self, problem: Problem, job: int) -> Problem:
        """What iterations of a job cost with its ranks as they are."""
        factors = dict(self.slower)
        of_stages = [factors.get((job, rank), 1.0) for rank in problem.stage_to_rank]

        def slower(seconds: tuple[float, ...]) -> tuple[float, ...]:
            return tuple(factor * each for factor, each in zip(of_stages, seconds, strict=False))

        return replace(
            problem,
            forward_s=slower(problem.forward_s),
            input_s=slower(problem.input_s),
            weight_s=slower(problem.weight_s),
            backward_s=slower(problem.backward_s),
        )


def changes_of_links(plan: Plan, changes: Sequence[Change]) -> tuple[LinkEvent, ...]:
    """What becomes of links that are not lost, in order of time, as a run plays it. Raises BadInput."""
    reads = [("--event", each.read) for each in changes if each.read.what == "link" and not each.lost]
    return direction_events(reads, plan.network)


def truth_at(plan: Plan, changes: Sequence[Change], of_links: Sequence[LinkEvent], iteration: int) -> Truth:
    """The plan as it really is in an iteration: with its links, and with those lost that are down.

    `of_links`: `changes_of_links` of these changes.
    """
    now, state = [each for each in changes if each.applies(iteration)], planned(plan.network)
    for event in of_links:
        if event.at.iteration <= iteration:
            state = event.on_network(state)
    lost = dict.fromkeys(each.read.name for each in now if each.lost)
    factors: dict[tuple[int, int], float] = {}
    for each in now:
        if each.read.what == "rank":
            which = _job_of(each.read, plan), each.read.rank
            factors[which] = factors.get(which, 1.0) * each.read.factor
    real = replace(
        plan,
        network=replace(plan.network, directions=state.links),
        events=tuple(LinkLost(name, BEGINNING) for name in lost),
    )
    return Truth(real, tuple(sorted(factors.items())))


def real_problem(subject: AdaptableJob, truth: Truth, setting: JobSetting) -> Problem:
    """What an iteration really costs in a setting. Raises BadInput where lost links leave no route."""
    recipe = subject.settings[setting]
    real = subject.problem_of(truth.plan, recipe.choice, setting)
    for (source, target), ends in subject.pairs(recipe.problem).items():
        if real.cards.issuperset(ends.route(real)):
            lost = " + ".join(event.name for event in truth.plan.events)
            raise BadInput.of("--event", "lost", lost, f"a route that is left from {source} to {target}")
    return truth.slow(real, 0)
