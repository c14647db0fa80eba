"""The IR's notation: whatever is printed is read back, and nothing else is read."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.pipeline.ir import COMPUTE, WHOLE, WHOLE_STAGE, Action, Kind, Part, Schedule, parse_action


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
    """torch's parser accepts several of these silently (reading/pipelining.md, section 4)."""
    with pytest.raises(ValueError, match=r"not an action|not a part|takes"):
        parse_action(text)


def test_a_schedule_survives_json() -> None:
    rows = (
        (Action(0, Kind.F, 0), Action(0, Kind.F, 1, Part(0, 2, 4)), Action(0, Kind.B, 0)),
        (Action(1, Kind.F, 0), Action(1, Kind.I, 0), Action(1, Kind.W, 0)),
    )
    schedule = Schedule("made", rows, (0, 1), 2)
    assert Schedule.from_json("made", json.loads(json.dumps(schedule.as_json()))) == schedule
