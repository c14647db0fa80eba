"""What the model leaves out is said: losses, jitter, ordinary TCP, queues that overflow."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from testbed.cli import app
from testbed.plan.framing import wire_bytes
from testbed.plan.plan import Background, Plan
from testbed.plan.recovery import Checkpoints, Elastic, Failure, MemoryCheckpoints, Recovery
from testbed.planning import resolve
from testbed.planning.left_out import left_out_of, warnings
from testbed.planning.prediction import ranges_of_case
from testbed.planning.queues import most_waiting, most_waiting_of_states, most_waiting_to_connect
from testbed.planning.schedules import choose, make
from testbed.planning.short_slots import of_short_slots
from testbed.spec.document import validate
from testbed.spec.topology import Topology
from testbed.spec.workload import load_workload
from testbed.units import show_size

ROOT = Path(__file__).parents[2]
WORKLOAD = ROOT / "workloads/tiny-gpt-pp4.yaml"
MESSAGE = 1_000_048 + 112 * 66
"""Bytes on the wire of a message of 1 MB, about."""


def planned(
    *,
    links: list[dict[str, Any]] | None = None,
    settings: dict[str, str] | None = None,
    events: Sequence[str] = (),
    **link: Any,
) -> Plan:
    one = {"between": ["a", "b"], "delay": "5 ms", "rate": "1 Gbit/s", **link}
    document = {
        "name": "t",
        "datacenters": {name: {"nodes": 2} for name in ("a", "b", *(["c"] if links else []))},
        "links": links or [one],
        "events": list(events),
    }
    workload = load_workload(WORKLOAD, {"schedules": "[1f1b, gpipe]", "memory": "8"} | (settings or {}))
    plan = resolve.make_plan(validate(Topology, document, "t"), workload)
    made = make(plan, choose(plan))
    return resolve.with_cases(plan, made.choices, made.made)


def test_nothing_is_said_where_everything_is_in_the_model() -> None:
    assert warnings(planned()) == []
    assert warnings(planned(queue="64 MB", reverse={"rate": "500 Mbit/s"}, settings={"receives": "late"})) == []


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"loss": 0.001}, ["loss", "a->b 0.1 %", "b->a 0.1 %"]),
        ({"forward": {"loss": 0.02}}, ["loss", "a->b 2 %"]),
        ({"reverse": {"jitter": "1 ms"}}, ["jitter", "b->a 1 ms"]),
        ({"settings": {"transport": "tcp-default"}}, ["tcp-default"]),
        ({"queue": "500 kB"}, ["queue overflows", "a->b has room for 500 kB", "b->a", "1f1b, gpipe"]),
        ({"forward": {"queue": "500 kB"}}, ["queue overflows", "a->b has room for 500 kB"]),
    ],
)
def test_everything_else_is(asked: dict[str, Any], said: list[str]) -> None:
    (line,) = warnings(planned(**asked))
    assert all(text in line for text in said), line
    assert ("b->a" in line) == any("b->a" in text for text in said)


def test_a_restart_in_which_workers_cannot_connect_is_warned_of() -> None:
    """Each of a boundary's two ranks sends the other four messages of 1 MB; without failures nobody restarts."""
    fails, slow = Recovery(None, (Failure(1, 0.3),), Elastic(1.0)), planned(rate="20 Mbit/s")
    (said,) = warnings(replace(slow, recovery=fails))
    assert "restart=1 s is too short" in said
    assert "4 messages of 1 MB, which takes 1.6 s" in said
    assert warnings(replace(slow, recovery=replace(fails, failures=()))) == []
    assert warnings(replace(planned(), recovery=fails)) == []


def test_a_link_that_nothing_crosses_is_not_warned_of() -> None:
    links: list[dict[str, Any]] = [
        {"between": ["a", "b"], "delay": "5 ms", "rate": "1 Gbit/s"},
        {"between": ["b", "c"], "delay": "5 ms", "rate": "1 Gbit/s", "loss": 0.01, "jitter": "1 ms", "queue": "1 MB"},
    ]
    assert warnings(planned(links=links, settings={"placement": "[a/0, a/1, b/0, b/1]"})) == []
    assert len(warnings(planned(links=links, settings={"placement": "[a/0, b/0, b/1, c/0]"}))) == 3


