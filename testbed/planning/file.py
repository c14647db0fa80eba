"""plan.json: a plan written exactly, read strictly. A damaged file is one error: file, field, value, expected."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from testbed.errors import BadInput, listed, require
from testbed.files import json_object, read_text, saving
from testbed.pipeline.validate import validate
from testbed.plan import costs, events, routes
from testbed.plan.background import check_background
from testbed.plan.flows import flows_of
from testbed.plan.microbatches import require_microbatches
from testbed.plan.network_state import NetworkState, network_at, planned
from testbed.plan.plan import MOST_STARTS, Adaptation, Case, Flow, Job, JobSchedule, Network, Plan, Route
from testbed.planning.recoverable import require_recoverable
from testbed.planning.upgrade import upgraded
from testbed.planning.values import check_values
from testbed.plugins import in_file
from testbed.spec import document
from testbed.spec.quantity import SI_UNITS

NAME = "plan.json"
"""Of the file in a results directory."""

MOST_PLAN_BYTES = 32_000_000

LATEST_START_S = 3600.0
"""When a job may begin at the latest, after an iteration's start: all of them are waited for."""

_WRITTEN = "a plan as `testbed plan` writes it"


def to_json(plan: Plan) -> str:
    """The plan as text; numbers come back as they were."""
    written: dict[str, Any] = document.adapter(Plan).dump_python(plan, mode="json")
    if not plan.network.limits:
        del written["network"]["limits"]
    if not plan.network.cards:
        del written["network"]["cards"]  # as files were before there were any, to the last byte
    if not plan.network.switches:
        del written["network"]["switches"]
    if plan.changes_for == "unsent":
        del written["changes_for"]
    if plan.enforcement == "rules":
        del written["enforcement"]
    for name in ("elephants_from", "recovery", "background"):
        if written[name] in (None, []):
            del written[name]
    if plan.recovery is not None:
        _leave_out_unused(written["recovery"])
    if plan.rounds == "together":
        del written["rounds"]
    if plan.adaptation is not None and not plan.adaptation.starts:
        del written["adaptation"]["starts"]
    for flow in written.get("background", ()):
        if not flow["changes"]:
            del flow["changes"]
    for job in written["jobs"]:
        if job["workload"]["streams"] == 1:
            del job["workload"]["streams"]
    for case in written["cases"]:
        for name in ("continues", "starts_s", "alone_of", "alone", "iterations"):
            if not case[name]:
                del case[name]
        for chosen in case["jobs"]:
            if chosen["microbatches"] is None:
                del chosen["microbatches"]
    return json.dumps(written, indent=1, allow_nan=False) + "\n"


def _leave_out_unused(recovery: dict[str, Any]) -> None:
    """What only checkpoints in memory, failures of places, and datacenters that are cut off have; and one of the two
    ways to recover."""
    checkpoints = recovery["checkpoints"]
    if checkpoints is not None and checkpoints["memory"] is None:
        del checkpoints["memory"]
    elastic = recovery["elastic"]
    if elastic is None:
        del recovery["elastic"]
    elif elastic["every"] == 1:
        del elastic["every"]
    for failure in recovery["failures"]:
        for name in ("place", "cut_s"):
            if failure[name] in ("", None):
                del failure[name]
    if checkpoints is not None and all("cut_s" not in failure for failure in recovery["failures"]):
        del checkpoints["notice_s"]


def from_json(text: str | bytes, source: str) -> Plan:
    """The plan that `to_json` wrote, of this version or an earlier one.

    Raises BadInput naming `source`, field, value and what was expected.
    """
    plan = document.validate(Plan, upgraded(json_object(text, source, _WRITTEN), source), source, SI_UNITS)
    check(plan, source)
    return plan


def read(path: Path) -> Plan:
    """The plan in a file, or in a results directory. Raises BadInput."""
    file = path / NAME if path.is_dir() else path
    text = read_text(file, MOST_PLAN_BYTES, "a readable plan.json")
    # a file with code that it names may be another one by now
    return from_json(text, str(file)) if _may_name_code(text) else _from_text(text, str(file))


@lru_cache(maxsize=1)
def _from_text(text: str, source: str) -> Plan:
    """As `from_json`: the very same plan where nothing else was read since, so that what was made of it is known."""
    return from_json(text, source)


