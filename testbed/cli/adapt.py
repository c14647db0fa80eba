"""`testbed adapt`: rehearse a job that adapts, in the event model, beside one that never does and an oracle."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from testbed.cli import options
from testbed.errors import BadInput

if TYPE_CHECKING:
    from testbed.adaptation.estimates import Belief, Interval
    from testbed.adaptation.rehearsal import Rehearsal, Rehearsed

_Events = Annotated[
    list[str] | None,
    typer.Option(
        "--event",
        metavar="TEXT",
        help="What happens, such as 'link paris--warsaw delay x4 at 10': delay, rate, lost or traffic of a link, or "
        "a rank that is slower (repeatable); default: nothing.",
    ),
]
_Total = Annotated[int, typer.Option("--iterations", min=1, max=10_000, metavar="N", help="Iterations in all.")]
_Controller = Annotated[
    str, typer.Option(metavar="NAME", help="ski-rental, never or FILE.py:NAME; options as in ski-rental,dwell=5.")
]
_Begin = Annotated[
    str | None, typer.Option(metavar="NAME", help="The schedule to begin with; default: the fastest as planned.")
]
_Cost = Annotated[str, typer.Option(metavar="TIME", help="What a swap costs beside what it sends.")]
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
    workload: options.WorkloadFile,
    events: _Events = None,
    iterations: _Total = 60,
    schedule: options.Schedules = None,
    begin: _Begin = None,
    vary: options.Vary = None,
    controller: _Controller = "ski-rental",
    swap_cost: _Cost = "20 ms",
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
    """
    from testbed.adaptation import controller as controllers
    from testbed.adaptation.adaptable_job import adaptable_job, planned_belief
    from testbed.adaptation.may_change import may_change
    from testbed.adaptation.rehearsal import rehearse
    from testbed.adaptation.rehearsal_changes import change
    from testbed.adaptation.rehearsal_picture import draw
    from testbed.adaptation.rehearsal_world import SlotVariation
    from testbed.cli.progress import Terminal
    from testbed.files import output
    from testbed.plan.background import rates_change
    from testbed.planning import resolve
    from testbed.planning.schedules import choose
    from testbed.units import TIME

    swap_s = options.quantity("--swap-cost", swap_cost, TIME, "a time")
    chosen = controllers.choose(controller)
    plan = resolve.load_plan(topology, workload, settings=settings or [])
    if rates_change(plan):
        expected = "constant rates: a rehearsal has iterations that differ by --event alone"
        raise BadInput.of(plan.network.name, "background", "rates that change", expected)
    job = adaptable_job(plan, choose(plan, schedule or []), may_change(vary or ()))
    changes = [change(text, plan) for text in events or []]
    variation = SlotVariation(slot_noise / 100, seed)
    with Terminal(quiet=quiet).step("rehearsing", iterations) as step:
        found = rehearse(
            job, changes, iterations, chosen, swap_s=swap_s, begin=begin, drawn=variation, advance=step.advance
        )
    heading, planned = f"{plan.jobs[0].name} on {plan.network.name}, {chosen.label}", planned_belief(job)
    with output(picture, "--picture") as partial:
        draw(found, planned, max(job.planned.message_bytes, default=0.0), partial, heading)
    if as_json:
        facts = {"topology": plan.network.name, "workload": plan.jobs[0].workload.name, "controller": chosen.label}
        options.emit({**facts, **_document(found, planned), "picture": str(picture)})
    else:
        _show(found, planned, heading)
        options.stdout_console(80).print(f"drawn in {picture}", highlight=False, soft_wrap=True)


def _show(found: Rehearsal, planned: Belief, heading: str) -> None:
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
    for number, column in enumerate(("job", "all of them", "swaps", "gain", "of the oracle's")):
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


def _told(row: Rehearsed, before: Belief) -> list[tuple[str, str]]:
    """What there is to say of an iteration."""
    from testbed.units import show_time

    step = row.step
    said = [("happens", what) for what in row.happens]
    if step.learnt.alarms:
        said.append(("seen", f"{', '.join(step.learnt.alarms)}: not as before ({show_time(row.adapted_s)})"))
    said += [("believed", what) for what in _changed(step.belief, before)]
    if step.swapped_to is not None:
        cost = f"a swap costs {show_time(step.swap_s)}"
        expected = f"{show_time(step.expected_s)} expected, not {show_time(step.stays_s)}"
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


def _document(found: Rehearsal, planned: Belief) -> dict[str, Any]:
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
        before = step.belief
    return {
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