def test_a_message_waits_whole_at_its_first_link_and_as_the_rates_differ_at_the_next() -> None:
    links: list[dict[str, Any]] = [
        {"between": ["a", "b"], "delay": "5 ms", "rate": "1 Gbit/s"},
        {"between": ["b", "c"], "delay": "5 ms", "rate": "250 Mbit/s"},
    ]
    settings = {"parallelism.pipeline": "2", "placement": "[a/0, c/0]", "microbatches": "1", "schedules": "[1f1b]"}
    plan = planned(links=links, settings=settings)
    waiting = most_waiting(plan, plan.cases[0])
    there, _, onward, way_back = (waiting[0], *waiting[1:])
    beside = 1.01  # what else waits, which is not counted
    assert there == pytest.approx(beside * MESSAGE, rel=1e-3)
    # a quarter left while it came in, from the first super-packet on, which came as a whole
    assert onward == pytest.approx(beside * (MESSAGE - (MESSAGE - 65536) / 4), rel=1e-3)
    assert way_back == pytest.approx(beside * MESSAGE, rel=1e-3)
    taken = replace(plan, background=(Background("b", "c", 50e6),))
    _, _, beside_others, _ = most_waiting(taken, taken.cases[0])
    datagrams = MESSAGE / 4  # that come meanwhile
    assert beside_others == pytest.approx(beside * (MESSAGE + datagrams - (MESSAGE - 65536) / 4), rel=1e-3)


def test_what_ranks_send_when_they_connect_needs_room_too() -> None:
    crossed = {
        "parallelism.pipeline": "2",
        "parallelism.data": "2",
        "data_parallel": "{parameters: 150 kB, replicas: [[b/1, a/1]]}",
        "placement": "[a/0, b/0]",
        "schedules": "[1f1b]",
    }
    plan = planned(settings=crossed)
    (case,) = plan.cases
    connecting = most_waiting_to_connect(plan, case)
    assert connecting == pytest.approx([1.01 * 4 * MESSAGE] * 2, rel=1e-3)  # activations, gradients; 2 replicas
    training = most_waiting(plan, case)
    assert max(training) < 0.9 * max(connecting)
    for room, said in ((1.05 * max(connecting), []), (0.95 * max(connecting), ["wait while ranks connect"])):
        lines = warnings(planned(queue=f"{room:.0f} B", settings=crossed))
        assert [part in line for line, part in zip(lines, said, strict=True)] == [True] * len(said)
    assert "wait under 1f1b, while ranks connect" in warnings(planned(queue="900 kB", settings=crossed))[0]


def needed(**asked: Any) -> float:
    plan = planned(**asked)
    return max(most for case in plan.cases for most in most_waiting(plan, case))


@pytest.mark.parametrize(
    "changing",
    [
        {"events": ["link a--b rate 15 % at iteration 2"]},
        {"events": ["link a--b rate 15 % at iteration 2 + 30 ms"]},
        {"events": ["link a--b down for 300 ms at iteration 1 + 100 ms"]},
        {"settings": {"pacing.F": "{samples: [30 ms, 31 ms, 1 ms]}", "seed": "5"}},
    ],
)
def test_every_iteration_of_a_training_needs_room(changing: dict[str, Any]) -> None:
    """As links are then, and slots."""
    usual, room = needed(), needed(**changing)
    assert room > 1.5 * usual
    (line,) = [each for each in warnings(planned(queue=f"{0.99 * room:.0f} B", **changing)) if "queue" in each]
    assert f"up to {show_size(room)} wait under" in line
    assert not [each for each in warnings(planned(queue=f"{1.01 * room:.0f} B", **changing)) if "queue" in each]


