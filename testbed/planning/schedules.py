"""Which schedules a job is measured with: those asked for, each made once, `best` judged, misfits left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from testbed.errors import BadInput, DoesNotFit
from testbed.full_scale.similitude_bound import ideal
from testbed.model.lower import Load
from testbed.pipeline.ir import Schedule
from testbed.pipeline.problem import Problem, Receives
from testbed.pipeline.validate import OverMemory
from testbed.plan import costs, counts
from testbed.plan.plan import Case, Job, Plan
from testbed.planning.noise import DRAWS, noisy_schedules, require_draws
from testbed.planning.resolve import (
    BEST,
    ROBUST,
    Combination,
    combinations,
    generate,
    given,
    job_schedule,
    require_room_for_parameters,
    with_combinations,
)
from testbed.planning.ties import ranges_of_orders, worst_s
from testbed.plugins import Unusable
from testbed.schedule.registry import FAMILIES, Generated, family_of
from testbed.schedule.schedule_file import RecordedSchedule
from testbed.search.incumbent import Watch
from testbed.spec.choice import ScheduleChoice, choice_named, file_named, own_name
from testbed.spec.workload import Pacing
from testbed.units import show_time

QUICK: Mapping[str, Any] = {"time_limit_s": 5.0}
"""Options of the families that are tried beside the workload's own, where they have such an option."""


class Candidate(NamedTuple):
    """A schedule that could be run, and how long the model says a job alone takes with it."""

    choice: ScheduleChoice
    problem: Problem
    generated: Generated
    makespan_s: float
    """NaN where nobody asked."""


class Candidates(NamedTuple):
    """What became of several choices."""

    found: list[Candidate]
    """In the order of the choices."""
    left_out: dict[str, str]
    """By label, why a schedule does not fit."""
    over_memory: frozenset[str] = frozenset()
    """Of those, the labels that lack nothing but memory."""


class Selection(NamedTuple):
    """The schedules that a job is measured with."""

    choices: list[ScheduleChoice]
    """All that were asked for, in that order; in place of `best` what it found."""
    made: dict[str, Generated]
    """By label; empty where only a run can tell what actions take."""
    left_out: dict[str, str]
    """By label, why a schedule does not fit."""

    @property
    def fitting(self) -> list[ScheduleChoice]:
        """The choices that are not left out."""
        return [choice for choice in self.choices if choice.label not in self.left_out]


def choose(plan: Plan, names: Sequence[str] = (), *, job: int = 0) -> list[ScheduleChoice]:
    """A job's choices of these names, each a label, a family or a file; none means all. Raises BadInput.

    A family that the workload does not list is taken without options.
    """
    return choices_among(plan.jobs[job].workload.schedules, names)


def choices_among(listed: Sequence[ScheduleChoice], names: Sequence[str] = ()) -> list[ScheduleChoice]:
    """The same of a workload's schedules, before there is a plan. What is named twice is taken once."""
    found: dict[str, ScheduleChoice] = {}
    for choice in listed if not names else [choice for name in names for choice in _named(listed, name)]:
        other = found.setdefault(choice.label, choice)
        if other != choice:
            expected = f"a file called otherwise: another schedule that is asked for is {choice.label}"
            raise BadInput.of("--schedule", "name", choice.schedule, expected)
    return list(found.values())


def without_best(choices: Sequence[ScheduleChoice], *, named: bool, expected: str) -> list[ScheduleChoice]:
    """Those of them that say by themselves what they are.

    Raises BadInput, with what is `expected` instead, for `best` where they were `named`, or where there is no other.
    """
    wanted = [choice for choice in choices if choice.schedule != BEST]
    if not wanted or (named and len(wanted) < len(choices)):
        raise BadInput.of("--schedule", "option", BEST, expected)
    return wanted


def _named(listed: Sequence[ScheduleChoice], name: str) -> list[ScheduleChoice]:
    """Every choice of the workload with this label or, if there is none, of this family; else a new one."""
    found = [choice for choice in listed if choice.label == name] or [
        choice for choice in listed if choice.schedule == name
    ]
    if found or name == BEST:
        return found or [ScheduleChoice(schedule=BEST)]
    try:
        choice = choice_named(name, Path())
        family_of(choice)
    except Unusable as error:
        more = f", {BEST}, FILE.csv, or a label of the workload's schedules" if file_named(name) is None else ""
        raise BadInput.of("--schedule", "name", error.value, f"{error.expected}{more}") from error
    if any(other.label == choice.label for other in listed):
        expected = f"a file called otherwise: the workload has another schedule {choice.label}"
        raise BadInput.of("--schedule", "name", name, expected)
    return [choice]


