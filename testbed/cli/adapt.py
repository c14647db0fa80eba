"""`testbed adapt`: rehearse a job that adapts, in the event model, beside one that never does and an oracle."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.table import Table

from testbed.cli import options
from testbed.errors import BadInput, require

if TYPE_CHECKING:
    from testbed.adaptation.controller import ControllerChoice
    from testbed.adaptation.estimates import Belief, Interval
    from testbed.adaptation.rehearsal import JobTimes, Rehearsal, Rehearsed
    from testbed.adaptation.rehearsal_changes import Change
    from testbed.plan.plan import Plan

_Events = Annotated[
    list[str] | None,
    typer.Option(
        "--event",
        metavar="TEXT",
        help="What happens, such as 'link paris--warsaw delay x4 at 10': delay, rate, lost or traffic of a link, or "
        "a rank that is slower, beside the topology's `events` (repeatable).",
    ),
]
LENGTH, LONGEST = 60, 10_000
_Total = Annotated[
    int | None,
    typer.Option(
        "--iterations", min=1, max=LONGEST, metavar="N", help="Iterations in all; default: those of --set, or 60."
    ),
]
_Controller = Annotated[
    str, typer.Option(metavar="NAME", help="ski-rental, never or FILE.py:NAME; options as in ski-rental,dwell=5.")
]
_Begin = Annotated[
    str | None, typer.Option(metavar="NAME", help="The schedule to begin with; default: the fastest as planned.")
]
_Cost = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="What a swap costs beside what it sends; default: 20 ms, of several jobs' starts 1 ms."
    ),
]
_Variation = Annotated[
    float,
    typer.Option(min=0, max=100, metavar="PERCENT", help="Coefficient of variation of every action's slot."),
]
_Seed = Annotated[int, typer.Option(min=0, max=options.MOST_SEED, metavar="N", help="Of slots that vary.")]
_Picture = Annotated[
    Path, typer.Option(metavar="FILE", callback=options.drawable, help="The picture to write, .svg or .png.")
]


def adapt(
    topology: options.TopologyFile,
    workloads: options.WorkloadFiles,
    events: _Events = None,
    iterations: _Total = None,
    schedule: options.Schedules = None,
    begin: _Begin = None,
    vary: options.Vary = None,
    controller: _Controller = "ski-rental",
    swap_cost: _Cost = None,
    slot_noise: _Variation = 0.0,
    seed: _Seed = 1,
    picture: _Picture = Path("adapt.svg"),
    settings: options.Settings = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Rehearse a job that adapts: what it would see, believe and decide while links and ranks change.

    Every iteration is the event model's. The controller sees the times of the job's own messages and actions, nothing
    else; it may swap between the schedules of the workload, or those of --schedule, each made anew for what it
    believes, and change what else --vary says. Beside it train a job that never adapts and an oracle that knows all
    events before they happen.

    Of several workloads: jobs that train in rounds over links that they share, of which one controller sees the times
    of all and shifts the starts, with --vary starts=N.
    """
    from testbed.adaptation.controller import choose
    from testbed.adaptation.rehearsal_picture import draw
    from testbed.adaptation.rehearsal_world import SlotVariation
    from testbed.cli.progress import Terminal
    from testbed.files import output
    from testbed.planning.resolve import overrides_of
    from testbed.spec import load_topology

    chosen, several = choose(controller), len(workloads) > 1
    plan = _without_events(_with_length(topology, workloads, settings or [], iterations))
    iterations = plan.jobs[0].workload.iterations
    asked = _Asked(schedule or (), begin, vary or (), chosen, swap_cost)
    subject = (_several if several else _one)(plan, asked)
    in_topology = load_topology(topology, overrides_of(settings or [])[1]).events
    changes = _changes(plan, {str(topology): in_topology, "--event": events or ()}, iterations)
    drawn, warnings = SlotVariation(slot_noise / 100, seed), _of_slots(plan)
    with Terminal(quiet=quiet).step("rehearsing", iterations) as step:
        found = subject.rehearsed(changes, iterations, chosen, drawn=drawn, advance=step.advance)
    names = [job.name for job in plan.jobs]
    heading = f"{' + '.join(names)} on {plan.network.name}, {chosen.label}"
    with output(picture, "--picture") as partial:
        draw(found, subject.planned, subject.message_bytes, partial, heading, names)
    if as_json:
        facts: dict[str, Any] = {"topology": plan.network.name, "controller": chosen.label}
        facts |= {"workloads": names} if several else {"workload": plan.jobs[0].workload.name}
        facts["warnings"] = warnings
        options.emit({**facts, **_document(found, subject.planned, names), "picture": str(picture)})
    else:
        _show(found, subject.planned, heading, names)
        console = options.stdout_console(80)
        for line in options.warnings(warnings):
            console.print(line, highlight=False, markup=False)
        console.print(f"drawn in {picture}", highlight=False, soft_wrap=True)