def test_jobs_that_meet_later_need_room(tmp_path: Path) -> None:
    """Where each goes on when it is done itself, and they would never meet if each waited for the other."""
    (tmp_path / "t.yaml").write_text(
        "name: t\ndatacenters: {a: {nodes: 4}, b: {nodes: 4}}\n"
        "links: [{between: [a, b], delay: 5 ms, rate: 400 Mbit/s}]\n"
    )
    document = yaml.safe_load(WORKLOAD.read_text()) | {"microbatches": 1, "message": "500 kB", "iterations": 12}
    document |= {"parallelism": {"pipeline": 2}, "schedules": ["1f1b"]}
    for name, forward in (("one", "9 ms"), ("other", "29 ms")):
        job = document | {"name": name, "pacing": {"F": forward, "I": "9 ms", "W": "8 ms"}}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(job))
    plan = resolve.load_plan(tmp_path / "t.yaml", tmp_path / "one.yaml", tmp_path / "other.yaml")
    choices = [choose(plan, job=number) for number in range(2)]
    made = [make(plan, mine, job=number).made for number, mine in enumerate(choices)]
    plan = resolve.with_combinations(plan, resolve.combinations(plan, choices), made)
    together, free = (most_waiting(replace(plan, rounds=rounds), plan.cases[0]) for rounds in ("together", "free"))
    assert max(together) == pytest.approx(1.01 * wire_bytes(500_000), rel=1e-3)
    assert 1.2 * max(together) < max(free) <= 2 * max(together)


def test_states_that_are_kept_need_room() -> None:
    settings = {"parallelism.pipeline": "2", "placement": "[a/0, b/0]", "schedules": "[1f1b]"}
    plan = planned(settings=settings)
    assert most_waiting_of_states(plan, plan.cases[0]) == [0.0, 0.0]
    checkpoints = Checkpoints(every=1, save_s=0.0, restart_s=1.0, memory=MemoryCheckpoints(None, 0.0, 3_000_000))
    kept = replace(plan, recovery=Recovery(checkpoints, (Failure(1, 0.3),)))
    there, back = most_waiting_of_states(kept, kept.cases[0])
    size = wire_bytes(3_000_000)
    assert there == pytest.approx(1.01 * 2 * size, rel=1e-3)  # rank 1 has its state again, and that of rank 0 to keep
    assert back == pytest.approx(1.01 * size, rel=1e-3)


def test_predict_says_it_on_screen_and_in_json(tmp_path: Path) -> None:
    network = tmp_path / "lossy.yaml"
    network.write_text(
        "name: lossy\ndatacenters: {a: {nodes: 2}, b: {nodes: 2}}\n"
        "links: [{between: [a, b], delay: 5 ms, rate: 1 Gbit/s, loss: 0.001}]\n"
    )
    words = ["predict", str(network), str(WORKLOAD), "--set", "schedules=[1f1b]"]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert "warning: loss is not in the model" in shown.output
    (line,) = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)["warnings"]
    assert "a->b 0.1 %" in line


AROUND = {
    "parallelism.pipeline": "5",
    "memory": "5",
    "model": "{layers: 10, d_model: 32, heads: 4, sequence: 16}",
    "placement": "[a/0, c/0, a/1, c/1, b/0]",
    "message": "400 kB",
    "schedules": "[1f1b, zb-h1, crosspipe-greedy]",
}
"""A pipeline to and fro, whose messages to and from c share the links of b."""


def around(**settings: str) -> Plan:
    links = [
        {"between": ["a", "b"], "delay": "3.3 ms", "rate": "300 Mbit/s"},
        {"between": ["b", "c"], "delay": "7.1 ms", "rate": "2 Gbit/s"},
    ]
    return planned(links=links, settings=AROUND | settings)


def test_messages_of_two_ranks_that_meet_make_a_prediction_a_range() -> None:
    """Under the virtual clock zb-h1 took 896.6 ms where 891.2 ms are predicted, 1f1b 1,062.1 ms as predicted."""
    plan = around()
    ranges = {case.label: ranges_of_case(plan, case)[0] for case in plan.cases}
    assert ranges["crosspipe-greedy"] is None
    for name, measured_s in (("1f1b", 1.06208), ("zb-h1", 0.896599)):
        found = ranges[name]
        assert found is not None
        assert found.low_s < found.high_s * 0.998
        assert found.low_s < measured_s < found.high_s
    (said,) = warnings(plan)
    assert "1f1b" in said
    assert "zb-h1" in said
    assert "crosspipe" not in said