def choices_in_cases(plan: Plan, job: int) -> list[ScheduleChoice]:
    """What a job's schedules in the cases are made by, each once."""
    return list({case.jobs[job].choice.label: case.jobs[job].choice for case in plan.cases}.values())


def every_choice(plan: Plan, *, job: int = 0) -> list[ScheduleChoice]:
    """A job's choices, and all other families that need no solver."""
    return every_family(plan.jobs[job].workload.schedules)


def every_family(schedules: Sequence[ScheduleChoice]) -> list[ScheduleChoice]:
    """The same of a workload's schedules, before there is a plan."""
    listed = [choice for choice in schedules if choice.schedule != BEST]
    known, labels = {choice.schedule for choice in listed}, {choice.label for choice in listed}
    others = (name for name in FAMILIES if name not in known | labels and not FAMILIES[name].solver)
    return [*listed, *(ScheduleChoice(schedule=name) for name in others)]


def quick_choices(plan: Plan, *, job: int = 0) -> list[ScheduleChoice]:
    """As `every_choice`; families beside the workload's own with what they have of the options in QUICK."""
    listed = plan.jobs[job].workload.schedules
    return [choice if choice in listed else with_options(choice, QUICK) for choice in every_choice(plan, job=job)]


def with_options(choice: ScheduleChoice, options: Mapping[str, Any]) -> ScheduleChoice:
    """The choice with those of these options that its family has."""
    return choice.model_copy(
        update={name: options[name] for name in family_of(choice).option_names() if name in options}
    )


def candidates(
    plan: Plan,
    choices: Sequence[ScheduleChoice],
    watch: Watch | None = None,
    *,
    job: int = 0,
    source: str | None = None,
    judge: bool = True,
) -> Candidates:
    """Every choice made, each once, and judged. Raises BadInput for what is wrong with one beside that it does not fit.

    `source` is what errors call the workload: its file; default: its name.
    """
    from testbed.schedule.evaluation import PredictedSchedule, ScheduleRequest, generate_each

    source = source or plan.jobs[job].workload.name
    tasks: dict[str, ScheduleRequest] = {}
    left_out: dict[str, str] = {}
    for choice in choices:
        try:
            # made for full scale, where there is one: the same schedule at every scale of the lab
            problem = ideal(plan, plan.jobs[job], costs.problem(plan, choice, job=job))
            tasks[choice.label] = ScheduleRequest(choice, problem, judge)
        except DoesNotFit as error:
            left_out[choice.label] = _why(source, plan.jobs[job], choice, str(error), over_memory=False)
    found, over_memory = [], set()
    for task, outcome in zip(tasks.values(), generate_each(list(tasks.values()), watch), strict=True):
        choice = task.choice
        if isinstance(outcome, PredictedSchedule):
            found.append(Candidate(choice, task.problem, outcome.generated, outcome.makespan_s))
        else:
            over = outcome.over_memory
            left_out[choice.label] = _why(source, plan.jobs[job], choice, outcome.reason, over_memory=over)
            over_memory |= {choice.label} if over else set()
    return Candidates(found, left_out, frozenset(over_memory))


def _why(source: str, job: Job, choice: ScheduleChoice, reason: str, *, over_memory: bool) -> str:
    """The reason of a misfit, behind the file and the field that would have to change."""
    listed = job.workload.schedules
    place = f"schedules.{listed.index(choice)}" if choice in listed else f"schedule {choice.label}"
    if over_memory:
        place = f"{place}.memory" if choice.memory is not None and choice in listed else "memory"
        reason += counts.hbm_words(job.workload, choice.memory)
    named = reason.startswith((f"{source}: ", f"{place}: "))
    return f"{source}: {reason.removeprefix(f'{source}: ')}" if named else f"{source}: {place}: {reason}"


