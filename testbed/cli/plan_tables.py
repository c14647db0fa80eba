"""What commands print of plans and schedules: tables and timelines. All take data and return what can be printed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from testbed.cli.range_cells import show_ranges
from testbed.cli.table_layout import Column, Section, fitted
from testbed.plan.events import away, lost
from testbed.plan.network_state import planned
from testbed.plan.plan import Case, Job, Plan
from testbed.plan.routes import datacenter_of, datacenters_of, routes_of_nodes
from testbed.planning.resolve import pipeline_nodes
from testbed.trace.tables import KINDS, Trace
from testbed.units import show_change, show_rate, show_size, show_time, show_times

if TYPE_CHECKING:
    from testbed.planning.noise import NoisySchedule
    from testbed.planning.prediction import PredictedRow
    from testbed.planning.schedule_comparison import ComparedSchedule, Comparison
    from testbed.search.proof import Proof

STYLES = {"F": "white on blue", "B": "white on green", "I": "black on cyan", "W": "black on yellow"}


def plan_table(plan: Plan) -> Table:
    """Where the ranks of every job are, what joins the datacenters, and which routes traffic takes."""
    names = ", ".join(job.name for job in plan.jobs)
    table = Table(title=f"{names} on {plan.network.name}", title_justify="left", show_header=False)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for name in datacenters_of(plan.network):
        ranks = [
            str(rank)
            for job in plan.jobs
            for rank, node in zip(job.mesh.ranks, job.nodes, strict=True)
            if datacenter_of(node) == name
        ]
        card = next((card for card in plan.network.cards if card.target == name), None)
        inside = f"; network cards {show_time(card.delay_s)} one way, {show_rate(card.rate_bps)}" if card else ""
        table.add_row(f"datacenter {name}", (f"ranks {', '.join(ranks)}" if ranks else "no ranks") + inside)
    network = planned(plan.network)
    for hop in network.links:
        queue = f", queue {show_size(hop.queue_bytes)}" if hop.queue_bytes else ""
        table.add_row(f"link {hop.label}", f"{show_time(hop.delay_s)} one way, {show_rate(hop.rate_bps)}{queue}")
    ends = [(direction.source, direction.target) for direction in network.links]
    for default in plan.network.routes:
        over = [network.links[index] for index in default.route]
        if len(over) > 1 or ends.count(ends[default.route[0]]) > 1:
            table.add_row(f"route {default.source}->{default.target}", " ".join(direction.label for direction in over))
    for flow in plan.background:
        later = f", at most {show_rate(max(one.rate_bps for one in flow.changes))} later" if flow.changes else ""
        table.add_row(f"traffic {flow.source}->{flow.target}", f"{show_rate(flow.rate_bps)} beside the jobs{later}")
    for job in plan.jobs:
        _add_job(table, job, f"{job.name}: " if len(plan.jobs) > 1 else "")
    _add_unusual(table, plan)
    return table


def _add_unusual(table: Table, plan: Plan) -> None:
    """Where any case is not on default routes, begun by all jobs at once, on the whole network: what each one is."""
    said = {case.label: _unusual(plan, case) for case in plan.cases}
    if any(said.values()):
        for label, words in said.items():
            table.add_row(f"case {label}", "; ".join(words) or "default routes")
    if plan.enforcement == "ports":
        table.add_row("routes are kept by", "ports that the routers' own hash sends there, and rules for the rest")


def _unusual(plan: Plan, case: Case) -> list[str]:
    taken, default_route = routes_of_nodes(plan, case), planned(plan.network).default_route
    crossing = {ends: route for ends, route in taken.items() if route}
    moved = sum(route != default_route(*ends) for ends, route in crossing.items())
    said = [f"{moved} of {len(crossing)} flows leave their default routes"] if moved else []
    if any(case.starts_s):
        said.append(f"jobs begin at {', '.join(map(show_time, case.starts_s))}")
    if case.alone_of is not None:
        said.append(f"{case.alone_of} for one job by itself")
    elif absent := away(plan, case):
        said.append(f"{', '.join(absent)} away")
    if gone := lost(plan, case):
        said.append(f"{', '.join(gone)} gone")
    if case.continues is not None:
        said.append(f"goes on after {case.continues.after} measured iterations")
    return said


def _add_job(table: Table, job: Job, prefix: str) -> None:
    workload = job.workload
    if prefix:
        table.add_row(f"{prefix}ranks", ", ".join(map(str, job.mesh.ranks)))
    table.add_row(f"{prefix}microbatches", f"{workload.microbatches} of {workload.microbatch_size} samples")
    parts = f", in parts over {workload.streams} streams" if workload.streams > 1 else ""
    table.add_row(f"{prefix}boundary message", f"{show_size(workload.message_bytes())}{parts}")
    if job.mesh.tp > 1:
        whole = show_size(job.mesh.tp * workload.message_bytes())
        table.add_row(f"{prefix}tensor parallel", f"{job.mesh.tp} ranks to a stage, each sends its part of {whole}")
    if job.mesh.dp > 1:
        where = "; ".join(" ".join(pipeline_nodes(job, replica)) for replica in range(1, job.mesh.dp))
        size = show_size(workload.stage_bytes(job.mesh.pp))
        table.add_row(f"{prefix}data parallel", f"{job.mesh.dp} pipelines, {size} per rank; more on {where}")
        chosen = workload.data_parallel
        what = "gathered and reduced (ZeRO-1)" if chosen.sharding == "zero-1" else "all-reduced"
        table.add_row(f"{prefix}exchanged", f"{what} {chosen.collective.words}")


def print_remarks(console: Console, plan: Plan) -> None:
    """What a user should know of the plan's schedules, and which ones have no case and why: a line each."""
    remarks = {
        f"{chosen.choice.label}: {remark}": None
        for case in plan.cases
        for chosen in case.jobs
        for remark in chosen.remarks
    }
    for line in (*remarks, *(f"left out: {reason}" for reason in plan.left_out.values())):
        console.print(line, highlight=False, markup=False)


