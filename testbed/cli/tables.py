"""What commands print for a person: tables, grids, verdicts. Everything here takes data and returns a renderable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from testbed.plan.plan import Job, Plan
from testbed.plan.resolve import pipeline_nodes
from testbed.plan.routes import datacenter_of, datacenters_of
from testbed.trace.tables import KINDS, Trace
from testbed.units import show_rate, show_size, show_time

if TYPE_CHECKING:
    from testbed.judge.compare import ScheduleComparison
    from testbed.lab.doctor import Finding
    from testbed.plan.compare import Comparison
    from testbed.schedule.proof import Proof

STYLES = {"F": "white on blue", "B": "white on green", "I": "black on cyan", "W": "black on yellow"}


def plan_table(plan: Plan) -> Table:
    """Where the ranks of every job are, what joins the datacenters, and which way traffic goes."""
    names = ", ".join(job.name for job in plan.jobs)
    table = Table(title=f"{names} on {plan.network.name}", title_justify="left", show_header=False)
    for name in datacenters_of(plan.network):
        ranks = [
            str(rank) for job in plan.jobs for rank in job.mesh.pipeline(0) if datacenter_of(_node(job, rank)) == name
        ]
        card = next((card for card in plan.network.cards if card.target == name), None)
        inside = f"; network cards {show_time(card.delay_s)} one way, {show_rate(card.rate_bps)}" if card else ""
        table.add_row(f"datacenter {name}", (f"ranks {', '.join(ranks)}" if ranks else "no ranks") + inside)
    for hop in plan.network.directions:
        queue = f", queue {show_size(hop.queue_bytes)}" if hop.queue_bytes else ""
        table.add_row(f"link {hop.label}", f"{show_time(hop.delay_s)} one way, {show_rate(hop.rate_bps)}{queue}")
    for one in plan.network.routes:
        over = [plan.network.directions[index] for index in one.route]
        if len(over) > 1 or _has_parallel(plan, one.route[0]):
            table.add_row(f"route {one.source}->{one.target}", " ".join(direction.label for direction in over))
    for job in plan.jobs:
        _add_job(table, job, f"{job.name}: " if len(plan.jobs) > 1 else "")
    return table


def _node(job: Job, rank: int) -> str:
    return job.nodes[rank - job.mesh.first_rank]


def _has_parallel(plan: Plan, index: int) -> bool:
    ends = {(one.source, one.target): 0 for one in plan.network.directions}
    for one in plan.network.directions:
        ends[one.source, one.target] += 1
    direction = plan.network.directions[index]
    return ends[direction.source, direction.target] > 1


def _add_job(table: Table, job: Job, prefix: str) -> None:
    workload = job.workload
    if prefix:
        table.add_row(f"{prefix}ranks", ", ".join(map(str, job.mesh.ranks)))
    table.add_row(f"{prefix}microbatches", f"{workload.microbatches} of {workload.microbatch_size} samples")
    table.add_row(f"{prefix}boundary message", show_size(workload.message_bytes()))
    if job.mesh.dp > 1:
        where = "; ".join(" ".join(pipeline_nodes(job, replica)) for replica in range(1, job.mesh.dp))
        size = show_size(workload.stage_bytes(job.mesh.pp))
        table.add_row(f"{prefix}data parallel", f"{job.mesh.dp} pipelines, {size} per rank; more on {where}")


def prediction_table(plan: Plan, rows: Sequence[tuple[str, float, float, float, float | None]]) -> Table:
    """(schedule, predicted s, bubble ratio, peak in flight, speed-up over 1F1B or None) per row."""
    table = Table(title=f"{plan.jobs[0].name} on {plan.network.name}: predicted", title_justify="left")
    table.add_column("schedule")
    for column in ("iteration", "bubble", "peak in flight", "speed-up over 1F1B"):
        table.add_column(column, justify="right")
    for name, seconds, bubble, peak, speedup in rows:
        gain = "-" if speedup is None else f"{speedup:.2f}x"
        table.add_row(name, show_time(seconds), f"{bubble:.1%}", f"{peak:g}", gain)
    return table


RESULT = ("iteration", "over bound", "bubble", "peak by rank")
CAUSES = ("imbalance", "fill", "latency", "wire", "queueing", "memory")


def causes_tables(plan: Plan, comparison: Comparison, width: int) -> list[Table]:
    """Every schedule of one plan: its time, distance from the bound and memory, and the shares of time it loses.

    One table where `width` columns hold it, else two.
    """
    title = f"{plan.jobs[0].name} on {plan.network.name}: predicted"
    causes = (*CAUSES, "DP") if plan.jobs[0].mesh.dp > 1 else CAUSES
    whole = _schedules_table(title, comparison, (*RESULT, *causes))
    if Console(width=10_000).measure(whole).maximum <= width:
        return [whole]
    lost = "where the time of an iteration goes"
    return [_schedules_table(title, comparison, RESULT), _schedules_table(lost, comparison, causes)]


def _schedules_table(title: str, comparison: Comparison, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("schedule", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=column != "peak by rank")
    for row in comparison.schedules:
        lost = row.causes._asdict() | {"memory_s": row.memory_s, "DP_s": row.causes.data_parallel_s}
        cells = {
            "iteration": show_time(row.predicted_s),
            "over bound": f"{row.predicted_s / row.bound.seconds - 1:+.1%}",
            "bubble": f"{row.bubble_predicted:.1%}",
            "peak by rank": (
                f"{row.peaks[0]:g} each" if len(set(row.peaks)) == 1 else " ".join(f"{peak:g}" for peak in row.peaks)
            ),
        }
        for cause in (*CAUSES, "DP"):
            seconds = lost[f"{cause}_s"]
            # rounded first, and 0 added: a rounding error below 0 would read -0.0%
            cells[cause] = "-" if seconds is None else f"{round(seconds / row.predicted_s, 3) + 0.0:.1%}"
        table.add_row(row.label, *(cells[column] for column in columns))
    return table


def print_run(console: Console, document: dict[str, Any], directory: Path, *, picture: bool) -> None:
    """A run's comparison document, what is not as it should be, and where the results are."""
    from testbed.judge.compare import ScheduleComparison
    from testbed.schedule.proof import Proof

    rows = [ScheduleComparison(**row) for row in document["schedules"]]
    title = f"{document['name']} ({document['shaper']}, {document['transport']}, {document['clock']} clock)"
    for table in comparison_tables(title, rows, console.width):
        console.print(table)
    for row in rows:
        if row.solver is not None:
            console.print(proof_line(row.label, Proof(**row.solver)), highlight=False)
    for extra in (messages_table(rows), verdict(rows, console.width)):
        if extra is not None:
            console.print(extra)
    for reason, labels in _reasons(rows).items():
        console.print(f"{', '.join(labels)} untrusted: {reason}", style="red", highlight=False)
    ranking = "the same as predicted" if document["ranking_as_predicted"] else "NOT the predicted one"
    console.print(f"measured ranking: {ranking}", highlight=False)
    look = " (look at timeline.svg)" if picture else ""
    console.print(f"results in {directory}/{look}", highlight=False, soft_wrap=True)


