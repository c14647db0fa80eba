"""What an event meant. Between iterations: flows moved, the controller's time, iterations before, during and after; of
links and ranks that change: when that was, and the iteration in which it was against what had been predicted of it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from testbed.grouping import grouped
from testbed.plan import costs
from testbed.plan.moved_weights import moved_weights, moving_s, used_up
from testbed.plan.network_state import link_costs, network_at
from testbed.plan.plan import Plan
from testbed.plan.rank_routes import RankRoutes
from testbed.plan.timeline import Moment
from testbed.plan.traffic import swap_traffic
from testbed.planning.drawn_iterations import rank_changes
from testbed.session.active_routes import Handled
from testbed.session.trained import TrainedCase
from testbed.trace.predictions import predicted_times_s


def report_of(plan: Plan, before: TrainedCase, after: TrainedCase, handled: Handled) -> dict[str, Any]:
    """An entry of `events` in comparison.json."""
    assert after.case.continues is not None
    return {
        "label": after.case.label,
        "before": before.case.label,
        "after": handled.after,
        **handled.what._asdict(),
        "policy": after.case.continues.policy,
        **handled.moves._asdict(),
        "links_down_s": handled.links_down_s,
        "choosing_s": handled.choosing_s,
        "enforcing_s": handled.enforcing_s,
        **_weights(plan, before, after),
        "iterations": _iterations(plan, before, after),
    }


def _weights(plan: Plan, before: TrainedCase, after: TrainedCase) -> dict[str, Any]:
    """Of every job whose stages go on on other ranks, what that moves, how long it should take, and all that its swap
    took and sent. Links are as they were when the iteration before had ended.
    """
    found = []
    for number, (was, now) in enumerate(zip(before.case.jobs, after.case.jobs, strict=True)):
        if was.stage_to_rank == now.stage_to_rank:
            continue
        assert after.swap is not None
        assert after.case.continues is not None
        moved = moved_weights(plan, number, was.stage_to_rank, now.stage_to_rank)
        ended = Moment(after.case.continues.after - 1, math.inf)
        old, new = (costs.problem_of_case(plan, one.case, job=number) for one in (before, after))
        job = plan.jobs[number]
        shortest = used_up(old, job.workload, moves=True, first_rank=job.mesh.first_rank)
        links = link_costs(network_at(plan, before.case, ended))
        planned_bytes = swap_traffic(plan, before.case, after.case, number)
        counted = after.swap.wire_bytes
        entry = {
            "job": job.name,
            "moved_bytes": sum(one.payload_bytes for one in moved),
            "predicted_s": moving_s(replace(new, links=links), moved, RankRoutes(plan, after.case), shortest),
            "took_s": after.swap.took_s,
            "planned_wire_bytes": sum(planned_bytes[: len(counted)]) if counted else sum(planned_bytes),
            "wire_bytes": sum(counted) if counted else None,
        }
        found.append(entry)
    return {"weights": found} if found else {}


def _iterations(plan: Plan, before: TrainedCase, after: TrainedCase) -> list[dict[str, Any]]:
    """Of every job that was there before or after: medians, and the one during which it settled, the first."""
    old, new = ({job.number: job for job in case.jobs} for case in (before, after))
    found = []
    for number in sorted({*old, *new}):
        was, now = old.get(number), new.get(number)
        first = None if now is None else next(r for r in now.rows if r.iteration == after.phase.rounds.start)
        found.append(
            {
                "job": plan.jobs[number].name,
                "before_s": was and was.median_s,
                "during_s": first and first.makespan_s,
                "after_s": now and now.median_s,
                "before_predicted_s": was and was.predicted_s,
                "after_predicted_s": now and now.predicted_s,
            }
        )
    return found


def links_report(plan: Plan, trained: TrainedCase) -> list[dict[str, Any]]:
    """The entries of a case in `link_events` of comparison.json: one for each event and iteration in which it came.

    Ranks become slower at the beginning of an iteration, in slots that they have from then on: they are never late.
    """
    parts = grouped(((one.iteration, one.event), one) for one in trained.events)
    found = []
    for (iteration, event), mine in parts.items():
        late = [one.happened_s - one.at_s for one in mine if not math.isnan(one.happened_s)]
        at_s = min(one.at_s for one in mine), max(one.at_s for one in mine), max(late, default=None)
        modelled = all(math.isnan(one.loss) and math.isnan(one.jitter_s) for one in mine)
        found.append(_entry(plan, trained, event, iteration, *at_s) | {"modelled": modelled})
    ranks = [one for one in rank_changes(plan, trained.case) if one.round in trained.phase.rounds]
    found += [_entry(plan, trained, one.said, one.round, 0.0, 0.0, None) for one in ranks]
    return sorted(found, key=lambda entry: (entry["iteration"], entry["at_s"]))


def _entry(
    plan: Plan, trained: TrainedCase, event: str, iteration: int, at_s: float, until_s: float, late_s: float | None
) -> dict[str, Any]:
    return {
        "label": trained.case.label,
        "event": event,
        "iteration": iteration,
        "measured_iteration": iteration - plan.jobs[0].workload.warmup,
        "at_s": at_s,
        "until_s": until_s,
        "late_s": late_s,
        "modelled": True,
        "iterations": [
            {
                "job": plan.jobs[job.number].name,
                "predicted_s": float(predicted_times_s(job.predicted, [iteration])[0]),
                "measured_s": next(row.makespan_s for row in job.rows if row.iteration == iteration),
            }
            for job in trained.jobs
        ],
    }