def prediction_tables(plan: Plan, rows: Sequence[PredictedRow], width: int) -> list[Table]:
    """A row per schedule of a plan with one job."""
    ranges, speedups = [row.predicted_range for row in rows], [row.speedup_predicted for row in rows]
    ends_s = [row.predicted_p95_s for row in rows]
    columns = [
        Column("\niteration", show_ranges([row.predicted_s for row in rows], ranges)),
        *([Column("95th\npercentile", show_times(ends_s))] if any(ends_s) else []),
        Column("\nbubble", [f"{row.bubble_predicted:z.1%}" for row in rows]),
        Column("peak in\nflight", [f"{row.peak_in_flight_predicted:g}" for row in rows]),
        Column("speed-up\nover 1F1B", ["-" if speedup is None else f"{speedup:.2f}x" for speedup in speedups]),
    ]
    title = f"{plan.jobs[0].name} on {plan.network.name}: predicted"
    labels = [row.case.label for row in rows]
    return fitted(Column("\nschedule", labels, left=True), [Section(title, columns)], width)


CAUSES = ("imbalance", "fill", "latency", "wire", "queueing", "memory")


def causes_tables(plan: Plan, comparison: Comparison, width: int) -> list[Table]:
    """Every schedule of one plan: its time, distance from the bound and memory, and the shares of time it loses.

    One table where `width` columns of the screen hold it, else more.
    """
    rows = comparison.schedules
    where = "" if plan.jobs[0].workload.full_scale is None else ", in the lab"
    causes = (*CAUSES, "DP") if plan.jobs[0].mesh.dp > 1 else CAUSES
    shares = [_lost_shares(row) for row in rows]
    result = [
        Column("iteration", show_ranges([row.predicted_s for row in rows], [row.predicted_range for row in rows])),
        Column("over bound", [show_change(row.predicted_s / row.bound.seconds - 1) for row in rows]),
        Column("bubble", [f"{row.bubble_predicted:z.1%}" for row in rows]),
        Column("peak by rank", [_peaks(row.peaks) for row in rows], wrapped=True),
    ]
    return fitted(
        Column("schedule", [row.label for row in rows], left=True),
        [
            Section(f"{plan.jobs[0].name} on {plan.network.name}: predicted{where}", result),
            Section(
                "where the time of an iteration goes", [Column(cause, [s[cause] for s in shares]) for cause in causes]
            ),
        ],
        width,
    )