def _without_events(plan: Plan) -> Plan:
    """The same: events are played from one iteration to the next. Raises BadInput for rates that change within one."""
    from testbed.plan.background import rates_change

    plan = replace(plan, events=())
    if rates_change(plan):
        expected = "constant rates: a rehearsal has iterations that differ by --event alone"
        raise BadInput.of(plan.network.name, "background", "rates that change", expected)
    return plan


def _with_length(topology: Path, workloads: Sequence[Path], settings: Sequence[str], iterations: int | None) -> Plan:
    """The plan of as many iterations as are asked for; those of a workload's file are of a run. Raises BadInput."""
    from testbed.planning import resolve

    if iterations is None and "iterations" not in resolve.overrides_of(settings)[0]:
        iterations = LENGTH
    plan = resolve.load_plan(topology, *workloads, settings=settings, iterations=iterations)
    length = plan.jobs[0].workload.iterations
    require(length <= LONGEST, "--set", "iterations", length, f"at most {LONGEST:,}")
    return plan


def _changes(plan: Plan, texts: Mapping[str, Sequence[str]], iterations: int) -> list[Change]:
    """What happens, as the topology and the options say it. Raises BadInput."""
    from testbed.adaptation.rehearsal_changes import change

    found = []
    for source, said in texts.items():
        for text in said:
            one = change(text, plan, source)
            expected = f"an iteration from 0 to {iterations - 1}, the last one that is rehearsed"
            require(one.read.iteration < iterations, source, "event", one.text, expected)
            found.append(one)
    return found


def _of_slots(plan: Plan) -> list[str]:
    """What is to be known of the slots that are rehearsed."""
    from testbed.planning.noise import of_slots

    return of_slots([job.workload for job in plan.jobs], "`testbed run --adapt` has each as it is")


class _Asked(NamedTuple):
    """Options."""

    schedules: Sequence[str]
    begin: str | None
    vary: Sequence[str]
    controller: ControllerChoice
    swap_cost: str | None

    def swap_s(self, otherwise: float) -> float:
        from testbed.units import TIME

        return otherwise if self.swap_cost is None else options.quantity("--swap-cost", self.swap_cost, TIME, "a time")


class _Subject(NamedTuple):
    """What is rehearsed, and what it begins to believe."""

    rehearsed: Callable[..., Rehearsal]
    planned: Belief
    message_bytes: float


def _one(plan: Plan, asked: _Asked) -> _Subject:
    """The only job of a plan. Raises BadInput."""
    from testbed.adaptation.adaptable_job import adaptable_job, planned_belief
    from testbed.adaptation.adapting_plan import SWAP_S
    from testbed.adaptation.may_change import may_change
    from testbed.adaptation.rehearsal import rehearse
    from testbed.planning.schedules import choose, without_best

    swap_s, expected = asked.swap_s(SWAP_S), "names of schedules: which is the best is found again and again"
    choices = without_best(choose(plan, asked.schedules), named=bool(asked.schedules), expected=expected)
    job = adaptable_job(plan, choices, may_change(asked.vary))
    rehearsed = partial(rehearse, job, begin=asked.begin, swap_s=swap_s)
    return _Subject(rehearsed, planned_belief(job), max(job.planned.message_bytes, default=0.0))