def proof_line(schedule: str, proof: Proof) -> str:
    """What a solver proved of a schedule, for a person."""
    bound, took = show_time(proof.bound_s), f"{proof.wall_s:.1f} s of {proof.time_limit_s:g} s"
    match proof.status:
        case "optimal":
            return f"{schedule}: optimal, proven in {took}"
        case "gap":
            return f"{schedule}: gap {proof.gap:.2%} to the proven bound {bound}, small enough after {took}"
        case _:
            return f"{schedule}: gap {proof.gap:.1%} to the proven bound {bound}, time limit of {took} reached"


def _reasons(rows: Sequence[ScheduleComparison]) -> dict[str, list[str]]:
    """Every reason not to trust a schedule, once, with the schedules it is given for."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for reason in row.reasons:
            found.setdefault(reason, []).append(row.label)
    return {reason: ["all schedules"] if len(labels) == len(rows) > 1 else labels for reason, labels in found.items()}


def messages_table(rows: Sequence[ScheduleComparison]) -> Table | None:
    """How far messages came from their predictions, a row per pair of ranks; None where no arrival is known."""
    table = Table(title="messages, measured - predicted, in ms, over all schedules", title_justify="left")
    table.add_column("flow")
    for column in ("awaited", "arrival: median", "worst", "on the way: median", "p90", "worst"):
        table.add_column(column, justify="right")
    flows: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        for flow in row.messages:
            flows.setdefault((flow["source_rank"], flow["target_rank"]), []).append(flow)
    for (source, target), parts in flows.items():
        known = [part for part in parts if part["arrival_median_s"] is not None]
        if known:
            total, awaited = (sum(part[name] for part in parts) for name in ("messages", "awaited"))
            table.add_row(f"{source} -> {target}", f"{awaited}/{total}", *_flow_cells(known))
    return table if table.row_count else None


def _flow_cells(known: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of the schedules' medians and percentiles the middle one, of their worst the worst."""

    def typical(name: str) -> str:
        return _off(sorted(part[name] for part in known)[len(known) // 2])

    def worst(name: str) -> str:
        return _off(max((part[name] for part in known), key=abs))

    arrivals = typical("arrival_median_s"), worst("arrival_worst_s")
    return [*arrivals, typical("extra_median_s"), typical("extra_p90_s"), worst("extra_worst_s")]


def _off(seconds: float) -> str:
    """A difference in ms, with its sign, to a microsecond."""
    return f"{seconds * 1e3:+.3f}"


def verdict(rows: Sequence[ScheduleComparison], width: int) -> RenderableType | None:
    """What the verdict rests on: every question with the worst answer of any schedule, and the reason of its limit.

    A table where `width` columns hold it, else two lines for each question.
    """
    table = Table(title="verdict", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in ("checked", "found", "limit", "why this limit"):
        table.add_column(column, justify="right" if column in ("found", "limit") else "left", no_wrap=True)
    lines = [Text("verdict: what was checked, found, allowed, and why this limit", style="italic")]
    for question in dict.fromkeys(check["question"] for row in rows for check in row.checks):
        answers = [check for row in rows for check in row.checks if check["question"] == question]
        failed = [check for check in answers if not check["ok"]]
        shown = failed[0] if failed else max(answers, key=lambda check: _number(check["found"]))
        found, limit, why = shown["found"], shown["limit"], shown["why"]
        style = "red" if failed else ""
        table.add_row(question, found, limit, Text(why, style="dim"), style=style)
        lines += [Text(f"{question:32}{found:>10}  limit {limit}", style=style), Text(f"    {why}", style="dim")]
    if len(lines) == 1:
        return None
    return table if Console(width=10_000).measure(table).maximum <= width else Group(*lines)


def _number(found: str) -> float:
    """What an answer counts, for the worst of several; words count nothing."""
    try:
        return abs(float(found.rstrip("% ms")))
    except ValueError:
        return 0.0


TIMES = ("measured", "+- IQR", "predicted", "error")
ON_THIS_HOST = ("expected", "19 of 20 in", "off by", "noisy", "others")
RATIOS = ("bubble m/p", "in flight m/p", "speed-up m/p")
TRUSTED = ("trusted",)


def comparison_tables(title: str, rows: Sequence[ScheduleComparison], width: int) -> list[Table]:
    """Measured against predicted, a row per schedule: one table where `width` columns hold it, else two.

    On a real clock another: expected with what this machine adds, as measured before the run.
    """
    whole = _comparison_table(title, rows, (*TIMES, *RATIOS, *TRUSTED))
    tables = [whole]
    if Console(width=10_000).measure(whole).maximum > width:
        tables = [
            _comparison_table(title, rows, (*TIMES, *TRUSTED)),
            _comparison_table("measured / predicted", rows, RATIOS),
        ]
    if any(row.predicted_on_this_host_s is not None for row in rows):
        tables.insert(
            1,
            _comparison_table("with what this machine adds (others: not noisy)", rows, ON_THIS_HOST),
        )
    return tables


def _comparison_table(title: str, rows: Sequence[ScheduleComparison], columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("schedule", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        speedup = "-"
        if row.speedup_measured is not None and row.speedup_predicted is not None:
            speedup = f"{row.speedup_measured:.2f}x / {row.speedup_predicted:.2f}x"
        cells: dict[str, str | Text] = {
            "measured": show_time(row.measured_s),
            "+- IQR": show_time(round(row.measured_iqr_s, 9)),
            "predicted": show_time(row.predicted_s),
            "error": f"{row.error:+.2%}",
            **_on_this_host(row),
            "bubble m/p": f"{row.bubble_measured:.1%} / {row.bubble_predicted:.1%}",
            "in flight m/p": f"{row.peak_in_flight_measured:g} / {row.peak_in_flight_predicted:g}",
            "speed-up m/p": speedup,
            "trusted": Text("yes", style="green") if row.trusted else Text("NO", style="bold red"),
        }
        table.add_row(row.label, *(cells[column] for column in columns))
    return table


def _on_this_host(row: ScheduleComparison) -> dict[str, str]:
    """Cells: the prediction with what this machine adds; iterations that it disturbed, and the median of the others."""
    middle, low, high = row.predicted_on_this_host_s, row.on_this_host_low_s, row.on_this_host_high_s
    cells = dict.fromkeys(ON_THIS_HOST, "-")
    if middle is not None and low is not None and high is not None:
        cells["expected"] = show_time(middle)
        cells["19 of 20 in"] = f"{low / middle - 1:+.1%} {high / middle - 1:+.1%}"
        cells["off by"] = f"{row.error_on_this_host:+.2%}"
    if row.disturbed_iterations is not None:
        cells["noisy"] = str(row.disturbed_iterations)
    if row.measured_undisturbed_s is not None:
        cells["others"] = show_time(row.measured_undisturbed_s)
    return cells


LINK_COLUMNS = (
    "direction",
    "RTT asked",
    "median",
    "p99",
    "one-way asked",
    "median",
    "rate asked",
    "measured",
    "dropped",
    "attempts",
    "verdict",
)


def link_table(title: str, checks: Sequence[Mapping[str, Any]]) -> Table:
    """Links asked against measured, a row per direction; `checks` as links.json has them."""
    table = Table(title=title, title_justify="left")
    for column in LINK_COLUMNS:
        table.add_column(column, justify="left" if column in ("direction", "verdict") else "right")
    for check in checks:
        asked, measured = check["asked"], check["measured"]
        rtt, one_way, rate = measured["rtt_s"], measured["one_way_s"], measured["rate_bps"]
        cells = [
            check["label"],
            show_time(asked["rtt_s"]),
            "-" if rtt is None else show_time(rtt["median"]),
            "-" if rtt is None else show_time(rtt["p99"]),
            show_time(asked["delay_s"]),
            "-" if one_way is None else show_time(one_way["median"]),
            show_rate(asked["rate_bps"]),
            "-" if rate is None else show_rate(rate),
            str(measured["dropped"]),
            str(check["attempts"]),
            "ok" if check["ok"] else "; ".join(check["reasons"]),
        ]
        table.add_row(*cells, style=None if check["ok"] else "red")
    return table


def engine_tables(document: Mapping[str, Any]) -> list[Table]:
    """What messages take beyond the model, by size and by whether they cross links; then the engine's constants."""
    clock, kernel = document["clock"], document["kernel"]
    extra = Table(title=f"beyond the model, in ms ({clock} clock, Linux {kernel})", title_justify="left")
    for column in ("message", "kind", "messages", "median", "p90", "p99", "worst"):
        extra.add_column(column, justify="left" if column in ("message", "kind") else "right")
    for row in document["sizes"]:
        for kind, times in (("inside", row["inside_s"]), ("across", row["across_s"])):
            if times is not None:
                cells = [_off(times[name]) for name in ("median", "p90", "p99", "worst")]
                extra.add_row(show_size(row["message_bytes"]), kind, str(times["count"]), *cells)
    constants = Table(title="constants of the engine", title_justify="left")
    for column in ("message", "gloo adds", "the model", "to take one that lies ready", "p99", "limit"):
        constants.add_column(column, justify="left" if column == "message" else "right")
    model = document["model"]
    for row in document["sizes"]:
        ready = row["ready_wait_s"]
        constants.add_row(
            show_size(row["message_bytes"]),
            "-" if row["gloo_bytes"] is None else f"{row['gloo_bytes']:.0f} B",
            f"{model['gloo_bytes']} B",
            "-" if ready is None else show_time(round(ready["median"], 9)),
            "-" if ready is None else show_time(round(ready["p99"], 9)),
            show_time(model["unnoticed_wait_s"]),
        )
    return [extra, constants]


def mininet_table(links: Sequence[Mapping[str, Any]]) -> Table:
    """Plain Mininet links asked against measured, for comparison; `links` as `calibrate --json` has them."""
    table = Table(title="plain Mininet TCLink, same delay and rate", title_justify="left")
    for column in ("RTT asked", "median", "rate asked", "measured", "error", "retransmits", "dropped"):
        table.add_column(column, justify="right")
    table.add_column("Mininet said")
    for link in links:
        table.add_row(
            show_time(2 * link["delay_s"]),
            show_time(link["rtt"]["median"]),
            show_rate(link["rate_bps"]),
            show_rate(link["measured_bps"]),
            f"{link['measured_bps'] / link['rate_bps'] - 1:+.1%}",
            str(link["retransmits"]),
            str(link["dropped"]),
            "; ".join(dict.fromkeys(link["said"])),
        )
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