def ranked(
    plan: Plan, best: ScheduleChoice, watch: Watch | None = None, *, job: int = 0, source: str | None = None
) -> Candidates:
    """What `best` stands for: every schedule that fits and needs no solver, fastest first (CrossPipe, section 6).

    All in the memory that `best` has, whatever the workload gives to single ones. Where it is to be robust, the one
    with the least 95th percentile over DRAWS draws first, which is the time it has then. Raises BadInput where a
    schedule is wrong, without pacing, or of slots that are not drawn where it is to be robust.
    """
    from testbed.schedule.evaluation import kept_processes

    if is_robust(best):
        where = source or plan.jobs[job].workload.name, f"schedule {best.label}.{ROBUST}"
        require_draws(plan.jobs[job], where, True)
    choices = [choice.model_copy(update={"memory": best.memory}) for choice in quick_choices(plan, job=job)]
    with kept_processes():
        found = candidates(plan, choices, watch, job=job, source=source)
        if is_robust(best):
            return found._replace(found=_by_p95(found.found, plan.jobs[job]))
        return found._replace(found=_by_worst(found.found, plan.jobs[job].workload.receives))


def is_robust(choice: ScheduleChoice) -> bool:
    """Whether a choice is `best` by the 95th percentile."""
    return choice.schedule == BEST and bool(choice.options().get(ROBUST))


def robustly(choices: Sequence[ScheduleChoice]) -> list[ScheduleChoice]:
    """The choices with every `best` to be robust. Raises BadInput where there is none."""
    if not any(choice.schedule == BEST for choice in choices):
        names = ", ".join(choice.label for choice in choices)
        raise BadInput.of(f"--{ROBUST}", "schedule", names, f"{BEST} among them (--schedule {BEST})")
    return [choice.model_copy(update={ROBUST: True}) if choice.schedule == BEST else choice for choice in choices]


def _by_p95(found: Sequence[Candidate], job: Job) -> list[Candidate]:
    """The one with the least 95th percentile first; each with that as its time."""
    by_label = {one.choice.label: one for one in found}
    loads = {
        label: Load(one.problem, one.generated.schedule, 0.0, job.workload.receives) for label, one in by_label.items()
    }
    noisy = noisy_schedules(job, loads, DRAWS) if loads else []
    return [by_label[one.label]._replace(makespan_s=one.p95_s) for one in noisy]


def _by_worst(found: Sequence[Candidate], receives: Receives) -> list[Candidate]:
    """The fastest first, those in front by what they may take at worst, by who comes first of messages that meet."""
    from testbed.schedule.evaluation import in_kept_process

    rest = sorted(found, key=lambda candidate: candidate.makespan_s)
    front: list[tuple[float, Candidate]] = []
    while rest and not any(worst_s <= rest[0].makespan_s for worst_s, _ in front):
        candidate = rest.pop(0)
        alone = [Load(candidate.problem, candidate.generated.schedule, 0.0, receives)]
        (predicted_range,) = in_kept_process(ranges_of_orders, alone)
        front.append((worst_s(candidate.makespan_s, predicted_range), candidate))
    return [candidate for _, candidate in sorted(front, key=lambda pair: pair[0])] + rest


def make(
    plan: Plan,
    choices: Sequence[ScheduleChoice],
    kept: Mapping[str, RecordedSchedule] | None = None,
    watch: Watch | None = None,
    *,
    job: int = 0,
    source: str | None = None,
    strict: bool = False,
) -> Selection:
    """The schedules of a job's choices: what is `kept` of them, validated, the others generated.

    A schedule that does not fit is left out as long as another one does; with `strict`, or when none is left, that is
    an error. Without pacing nothing is made: then only a run can tell what actions take. Raises BadInput.
    """
    maker = _Maker(plan, kept or {}, watch, job, source or plan.jobs[job].workload.name)
    made = maker.all_of(choices)
    if kept:
        maker.refuse_unknown(made)
    if made.left_out and (strict or len(made.left_out) == len(made.choices)):
        raise DoesNotFit(_together(maker.source, made.left_out))
    return made


def _together(source: str, left_out: Mapping[str, str]) -> str:
    """The reasons of several misfits in one line."""
    reasons = list(left_out.values())
    if len(reasons) == 1:
        return reasons[0]
    shown = "; ".join(reason.removeprefix(f"{source}: ") for reason in reasons)
    return f"{source}: {len(reasons)} schedules do not fit: {shown}"


