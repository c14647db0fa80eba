"""No edit of one field of a plan.json is a traceback, and none is accepted that no topology could say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from in_process import run_testbed
from plan_edits import edits, fault

from testbed.errors import BadInput
from testbed.planning import file

OF_VALUES = ("network", "framing", "host_costs", "seed", "clock", "transport", "enforcement", "format", "events")
"""What nothing but its own rules holds; every edit of all fields is drawn by benchmarks/fuzz_inputs.py."""


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = tmp_path_factory.mktemp("plan") / "plan.json"
    words = ("topologies/two-dc-cards.yaml", "workloads/tiny-gpt-pp4.yaml", "--schedule", "1f1b", "--quiet")
    assert run_testbed("plan", *words, "-o", made).returncode == 0
    return made.read_text()


def test_no_edit_of_one_value_is_a_traceback_or_accepted_wrongly(text: str) -> None:
    drawn = [edit for edit in edits(json.loads(text)) if edit.field.split(".")[0] in OF_VALUES]
    assert len(drawn) > 800
    faults = [f"{edit.field} = {edit.value!r}: {why}" for edit in drawn if (why := fault(edit))]
    assert not faults, "\n".join(faults[:20])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("network.directions.0.loss", 1.5),
        ("network.directions.0.jitter_s", -1),
        ("network.directions.0.delay_s", 1e300),
        ("network.directions.0.queue_bytes", -1),
        ("network.directions.0.queue_bytes", 1),
        ("network.cards.0.loss", 0.5),
        ("network.cards.0.link", "x"),
        ("framing.mtu", -1),
        ("framing.gso_bytes", {}),
        ("host_costs.wake_s", -1),
        ("host_costs.gloo_bytes", 10**9),
        ("seed", -1),
        ("clock.seed", -1),
        ("cases.0.label", ""),
        ("jobs.0.name", "../x"),
        ("network.routes", []),
        ("jobs.0.workload.schedules.0.n_sub", -1),
    ],
)
def test_what_no_file_could_say_is_refused_by_its_name(text: str, field: str, value: object) -> None:
    tree = json.loads(text)
    parent, keys = tree, field.split(".")
    for key in keys[:-1]:
        parent = parent[int(key) if isinstance(parent, list) else key]
    parent[int(keys[-1]) if isinstance(parent, list) else keys[-1]] = value
    with pytest.raises(BadInput, match=rf"^plan.json: {field}"):
        file.from_json(json.dumps(tree), "plan.json")


@pytest.mark.parametrize(("flow", "field", "value"), [(0, "target", 0), (1, "source", 2), (2, "kind", "gradient")])
def test_a_plan_without_a_flow_that_its_ranks_need_is_refused(text: str, flow: int, field: str, value: object) -> None:
    """Such a plan was predicted, and its run ended in a worker's traceback."""
    document = json.loads(text)
    document["flows"][flow][field] = value
    with pytest.raises(BadInput, match=r"flows|routes"):
        file.from_json(json.dumps(document), "plan.json")


def test_a_setting_of_nothing_is_an_error_or_nothing(tmp_path: Path) -> None:
    for key in ("lab", "full_scale", "parallelism"):
        for workload in ("tiny-gpt-pp4", "paper-llama2-13b"):
            done = run_testbed(
                "predict", "topologies/two-dc-cards.yaml", f"workloads/{workload}.yaml", "--set", f"{key}=null"
            )
            assert done.returncode in (0, 2), done.stderr
