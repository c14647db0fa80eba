"""The verdict on the cases of a run, told from its files alone: by the session that has just written them, and by
whoever asks later. Nobody has to believe what comparison.json says of `trusted`, nor of the times beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from testbed.errors import require
from testbed.goodput.elastic_spans import continued
from testbed.goodput.elastic_training import iterations_of_ranks
from testbed.goodput.foretelling import shares_document
from testbed.goodput.spans import Span, Spending
from testbed.judge.evidence import CaseEvidence, Profiling, judge
from testbed.judge.execution import executed_rows, planned_rows
from testbed.judge.fidelity import Check, DisturbedTry, SlotsEvidence
from testbed.judge.messages import by_flow, by_iteration, known_by_iteration
from testbed.pipeline.ir import Row
from testbed.plan.events import at_work
from testbed.plan.plan import Job
from testbed.results.load import load_run
from testbed.results.run_files import RunFiles
from testbed.trace.predictions import predicted_times_s


def recheck(directory: Path) -> dict[str, list[Check]]:
    """By name of every entry of the comparison: the questions of its verdict, answered from the data files alone.

    A schedule can be trusted when all of its checks are `ok`. Raises BadInput where a file is missing.
    """
    return {name: judge(evidence) for name, evidence in evidence_by_name(directory).items()}


def evidence_by_name(directory: Path) -> dict[str, CaseEvidence]:
    """By name of every entry of the comparison, what the data files say. Raises BadInput where one is missing."""
    run, files = load_run(directory), RunFiles(directory)
    names = [job.name for job in files.plan.jobs]
    found = {label: evidence_of(files, label) for label in run.schedules}
    return {
        name_of(row): found[row["label"]][names.index(row["job"]) if "job" in row else 0]
        for row in run.comparison["schedules"]
    }


def require_times(row: Mapping[str, Any], evidence: CaseEvidence, source: str, at: str) -> None:
    """That an entry of the comparison, which stands `at` a place of `source`, has the times of the data files.

    Raises BadInput naming the first one that it has not.
    """
    of_all = np.mean if evidence.free else np.median
    measured_s = float(of_all([one.makespan_s for one in evidence.measured]))
    error = measured_s / evidence.predicted_s - 1
    expected = {"measured_s": measured_s, "predicted_s": evidence.predicted_s, "error": error}
    _require_same(row, expected, source, at, "as the data files say")


def require_goodput(entry: Mapping[str, Any], job: Job, source: str, at: str) -> None:
    """That an entry of `goodput`, which stands `at` a place of `source`, has the shares that its spans add up to, and
    foretold shares that add up.

    Raises BadInput naming the first one that it has not.
    """
    spans = [
        Span(
            Spending(one["what"]),
            one["iteration"],
            one["begin_s"],
            one["end_s"],
            replicas=tuple(one.get("replicas", ())),
        )
        for one in entry["spans"]
    ]
    _require_same(entry["measured"], shares_document(spans, job), source, f"{at}.measured", "as its spans add up to")
    foretold = entry["predicted"]
    total_s = sum(foretold.get(f"{name}_s", 0.0) for name in ("kept", "away", "lost", "saving", "restarting"))
    sums = {"total_s": total_s, "goodput": foretold["kept_s"] / total_s}
    _require_same(foretold, sums, source, f"{at}.predicted", "as its shares add up to")


def _require_same(said: Mapping[str, Any], expected: Mapping[str, float], source: str, at: str, whence: str) -> None:
    for name, value in expected.items():
        good = math.isclose(said[name], value, rel_tol=_SAME, abs_tol=_SAME)
        require(good, source, f"{at}.{name}", said[name], f"{value:.9g}, {whence}")


_SAME = 1e-6
"""Seconds, and relative: what is left of them in the tables of a run is far less."""


def name_of(row: Mapping[str, Any]) -> str:
    """What an entry of the comparison is called among all: its label, of several jobs with the job's name."""
    return f"{row['label']}: {row['job']}" if "job" in row else str(row["label"])


def evidence_of(files: RunFiles, label: str) -> dict[int, CaseEvidence]:
    """Job by job at work in a case (by number), what was found out. Raises BadInput where a file is missing."""
    working = at_work(files.plan, files.case(label))
    known = {number: files.known_of(label, number) for number in working}
    order_sensitive = any(entry["range_s"] is not None for entry in known.values())
    times = files.message_times(label, order_sensitive=order_sensitive)
    predicted, measured = (files.parts(label, source) for source in ("predicted", "measured"))
    manifest, network = files.manifest, files.network(label)
    traffic = files.traffic(label) if network.clocks is None else []
    found, elastic = {}, files.elastic(label)
    takes_part = None if elastic is None else iterations_of_ranks(files.plan.jobs[0], elastic.sets)
    for number in working:
        job, written, rows = files.plan.jobs[number], known[number], files.rows(label, number)
        paced, reference = job.workload.pacing is not None, files.reference(label, number)
        counted = [row.iteration for row in rows if not row.warmup]
        own_predicted_s = predicted_times_s(predicted[number], counted)
        profiling = None
        if not paced:
            profiling = Profiling(manifest["pinning"]["reasons"], files.needed("profile.json")["spread"])
        found[number] = CaseEvidence(
            paced=paced,
            real=manifest["clock"] == "real",
            link_reasons=manifest["links"]["reasons"],
            profiling=profiling,
            rows=rows,
            baseline=files.baseline(label, number),
            network=network,
            traffic=traffic,
            reference=reference,
            fingerprints=() if reference.parameters is None else files.fingerprints(label, number),
            executed=executed_rows(measured[number], job.mesh.first_rank),
            planned=_planned(files, label, number, takes_part),
            takes_part=takes_part,
            continued=() if elastic is None else continued(elastic.spans),
            predicted_s=float((np.mean if files.plan.rounds == "free" else np.median)(own_predicted_s)),
            free=files.plan.rounds == "free",
            own_predicted_s=own_predicted_s,
            on_this_host_s=written["on_this_host_s"],
            flows=by_flow(times[number], job.mesh.first_rank),
            overtaken_s=times[number].median_overtaken_s(),
            baseline_extra_s=written["baseline_extra_s"],
            baseline_differs_s=written["baseline_differs_s"],
            super_packets_s=written["super_packets_s"],
            quartiles_s=by_iteration(times[number], counted),
            routes=written["routes"],
            known_times=known_by_iteration(times[number], counted) if written.get("jitter_s") else (),
            jitter_s=written.get("jitter_s", ()),  # runs of before did not tell
            losses_touch=written.get("losses_touch", ()),
            range_s=written["range_s"],
            in_run_s=written["in_run_s"],
            modelled=written["modelled"],
            # runs of before trained nothing again
            slots=SlotsEvidence(**written["slots"]) if written.get("slots") else None,
            disturbed_before=[DisturbedTry(**one) for one in written.get("disturbed_before", ())],
        )
    return found


def _planned(
    files: RunFiles, label: str, number: int, takes_part: Mapping[int, Sequence[int]] | None
) -> dict[int, Row]:
    """By rank that has a part in any iteration, what it should execute."""
    job = files.plan.jobs[number]
    rows = planned_rows(job.mesh, files.case(label).jobs[number].rows)
    return rows if takes_part is None else {rank: row for rank, row in rows.items() if rank in takes_part}
