"""What a run writes is what docs/data-format.md says, and tells again whether the run can be trusted."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from data_format import documented

from testbed.cli.report import judged_again
from testbed.errors import BadInput
from testbed.judge.comparison import MeasuredCase, ScheduleComparison, as_document, compare
from testbed.judge.evidence import judge
from testbed.judge.fidelity import Check, DirectionCounters, NetworkEvidence
from testbed.judge.iterations import IterationRow, Witnesses
from testbed.judge.messages import FlowMessages, by_flow
from testbed.lab.shaping import LinkCounters
from testbed.plan.costs import predict_case
from testbed.plan.traffic import PlannedTraffic
from testbed.planning import file
from testbed.planning.resolve import generate, load_plan, with_cases
from testbed.planning.schedules import choose
from testbed.results.directory import FinishedJob, ResultsWriter
from testbed.results.recheck import evidence_of, recheck
from testbed.results.run_files import RunFiles
from testbed.session.network_accounts import link_row
from testbed.trace.summary import summaries
from testbed.trace.tables import FORMAT, Trace, concatenate
from testbed.train.assignment import AFTER_STEP, GRADIENT, IN_USE, PROJECTIONS, Expected, Fingerprint, ReferenceOutcome

ROOT = Path(__file__).parents[2]
LABEL = "1f1b"
ASKED = load_plan(
    ROOT / "topologies/two-dc-longhaul.yaml",
    ROOT / "workloads/tiny-gpt-pp4.yaml",
    settings=[f"schedules=[{LABEL}]", "warmup=2", "iterations=3"],
)
MADE = generate(ASKED, choose(ASKED)[0])
PLAN = with_cases(ASKED, choose(ASKED), {LABEL: MADE})
PREDICTED = predict_case(PLAN, PLAN.cases[0], MADE.schedule)
PREDICTED_S = float(PREDICTED.makespans()[0])
PEAKS = (4.0, 3.0, 2.0, 1.0)
COUNTERS = LinkCounters(0, "paris->warsaw", 900, 1_000_000, None, 0, None, None, None)
PLANNED = PlannedTraffic(1e6, 64)


FACTS = {
    "name": "a job",
    "shaper": "relay",
    "transport": "otn-lossless",
    "clock": "real",
    "ranking_as_predicted": True,
    "complete": True,
}


def row(number: int, **changed: Any) -> IterationRow:
    machine = Witnesses(*(1e-6 * number for _ in Witnesses._fields))
    made = IterationRow(
        number,
        number < 2,
        PREDICTED_S,
        0.4,
        5.0 - number / 3,
        PEAKS,
        PEAKS,
        0,
        0.0,
        96,
        0.0,
        machine,
        (0.1, number / 3),
    )
    return made._replace(**changed)


COMPARED = [(0, GRADIENT), (0, AFTER_STEP), (4, IN_USE), (4, AFTER_STEP)]
EXPECTED = [Expected(*one, "0.weight", 4, 4.0, (1.0,) * PROJECTIONS, 2.0, 1e-9, 0.0) for one in COMPARED]
TOLD = [Fingerprint(*one, "0.weight", 0, 0, 4, 4.0, (1.0,) * PROJECTIONS) for one in COMPARED]


def repeated(shift_s: float = 0.0) -> Trace:
    """The prediction as if it had been measured five times, with messages that take so much longer."""
    traces = []
    for number in range(5):
        one = Trace(PREDICTED.actions.copy(), PREDICTED.messages.copy(), PREDICTED.n_ranks)
        one.actions["iteration"] = one.messages["iteration"] = number
        one.messages["taken_s"] += shift_s
        traces.append(one)
    return concatenate(traces)


class Found(NamedTuple):
    """What a session found out about its only case."""

    trace: Trace
    rows: Sequence[IterationRow]
    reference: ReferenceOutcome
    network: NetworkEvidence = NetworkEvidence(0, 0, {}, lossless=True)
    traffic: Sequence[DirectionCounters] = (DirectionCounters(COUNTERS.label, COUNTERS.wire_bytes, *PLANNED),)
    fingerprints: Sequence[Fingerprint] = TOLD
    link_reasons: Sequence[str] = ()
    on_this_host_s: float = 1.01 * PREDICTED_S
    packet_s: float = 0.0


def found(trace: Trace | None = None, **changed: Any) -> Found:
    rows = [row(number) for number in range(5)]
    losses, norms = tuple(one.loss for one in rows), tuple(one.gradient_norms for one in rows)
    reference = ReferenceOutcome(losses, norms, 1.5, parameters=tuple(EXPECTED))
    return Found(repeated() if trace is None else trace, rows, reference)._replace(**changed)


def write(directory: Path, case: Found) -> None:
    """As a session writes it, with the comparison told from what it has written."""
    results = ResultsWriter(directory, [job.name for job in PLAN.jobs], references=[case.reference])
    manifest = {
        "format": FORMAT,
        "nodes": list(PLAN.jobs[0].nodes),
        "clock": "real",
        "links": {"reasons": list(case.link_reasons)},
    }
    results.save_json("manifest.json", manifest)
    file.write(PLAN, directory / file.NAME)
    results.add_trace(LABEL, "predicted", PREDICTED)
    results.add_trace(LABEL, "measured", case.trace)
    results.add_iterations(LABEL, case.rows)
    counters = [replace(COUNTERS, label=one.direction, wire_bytes=int(one.counted_bytes)) for one in case.traffic]
    results.add_links(LABEL, [link_row(one, PLANNED) for one in counters])
    results.save_tables()
    files = RunFiles(directory)
    flows = by_flow(files.message_times(LABEL, order_sensitive=False)[0])
    known = {
        "baseline_extra_s": [0.0] * len(flows),
        "baseline_differs_s": (),
        "super_packets_s": [case.packet_s] * len(flows) if case.packet_s else (),
        "routes": (),
        "jitter_s": (),
        "losses_touch": (),
        "range_s": None,
        "on_this_host_s": case.on_this_host_s,
        "in_run_s": None,
        "modelled": True,
        "slots": None,
        "disturbed_before": (),
    }
    before = [row(number, loss=1.0, warmup=False) for number in range(3)]
    results.add_finished(LABEL, case.network, {0: FinishedJob(case.rows, before, case.fingerprints, known, MADE)})
    results.save_finished()
    results.save_tables()
    evidence = evidence_of(files, LABEL)[0]
    summary = summaries(PREDICTED)[0]
    run = MeasuredCase(LABEL, LABEL, evidence.measured, summary, judge(evidence), messages=evidence.flows)
    (compared,) = compare([run])
    compared = replace(compared, predicted_on_this_host_s=case.on_this_host_s)
    results.save_json("comparison.json", as_document(FACTS, [compared]))


@pytest.mark.parametrize("table", ["actions", "messages", "iterations", "links", "baseline_iterations", "parameters"])
def test_every_column_is_documented_and_every_documented_one_written(tmp_path: Path, table: str) -> None:
    write(tmp_path, found())
    written = set(pq.read_schema(tmp_path / f"{table}.parquet").names)
    assert written == documented("iterations.parquet" if table == "baseline_iterations" else f"{table}.parquet")


def test_a_run_of_before_a_column_was_added_has_no_value_for_it(tmp_path: Path) -> None:
    write(tmp_path, found())
    path = tmp_path / "iterations.parquet"
    pd.read_parquet(path).drop(columns="clock_step_s").to_parquet(path)
    rows = RunFiles(tmp_path).rows(LABEL, 0)
    assert [row.makespan_s for row in rows] == [row.makespan_s for row in found().rows]
    assert all(math.isnan(row.witnesses.clock_step_s) for row in rows)
    pd.read_parquet(path).drop(columns="makespan_s").to_parquet(path)
    with pytest.raises(BadInput, match=r"iterations.parquet: makespan_s: got 'nothing', expected a column"):
        RunFiles(tmp_path).rows(LABEL, 0)


def test_every_key_of_a_comparison_is_documented(tmp_path: Path) -> None:
    assert {field.name for field in fields(ScheduleComparison)} == documented(
        "comparison.json: an entry of `schedules`"
    )
    assert {*Check._fields, "ok"} == documented("comparison.json: an entry of `checks`")
    assert set(FlowMessages._fields) == documented("comparison.json: an entry of `messages`")
    write(tmp_path, found())
    (entry,) = json.loads((tmp_path / "evidence.json").read_text()).values()
    assert set(entry) == documented("evidence.json: an entry\n")
    (job,) = entry["jobs"].values()
    assert set(job) == documented("evidence.json: an entry of `jobs`")


ROWS = [row(number) for number in range(5)]
CASES: list[tuple[dict[str, Any], str]] = [
    ({}, ""),
    ({"link_reasons": ("link a->b is not as asked",)}, "not as asked"),
    ({"rows": [one._replace(overruns=9, worst_overrun_s=0.3) for one in ROWS]}, "fit into their slots"),
    ({"rows": [one._replace(held=(4.0, 3.0, 3.0, 1.0)) for one in ROWS]}, "another number of microbatches"),
    ({"rows": [one._replace(late_start_s=1.0) for one in ROWS]}, "started late"),
    ({"rows": [one._replace(makespan_s=PREDICTED_S * (1 + one.iteration / 5)) for one in ROWS]}, "spread"),
    ({"rows": [*ROWS[:4], ROWS[4]._replace(loss=float("nan"))]}, "diverged"),
    ({"rows": [one._replace(gradient_norms=(0.2, 0.1)) for one in ROWS]}, "gradients"),
    ({"fingerprints": TOLD[1:]}, "gradients differ"),
    ({"fingerprints": [*TOLD[:3], TOLD[3]._replace(square=5.0)]}, "weights differ"),
    ({"rows": ROWS[:4]}, "only 2 iterations"),
    ({"rows": [one._replace(witnesses=Witnesses(steal_s=2.0)) for one in ROWS]}, "busy otherwise"),
    ({"network": NetworkEvidence(2, 3, {"TcpExtPruneCalled": 1}, lossless=True)}, "dropped"),
    ({"network": NetworkEvidence(2, 3, {}, lossless=False)}, ""),
    ({"traffic": [DirectionCounters("paris->warsaw", 5e5, *PLANNED)]}, "routes of the plan"),
    ({"reference": ReferenceOutcome(refused="too large")}, "could not be checked"),
    ({"on_this_host_s": 1.08 * PREDICTED_S}, "this machine adds"),
]


@pytest.mark.parametrize(("changed", "reason"), CASES, ids=[reason or "-".join(c) or "good" for c, reason in CASES])
def test_the_verdict_is_told_from_the_files(tmp_path: Path, changed: dict[str, Any], reason: str) -> None:
    case = found(**changed)
    write(
        tmp_path, case._replace(trace=case.trace.without(sorted(set(range(5)) - {one.iteration for one in case.rows})))
    )
    reasons = " ".join(one for check in recheck(tmp_path)[LABEL] for one in check.reasons)
    assert (reason in reasons) if reason else not reasons


def test_messages_that_came_later_are_seen_in_the_files(tmp_path: Path) -> None:
    write(tmp_path, found(repeated(shift_s=0.5)))
    assert any("longer than predicted" in reason for check in recheck(tmp_path)[LABEL] for reason in check.reasons)


def test_what_a_super_packet_takes_is_in_the_files(tmp_path: Path) -> None:
    for packet_s, trusted in ((0.0, False), (1.44e-3, True)):
        write(tmp_path, found(repeated(shift_s=1.5e-3), packet_s=packet_s))
        assert all(check.ok for check in recheck(tmp_path)[LABEL]) == trusted


def test_data_that_were_changed_change_the_verdict(tmp_path: Path) -> None:
    """The stored verdict is not what is read."""
    write(tmp_path, found())
    rows = pd.read_parquet(tmp_path / "iterations.parquet")
    rows["makespan_s"] = np.linspace(1.0, 2.0, len(rows)) * PREDICTED_S
    rows.to_parquet(tmp_path / "iterations.parquet")
    assert json.loads((tmp_path / "comparison.json").read_text())["schedules"][0]["trusted"]
    assert not all(check.ok for check in recheck(tmp_path)[LABEL])


def test_the_command_line_judges_again(tmp_path: Path) -> None:
    write(tmp_path, found())
    written = json.loads((tmp_path / "comparison.json").read_text())
    again, _ = judged_again(tmp_path, written)
    assert again["schedules"][0]["trusted"]
    assert judged_again(tmp_path, again) == (again, [])
    rows = pd.read_parquet(tmp_path / "iterations.parquet")
    rows["makespan_s"] = np.array([1.0, 1.0, 0.7, 1.0, 1.4]) * PREDICTED_S
    rows.to_parquet(tmp_path / "iterations.parquet")
    spoilt, changed = judged_again(tmp_path, again)
    assert changed == [LABEL]
    assert not spoilt["schedules"][0]["trusted"]
    assert any("spread" in reason for reason in spoilt["schedules"][0]["reasons"])


@pytest.mark.parametrize(("name", "right"), [("measured_s", PREDICTED_S), ("predicted_s", PREDICTED_S), ("error", 0.0)])
def test_times_that_the_data_files_do_not_have_are_refused(tmp_path: Path, name: str, right: float) -> None:
    write(tmp_path, found())
    written = json.loads((tmp_path / "comparison.json").read_text())
    edited = written | {"schedules": [written["schedules"][0] | {name: 0.2}]}
    with pytest.raises(BadInput) as refused:
        judged_again(tmp_path, edited)
    expected = f"comparison.json: schedules.0.{name}: got 0.2, expected {right:.9g}, as the data files say"
    assert str(refused.value).endswith(expected)


@pytest.mark.parametrize("name", ["evidence.json", "links.parquet", "numerics.json"])
def test_results_without_a_file_are_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path, found())
    (tmp_path / name).unlink()
    with pytest.raises(BadInput, match=f"{name}: .* expected"):
        recheck(tmp_path)


def test_iterations_that_were_predicted_to_differ_are_no_spread(tmp_path: Path) -> None:
    """Each is held against its own prediction: one that is twice as long as before is as it should be."""
    rows = [one._replace(makespan_s=one.makespan_s * (1.5 if one.iteration >= 3 else 1.0)) for one in ROWS]
    write(tmp_path, found(rows=rows))
    case = evidence_of(RunFiles(tmp_path), LABEL)[0]
    wide = [check for check in judge(case) if "spread" in " ".join(check.reasons)]
    assert len(wide) == 1
    own = [one.makespan_s for one in rows if not one.warmup]
    assert all("spread" not in " ".join(check.reasons) for check in judge(case._replace(own_predicted_s=own)))
