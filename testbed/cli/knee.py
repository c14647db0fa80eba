"""`testbed knee`: the rate of a link beyond which nothing is gained, predicted, and measured on the virtual clock."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from testbed import extras
from testbed.cli import options
from testbed.cli.range_cells import show_ranges
from testbed.cli.untrusted import why_untrusted
from testbed.errors import ExitCode, listed

if TYPE_CHECKING:
    from testbed.cli.progress import Terminal
    from testbed.plan.plan import Plan
    from testbed.sweep.knee import Knee, Sweep, Swept
    from testbed.sweep.measured_rates import MeasuredRates


_Link = Annotated[str | None, typer.Option(metavar="NAME", help="The link to sweep; default: all alike.")]
_Points = Annotated[int, typer.Option(min=3, max=1000, metavar="N", help="Rates to predict.")]
_Measure = Annotated[int, typer.Option(min=0, max=100, metavar="N", help="Of them, how many to measure too.")]
_Within = Annotated[float, typer.Option(min=0.001, max=50, metavar="PERCENT", help="What counts as nothing gained.")]
_Picture = Annotated[
    Path, typer.Option(metavar="FILE", callback=options.drawable, help="The picture to write, .svg or .png.")
]
_Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Keep the measured runs in this new directory.")]


def knee(
    topology: options.TopologyFile,
    workload: options.WorkloadFile,
    link: _Link = None,
    schedule: options.Schedules = None,
    points: _Points = 29,
    measure: _Measure = 0,
    within: _Within = 1.0,
    picture: _Picture = Path("knee.svg"),
    out: _Out = None,
    wall_limit: options.WallLimitOfPlans = None,
    settings: options.Settings = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Sweep the rate of a link: where the iteration stops getting shorter, drawn and named.

    Every schedule is made anew for every rate. Two rates are named: from which the time is within --within of that
    with an infinite rate, and at which a microbatch's messages take as long on the link as its computation,
    S / (B tau) = 1. --measure trains at some of the rates on the virtual clock, as `testbed run` does.
    """
    from testbed.cli.progress import Terminal
    from testbed.full_scale.similitude import lab_seconds, scale_warnings
    from testbed.planning import resolve
    from testbed.planning.left_out import of_changes
    from testbed.results.destination import require_place
    from testbed.sweep import knee as sweeping

    options.only_beside_measure(measure, {"--out": None if out is None else str(out), "--wall-limit": wall_limit})
    if out is not None:
        require_place(out, overwrite=None)
    network, (job,) = resolve.load_files(topology, workload, settings=settings or [])
    plan = resolve.load_plan(topology, workload, settings=settings or [])
    links = sweeping.links_of(network, plan, link)
    choices = sweeping.choices_of(plan, schedule or [])
    if measure:
        _require_measurable(plan)
    reporter, warned = Terminal(quiet=quiet), [*scale_warnings(plan), *of_changes(network)]
    for line in options.warnings(warned):
        reporter.say(line)
    full = max(sweeping.full_bps(plan, choice, links) for choice in choices)
    rates = sweeping.rates_around(full, points, sweeping.least_bps(plan, links), links.name)
    with reporter.solving() as watch, reporter.step("predicting", points + len(choices)) as step:
        found = sweeping.sweep(plan, links, choices, rates, within / 100, step.advance, watch)
    measured = _measured(found, measure, out, wall_limit or options.PLANS_LIMIT_S, reporter) if measure else {}
    heading, lab = f"{job.name} on {network.name}, {links.name}", lab_seconds(plan)
    _draw(found, measured, picture, heading, within / 100, lab)
    if as_json:
        facts = {"topology": network.name, "workload": job.name, "warnings": warned}
        options.emit({**facts, **_document(found, measured, within, picture, lab)})
    else:
        _show(found, measured, heading, within, lab)
        options.stdout_console(100).print(f"drawn in {picture}", highlight=False, soft_wrap=True)
    if not all(row["trusted"] for rows in measured.values() for row in rows.values()):
        raise typer.Exit(ExitCode.UNTRUSTED)


def _measured(found: Sweep, count: int, out: Path | None, limit_s: float, reporter: Terminal) -> MeasuredRates:
    """So many of the rates, measured on the virtual clock. Raises as measured_rates.measure."""
    from testbed.sweep import measured_rates

    places = measured_rates.spread(len(found.swept), count)
    return measured_rates.measure(found.swept, places, out, limit_s=limit_s, reporter=reporter)


def _require_measurable(plan: Plan) -> None:
    """Raises MachineLacks, before all that is predicted, where no guest could train this."""
    from testbed.vm.command import require_no_limits

    extras.require("train")
    require_no_limits(plan)


def _draw(found: Sweep, measured: MeasuredRates, picture: Path, heading: str, share: float, lab: float | None) -> None:
    from testbed.files import output
    from testbed.planning.ties import worst_s
    from testbed.sweep.knee_picture import Curve, draw

    curves = []
    for knee in found.knees:
        predicted = [(at.rate_bps, at.seconds[knee.label]) for at in found.swept if knee.label in at.seconds]
        points = [(rate, rows[knee.label]["measured_s"]) for rate, rows in measured.items() if knee.label in rows]
        ends = [
            (at.rate_bps, *(at.ranges[knee.label] or (at.seconds[knee.label],) * 2))
            for at in found.swept
            if knee.label in at.seconds
        ]
        ranges = ends if any(at.is_order_sensitive(knee.label) for at in found.swept) else []
        unlimited_s = worst_s(knee.unlimited_s, knee.unlimited_range)
        if predicted:
            curves.append(Curve(knee.label, predicted, points, unlimited_s, knee.enough_bps, knee.full_bps, ranges))
    with output(picture, "--picture") as partial:
        draw(curves, partial, heading=heading, share=share, lab_seconds=lab, own_bps=found.links.own_bps)