def _several(plan: Plan, asked: _Asked) -> _Subject:
    """The jobs of a plan, as a lab trains them. Raises BadInput."""
    from testbed.adaptation.adapting_plan import SHIFT_S, with_adaptation
    from testbed.adaptation.jobs_in_rounds import jobs_in_rounds
    from testbed.adaptation.may_change import VARY, may_change
    from testbed.adaptation.rehearsal import rehearse_jobs
    from testbed.planning.schedules import with_every_job

    if asked.begin is not None:
        raise BadInput.of("--begin", "schedule", asked.begin, "one job: several have one schedule each, and keep it")
    swap_s, may = asked.swap_s(SHIFT_S), may_change(asked.vary)
    adapting = with_adaptation(with_every_job(plan, asked.schedules), asked.controller.label, may, VARY)
    jobs = jobs_in_rounds(adapting, may.starts)
    return _Subject(partial(rehearse_jobs, jobs, swap_s=swap_s), jobs.belief(), jobs.message_bytes)


def _show(found: Rehearsal, planned: Belief, heading: str, names: Sequence[str]) -> None:
    from testbed.units import show_change, show_size, show_time, show_times

    console = options.stdout_console(80)
    told = Table(title=heading, title_justify="left")
    told.add_column("iteration", justify="right")
    told.add_column("", no_wrap=True)
    told.add_column("what", overflow="fold")
    before = planned
    for row in found.rows:
        for number, (word, what) in enumerate(_told(row, before)):
            told.add_row("" if number else str(row.iteration), word, what)
        before = row.step.belief
    totals = Table(title=f"{len(found.rows)} iterations", title_justify="left")
    job = "jobs, on the mean" if len(names) > 1 else "job"
    for number, column in enumerate((job, "all of them", "swaps", "gain", "of the oracle's")):
        totals.add_column(column, justify="right" if number else "left")
    every = {"never adapting": "never", "controller": "adapted", "oracle": "oracle"}
    seconds = [found.total_s(who) for who in every.values()]
    swaps = "0", str(len(found.swaps)), str(found.oracle_swaps)
    gains = [show_change((seconds[0] - own_s) / seconds[0], 2) for own_s in seconds]
    shares = "", "nothing to gain" if found.share is None else f"{found.share:.1%}", ""
    if looks := found.looks:
        waited = show_time(sum(row.look_s for row in found.rows))
        size = show_size(sum(look.wire_bytes for look in looks))
        totals.caption = f"{len(looks)} looks at routes that were not used: {size} each way, {waited} waited for"
    for row_of in zip(every, show_times(seconds), swaps, gains, shares, strict=True):
        totals.add_row(*row_of)
    if told.row_count:
        console.print(told)
    console.print(totals)
    if len(names) > 1:
        console.print(_of_jobs(found, names))


def _of_jobs(found: Rehearsal, names: Sequence[str]) -> Table:
    """What each of several jobs has of it."""
    from testbed.adaptation.rehearsal import WORTH_KNOWING
    from testbed.units import show_change, show_times

    table = Table(title="every job, from its own start", title_justify="left")
    for number, column in enumerate(("job", "never adapting", "controller", "oracle", "gain", "of the oracle's")):
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    for name, times in zip(names, found.jobs, strict=True):
        gain_s, most_s = times.never_s - times.adapted_s, times.never_s - times.oracle_s
        share = f"{gain_s / most_s:.1%}" if most_s > WORTH_KNOWING * times.never_s else "nothing to gain"
        table.add_row(name, *show_times(times), show_change(gain_s / times.never_s, 2), share)
    return table


def _told(row: Rehearsed, before: Belief) -> list[tuple[str, str]]:
    """What there is to say of an iteration."""
    from testbed.cli.adaptation_tables import show_expected
    from testbed.units import show_time

    step = row.step
    said = [("happens", what) for what in row.happens]
    if step.learnt.alarms:
        said.append(("seen", f"{', '.join(step.learnt.alarms)}: not as before ({show_time(row.adapted_s)})"))
    said += [("believed", what) for what in _changed(step.belief, before)]
    if step.swapped_to is not None:
        cost = f"a swap costs {show_time(step.swap_s)}"
        expected = show_expected(step.expected_s, step.stays_s)
        other = step.swapped_to.label
        what = f"{other}, made anew" if other == row.running else f"{other} for {row.running}"
        said.append(("decided", f"{what}: {expected}; {cost}"))
    return said


