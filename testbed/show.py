"""What commands print for a person: tables, grids, verdicts. Everything here takes data and returns a renderable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from testbed.plan import Plan
from testbed.timeline import KINDS, Timeline
from testbed.units import show_rate, show_size, show_time

if TYPE_CHECKING:
    from testbed.collect.compare import ScheduleComparison
    from testbed.lab.calibrate import LinkCheck
    from testbed.lab.doctor import Finding
    from testbed.schedule_compare import Comparison

STYLES = {"F": "white on blue", "B": "white on green", "I": "black on cyan", "W": "black on yellow"}


def plan_table(plan: Plan) -> Table:
    """Where the ranks are and what joins them."""
    table = Table(title=f"{plan.workload.name} on {plan.topology.name}", title_justify="left", show_header=False)
    for name in plan.topology.datacenters:
        ranks = [str(r) for r in range(plan.n_ranks) if plan.datacenter(r) == name]
        table.add_row(f"datacenter {name}", f"ranks {', '.join(ranks)}" if ranks else "no ranks")
    for hop in plan.topology.directions():
        queue = f", queue {show_size(hop.queue_bytes)}" if hop.queue_bytes else ""
        table.add_row(f"link {hop.label}", f"{show_time(hop.delay_s)} one way, {show_rate(hop.rate_bps)}{queue}")
    table.add_row("microbatches", f"{plan.workload.microbatches} of {plan.workload.microbatch_size} samples")
    table.add_row("boundary message", show_size(plan.workload.message_bytes()))
    if plan.replicas:
        where = "; ".join(" ".join(nodes) for nodes in plan.replicas)
        size = show_size(plan.workload.parameter_bytes())
        table.add_row("data parallel", f"{plan.workload.parallelism.data} pipelines, {size} per rank; more on {where}")
    return table


def prediction_table(plan: Plan, rows: Sequence[tuple[str, float, float, float, float | None]]) -> Table:
    """(schedule, predicted s, bubble ratio, peak in flight, speed-up over 1F1B or None) per row."""
    table = Table(title=f"{plan.workload.name} on {plan.topology.name}: predicted", title_justify="left")
    table.add_column("schedule")
    for column in ("iteration", "bubble", "peak in flight", "speed-up over 1F1B"):
        table.add_column(column, justify="right")
    for name, seconds, bubble, peak, speedup in rows:
        gain = "-" if speedup is None else f"{speedup:.2f}x"
        table.add_row(name, show_time(seconds), f"{bubble:.1%}", f"{peak:g}", gain)
    return table


def causes_table(plan: Plan, comparison: Comparison) -> Table:
    """Every schedule of one plan: its time, where it goes, its memory, its distance from the bound."""
    table = Table(title=f"{plan.workload.name} on {plan.topology.name}: predicted", title_justify="left")
    table.add_column("schedule", no_wrap=True)
    shown = {
        "imbalance": "imbalance_s",
        "fill": "fill_s",
        "latency": "latency_s",
        "wire": "wire_s",
        "queueing": "queueing_s",
    }
    if plan.replicas:
        shown["DP"] = "data_parallel_s"
    for column in ("iteration", "over bound", "bubble", *shown, "memory"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("peak in flight, by rank", no_wrap=True)
    for row in comparison.schedules:
        parts = [getattr(row.causes, field) for field in shown.values()]
        table.add_row(
            row.schedule,
            show_time(row.predicted_s),
            f"{row.predicted_s / row.bound.seconds - 1:+.1%}",
            f"{row.bubble_predicted:.1%}",
            *(f"{part / row.predicted_s:.1%}" for part in parts),
            "-" if row.memory_s is None else f"{row.memory_s / row.predicted_s:.1%}",
            " ".join(f"{peak:g}" for peak in row.peaks),
        )
    return table


def comparison_table(title: str, rows: Sequence[ScheduleComparison]) -> Table:
    """Measured against predicted, a row per schedule."""
    table = Table(title=title, title_justify="left")
    table.add_column("schedule", no_wrap=True)
    for column in (
        "measured",
        "+- IQR",
        "predicted",
        "error",
        "bubble m/p",
        "in flight m/p",
        "speed-up m/p",
        "trusted",
    ):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        speedup = "-"
        if row.speedup_measured is not None and row.speedup_predicted is not None:
            speedup = f"{row.speedup_measured:.2f}x / {row.speedup_predicted:.2f}x"
        table.add_row(
            row.schedule,
            show_time(row.measured_s),
            show_time(row.measured_iqr_s),
            show_time(row.predicted_s),
            f"{row.error:+.2%}",
            f"{row.bubble_measured:.1%} / {row.bubble_predicted:.1%}",
            f"{row.peak_in_flight_measured:g} / {row.peak_in_flight_predicted:g}",
            speedup,
            Text("yes", style="green") if row.trusted else Text("NO", style="bold red"),
        )
    return table


def link_table(title: str, checks: Sequence[LinkCheck]) -> Table:
    """Links asked against measured, a row per direction."""
    from testbed.lab.calibrate import TABLE_HEADER

    table = Table(title=title, title_justify="left")
    for column in TABLE_HEADER:
        table.add_column(column, justify="left" if column in ("direction", "verdict") else "right")
    for check in checks:
        table.add_row(*check.as_cells(), style=None if check.ok else "red")
    return table


def doctor_table(findings: Sequence[Finding]) -> Table:
    """What works on this machine, and what adds the rest."""
    table = Table(title="what this machine can do", title_justify="left")
    for column in ("feature", "", "found"):
        table.add_column(column)
    table.add_column("to add it", overflow="fold", min_width=28)  # whole, so that it can be copied
    for finding in findings:
        mark = Text("ok", style="green") if finding.ok else Text("NO", style="bold red")
        if not finding.ok and not finding.needed:
            mark = Text("no, optional", style="yellow")
        table.add_row(finding.name, mark, finding.detail, "" if finding.ok else finding.remedy)
    return table


def grid(timeline: Timeline, lanes: Sequence[str], width: int) -> Text:
    """The timeline in characters: one line per rank, time from left to right, `width` characters in all."""
    margin = max(len(lane) for lane in lanes) + 1
    columns = max(20, width - margin)
    scale = columns / float(timeline.makespans()[0])
    text = Text()
    for rank, lane in enumerate(lanes):
        cells: list[tuple[str, str]] = [("·", "dim")] * columns
        for row in timeline.actions[timeline.actions["rank"] == rank]:
            kind = str(KINDS[row["kind"]])
            begin, end = round(float(row["start_s"]) * scale), round(float(row["end_s"]) * scale)
            label = f"{kind}{row['microbatch']}".ljust(end - begin)
            for offset in range(min(end, columns) - begin):
                cells[begin + offset] = (
                    (label if len(label) <= end - begin else kind.ljust(end - begin))[offset],
                    STYLES[kind],
                )
        text.append(lane.ljust(margin))
        for character, style in cells:
            text.append(character, style=style)
        text.append("\n")
    text.append(" " * margin)
    for kind, style in STYLES.items():
        text.append(f" {kind} ", style=style)
        text.append(" ")
    text.append(f"  {show_time(float(timeline.makespans()[0]))}, bubble {float(timeline.bubble_ratios()[0]):.1%}")
    return text