def code_in(path: Path) -> tuple[str, ...]:
    """What of the Python code that a plan brings, or names, is run when it is read: FILE.py:NAME, each once.

    Nothing of it is run to find that. Empty also for what is no JSON: `read` says so. Raises BadInput.
    """
    text = read_text(path / NAME if path.is_dir() else path, MOST_PLAN_BYTES, "a readable plan.json")
    if not _may_name_code(text):
        return ()
    try:
        waiting = [json.loads(text)]
    except (ValueError, RecursionError):
        return ()
    found: dict[str, None] = {}
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str):
            found |= {text: None for text in (value, value.split(",")[0]) if in_file(text) is not None}
    return tuple(found)


def _may_name_code(text: str) -> bool:
    return ".py:" in text or "\\u" in text


def write(plan: Plan, path: Path) -> None:
    """Write the file, complete or not at all. Raises RunFailed."""
    with saving(path) as partial:
        partial.write_text(to_json(plan), encoding="utf-8")


def check(plan: Plan, source: str) -> None:
    """Raises BadInput for the first thing in a plan that does not fit together."""
    _check_network(plan.network, source)
    check_values(plan, source)
    first = 0
    for number, job in enumerate(plan.jobs):
        _check_job(plan, job, first, source, f"jobs.{number}")
        first = job.mesh.ranks.stop
    names = [job.name for job in plan.jobs]
    require(len(set(names)) == len(names), source, "jobs.name", names, "a name for every job alone")
    nodes = [node for job in plan.jobs for node in job.nodes]
    require(len(set(nodes)) == len(nodes), source, "jobs.nodes", nodes, "a node for every rank alone")
    once: set[Flow] = set()
    for number, flow in enumerate(plan.flows):
        for rank in (flow.source, flow.target):
            require(0 <= rank < first, source, f"flows.{number}", rank, f"a rank below {first}")
        ends = f"{flow.kind.value} from {flow.source} to {flow.target}"
        require(flow not in once, source, f"flows.{number}", ends, "every flow once")
        once.add(flow)
    least = plan.elephants_from
    require(least is None or 0 <= least < math.inf, source, "elephants_from", least, "0 bytes or more")
    require_recoverable(plan, source, "recovery")
    if plan.adaptation is not None:
        _check_adaptation(plan, plan.adaptation, source)
    labels = [case.label for case in plan.cases]
    require(len(set(labels)) == len(labels), source, "cases.label", labels, "a label for every case alone")
    events.check_events(plan, lambda number: (source, f"events.{number}"))
    check_background(plan, planned(plan.network), source)
    number = 0
    for cases in events.trainings(plan.cases):  # what a case takes is told on what is left, of those at work
        events.check_training(plan, cases, [(source, f"cases.{number + place}") for place in range(len(cases))])
        number += len(cases)
    for number, case in enumerate(plan.cases):
        _check_continuation(case, source, f"cases.{number}.continues")
        _check_alone(plan, number, source, f"cases.{number}.alone_of")
        _check_case(plan, case, source, f"cases.{number}")
    _check_flows(plan, source)


def _check_flows(plan: Plan, source: str) -> None:
    """That all are there which ranks need under the schedules of any case."""
    there = set(plan.flows)
    for number, job in enumerate(plan.jobs if plan.cases else ()):
        for flow in flows_of(job, [case.jobs[number].stage_to_rank for case in plan.cases]):
            expected = f"one of {flow.kind.value} from rank {flow.source} to {flow.target}, which {job.name} sends"
            require(flow in there, source, "flows", f"{len(there)} flows", expected)


def _check_adaptation(plan: Plan, adaptation: Adaptation, source: str) -> None:
    for number, count in enumerate(adaptation.microbatches):
        require_microbatches(plan.jobs[0], count, source, f"adaptation.microbatches.{number}")
    routes = adaptation.routes
    require(routes >= 1, source, "adaptation.routes", routes, "1 or more")
    starts, several = adaptation.starts, len(plan.jobs) > 1
    expected = f"1 to {MOST_STARTS} where there are several jobs, 0 where there is one"
    require((0 < starts <= MOST_STARTS) if several else starts == 0, source, "adaptation.starts", starts, expected)