def _changed(belief: Belief, before: Belief) -> list[str]:
    """The estimates that are new, each with its interval."""
    from testbed.adaptation.estimates import named
    from testbed.units import show_rate, show_time

    lines = []
    for which, path in belief.paths.items():
        if path != before.paths[which]:
            rate = path.rate_bps
            rates = _interval(rate, show_rate) if math.isfinite(rate.value) else "any rate"
            lines.append(f"{named(which)}: {_interval(path.delay_s, show_time)}, {rates}")
    for rank in sorted({which[0] for which in belief.slots}):
        slots = {which[1]: slot for which, slot in belief.slots.items() if which[0] == rank}
        if any(slot != before.slots[rank, kind] for kind, slot in slots.items()):
            new = [kind for kind, slot in slots.items() if slot != before.slots[rank, kind]]
            each = (f"{kind} {_interval(slots[kind], show_time)}" for kind in new)
            lines.append(f"rank {rank}: {', '.join(each)}")
    return lines


def _interval(estimate: Interval, show: Callable[[float], str]) -> str:
    """With its ends, where they can be told apart."""
    value, low, high = map(show, estimate)
    return value if low == value == high else f"{value} ({low} to {high})"


def _document(found: Rehearsal, planned: Belief, names: Sequence[str]) -> dict[str, Any]:
    """Seconds, bit/s, bytes and shares."""
    from testbed.adaptation.estimates import named

    rows, before = [], planned
    for row in found.rows:
        step = row.step
        rows.append(
            {
                "iteration": row.iteration,
                "happens": list(row.happens),
                "never_s": row.never_s,
                "controller_s": row.adapted_s,
                "oracle_s": row.oracle_s,
                "late_oracle_s": row.late_oracle_s,
                "schedule": row.running,
                "oracle_schedule": row.oracle,
                "alarms": list(step.learnt.alarms),
                "believed": _estimates(step.belief, before),
                "swap_s": step.swap_s,
                "swap_to": None if step.swapped_to is None else step.swapped_to.label,
                "expected_s": step.expected_s,
                "looked_at": [named(path) for path in row.look.paths] if row.look else [],
                "look_bytes": row.look.wire_bytes if row.look else 0.0,
                "look_s": row.look_s,
            }
        )
        if len(names) > 1:
            rows[-1]["jobs"] = _jobs(names, row.jobs)
        before = step.belief
    return ({"jobs": _jobs(names, found.jobs)} if len(names) > 1 else {}) | {
        "swap_cost_s": found.swap_s,
        "never_s": found.total_s("never"),
        "controller_s": found.total_s("adapted"),
        "oracle_s": found.total_s("oracle"),
        "late_oracle_s": found.total_s("late_oracle"),
        "share_of_gain": found.share,
        "share_of_late_gain": found.late_share,
        "swaps": len(found.swaps),
        "oracle_swaps": found.oracle_swaps,
        "looks": len(found.looks),
        "iterations": rows,
    }


def _jobs(names: Sequence[str], times: Sequence[JobTimes]) -> list[dict[str, Any]]:
    every = zip(names, times, strict=True)
    return [
        {"job": name, "never_s": of.never_s, "controller_s": of.adapted_s, "oracle_s": of.oracle_s}
        for name, of in every
    ]


def _estimates(belief: Belief, before: Belief) -> list[dict[str, Any]]:
    """Those that are new; a rate that cannot be told is null."""
    from testbed.units import finite

    found: list[dict[str, Any]] = []
    for which, path in belief.paths.items():
        if path != before.paths[which]:
            ends = {"source": which.source, "target": which.target} | ({"over": which.over} if which.over else {})
            delay, rate = list(path.delay_s), [finite(value) for value in path.rate_bps]
            found.append(ends | {"delay_s": delay, "rate_bps": rate})
    for (rank, kind), slot in belief.slots.items():
        if slot != before.slots[rank, kind]:
            found.append({"rank": rank, "kind": str(kind), "slot_s": list(slot)})
    return found
