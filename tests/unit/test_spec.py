"""Files: what is good is read with the right values, what is bad gives one error that says what was expected."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import BadInput
from testbed.full_scale import similitude
from testbed.plan.costs import largest_burst_bytes, predict
from testbed.plan.framing import MSS, PREAMBLE_BYTES, wire_bytes
from testbed.plan.routes import datacenter_of, shortest
from testbed.planning.resolve import cuts, generate, make_plan, pipeline_nodes, with_cases
from testbed.planning.schedules import choose
from testbed.spec import load_topology, load_workload
from testbed.spec.choice import ScheduleChoice
from testbed.spec.document import validate
from testbed.spec.topology import Topology
from testbed.spec.workload import Workload
from testbed.units import LENGTH, RATE, SIZE, TIME, parse, show_rate, show_time

ROOT = Path(__file__).parents[2]
TOPOLOGIES = sorted((ROOT / "topologies").glob("*.yaml"))
WORKLOADS = sorted((ROOT / "workloads").glob("*.yaml"))


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda path: path.stem)
@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda path: path.stem)
def test_every_shipped_pair_makes_a_plan(topology: Path, workload: Path) -> None:
    network, job = load_topology(topology), load_workload(workload)
    fastest_bps = max(one.rate_bps for one in (*network.directions(), *network.cards()))
    if fastest_bps > similitude.MOST_RATE_BPS and job.full_scale is None:
        with pytest.raises(BadInput, match="or a workload with full_scale"):
            make_plan(network, job)
        return
    slowest, at = min(network.directions(), key=lambda one: one.rate_bps), similitude.scales(job, gloo_bytes=0.0)
    if at is not None and similitude.direction_at(slowest, at).rate_bps < similitude.LEAST_RATE_BPS:
        with pytest.raises(BadInput, match=r"another lab\.slot or lab\.message"):
            make_plan(network, job)
        return
    if len(network.nodes()) < job.parallelism.pipeline * job.parallelism.data:
        with pytest.raises(BadInput, match="can place contiguously"):
            make_plan(network, job)
        return
    plan = make_plan(network, job)
    assert cuts(plan.jobs[0])
    for choice in choose(plan):
        assert predict(plan, choice, generate(plan, choice).schedule).makespans()[0] > 0


def test_a_link_has_two_directions_of_its_own(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {
            "name": "two",
            "datacenters": {"a": {"nodes": 1}, "b": {"nodes": 1}},
            "links": [
                {
                    "between": ["a", "b"],
                    "fibre": "120 km",
                    "delay": "1 ms",
                    "equipment_delay": "200 us",
                    "rate": "40 Gbit/s",
                    "reverse": {"fibre": "60 km", "rate": "100 Mbit/s"},
                }
            ],
        },
    )
    forward, reverse = load_topology(path).directions()
    assert (forward.source, forward.target, forward.rate_bps) == ("a", "b", 40e9)
    assert forward.delay_s == pytest.approx(120e3 * 5e-9 + 1e-3 + 200e-6)
    assert (reverse.source, reverse.target, reverse.rate_bps) == ("b", "a", 100e6)
    assert reverse.delay_s == pytest.approx(60e3 * 5e-9 + 1e-3 + 200e-6)
    assert (forward.loss, forward.jitter_s) == (0, 0)


def test_the_least_delay_is_the_route() -> None:
    chain = load_topology(ROOT / "topologies/three-region.yaml")
    assert shortest(chain.directions(), "wuhan", "shenzhen") == (0, 2)
    assert shortest(chain.directions(), "shenzhen", "wuhan") == (3, 1)
    assert shortest(chain.directions(), "wuhan", "wuhan") == ()


TOPOLOGY = yaml.safe_load((ROOT / "topologies/two-dc-metro.yaml").read_text())
WORKLOAD = yaml.safe_load((ROOT / "workloads/tiny-gpt-pp4.yaml").read_text())


def write(directory: Path, document: object) -> Path:
    path = directory / "file.yaml"
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document, sort_keys=False))
    return path


def changed(document: dict[str, Any], key: str, value: object) -> dict[str, Any]:
    copy: dict[str, Any] = yaml.safe_load(yaml.safe_dump(document, sort_keys=False))
    *parents, last = key.split(".")
    target: Any = copy
    for parent in parents:
        target = target[int(parent) if isinstance(target, list) else parent]
    target[last] = value
    return copy


@pytest.mark.parametrize(
    ("key", "value", "field", "expected"),
    [
        ("nme", "x", "nme", "no such field"),
        ("name", "Has Capitals; rm -rf", "name", "lower-case letters, digits and hyphens"),
        ("links.0.rate", "1 GB/s", "links.0.rate", "a rate with a unit"),
        ("links.0.rate", "1000", "links.0.rate", "a rate with a unit"),
        ("links.0.rate", None, "links.0.rate", "a rate for both directions"),
        ("links.0.fibre", "120 ms", "links.0.fibre", "a length with a unit"),
        ("links.0.fibre", "-1 km", "links.0.fibre", "a length with a unit"),
        ("links.0.fibre", "1e9 km", "links.0.fibre", "a length from 0 to 40000 km"),
        ("links.0.between", ["wuqing", "narnia"], "links.0.between", "one of the datacenters (wuqing, runze)"),
        ("links.0.between", ["wuqing", "wuqing"], "links.0.between", "two different"),
        ("links.0.loss", 1.5, "links.0.loss", "to below 1, or as per cent"),
        ("links.0.latency", "1 ms", "links.0.latency", "no such field"),
        ("datacenters.wuqing.nodes", -1, "datacenters.wuqing.nodes", "at least 0"),
        ("datacenters", {}, "datacenters", "at least 1 entry"),
        ("links", [*TOPOLOGY["links"], *TOPOLOGY["links"]], "links.1.name", "a name that links.0 has not"),
    ],
)
def test_a_bad_topology(tmp_path: Path, key: str, value: object, field: str, expected: str) -> None:
    path = write(tmp_path, changed(TOPOLOGY, key, value))
    with pytest.raises(BadInput) as caught:
        load_topology(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: {field}: got "), message
    assert expected in message


@pytest.mark.parametrize(
    ("key", "value", "field", "expected"),
    [
        ("microbatchs", 8, "microbatchs", "no such field"),
        ("microbatches", 0, "microbatches", "at least 1"),
        ("microbatches", "many", "microbatches", "a whole number"),
        ("model.heads", 5, "model.heads", "a divisor of d_model (64)"),
        ("model.layers", 3, "model.layers", "at least one layer per stage (4)"),
        ("pacing", "fast", "pacing", "a mapping of fields"),
        ("pacing.F", "20 km", "pacing.F", "a time with a unit"),
        ("pacing.F", ["1 ms", "2 ms"], "pacing.F", "one time for each of 4 ranks"),
        ("parallelism.data", 0, "parallelism.data", "at least 1"),
        ("memory", [4, 4], "memory", "one limit for each of 4 ranks"),
        ("memory", 0, "memory", "microbatches in flight from 1 to 1000000"),
        ("message", "1 kB", "message", "at least the boundary tensor (65.54 kB, 65536 B)"),
        ("placement", ["wuqing/0"], "placement", "one node for each of 4 ranks"),
        ("schedules", [], "schedules", "at least 1 entry"),
        ("schedules", [{"schedule": "1f1b", "memory": 0}], "schedules.0.memory", "more than 0"),
        ("schedules", ["1f1b", "1f1b"], "schedules.1.label", "a label of its own (schedules.0 has this one)"),
        ("schedules", [{"schedule": "1f1b", "label": "a/b"}], "schedules.0.label", "a label in letters, digits"),
        ("schedules", [{"schedule": "none.csv"}], "schedules.0.schedule", "a readable file"),
        ("model.kind", "lstm", "model.kind", "one of gpt, linear, or FILE.py:NAME"),
        ("model.width", 3, "model.width", "no such field"),
        ("transport", "udp", "transport", "'otn-lossless', 'tcp-default', 'tcp-cubic' or 'tcp-bbr'"),
    ],
)
def test_a_bad_workload(tmp_path: Path, key: str, value: object, field: str, expected: str) -> None:
    path = write(tmp_path, changed(WORKLOAD, key, value))
    with pytest.raises(BadInput) as caught:
        load_workload(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: {field}"), message
    assert expected in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "a mapping of fields"),
        ("[1, 2]", "a mapping of fields"),
        ("a: [", "valid YAML"),
        ("a: 1\na: 2", "every key once"),
        ("!!python/object:os.system x", "a value without a tag"),
    ],
)
def test_what_is_not_a_document(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(BadInput, match=expected):
        load_topology(write(tmp_path, text))


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(b"name: \xff\xfe")
    with pytest.raises(BadInput, match="UTF-8 text"):
        load_topology(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="file: got 'No such file or directory'"):
        load_topology(tmp_path / "nothing.yaml")


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        (changed(changed(WORKLOAD, "parallelism.pipeline", 9), "model.layers", 9), "no more stages than two-dc-metro"),
        (changed(WORKLOAD, "placement", ["wuqing/0", "wuqing/1", "runze/0", "runze/9"]), "a node of two-dc-metro"),
        (changed(WORKLOAD, "schedules", ["1f1b", "2f2b"]), "schedules.1.schedule: got '2f2b', expected one of"),
        (changed(WORKLOAD, "parallelism.data", 5), "no more stages than two-dc-metro can place"),
        (
            changed(changed(WORKLOAD, "parallelism.data", 2), "data_parallel", {"replicas": [["runze/0"] * 4]}),
            "a node that no other rank has",
        ),
    ],
)
def test_a_workload_that_does_not_fit_the_topology(tmp_path: Path, workload: dict[str, Any], expected: str) -> None:
    topology = load_topology(ROOT / "topologies/two-dc-metro.yaml")
    with pytest.raises(BadInput, match=r"tiny-gpt-pp4: ") as caught:
        make_plan(topology, load_workload(write(tmp_path, workload)))
    assert expected in str(caught.value)


def test_datacenters_that_are_not_connected(tmp_path: Path) -> None:
    topology = load_topology(write(tmp_path, changed(TOPOLOGY, "links", [])))
    with pytest.raises(BadInput, match="no path wuqing -> runze"):
        make_plan(topology, load_workload(ROOT / "workloads/tiny-gpt-pp4.yaml"))


def test_settings_are_laid_over_the_file() -> None:
    settings = {"microbatches": "16", "model.sequence": "32", "pacing": "none", "schedules": "[1f1b]"}
    workload = load_workload(ROOT / "workloads/tiny-gpt-pp4.yaml", settings)
    assert (workload.microbatches, workload.model.sequence, workload.model.d_model) == (16, 32, 64)  # type: ignore[attr-defined]  # of the GPT
    assert workload.pacing is None
    assert [choice.schedule for choice in workload.schedules] == ["1f1b"]
    with pytest.raises(
        BadInput, match=r"yaml: microbatches.x: got '1', expected a field that holds others before .x, not 8"
    ):
        load_workload(ROOT / "workloads/tiny-gpt-pp4.yaml", {"microbatches.x": "1"})


def test_placement_is_contiguous_and_even() -> None:
    four = load_topology(ROOT / "topologies/four-dc.yaml")
    plan = make_plan(four, load_workload(ROOT / "workloads/tiny-gpt-pp8.yaml"))
    assert [datacenter_of(node) for node in pipeline_nodes(plan.jobs[0])] == [
        dc for dc in four.datacenters for _ in range(2)
    ]
    assert cuts(plan.jobs[0]) == (1, 3, 5)


@pytest.mark.parametrize(
    ("nodes", "stages", "shares"),
    [
        ((3, 1, 2), 6, (3, 1, 2)),
        ((4, 1), 4, (3, 1)),
        ((5, 5, 1), 9, (4, 4, 1)),
        ((3, 3, 2), 8, (3, 3, 2)),
        ((4, 4), 3, (2, 1)),
        ((2, 2, 2), 2, (1, 1, 0)),
    ],
)
def test_placement_uses_every_node_and_is_as_even_as_they_let_it_be(
    nodes: tuple[int, ...], stages: int, shares: tuple[int, ...]
) -> None:
    pipeline = placed(nodes, stages)
    assert tuple(pipeline.count(str(site)) for site in "abc"[: len(nodes)]) == shares
    assert sorted(pipeline) == pipeline  # contiguous


@given(nodes=st.lists(st.integers(1, 5), min_size=1, max_size=3), data=st.data())
def test_whatever_there_are_nodes_for_can_be_placed(nodes: list[int], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, sum(nodes)))
    pipeline = placed(tuple(nodes), stages)
    shares = [pipeline.count(site) for site in "abc"[: len(nodes)]]
    assert sum(shares) == stages
    # a datacenter has two stages less than another only where it is full
    assert all(share == room or share >= max(shares) - 1 for share, room in zip(shares, nodes, strict=True))


def placed(nodes: tuple[int, ...], stages: int) -> list[str]:
    """The datacenter of every stage on datacenters a, b, c with so many nodes."""
    names = "abc"[: len(nodes)]
    datacenters = {name: {"nodes": count} for name, count in zip(names, nodes, strict=True)}
    links = [{"between": [a, b], "delay": "1 ms", "rate": "1 Gbit/s"} for a, b in pairwise(names)]
    topology = validate(Topology, {"name": "uneven", "datacenters": datacenters, "links": links}, "uneven.yaml")
    settings = {"parallelism.pipeline": str(stages), "model.layers": str(stages)}
    plan = make_plan(topology, load_workload(ROOT / "workloads/tiny-gpt-pp4.yaml", settings))
    return [datacenter_of(node) for node in pipeline_nodes(plan.jobs[0])]


json_like = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda child: st.lists(child, max_size=3) | st.dictionaries(st.text(max_size=6), child, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize(("model", "document"), [(Topology, TOPOLOGY), (Workload, WORKLOAD)])
@given(data=st.data(), value=json_like)
def test_any_field_with_any_value_is_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, model: type, document: dict[str, Any], data: st.DataObject, value: object
) -> None:
    key = data.draw(st.sampled_from(sorted(document)))
    path = write(tmp_path_factory.mktemp("fuzz"), yaml.safe_dump({**document, key: value}, allow_unicode=True))
    said = ""
    try:
        (load_topology if model is Topology else load_workload)(path)
    except BadInput as error:
        said = str(error)
    assert not said or said.startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("text", "units", "value"),
    [
        ("120 km", LENGTH, 120e3),
        ("10ms", TIME, 0.01),
        ("5 µs", TIME, 5e-6),
        ("1_000 Mbit/s", RATE, 1e9),
        ("2.5e1 Gbit/s", RATE, 25e9),
        ("64 MB", SIZE, 64e6),
        ("1 KiB", SIZE, 1024),
        (0, TIME, 0),
    ],
)
def test_quantities(text: object, units: dict[str, float], value: float) -> None:
    assert parse(text, units, "a quantity") == pytest.approx(value)


@pytest.mark.parametrize(
    "text", ["10", 10, "ms", "10 mbps", "1 GBps", "ten ms", "-1 ms", "1e999 s", True, None, "1 ms; ls"]
)
def test_what_is_not_a_quantity(text: object) -> None:
    with pytest.raises(ValueError, match="a time with a unit"):
        parse(text, TIME, "a time")


def test_shown_as_a_person_would_write_it() -> None:
    assert [show_time(0.0102), show_time(1e-6), show_rate(1e9), show_time(0)] == ["10.2 ms", "1 us", "1 Gbit/s", "0 s"]


@pytest.mark.parametrize(("dtype", "element_bytes"), [("float32", 4), ("float64", 8)])
def test_a_message_has_whole_elements_as_the_tensor_that_is_sent(dtype: str, element_bytes: int) -> None:
    model = f"{{kind: linear, layers: 4, d_model: 3, sequence: 3, dtype: {dtype}}}"
    workload = load_workload(ROOT / "workloads/tiny-gpt-pp4.yaml", {"model": model, "message": "1301 B"})
    assert workload.message_bytes() == element_bytes * -(-1301 // element_bytes)


def test_headers_are_part_of_a_message() -> None:
    assert wire_bytes(0) == 0
    assert wire_bytes(MSS - PREAMBLE_BYTES) == MSS - PREAMBLE_BYTES + 66
    assert wire_bytes(MSS - PREAMBLE_BYTES + 1) == MSS - PREAMBLE_BYTES + 1 + 2 * 66


@pytest.mark.parametrize(
    ("data_parallel", "expected"),
    [
        ({"replicas": [["a/0"] * 4, ["a/1"] * 4]}, "1 pipelines beside the first"),
        ({"replicas": [["a/0"]]}, "one node for each of 4 ranks"),
        ({"parameters": 0}, "data_parallel.parameters"),
    ],
)
def test_replicas_that_do_not_fit(tmp_path: Path, data_parallel: dict[str, Any], expected: str) -> None:
    workload = changed(changed(WORKLOAD, "parallelism.data", 2), "data_parallel", data_parallel)
    with pytest.raises(BadInput) as caught:
        load_workload(write(tmp_path, workload))
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("schedule", "memory", "messages"),
    [("1f1b", 4, 8), ("1f1b", 2, 4), ("zb1p", 4, 16), ("zb-v", 16, 16), ("zb-v", 1, 4)],
)
def test_what_a_rank_may_have_on_its_way_is_bounded(schedule: str, memory: int, messages: int) -> None:
    """8 microbatches, 4 ranks: a boundary carries 8 messages each way, a V or a loop puts two between two ranks."""
    workload = load_workload(ROOT / "workloads/tiny-gpt-pp4.yaml", {"message": "1 MB", "microbatches": "8"})
    plan = make_plan(load_topology(ROOT / "topologies/two-dc-longhaul.yaml"), workload)
    choice = ScheduleChoice(schedule=schedule, memory=memory)
    assert largest_burst_bytes(with_cases(plan, [choice], {})) == messages * (112 + 2) * MSS


def test_where_activations_are_computed_again_a_limit_has_room_for_more_of_them() -> None:
    """So a rank may have more on its way: of 8 microbatches all, where a window of 2 x 1 would hold them back."""
    settings = {"message": "1 MB", "microbatches": "8", "recompute": "true"}
    workload = load_workload(ROOT / "workloads/tiny-gpt-pp4.yaml", settings)
    plan = make_plan(load_topology(ROOT / "topologies/two-dc-longhaul.yaml"), workload)
    choice = ScheduleChoice(schedule="crosspipe-greedy", memory=1)
    assert largest_burst_bytes(with_cases(plan, [choice], {})) == 8 * (112 + 2) * MSS


def test_a_window_counts_segments_however_full_they_are() -> None:
    """With each message two small ones: what gloo puts before it, and the notice of one that comes the other way."""
    topology = load_topology(ROOT / "topologies/two-dc-longhaul.yaml")
    for message, segments in (("1024 B", 1), ("8948 B", 1), ("8949 B", 2), ("77536 B", 9)):
        settings = {
            "model.d_model": "8",
            "model.heads": "2",
            "model.sequence": "8",
            "message": message,
            "microbatches": "8",
        }
        plan = make_plan(topology, load_workload(ROOT / "workloads/tiny-gpt-pp4.yaml", settings))
        choice = ScheduleChoice(schedule="1f1b", memory=4)
        assert largest_burst_bytes(with_cases(plan, [choice], {})) == 8 * (segments + 2) * MSS


@pytest.mark.parametrize("name", ["]", "list[str]", "float", "a)"])
def test_a_field_that_does_not_exist_may_be_called_anything(name: str) -> None:
    with pytest.raises(BadInput, match="no such field"):
        validate(Workload, {"name": "w", "model": {name: None}}, "w.yaml")


@pytest.mark.parametrize("loss", [0.001, "0.1 %", " 0.1%"])
def test_loss_is_a_share_or_per_cent(loss: object) -> None:
    link = {"between": ["a", "b"], "delay": "1 ms", "rate": "1 Gbit/s", "loss": loss}
    topology = validate(
        Topology, {"name": "x", "datacenters": {"a": {"nodes": 1}, "b": {"nodes": 1}}, "links": [link]}, "file"
    )
    assert topology.links[0].direction("forward").loss == pytest.approx(0.001)