def _check_network(network: Network, source: str) -> None:
    links = planned(network).links
    names = [node.name for node in network.nodes]
    require(bool(names), source, "network.nodes", names, "at least one node")
    require(len(set(names)) == len(names), source, "network.nodes", names, "every node once")
    counted: dict[str, int] = {}
    for index, node in enumerate(network.nodes):
        number = counted.setdefault(node.datacenter, 0)
        expected = f"{node.datacenter}/{number}, the next of its datacenter"
        require(node.name == f"{node.datacenter}/{number}", source, f"network.nodes.{index}", node.name, expected)
        counted[node.datacenter] += 1
    for index, name in enumerate(network.switches):
        require(name not in counted, source, f"network.switches.{index}", name, "a name that no node's datacenter has")
    ends = [*counted, *network.switches]
    require(len(links) % 2 == 0, source, "network.directions", len(links), "two of each link")
    for index, direction in enumerate(links):
        field = f"network.directions.{index}"
        for end in (direction.source, direction.target):
            require(end in ends, source, field, end, f"one of the datacenters ({', '.join(ends)})")
        other = links[index ^ 1]
        reverse = (other.link, other.target, other.source)
        mine = (direction.link, direction.source, direction.target)
        require(mine == reverse, source, field, direction.label, "forward and reverse of a link beside each other")
    _check_cards(network, source)
    for index, default in enumerate(network.routes):
        _check_route(
            planned(network), default.route, (default.source, default.target), source, f"network.routes.{index}"
        )


def _check_cards(network: Network, source: str) -> None:
    datacenter = {node.name: node.datacenter for node in network.nodes}
    owners = [card.source for card in network.cards]
    for index, card in enumerate(network.cards):
        field = f"network.cards.{index}"
        require(card.source in datacenter, source, f"{field}.source", card.source, "a node of the network")
        home = datacenter[card.source]
        require(card.target == home, source, f"{field}.target", card.target, f"{home}, the datacenter of its node")
        require(owners.count(card.source) == 1, source, f"{field}.source", card.source, "one card for a node")
    for name in dict.fromkeys(datacenter.values()):
        having = sum(card.target == name for card in network.cards)
        nodes = sum(where == name for where in datacenter.values())
        require(
            having in (0, nodes), source, "network.cards", having, f"cards for all {nodes} nodes of {name}, or none"
        )


def _check_route(network: NetworkState, route: Route, ends: tuple[str, str], source: str, field: str) -> None:
    at = ends[0]
    for index in route:
        known = 0 <= index < len(network.links)
        require(known, source, field, index, f"directions below {len(network.links)}")
        up = index not in network.down
        require(up, source, field, list(route), f"no route by {network.links[index].label}, which is lost")
        require(network.links[index].source == at, source, field, list(route), f"a direction that leaves {at}")
        at = network.links[index].target
    require(at == ends[1], source, field, list(route), f"a route from {ends[0]} to {ends[1]}")
    passed = [ends[0], *(network.links[index].target for index in route)]
    require(len(set(passed)) == len(passed), source, field, list(route), "no place twice on the way")


def _check_job(plan: Plan, job: Job, first: int, source: str, field: str) -> None:
    mesh, workload = job.mesh, job.workload
    _check_start(plan, job.start_s, source, f"{field}.start_s")
    for axis, extent in (("dp", mesh.dp), ("pp", mesh.pp), ("tp", mesh.tp)):
        require(extent >= 1, source, f"{field}.mesh.{axis}", extent, "1 or more")
    require(mesh.first_rank == first, source, f"{field}.mesh.first_rank", mesh.first_rank, str(first))
    require(mesh.size == len(job.nodes), source, f"{field}.nodes", len(job.nodes), f"a node for {mesh.size} ranks")
    require(job.start_s >= 0, source, f"{field}.start_s", job.start_s, "0 s or more")
    asked = (workload.parallelism.data, workload.parallelism.pipeline, workload.parallelism.tensor)
    extents = (mesh.dp, mesh.pp, mesh.tp)
    require(extents == asked, source, f"{field}.mesh", extents, f"dp, pp, tp {asked}, as its workload has")
    known = {node.name for node in plan.network.nodes}
    for node in job.nodes:
        require(node in known, source, f"{field}.nodes", node, "a node of the network")
    for index, node in enumerate(job.nodes):
        site = routes.datacenter_of(job.nodes[index - index % mesh.tp])
        expected = f"a node of {site}, as the other tensor ranks of its stage"
        require(routes.datacenter_of(node) == site, source, f"{field}.nodes", node, expected)


