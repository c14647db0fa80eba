"""The network-wide metric of a case: what counts, how it is made of traces and counters, and how it is shown."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np
import pytest
from data_format import documented
from rich.console import Console

from testbed.cli.fairness_tables import fairness_lines, fairness_tables
from testbed.errors import BadInput
from testbed.judge.comparison import fairness_in
from testbed.judge.fidelity import DirectionCounters
from testbed.judge.network_metric import (
    CaseFairness,
    Filled,
    Seen,
    SentMessage,
    counts,
    expected,
    fairness_of,
    flows_of,
    same_order,
    typical,
)
from testbed.plan.plan import Plan
from testbed.plan.timeline import JobArrives, Moment
from testbed.plan.traffic import planned_traffic
from testbed.planning import file
from testbed.planning.prediction import iteration_times, predict_together
from testbed.planning.resolve import make_plan
from testbed.planning.schedules import choose as choose_schedules
from testbed.planning.schedules import make, with_selected
from testbed.results.contents import comparison_of
from testbed.results.metric_recheck import same
from testbed.routing.apply import demands, taken, with_policies
from testbed.routing.fairness import measured_by
from testbed.routing.planner import Reach
from testbed.routing.policies import choose
from testbed.spec.clos import spelt_out
from testbed.spec.document import validate
from testbed.spec.topology import Topology
from testbed.spec.workload import Workload
from testbed.trace.tables import MESSAGE, Trace, concatenate, rows

REACH = Reach(elephants_from=1e5)


def network(**sites: object) -> Topology:
    document = {"name": "net", "datacenters": {"pod": {"clos": sites}}}
    return validate(Topology, spelt_out(document, "clos"), "net")


def job(name: str, place: list[str], **more: object) -> Workload:
    document = {
        "name": name,
        "model": {"layers": len(place), "d_model": 16, "heads": 2, "sequence": 16},
        "parallelism": {"pipeline": len(place)},
        "placement": place,
        "microbatches": 4,
        "microbatch_size": 1,
        "pacing": dict.fromkeys("FIW", "5 ms"),
        "message": "250 kB",
        "memory": 4,
        "schedules": ["1f1b"],
        **more,
    }
    return validate(Workload, document, name)


def planned(topology: Topology, *jobs: Workload) -> Plan:
    plan = make_plan(topology, *jobs)
    return with_selected(
        plan, [make(plan, choose_schedules(plan, [], job=number), job=number) for number in range(len(jobs))]
    )


@pytest.fixture(scope="module")
def clos() -> Plan:
    """Two jobs, each with a stage on either leaf, by default on one spine, and under `greedy`."""
    shape = network(leaves=2, spines=2, hosts=2, rate="200 Mbit/s", delay="100 us")
    two = [job(name, [f"pod-leaf0/{host}", f"pod-leaf1/{host}"]) for host, name in enumerate(("one", "two"))]
    return with_policies(planned(shape, *two), [choose("shortest"), choose("greedy")], REACH)[0]


def as_counted(plan: Plan, number: int, iterations: int = 3) -> list[DirectionCounters]:
    """What counters say when everything went as planned."""
    return [
        DirectionCounters("", iterations * one.wire_bytes, iterations * one.wire_bytes, iterations * one.messages)
        for one in planned_traffic(plan, plan.cases[number])
    ]


def trained(
    plan: Plan, number: int, traffic: list[DirectionCounters] | None = None, measured: Trace | None = None
) -> CaseFairness:
    case = plan.cases[number]
    trace, seconds = predict_together(plan, case), iteration_times(plan, case)
    counters = traffic or as_counted(plan, number)
    return fairness_of(plan, case, (trace, measured or trace), counters, (seconds, seconds), [3, 3])


def test_filling_is_what_testbed_route_says_of_the_same_routes(clos: Plan) -> None:
    for number, case in enumerate(clos.cases):
        wanted = demands(clos, case, REACH)
        metric = measured_by(wanted.problem, taken(clos, case, wanted))
        found = trained(clos, number)
        assert found.filled.rates_bps == metric.job_rates_bps.tolist()
        assert (found.filled.most_flows, found.filled.jain) == (metric.most_flows, metric.jain)
        assert (found.flows, found.elephants_from) == (4, 1e5)
    assert [trained(clos, number).filled.most_flows for number in (0, 1)] == [2, 1]
    assert trained(clos, 1).filled.rates_bps == [200e6, 200e6]


def test_measured_is_predicted_where_all_went_so(clos: Plan) -> None:
    for number in (0, 1):
        found = trained(clos, number)
        assert found.measured == found.predicted
        assert found.predicted.all_reduce_s == [None, None]
        assert all(rate is not None and 1e6 < rate < 200e6 for rate in found.predicted.rates_bps)
        case = clos.cases[number]
        alone = expected(clos, case, predict_together(clos, case), iteration_times(clos, case))
        assert alone == (found.filled, found.predicted)
    shared, apart = (trained(clos, number).predicted for number in (0, 1))
    assert min(filter(None, apart.rates_bps)) > 1.2 * min(filter(None, shared.rates_bps))


def test_counters_tell_of_flows_that_went_elsewhere(clos: Plan) -> None:
    """The plan has them apart; counters of the plan that has them together say that two flows met."""
    together, apart = as_counted(clos, 0), as_counted(clos, 1)
    elsewhere = [one._replace(counted_bytes=other.counted_bytes) for one, other in zip(apart, together, strict=True)]
    assert trained(clos, 1, elsewhere).measured.most_flows == 2
    assert trained(clos, 1, elsewhere).filled.most_flows == 1


def test_what_a_flow_takes_longer_is_in_its_rate_and_its_completion(clos: Plan) -> None:
    trace = predict_together(clos, clos.cases[0])
    late = Trace(trace.actions, trace.messages.copy(), trace.n_ranks)
    mine = late.messages["job"] == 1
    late.messages["arrived_s"][mine] += 0.05
    found = trained(clos, 0, measured=late)
    assert found.measured.rates_bps[0] == found.predicted.rates_bps[0]
    assert (found.measured.rates_bps[1] or 0) < 0.5 * (found.predicted.rates_bps[1] or 0)
    worst, predicted = found.measured.fct_worst_s[1], found.predicted.fct_worst_s[1]
    assert worst == pytest.approx((predicted or 0) + 0.05)
    assert found.measured.jain < 1


def test_messages_count_whose_arrival_is_known_in_half_of_the_iterations() -> None:
    messages = rows(MESSAGE, 6)
    messages["iteration"] = [0, 1, 2, 0, 1, 2]
    messages["target_rank"] = [1, 1, 1, 2, 2, 2]
    messages["sent_s"], messages["payload_bytes"] = 1.0, 1000
    messages["arrived_s"] = [2.0, 2.5, np.nan, np.nan, np.nan, 7.0]
    found = typical(messages)
    assert {name[-2:]: one.arrived_s for name, one in found.items()} == {(0, 1): 2.25}


def test_a_rate_is_bytes_over_the_time_that_something_was_under_way(clos: Plan) -> None:
    """Three messages of a flow, two of which overlap, and a gap."""
    trace = predict_together(clos, clos.cases[0])
    messages = trace.messages[:3].copy()
    messages["job"], messages["kind"], messages["stage"], messages["microbatch"] = 0, 0, 0, [0, 1, 2]
    messages["source_rank"], messages["target_rank"], messages["payload_bytes"] = 0, 1, 1000
    messages["sent_s"], messages["arrived_s"] = [0.0, 1.0, 8.0], [2.0, 3.0, 9.0]
    few = Trace(trace.actions, messages, trace.n_ranks)
    plan = replace(clos, elephants_from=None)
    assert expected(plan, clos.cases[0], few, (1.0, 1.0))[1].rates_bps == [8 * 3000 / 4, None]


def test_a_job_that_is_away_has_no_entry(clos: Plan) -> None:
    plan, case = replace(clos, events=(JobArrives("one", Moment(2)),)), clos.cases[0]
    trace = predict_together(plan, case)
    on_routes, seen = expected(plan, case, trace, iteration_times(plan, case))
    assert (len(on_routes.rates_bps), len(seen.rates_bps), len(seen.iteration_s)) == (1, 1, 1)
    assert on_routes.rates_bps == [200e6]


def test_it_is_told_where_there_is_something_to_share_or_to_choose(clos: Plan) -> None:
    link = {"between": ["a", "b"], "delay": "1 ms", "rate": "1 Gbit/s"}
    sites = {"name": "net", "datacenters": {"a": {"nodes": 2}, "b": {"nodes": 2}}}
    line = validate(Topology, {**sites, "links": [link]}, "net")
    two = validate(Topology, {**sites, "links": [{**link, "name": "n"}, {**link, "name": "s"}]}, "net")
    first, second = job("one", ["a/0", "b/0"]), job("two", ["a/1", "b/1"])
    assert not counts(planned(line, first))
    assert counts(planned(two, first))
    assert counts(planned(line, first, second))
    assert counts(with_policies(planned(line, first), [choose("shortest")], REACH)[0])
    assert clos.elephants_from == 1e5
    assert file.from_json(file.to_json(clos), "plan.json") == clos


def fair(label: str, filled: float, predicted: float, measured: float) -> CaseFairness:
    def seen(rate: float) -> Seen:
        return Seen(
            [rate, None], 3, 1.0, [0.4, 0.5], [0.1, None], [0.01, 0.02], [0.03, None], [0.02, None], [0.025, None]
        )

    return CaseFairness(
        label,
        ["rings", "pipelines"],
        8,
        1e5,
        Filled([filled, None], 3, [0.2, None], 1.0),
        seen(predicted),
        seen(measured),
    )


def test_cases_of_other_jobs_are_shown_together_and_have_no_order() -> None:
    """A job that arrives: the case before has one job, the case after two."""
    both = fair("both", 2e6, 1e6, 1.1e6)

    def first_alone(one: Seen) -> Seen:
        values = [getattr(one, field.name) for field in fields(Seen)]
        return Seen(*(value[:1] if isinstance(value, list) else value for value in values))  # type: ignore[arg-type]

    on_routes = Filled(both.filled.rates_bps[:1], 3, both.filled.all_reduce_s[:1], 1.0)
    alone = replace(
        both,
        label="alone",
        jobs=["rings"],
        filled=on_routes,
        predicted=first_alone(both.predicted),
        measured=first_alone(both.measured),
    )
    assert fairness_lines([alone, both]) == []
    assert fairness_lines([alone, both, replace(both, label="again")])
    titles = [str(table.title) for table in fairness_tables([alone, both], 80)]
    assert "worst job" in titles[0]


def test_the_order_of_cases_is_held_against_filling_and_prediction() -> None:
    cases = [fair("a", 2e6, 1e6, 1.1e6), fair("b", 1e6, 2e6, 2.1e6)]
    assert same_order(cases, lambda case: case.predicted)
    assert not same_order(cases, lambda case: case.filled)
    assert same_order([fair("a", 1e6, 2e6, 1.00001e6), fair("b", 1e6, 2e6, 1e6)], lambda case: case.predicted)
    assert fairness_lines(cases) == [
        "two-layer metric: measured, it puts the cases in order NOT as filled and as predicted"
    ]
    assert not fairness_lines(cases[:1])
    assert fairness_lines([replace(cases[0], flows=0, elephants_from=1e6)]) == [
        "two-layer metric: no flow over links sends as much as --elephants-from"
    ]
    assert fairness_lines([replace(cases[0], flows=0, elephants_from=0.0)]) == [
        "two-layer metric: no flow over links: nothing is shared"
    ]


def test_its_tables_fit_80_columns() -> None:
    cases = [
        fair(f"crosspipe-greedy on joint schedules=false evaluations=10{n}", 66.67e6, 82.45e6, 82.4e6) for n in "01"
    ]
    screen = io.StringIO()
    for table in fairness_tables(cases, 80):
        Console(width=80, file=screen).print(table)
    said = screen.getvalue()
    assert max(map(len, said.splitlines())) <= 80
    assert "…" not in said
    assert "-0.06%" in said
    assert "30.00 / 30.00" in said.replace("30 / 30", "30.00 / 30.00")
    assert not fairness_tables([], 80)


def test_documents_are_read_as_they_were_written_and_every_field_is_documented() -> None:
    case = fair("a", 2e6, 1e6, 1.1e6)
    document = json.loads(json.dumps({"fairness": [asdict(case)]}))
    assert fairness_in(document) == [case]
    assert fairness_in({}) == []
    names = {CaseFairness: "an entry of `fairness`", Filled: "`filled` of an entry", Seen: "`predicted` and `measured`"}
    for kind, section in names.items():
        assert {one.name for one in fields(kind)} == documented(f"comparison.json: {section}"), section
    assert same(document, json.loads(json.dumps({"fairness": [asdict(fair("a", 2e6, 1e6 + 1e-6, 1.1e6))]})))
    assert not same(document, json.loads(json.dumps({"fairness": [asdict(fair("a", 2e6, 1.001e6, 1.1e6))]})))


def test_iterations_of_a_trace_are_joined_by_their_medians(clos: Plan) -> None:
    trace = predict_together(clos, clos.cases[0])
    three = []
    for number, later_s in enumerate((0.0, 1e-3, 5e-3)):
        one = Trace(trace.actions.copy(), trace.messages.copy(), trace.n_ranks)
        one.actions["iteration"] = one.messages["iteration"] = number
        one.messages["arrived_s"] += later_s
        three.append(one)
    found = trained(clos, 0, measured=concatenate(three))
    assert found.measured.fct_worst_s[0] == pytest.approx((found.predicted.fct_worst_s[0] or 0) + 1e-3)
    took = sorted(message.arrived_s - message.sent_s for message in typical_of_job(clos, trace, 0))
    for name, share in (("fct_median_s", 50), ("fct_p95_s", 95), ("fct_p99_s", 99), ("fct_worst_s", 100)):
        assert getattr(found.predicted, name)[0] == pytest.approx(np.percentile(took, share)), name


def test_predicted_are_the_messages_of_the_iterations_in_which_they_were_measured(clos: Plan) -> None:
    """Iterations that differ, and arrivals that are known in some of them: what went as predicted is as predicted."""
    trace, each = predict_together(clos, clos.cases[0]), list[Trace]()
    for number, longer_s in enumerate((0.0, 4e-3, 1e-3, 9e-3)):
        one = Trace(trace.actions.copy(), trace.messages.copy(), trace.n_ranks)
        one.actions["iteration"] = one.messages["iteration"] = number
        one.messages["arrived_s"] += longer_s * (1 + one.messages["microbatch"])
        each.append(one)
    case, seconds, predicted = clos.cases[0], iteration_times(clos, clos.cases[0]), concatenate(each)
    measured = concatenate(each)
    unknown = np.isin(measured.messages["iteration"], (1, 3)) & (measured.messages["microbatch"] % 2 == 1)
    measured.messages["arrived_s"][unknown] = np.nan
    found = fairness_of(clos, case, (predicted, measured), as_counted(clos, 0), (seconds, seconds), [3, 3])
    assert found.measured == found.predicted
    everything = fairness_of(clos, case, (predicted, predicted), as_counted(clos, 0), (seconds, seconds), [3, 3])
    assert (found.predicted.fct_worst_s[0] or 0) < (everything.predicted.fct_worst_s[0] or 0)


def test_messages_of_a_job_with_few_iterations_count_beside_one_with_many(clos: Plan) -> None:
    """As jobs have them that run freely."""
    trace, case = predict_together(clos, clos.cases[0]), clos.cases[0]
    each = []
    for number in range(5):
        one = Trace(trace.actions.copy(), trace.messages.copy(), trace.n_ranks)
        one.actions["iteration"] = one.messages["iteration"] = number
        keep = [np.ones(len(table), bool) if number < 1 else table["job"] == 1 for table in (one.actions, one.messages)]
        each.append(Trace(one.actions[keep[0]], one.messages[keep[1]], one.n_ranks))
    traces, seconds = (trace, concatenate(each)), iteration_times(clos, case)
    of_jobs = [planned_traffic(clos, case, [number]) for number in (0, 1)]
    counters = [
        DirectionCounters("", size, size, one.messages + 5 * other.messages)
        for one, other in zip(*of_jobs, strict=True)
        for size in [one.wire_bytes + 5 * other.wire_bytes]
    ]
    found = fairness_of(clos, case, traces, counters, (seconds, seconds), [1, 5])
    assert found.measured == found.predicted
    beside = [one._replace(counted_bytes=5e7, planned_bytes=5e7) for one in counters]
    others = fairness_of(clos, case, traces, beside, (seconds, seconds), [1, 5])
    assert others.measured.most_flows == found.predicted.most_flows, "traffic that is no job's is no flow"


def typical_of_job(plan: Plan, trace: Trace, job: int) -> list[SentMessage]:
    """Its messages over links."""
    pairs = flows_of(plan, plan.cases[0], trace).pairs
    return [
        message for name, message in typical(trace.messages).items() if name[0] == job and tuple(name[-2:]) in pairs
    ]


def test_a_run_of_an_earlier_version_had_no_percentiles_of_completion_times() -> None:
    now = json.loads(json.dumps({"fairness": [asdict(fair("a", 2e6, 1e6, 1.1e6))]}))
    was = json.loads(json.dumps(now))
    for side in ("predicted", "measured"):
        for name in ("fct_p95_s", "fct_p99_s"):
            del was["fairness"][0][side][name]
    assert same(was, now)
    assert not same(now, was)
    (earlier,) = fairness_in(was)
    assert earlier.measured.fct_p95_s == []
    assert fairness_tables([earlier, *fairness_in(now)], 80)


def test_a_damaged_entry_is_one_error(tmp_path: Path) -> None:
    facts = {"name": "x", "shaper": "netem", "transport": "t", "clock": "virtual", "ranking_as_predicted": True}
    for change, said in (
        ({"filled": {"rates_bps": [1.0], "most_flows": 1, "all_reduce_s": [None, None], "jain": 1.0}}, "1, expected"),
        ({"flows": "many"}, r"fairness\.0\.flows"),
    ):
        document = {**facts, "schedules": [], "fairness": [asdict(fair("a", 2e6, 1e6, 1.1e6)) | change]}
        (tmp_path / "comparison.json").write_text(json.dumps(document))
        with pytest.raises(BadInput, match=said):
            comparison_of(tmp_path / "comparison.json")