def _lost_shares(row: ComparedSchedule) -> dict[str, str]:
    lost = row.causes._asdict() | {"memory_s": row.memory_s, "DP_s": row.causes.data_parallel_s}
    seconds = {cause: lost[f"{cause}_s"] for cause in (*CAUSES, "DP")}
    return {
        cause: "-" if spent_s is None else f"{spent_s / row.predicted_s:z.1%}" for cause, spent_s in seconds.items()
    }


def _peaks(peaks: Sequence[float]) -> str:
    return f"{peaks[0]:g} each" if len(set(peaks)) == 1 else " ".join(f"{peak:g}" for peak in peaks)


def best_line(comparison: Comparison) -> str | None:
    """Which of several schedules is the best, and by how much; None where there is nothing to choose from."""
    if len(comparison.schedules) < 2:
        return None
    first, second = comparison.schedules[:2]
    tied = [
        schedule.label
        for schedule in comparison.schedules
        if schedule.low_s < first.high_s and schedule.high_s > first.predicted_s
    ]
    if first.predicted_range is not None and first.predicted_range.order_sensitive and len(tied) > 1:
        return f"best: {', '.join(tied)}: who comes first of messages that meet decides"
    gain = f"{second.predicted_s / first.predicted_s - 1:.1%}"
    if float(gain.rstrip("%")) == 0:
        equal = [
            schedule.label
            for schedule in comparison.schedules
            if f"{schedule.predicted_s / first.predicted_s - 1:.1%}" == gain
        ]
        return f"best: {', '.join(equal)}, less than 0.05% apart"
    return f"best: {first.label}, {gain} ahead of {second.label}"


def noise_tables(rows: Sequence[NoisySchedule], draws: int, width: int) -> list[Table]:
    """A row per schedule over draws of its slots; none where nobody asked."""
    if not rows:
        return []
    columns = [
        Column("median", show_times([row.median_s for row in rows])),
        Column("95th percentile", show_times([row.p95_s for row in rows])),
        Column("worst regret", show_times([row.worst_regret_s for row in rows])),
        Column("relative", [f"{row.worst_regret:.1%}" for row in rows]),
    ]
    title = f"over {draws} draws of slots, the same for every schedule"
    return fitted(Column("schedule", [row.label for row in rows], left=True), [Section(title, columns)], width)


def robust_line(rows: Sequence[NoisySchedule]) -> str | None:
    """Which schedule is the most robust, and whether another one has the least median."""
    if len(rows) < 2:
        return None
    near = [row for row in rows if f"{row.p95_s / rows[0].p95_s - 1:.1%}" == "0.0%"]
    said = f"robust: {', '.join(row.label for row in near)}"
    if further := rows[len(near) :]:
        said += f", 95th percentile {1 - rows[0].p95_s / further[0].p95_s:.1%} less than that of {further[0].label}"
    for what, least in (
        ("median", min(rows, key=lambda row: row.median_s)),
        ("worst regret", min(rows, key=lambda row: row.worst_regret_s)),
    ):
        said += "" if least in near else f"; by {what} {least.label}"
    return said


def proof_line(schedule: str, proof: Proof) -> str:
    """What a solver proved of a schedule, for a person."""
    took = f"{proof.wall_s:.1f} s of {proof.time_limit_s:g} s"
    among = "" if proof.covers == "every schedule" else " for whole blocks"
    bound = f"the proven bound{among} {show_time(proof.bound_s)}"
    match proof.status:
        case "optimal":
            return f"{schedule}: optimal{among}, proven in {took}"
        case "gap":
            return f"{schedule}: gap {proof.gap:.2%} to {bound}, small enough after {took}"
        case "interrupted":
            return f"{schedule}: gap {proof.gap:.1%} to {bound}, interrupted after {took}"
        case _:
            return f"{schedule}: gap {proof.gap:.1%} to {bound}, time limit of {took} reached"


def grid(trace: Trace, lanes: Sequence[str], width: int) -> Text:
    """The trace in characters: one line per rank, time from left to right, `width` characters in all."""
    margin = max(len(lane) for lane in lanes) + 1
    columns = max(20, width - margin)
    scale = columns / float(trace.makespans()[0])
    text = Text()
    for rank, lane in enumerate(lanes):
        cells: list[tuple[str, str]] = [("·", "dim")] * columns
        for row in trace.actions[trace.actions["rank"] == rank]:
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
    text.append(f"  {show_time(float(trace.makespans()[0]))}, bubble {float(trace.bubble_ratios()[0]):.1%}")
    return text