def test_messages_of_two_ranks_that_come_one_after_the_other_do_not() -> None:
    slots = "{F: [20 ms, 21.3 ms, 17.9 ms, 22.7 ms, 19.1 ms], I: 18.7 ms, W: 16.1 ms}"
    assert warnings(around(pacing=slots)) == []


def test_late_receives_whose_prediction_hangs_on_a_tie_are_a_range() -> None:
    """Four equal datacenters: under the virtual clock zb1p took 3,230.9 ms where 3,194 ms are predicted."""
    sites = ("a", "b", "c", "d")
    links = [{"between": list(pair), "delay": "5 ms", "rate": "201478400 bit/s"} for pair in pairwise(sites)]
    topology = {"name": "t", "datacenters": {name: {"nodes": 1} for name in sites}, "links": links}
    settings = {"schedules": "[1f1b, zb1p]", "memory": "8", "receives": "late"}

    def plan_of(receives: str) -> Plan:
        workload = load_workload(WORKLOAD, settings | {"receives": receives})
        plan = resolve.make_plan(validate(Topology, topology, "t"), workload)
        made = make(plan, choose(plan))
        return resolve.with_cases(plan, made.choices, made.made)

    late = plan_of("late")
    (said,) = warnings(late)
    assert "zb1p" in said
    assert "1f1b" not in said
    (found,) = ranges_of_case(late, late.cases[1])
    assert found is not None
    assert found.low_s < found.high_s * 0.99
    assert found.low_s * 0.9998 < 3.2309 < found.high_s * 1.0002
    assert warnings(plan_of("early")) == []


def test_what_is_left_out_is_said_of_every_case() -> None:
    plan = planned(loss=0.001)
    (line,) = left_out_of(plan, plan.cases[0], 0)
    assert "loss is not in the model" in line
    clean = planned()
    assert left_out_of(clean, clean.cases[0], 0) == []


def test_nodes_with_less_than_a_processor_for_every_rank_are_said() -> None:
    """On a real clock they come late, and that is no fault of the machine's."""
    document = {
        "name": "t",
        "datacenters": {"a": {"nodes": 2, "cpus": 0.5}, "b": {"nodes": 2, "cpus": 1}},
        "links": [{"between": ["a", "b"], "delay": "5 ms", "rate": "1 Gbit/s"}],
    }
    plan = resolve.make_plan(validate(Topology, document, "t"), load_workload(WORKLOAD, {"schedules": "[1f1b]"}))
    (line,) = warnings(plan)
    assert "limits of processors are not in the model (a/0 0.5, a/1 0.5): " in line


def test_slots_that_are_short_beside_a_wait_that_nobody_notices_are_said() -> None:
    """Lab and model leave out the same waits: only a prediction in which all count tells what that is."""

    def said(slot: str) -> list[str]:
        settings = {"pacing": f"{{F: {slot}, I: {slot}, W: {slot}}}", "message": "66 kB", "schedules": "[1f1b, zb-h1]"}
        return warnings(planned(delay="150 us", rate="10 Gbit/s", settings=settings))

    (line,) = said("300 us")
    assert line.startswith("slots of 300 us are short beside the 200 us that a rank waits unnoticed")
    assert "if every wait counted, zb-h1 would take +" in line
    assert said("20 ms") == []
    plan = planned(delay="150 us", rate="10 Gbit/s", settings={"pacing": "{F: 300 us, I: 300 us, W: 300 us}"})
    unpaced = replace(plan.jobs[0], workload=plan.jobs[0].workload.model_copy(update={"pacing": None}))
    assert of_short_slots(replace(plan, jobs=(plan.jobs[0], unpaced))) == [], "nothing is predicted of these"
