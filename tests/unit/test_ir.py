"""The IR's notation: whatever is printed is read back, and nothing else is read."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import BadInput
from testbed.pipeline.ir import COMPUTE, WHOLE, WHOLE_STAGE, Action, Kind, Part, parse_action
from testbed.pipeline.problem import uniform
from testbed.schedule.registry import Generated, generate
from testbed.schedule.schedule_file import as_entry, kept_in
from testbed.search.proof import Proof


@st.composite
def actions(draw: st.DrawFn) -> Action:
    kind = draw(st.sampled_from(list(Kind)))
    part = WHOLE
    if kind in COMPUTE and draw(st.booleans()):
        of = draw(st.integers(2, 64))
        begin = draw(st.integers(0, of - 1))
        part = Part(begin, draw(st.integers(begin + 1, of)), of)
    microbatch = None if kind in WHOLE_STAGE else draw(st.integers(0, 5000))
    return Action(draw(st.integers(0, 300)), kind, microbatch, part)


@given(actions())
def test_what_is_printed_is_read_back(action: Action) -> None:
    assert parse_action(str(action)) == action


@given(actions(), st.text(min_size=1, max_size=4))
def test_anything_behind_an_action_is_an_error_or_another_action(action: Action, garbage: str) -> None:
    text = str(action) + garbage
    try:
        parsed = parse_action(text)
    except ValueError:
        return
    assert str(parsed) == text


@pytest.mark.parametrize(
    "text",
    [
        "0F0garbage",
        "12W34x",
        "0RECV_F1;1F1",
        "0F 0",
        "0F-1",
        "1B",
        "1SEND_F",
        "0UNSHARD3",
        "00F007",
        "0f0",
        "F0",
        "-1F0",
        "0 F0",
        "0X1",
        "# c",
        "\ufeff0F0",
        "",
        "0F0[0:4/4",
        "0F0[2:2/4]",
        "0F0[3:5/4]",
        "0F0[0:1/1]",
        "0SEND_F0[0:1/2]",
        "0F٣",
        "0F0\n",
    ],
)
def test_what_is_not_an_action(text: str) -> None:
    """torch's parser accepts several of these silently."""
    with pytest.raises(ValueError, match=r"not an action|not a part|takes"):
        parse_action(text)


def test_schedules_survive_their_file() -> None:
    problem = uniform(4, 8, delay_s=2, cuts=(1,), memory=2.5)
    made = {
        "gpipe": Generated(
            generate("gpipe", problem.with_memory(8.0)), Proof(2.0, 1.5, 0.25, "time limit", 10.0, 10.1)
        ),
        "greedy": Generated(generate("crosspipe-greedy", problem), None),
    }
    entries = {name: as_entry(one) for name, one in made.items()}
    kept = kept_in(json.dumps(entries), "schedules.json")
    assert kept == {name: (one.schedule.rows, one.proof, "schedules.json") for name, one in made.items()}
    by_job = {name: {"jobs": {"a job": one}} for name, one in entries.items()}
    assert kept_in(json.dumps(by_job), "schedules.json") == kept, "as a run writes them"
    assert any(action.part.of > 1 for row in kept["greedy"].rows for action in row), "sub-blocks among them"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "expected name -> rows and solver, as a run's schedules.json has it"),
        ("[]", "an object: name -> rows"),
        ('{"1f1b": []}', "1f1b: got [], expected an object with"),
        ('{"1f1b": {"rows": [], "solver": null}}', "1f1b.rows: got [], expected a list of rows"),
        ('{"1f1b": {"rows": [["0F0"], "1F0"], "solver": null}}', "1f1b.rows.1: got '1F0'"),
        ('{"1f1b": {"rows": [["0F0 0F1"]], "solver": null}}', "not an action: '0F0 0F1'"),
        ('{"1f1b": {"rows": [["0F0"]], "solver": {}}}', "1f1b.solver.makespan_s: got 'nothing'"),
    ],
)
def test_a_schedule_file_with_an_error(text: str, expected: str) -> None:
    with pytest.raises(BadInput) as caught:
        kept_in(text, "schedules.json")
    assert expected in str(caught.value)