def _check_case(plan: Plan, case: Case, source: str, field: str) -> None:
    require(len(case.jobs) == len(plan.jobs), source, f"{field}.jobs", len(case.jobs), "a schedule for every job")
    flows, taken = len(plan.flows), len(case.routes)
    require(taken == flows, source, f"{field}.routes", taken, f"a route for each of {flows} flows")
    nodes, network = routes.nodes_of_ranks(plan), network_at(plan, case)
    for number, (flow, route) in enumerate(zip(plan.flows, case.routes, strict=True)):
        ends = routes.datacenter_of(nodes[flow.source]), routes.datacenter_of(nodes[flow.target])
        _check_route(network, route, ends, source, f"{field}.routes.{number}")
    routes.routes_of_nodes(plan, case)
    starts = len(case.starts_s)
    require(starts in (0, len(plan.jobs)), source, f"{field}.starts_s", starts, "a time for every job, or none")
    for number, begun_s in enumerate(case.starts_s):
        _check_start(plan, begun_s, source, f"{field}.starts_s.{number}")
    counts = len(case.iterations)
    expected = "a number for every job where jobs run freely, or none"
    fits = counts in (0, len(plan.jobs) if plan.rounds == "free" else 0)
    require(fits, source, f"{field}.iterations", list(case.iterations), expected)
    for number, count in enumerate(case.iterations):
        require(count >= 1, source, f"{field}.iterations.{number}", count, "1 or more")
    for number, (job, chosen) in enumerate(zip(plan.jobs, case.jobs, strict=True)):
        _check_schedule(plan, case, job, chosen, number, (source, f"{field}.jobs.{number}"))


def _check_start(plan: Plan, start_s: float, source: str, field: str) -> None:
    require(0 <= start_s <= LATEST_START_S, source, field, start_s, f"0 to {LATEST_START_S:g} s")
    # results of one job say nothing of a start
    require(len(plan.jobs) > 1 or start_s == 0, source, field, start_s, "0 s: a job alone begins with the iteration")


def _check_continuation(case: Case, source: str, field: str) -> None:
    """What `events.check_training` leaves: whom the controller routes."""
    if case.continues is not None:
        least, detour = case.continues.elephants_from, case.continues.detour
        require(least >= 0, source, f"{field}.elephants_from", least, "0 bytes or more")
        require(0 <= detour <= 8, source, f"{field}.detour", detour, "0 to 8 links")


def _check_alone(plan: Plan, number: int, source: str, field: str) -> None:
    case = plan.cases[number]
    if case.alone_of is None and case.alone is None:
        return
    names = [job.name for job in plan.jobs]
    require(case.alone in names, source, f"cases.{number}.alone", case.alone, f"a job ({listed(names)})")
    alone = [
        replace(before, label=case.label, alone_of=before.label, alone=case.alone) for before in plan.cases[:number]
    ]
    same = [
        derived
        for derived, whole in zip(alone, plan.cases, strict=False)
        if whole.continues is None and len(events.at_work(plan, whole)) == len(plan.jobs)
    ]
    expected = "the label of a case before it with the same schedules, routes and starts, of which one job is at work"
    fits = case.continues is None and len(names) > 1 and case in same
    require(fits, source, field, case.alone_of, expected)


def _check_schedule(plan: Plan, case: Case, job: Job, chosen: JobSchedule, number: int, where: tuple[str, str]) -> None:
    stages, (source, field) = chosen.stage_to_rank, where
    whole = len(stages) >= job.mesh.pp and all(stages.count(r) * job.mesh.pp == len(stages) for r in range(job.mesh.pp))
    require(whole, source, f"{field}.stage_to_rank", list(stages), f"as many stages on each of {job.mesh.pp} ranks")
    if chosen.microbatches is not None:
        require_microbatches(job, chosen.microbatches, source, f"{field}.microbatches")
    schedule = costs.schedule_of(plan, case, job=number)
    if schedule is None:
        require(job.workload.pacing is None, source, f"{field}.rows", None, "rows: this job is paced")
    elif job.workload.pacing is not None or job.profile is not None:
        try:
            validate(schedule, costs.problem_of_case(plan, case, job=number))
        except BadInput as error:
            raise BadInput.of(source, f"{field}.rows", str(error), "a schedule that can be run") from error