def _show(found: Sweep, measured: MeasuredRates, heading: str, within: float, lab: float | None) -> None:
    from testbed.cli.table_layout import Column, Section, fitted
    from testbed.units import show_change, show_rate, show_rates

    console = options.stdout_console(100)
    rates = Column("rate", show_rates([at.rate_bps for at in found.swept]))
    last, unlimited = show_rate(found.swept[-1].rate_bps), {}
    for where, factor in ({"": 1.0} if lab is None else {" at full scale": 1 / lab, " in the lab": 1.0}).items():
        swept, columns = [at.scaled(factor) for at in found.swept], []
        for knee in found.knees:
            times = [at.seconds.get(knee.label) for at in swept], [at.ranges.get(knee.label) for at in swept]
            columns.append(Column(knee.label, show_ranges(*times)))
            if measured and factor == 1.0:
                rows = [measured.get(at.rate_bps, {}).get(knee.label) for at in swept]
                columns.append(Column("off by", ["" if row is None else show_change(row["error"], 3) for row in rows]))
        options.show(console, *fitted(rates, [Section(f"{heading}: iteration{where}", columns)], console.width))
        knees = [knee.scaled(factor) for knee in found.knees]
        times_s, ranges = [knee.unlimited_s for knee in knees], [knee.unlimited_range for knee in knees]
        unlimited[f"infinite rate{where}"] = show_ranges(times_s, ranges)
    table = Table(title="beyond which nothing is gained", title_justify="left")
    for number, column in enumerate(("schedule", *unlimited, f"within {within:g}% from", "S/(B tau) = 1 at")):
        table.add_column(column, justify="left" if number == 0 else "right", overflow="fold", no_wrap=number == 0)
    for knee, *shown in zip(found.knees, *unlimited.values(), strict=True):
        enough = f"beyond {last}" if knee.enough_bps is None else show_rate(knee.enough_bps)
        table.add_row(knee.label, *shown, enough, show_rate(knee.full_bps))
    console.print(table)
    said = ((f"{label} at {show_rate(rate)}", row) for rate, rows in measured.items() for label, row in rows.items())
    options.show(console, *_own_rates(found), *why_untrusted(said))


def _own_rates(found: Sweep) -> list[str]:
    """What the rates of the topology's file are beside the knees."""
    from testbed.units import show_rate

    lines = []
    for rate, directions in found.links.directions_at.items():
        enough = [knee.label for knee in found.knees if knee.enough_bps is not None and knee.enough_bps <= rate]
        others = [knee.label for knee in found.knees if knee.label not in enough]
        said = [f"enough for {', '.join(enough)}"] if enough else []
        if others:
            beyond = rate > found.swept[-1].rate_bps
            said.append(f"{', '.join(others)} {'needs more than was tried' if beyond else 'would gain from more'}")
        of = f" of {listed(directions)}" if len(found.links.own_bps) > 1 else ""
        lines.append(f"the topology's own rate{of} is {show_rate(rate)}: {'; '.join(said)}")
    return lines


def _document(found: Sweep, measured: MeasuredRates, within: float, picture: Path, lab: float | None) -> dict[str, Any]:
    """Seconds are the lab's, where there is one, but for those in `full_scale`; rates are the topology's."""
    rates = []
    for at in found.swept:
        rows = {label: dict(row) for label, row in measured.get(at.rate_bps, {}).items()}
        at_full_scale = None
        if lab is not None:
            measured_s = {label: row["measured_s"] / lab for label, row in rows.items()}
            at_full_scale = {**_predicted(at.scaled(1 / lab)), "measured_s": measured_s}
        rates.append({"rate_bps": at.rate_bps, **_predicted(at), "measured": rows, "full_scale": at_full_scale})
    knees = [
        {
            "label": knee.label,
            **_unlimited(knee),
            "enough_bps": knee.enough_bps,
            "full_bps": knee.full_bps,
            "full_scale": None if lab is None else _unlimited(knee.scaled(1 / lab)),
        }
        for knee in found.knees
    ]
    facts = {"link": found.links.name, "own_bps": list(found.links.own_bps), "within": within / 100, "lab_seconds": lab}
    return {**facts, "rates": rates, "knees": knees, "picture": str(picture)}


def _predicted(at: Swept) -> dict[str, dict[str, float]]:
    """Per label; the ends of ranges only of times that are some."""
    ranges = {label: span for label, span in at.ranges.items() if span is not None}
    return {
        "predicted_s": dict(at.seconds),
        "predicted_low_s": {label: span.low_s for label, span in ranges.items()},
        "predicted_high_s": {label: span.high_s for label, span in ranges.items()},
    }


def _unlimited(knee: Knee) -> dict[str, float | None]:
    """The iteration with an infinite rate, and the ends of its range."""
    low_s, high_s = knee.unlimited_range or (None, None)
    return {"unlimited_s": knee.unlimited_s, "unlimited_low_s": low_s, "unlimited_high_s": high_s}