def with_every_job(
    unfinished: Plan,
    names: Sequence[str] = (),
    kept: Mapping[str, RecordedSchedule] | None = None,
    watch: Watch | None = None,
    *,
    sources: Sequence[str] = (),
    strict: bool = False,
    robust: bool = False,
) -> Plan:
    """The plan with a case for every combination of its jobs' schedules, those of these names. Raises as `make`.

    `sources` are what errors call the workloads: their files. `robust`: `best` is chosen by the 95th percentile.
    """
    chosen = [choose(unfinished, names, job=job) for job in range(len(unfinished.jobs))]
    selected = [
        make(
            unfinished,
            robustly(chosen[job]) if robust else chosen[job],
            kept,
            watch,
            job=job,
            source=sources[job] if sources else None,
            strict=strict,
        )
        for job in range(len(unfinished.jobs))
    ]
    plan = with_selected(unfinished, selected)
    require_room_for_parameters(plan)
    return plan


def with_selected(plan: Plan, selected: Sequence[Selection]) -> Plan:
    """The plan with a case for every combination of schedules that fit; per job, what it is measured with.

    What is left out stays in the plan with its reason. Raises BadInput where no case is left.
    """
    combined = [
        combination
        for combination in combinations(plan, [mine.choices for mine in selected])
        if not any(choice.label in mine.left_out for choice, mine in zip(combination.choices, selected, strict=True))
    ]
    names = [f"{job.name}: " if len(plan.jobs) > 1 else "" for job in plan.jobs]
    left_out = {
        f"{name}{label}": reason
        for name, mine in zip(names, selected, strict=True)
        for label, reason in mine.left_out.items()
    }
    if not combined:
        raise DoesNotFit(_together(plan.network.name, left_out))
    return replace(with_combinations(plan, combined, [mine.made for mine in selected]), left_out=left_out)


def with_schedules(plan: Plan, made: Sequence[Mapping[str, Generated]]) -> Plan:
    """The plan with other schedules of the same choices on the same stages: per job by label, those that were made."""
    return replace(plan, cases=tuple(_rescheduled(plan, case, made) for case in plan.cases))


def with_order(plan: Plan, schedule: Schedule, text: str) -> Plan:
    """The plan of one job with one case: this schedule, which `text` says in torch's CSV, in a file of any name."""
    choice = ScheduleChoice(schedule="order.csv", content=text)
    made = {choice.label: Generated(schedule, None)}
    return with_combinations(plan, [Combination(choice.label, (choice,))], [made])


def _rescheduled(plan: Plan, case: Case, made: Sequence[Mapping[str, Generated]]) -> Case:
    jobs = []
    for job, chosen, found in zip(plan.jobs, case.jobs, made, strict=True):
        generated = found.get(chosen.choice.label)
        jobs.append(chosen if generated is None else job_schedule(job, chosen.choice, generated))
    return replace(case, jobs=tuple(jobs))


