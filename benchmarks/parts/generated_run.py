"""A results directory as a run of a plan would leave it, made by the model: what is measured is the prediction, with
chance on top. It is trained nowhere, and judged by nobody: it is for what draws runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.judge.comparison import MeasuredCase, as_document, compare
from testbed.judge.fidelity import Check
from testbed.judge.iterations import IterationRow
from testbed.lab.shaping import LinkCounters
from testbed.plan.network_state import network_at
from testbed.plan.plan import Case, Plan
from testbed.plan.traffic import planned_traffic
from testbed.planning import file
from testbed.planning.prediction import predict_together
from testbed.results.directory import ResultsWriter
from testbed.session.network_accounts import link_row
from testbed.trace.summary import summaries
from testbed.trace.tables import FORMAT, Table, Trace

NOISE_S = 200e-6
"""Standard deviation of what is added to every instant, as a real clock's noise is."""


def write_run(directory: Path, plan: Plan, iterations: int, seed: int = 1) -> None:
    """Write one of a plan of one job, every case measured so many times after one iteration that warms up."""
    draw = np.random.default_rng(seed)
    job = plan.jobs[0]
    results = ResultsWriter(directory, [job.name])
    directory.mkdir(parents=True, exist_ok=True)
    identity = {
        "name": f"{job.name} on {plan.network.name}",
        "topology": plan.network.name,
        "workload": job.name,
        "clock": "real",
        "iterations": iterations,
        "shaper": "relay",
        "transport": plan.transport,
        "warnings": [],
    }
    asked = [{"label": case.label, "jobs": [{"schedule": case.jobs[0].choice.schedule}]} for case in plan.cases]
    results.save_json("manifest.json", {**identity, "format": FORMAT, "nodes": list(job.nodes), "schedules": asked})
    file.write(plan, directory / file.NAME)
    results.save_json("links.json", {"links": _gate(plan)})
    measured = [_add_case(results, plan, case, iterations, draw) for case in plan.cases]
    results.save_tables()
    facts = {**identity, "complete": True, "ranking_as_predicted": True, "ranking_tie": 0.001}
    results.save_json("comparison.json", as_document(facts, compare(measured)))


def _add_case(
    results: ResultsWriter, plan: Plan, case: Case, iterations: int, draw: np.random.Generator
) -> MeasuredCase:
    predicted = predict_together(plan, case)
    results.add_trace(case.label, "predicted", predicted)
    rows = []
    for number in range(iterations + 1):
        trace = _disturbed(predicted, number, draw)
        results.add_trace(case.label, "measured", trace)
        (summary,) = summaries(trace)
        peaks, count = summary.peaks, len(trace.actions)
        rows.append(
            IterationRow(
                number, number == 0, summary.makespan_s, summary.bubble_ratio, 5.0, peaks, peaks, 0, 0.0, count, 0.0
            )
        )
    results.add_iterations(case.label, rows)
    results.add_links(case.label, _carried(plan, case, iterations + 1))
    check = Check("links as asked", "yes", "yes", "all that follows depends on them", (), ())
    schedule = case.jobs[0].choice.schedule
    return MeasuredCase(schedule, case.label, rows[1:], summaries(predicted)[0], [check])


def _disturbed(predicted: Trace, number: int, draw: np.random.Generator) -> Trace:
    """The same order, everything a little later, and each instant by chance."""
    in_order = np.lexsort((predicted.actions["start_s"], predicted.actions["rank"]))
    trace = Trace(predicted.actions[in_order], predicted.messages.copy(), predicted.n_ranks)
    slower = 1 + 0.005 * draw.random()
    for table in (trace.actions, trace.messages):
        table["iteration"] = number
    actions = trace.actions
    for name in ("ready_s", "start_s", "end_s"):
        actions[name] = actions[name] * slower + _chance(draw, actions)
    first = np.diff(actions["rank"], prepend=-1) != 0
    actions["reached_s"] = np.where(first, 0.0, np.roll(actions["end_s"], 1))
    actions["start_s"] = np.maximum(actions["start_s"], actions["reached_s"])
    actions["end_s"] = np.maximum(actions["end_s"], actions["start_s"])
    actions["computed_s"] = actions["start_s"] + (actions["end_s"] - actions["start_s"]) * draw.random(len(actions))
    messages = trace.messages
    messages["sent_s"] = messages["sent_s"] * slower + _chance(draw, messages)
    on_the_way = np.maximum(predicted.messages["taken_s"] - predicted.messages["sent_s"], 0.0)
    messages["taken_s"] = messages["sent_s"] + on_the_way + _chance(draw, messages)
    messages["arrived_s"] = np.where(messages["awaited"], messages["taken_s"], np.nan)
    return trace


def _chance(draw: np.random.Generator, table: Table) -> NDArray[np.float64]:
    return np.abs(draw.normal(0.0, NOISE_S, len(table)))


def _carried(plan: Plan, case: Case, iterations: int) -> list[dict[str, Any]]:
    """What the plan brings to every direction."""
    rows = []
    links = network_at(plan, case).everything
    for number, (link, planned) in enumerate(zip(links, planned_traffic(plan, case), strict=True)):
        wire = int(planned.wire_bytes * iterations)
        counters = LinkCounters(number, link.label, planned.messages, wire, wire, 0, 0, 0.0, (0, 1))
        rows.append(link_row(counters, planned._replace(wire_bytes=planned.wire_bytes * iterations)))
    return rows


def _gate(plan: Plan) -> Sequence[dict[str, Any]]:
    """Every direction is what it should be."""
    return [
        {
            "direction": number,
            "label": link.label,
            "asked": {"delay_s": link.delay_s, "rtt_s": 2 * link.delay_s, "rate_bps": link.rate_bps, "loss": 0.0},
            "measured": {
                "one_way_s": {"median": link.delay_s},
                "rtt_s": {"median": 2 * link.delay_s},
                "rate_bps": link.rate_bps,
                "dropped": 0,
            },
            "ok": True,
            "reasons": [],
            "attempts": 1,
        }
        for number, link in enumerate(plan.network.directions)
    ]
