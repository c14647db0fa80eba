"""Events between the iterations of a training: a link is lost, a job arrives or departs, and another case goes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from testbed.errors import BadInput, listed
from testbed.plan.losses import all_lost, lost_directions
from testbed.plan.plan import Case, Plan


def at_work(plan: Plan, case: Case) -> tuple[int, ...]:
    """The numbers of the jobs that train in a case."""
    return tuple(number for number, job in enumerate(plan.jobs) if job.name not in case.away)


def trainings(cases: Sequence[Case]) -> Iterator[list[Case]]:
    """The cases that go on from each other, together: the first begins on the whole network."""
    together: list[Case] = []
    for case in cases:
        if together and case.event is None:
            yield together
            together = []
        together.append(case)
    if together:
        yield together


class Changed(NamedTuple):
    """What an event changed: names of switches and links, and of jobs."""

    lost: tuple[str, ...]
    arrived: tuple[str, ...]
    departed: tuple[str, ...]

    def __str__(self) -> str:
        """As a case's label says it."""
        said = [("without", self.lost + self.departed), ("with", self.arrived)]
        return " ".join(f"{word} {' + '.join(names)}" for word, names in said if names)


def changed(before: Case, case: Case) -> Changed:
    """What happened between two cases of a training."""
    return Changed(
        case.lost[len(before.lost) :],
        tuple(name for name in before.away if name not in case.away),
        tuple(name for name in case.away if name not in before.away),
    )


class Phase(NamedTuple):
    """The rounds of a training that are a case's; in each all jobs at work train an iteration."""

    rounds: range
    """Counted from the first of the training, which warms up."""
    warmup: int
    """So many of the first of them do not count: at the beginning, and after a job has arrived."""

    @property
    def measured(self) -> range:
        """Those that count."""
        return self.rounds[self.warmup :]


def phases(plan: Plan, cases: Sequence[Case]) -> list[Phase]:
    """Of each case of a training. All jobs ask for as many iterations and warm-ups."""
    workload = plan.jobs[0].workload
    lasts = [workload.warmup + case.event.after for case in cases if case.event is not None]
    begins = [0, *lasts]
    ends = [*lasts, workload.warmup + workload.iterations]
    cold = [True, *(bool(changed(*pair).arrived) for pair in pairwise(cases))]
    return [
        Phase(range(begin, end), workload.warmup if new else 0)
        for begin, end, new in zip(begins, ends, cold, strict=True)
    ]


def trained(plan: Plan, cases: Sequence[Case], job: int) -> range:
    """The rounds of a training in which a job (by number) has a part: an iteration of it in each; none where another
    one is trained alone."""
    mine = [phase.rounds for case, phase in zip(cases, phases(plan, cases), strict=True) if job in at_work(plan, case)]
    return range(mine[0].start, mine[-1].stop) if mine else range(0)


def check(plan: Plan, cases: Sequence[Case], where: Sequence[tuple[str, str]]) -> None:
    """Raises BadInput for the first case of a training that cannot be, by itself or after the one before it.

    `where` says of every case how errors name it: a file or an option, and a field.
    """
    begins, (source, field) = cases[0], where[0]
    anew = begins.event is None and not begins.lost
    _require(anew, source, field, begins.label, "a case before it that it goes on from, or the whole network")
    for case, (source, field) in zip(cases, where, strict=True):
        _check_state(plan, case, source, field)
    for (before, case), (source, field) in zip(pairwise(cases), where[1:], strict=True):
        kept = case.jobs, case.starts_s, case.lost[: len(before.lost)]
        same = kept == (before.jobs, before.starts_s, before.lost)
        _require(same, source, field, case.label, "the same schedules, starts and losses as the case before it")
        _require(any(changed(before, case)), source, field, case.label, "something that is lost, arrives or departs")
        gone = all_lost(plan.network, before.lost)
        for name in changed(before, case).lost:
            anew = not lost_directions(plan.network, name) <= gone
            _require(anew, source, f"{field}.lost", name, "something that is not lost already")
    for number, job in enumerate(plan.jobs if begins.alone_of is None else ()):
        spans = [case for case in cases if number in at_work(plan, case)]
        first = cases.index(spans[0]) if spans else 0
        source, field = where[first]
        once = bool(spans) and spans == list(cases[first : first + len(spans)])
        _require(once, source, field, job.name, "a job that is there once, and does not come back when it has departed")
    _check_times(plan, cases, where)


def _check_state(plan: Plan, case: Case, source: str, field: str) -> None:
    names = [job.name for job in plan.jobs]
    for name in case.away:
        _require(name in names, source, f"{field}.away", name, f"a job ({listed(names)})")
    _require(bool(at_work(plan, case)), source, f"{field}.away", ", ".join(case.away), "one job or more at work")
    for name in case.lost:
        lost_directions(plan.network, name, source, f"{field}.lost")
    for name in (*case.away, *case.lost):
        once = (*case.away, *case.lost).count(name) == 1
        _require(once, source, field, name, "each switch, link and job once, under names of their own")


def _check_times(plan: Plan, cases: Sequence[Case], where: Sequence[tuple[str, str]]) -> None:
    """That there are iterations before, between and after events, and more than those that warm up."""
    for job in plan.jobs if len(cases) > 1 else ():
        warmup, total, before = job.workload.warmup, job.workload.iterations, 0
        for (source, field), (old, case) in zip(where[1:], pairwise(cases), strict=True):
            assert case.event is not None
            after, cold = case.event.after, warmup if changed(old, case).arrived else 0
            last = total - 1 - cold
            why = f", and the first {cold} after an arrival warm up" if cold else ""
            expected = f"{before + 1} to {last}: some measured iterations come before, some after{why}"
            if last <= before:
                expected = f"more iterations than {total} (--iterations N): some before, some after{why}"
            _require(before < after <= last, source, f"{field}.event.after", after, expected)
            before = after + cold


def _require(good: bool, source: str, field: str, value: object, expected: str) -> None:
    if not good:
        raise BadInput.of(source, field, value, expected)