@dataclass
class _Maker:
    """What making the schedules of one job needs."""

    plan: Plan
    kept: Mapping[str, RecordedSchedule]
    watch: Watch | None
    job: int
    source: str

    def all_of(self, choices: Sequence[ScheduleChoice]) -> Selection:
        """Every choice made. What `best` has made already is not made again."""
        if not self.plan.jobs[self.job].workload.pacing and not self.kept:
            return self._unpaced(choices)
        by_content: dict[str, Generated] = {}
        resolved, made, left_out = list(choices), dict[str, Generated](), dict[str, str]()
        for index, choice in enumerate(choices):
            if choice.schedule == BEST:
                try:
                    resolved[index], found = self._best(choice, by_content)
                except DoesNotFit as error:
                    left_out[choice.label] = str(error)
                    continue
                if found is not None:
                    made[resolved[index].label] = found
        fresh = []
        for choice in resolved:
            if choice.label in made or choice.label in left_out:
                continue
            if choice.label in self.kept:
                self._keep(choice, made, left_out)
            elif _content(choice) in by_content:
                made[choice.label] = _called(by_content[_content(choice)], choice.label)
            else:
                fresh.append(choice)
        found_now = candidates(self.plan, fresh, self.watch, job=self.job, source=self.source, judge=False)
        made |= {predicted.choice.label: predicted.generated for predicted in found_now.found}
        left_out |= found_now.left_out
        in_order = {choice.label: made[choice.label] for choice in resolved if choice.label in made}
        return Selection(resolved, in_order, left_out)

    def _best(self, best: ScheduleChoice, by_content: dict[str, Generated]) -> tuple[ScheduleChoice, Generated | None]:
        """The choice that takes the place of `best`, and its schedule; None where that is kept in a file."""
        for other in every_choice(self.plan, job=self.job) if self.kept and not best.labelled else ():
            chosen = _in_place_of(best, other.model_copy(update={"memory": best.memory}))
            if chosen.label in self.kept:
                return chosen, None
        found, left_out, _ = ranked(self.plan, best, self.watch, job=self.job, source=self.source)
        if not found:
            label, reason = next(iter(left_out.items()))
            shown = reason.removeprefix(f"{self.source}: ")
            expected = f"room for one of {len(left_out)} schedules; of {label}: {shown}"
            raise DoesNotFit.of(self.source, f"schedule {best.label}", BEST, expected)
        by_content |= {_content(predicted.choice): predicted.generated for predicted in found}
        first = found[0]
        chosen = _in_place_of(best, first.choice)
        if chosen.label in self.kept:
            return chosen, None
        how = _how_it_was_found(found, left_out, robust=is_robust(best))
        remarks = (how, *first.generated.remarks)
        return chosen, _called(first.generated, chosen.label)._replace(remarks=remarks)

    def _keep(self, choice: ScheduleChoice, made: dict[str, Generated], left_out: dict[str, str]) -> None:
        rows, proof, file = self.kept[choice.label]
        try:
            made[choice.label] = Generated(given(self.plan, choice, rows, job=self.job), proof)
        except DoesNotFit as error:
            over = isinstance(error, OverMemory)
            left_out[choice.label] = _why(self.source, self.plan.jobs[self.job], choice, str(error), over_memory=over)
        except BadInput as error:
            raise BadInput(f"{file or self.source}: {error}") from None

    def _unpaced(self, choices: Iterable[ScheduleChoice]) -> Selection:
        """Nothing made; fixed orders that will not fit, whatever actions take, are left out now."""
        left_out = {}
        for choice in choices:
            if choice.schedule == BEST:
                expected = f"times for F, I and W: without them only a run can tell what is fastest ({choice.label})"
                raise BadInput.of(self.source, "pacing", "none", expected)
            try:
                costs.problem(self.plan, choice, _ANY_PACING, job=self.job)
                if not (family_of(choice).uses_spare_memory or family_of(choice).solver):
                    generate(self.plan, choice, _ANY_PACING, job=self.job)
            except DoesNotFit as error:
                over = isinstance(error, OverMemory)
                job = self.plan.jobs[self.job]
                left_out[choice.label] = _why(self.source, job, choice, str(error), over_memory=over)
        return Selection(list(choices), {}, left_out)

    def refuse_unknown(self, made: Selection) -> None:
        """Raises BadInput for a kept schedule that the workload does not have."""
        listed = self.plan.jobs[self.job].workload.schedules
        known = {choice.label for choice in (*listed, *made.choices)}
        for label in self.kept:
            of_best = label.startswith(f"{BEST} ") and any(choice.schedule == BEST for choice in listed)
            if label not in known and not of_best:
                names = ", ".join(choice.label for choice in made.choices)
                raise BadInput.of("--schedules-from", "schedule", label, f"one of {self.source} ({names})")


_ANY_PACING = Pacing.model_construct(F=1e-3, I=1e-3, W=1e-3, B=None)
"""For what does not depend on times: whether a fixed order fits into memory."""


def _content(choice: ScheduleChoice) -> str:
    """What decides the schedule that a choice makes: all but its label."""
    return repr(sorted((name, value) for name, value in choice.as_document().items() if name != "label"))


def _called(generated: Generated, label: str) -> Generated:
    return generated._replace(schedule=generated.schedule.renamed(label))


def _in_place_of(best: ScheduleChoice, found: ScheduleChoice) -> ScheduleChoice:
    """The choice that `best` found, under the label of `best`, or one that says both names."""
    label = best.label if best.labelled else own_name(f"{BEST} {found.label}")
    return found.model_copy(update={"label": label})


def _how_it_was_found(found: Sequence[Candidate], left_out: Mapping[str, str], *, robust: bool) -> str:
    words = f"{found[0].choice.label}, the fastest of {len(found)} that fit"
    if robust:
        words += f" by the 95th percentile of {DRAWS} draws, {show_time(found[0].makespan_s)}"
    if len(found) > 1:
        words += f"; next {found[1].choice.label} with {show_time(found[1].makespan_s)}"
    return words + (f"; {len(left_out)} do not fit ({', '.join(left_out)})" if left_out else "")
