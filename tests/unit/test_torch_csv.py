"""torch's CSV: what we write we read back, what torch would misread we refuse."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest

from testbed.errors import BadInput
from testbed.pipeline.ir import WHOLE, Kind, Schedule
from testbed.pipeline.problem import uniform
from testbed.pipeline.torch_csv import Form, from_csv, to_csv, whole_blocks
from testbed.pipeline.validate import InvalidSchedule
from testbed.schedule.registry import FAMILIES, generate


@cache
def schedule_of(name: str, p: int, m: int) -> Schedule:
    placement = FAMILIES[name].stage_to_rank(p)
    return generate(name, uniform(p, m, memory=float(2 * p + m), delay_s=0.3, stage_to_rank=placement))


# "search" looks for seconds; its schedules are of the greedy's form
@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("name", sorted(set(FAMILIES) - {"search"}))
def test_round_trip(name: str, form: Form) -> None:
    shapes = [(2, 1), (3, 4), (4, 7)] if FAMILIES[name].solver else product((2, 3, 4), (1, 4, 7))
    for p, m in shapes:
        whole = whole_blocks(schedule_of(name, p, m))
        text = to_csv(whole, form)
        assert from_csv(text, name) == whole
        assert from_csv(text, name, m) == whole
        assert not any(line.endswith(",") for line in text.splitlines())


def test_sub_blocks_are_merged_where_their_last_part_stands() -> None:
    schedule = schedule_of("crosspipe-greedy", 4, 8)
    assert any(action.part != WHOLE for _, action in schedule.actions())
    merged = whole_blocks(schedule)
    for before, after in zip(schedule.rows, merged.rows, strict=True):
        assert [a._replace(part=WHOLE) for a in before if a.part.is_last] == list(after)
    assert from_csv(to_csv(schedule, Form.COMPUTE_ONLY), schedule.name) == merged
    assert whole_blocks(merged) == merged


def test_compute_comms_in_full() -> None:
    """The whole text for a V on two ranks: receives first, in the order of the sender, no message inside a rank."""
    text = "0F0,3F0,3B0,0B0\n1F0,2F0,2I0,2W0,1B0\n"
    assert to_csv(from_csv(text, "v"), Form.COMMS) == (
        "3RECV_F0,0RECV_B0,0F0,0SEND_F0,3F0,3B0,3SEND_B0,3REDUCE_GRAD,0B0,0REDUCE_GRAD\n"
        "1RECV_F0,2RECV_B0,1F0,2F0,2SEND_F0,2I0,2W0,2REDUCE_GRAD,1B0,1SEND_B0,1REDUCE_GRAD\n"
    )


def test_a_wait_stands_where_torch_itself_puts_it() -> None:
    """A forward's behind its own backward, for which the message must have arrived; all others at the end."""
    text = "0F0,3F0,3B0,0B0\n1F0,2F0,2I0,2W0,1B0\n"
    assert to_csv(from_csv(text, "v"), Form.COMMS_AND_WAITS) == (
        "3RECV_F0,0RECV_B0,0F0,0SEND_F0,3F0,3B0,3SEND_B0,3REDUCE_GRAD,3WAIT_REDUCE_GRAD,"
        "0B0,0WAIT_SEND_F0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,3WAIT_SEND_B0\n"
        "1RECV_F0,2RECV_B0,1F0,2F0,2SEND_F0,2I0,2WAIT_SEND_F0,2W0,2REDUCE_GRAD,2WAIT_REDUCE_GRAD,"
        "1B0,1SEND_B0,1REDUCE_GRAD,1WAIT_REDUCE_GRAD,1WAIT_SEND_B0\n"
    )


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - {"search"}))
def test_every_send_and_reduction_is_waited_for_once_and_later(name: str) -> None:
    for row in to_csv(schedule_of(name, 4, 7), Form.COMMS_AND_WAITS).splitlines():
        cells = row.split(",")
        begun = [cell for cell in cells if "SEND" in cell or "REDUCE" in cell if "WAIT" not in cell]
        waited = [cell.replace("WAIT_", "") for cell in cells if "WAIT" in cell]
        assert sorted(begun) == sorted(waited)
        assert len({*begun}) == len(begun) > 0
        assert all(
            cells.index(cell) < cells.index(cell.replace("SEND", "WAIT_SEND")) for cell in begun if "SEND" in cell
        )


@pytest.mark.parametrize("sender", [0, 1])
def test_messages_are_sent_and_received_once_and_in_one_order_per_pair(sender: int) -> None:
    rows = to_csv(schedule_of("zb-v", 2, 5), Form.COMMS).splitlines()
    sent = [cell.replace("SEND", "RECV") for cell in rows[sender].split(",") if "SEND" in cell]
    received = [cell for cell in rows[1 - sender].split(",") if "RECV" in cell]
    step = {"F": 1, "B": -1}
    expected = [f"{int(cell[0]) + step[cell[6]]}{cell[1:]}" for cell in sent]
    assert received == expected
    assert len(received) == 10


def test_what_torch_dumps_is_read() -> None:
    overlapped = from_csv("0F0, 0F1 ,(0F2;0B0)OVERLAP_F_B,,0B1,0B2\r\n", "overlapped")
    assert overlapped.rows == from_csv("0F0,0F1,0F2,0B0,0B1,0B2", "plain").rows
    lowered = "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0\n"
    assert [str(a) for a in from_csv(lowered, "lowered").rows[1]] == ["1F0", "1B0"]
    assert all(action.kind in (Kind.F, Kind.B) for _, action in from_csv(lowered, "lowered").actions())


@pytest.mark.parametrize(
    "cell",
    [
        "0F0garbage",
        "12W34x",
        "0RECV_F1;1F1",
        "0F 0",
        "0F-1",
        "1B",
        "1SEND_F",
        '"(0F1,3B0)OVERLAP_F_B"',
        "(0F1;1F2)F",
        "()OVERLAP_F_B",
        "(0F0)OVERLAP_F_B",
        "(0F0;0SEND_F0)OVERLAP_F_B",
        "((0F0;0B0)OVERLAP_F_B;0F1)OVERLAP_F_B",
        "(0F0;0B0",
        "0UNSHARD3",
        "00F007",
        "0f0",
        "-1F0",
        "# comment",
        "\ufeff0F0",
        "0F0[0:1/2]",
        "1F0",
    ],
)
def test_a_bad_cell_is_named(cell: str) -> None:
    text = f"0F0,0B0,0F1,0B1\n1F0,1B0,1F1,{cell}\n"
    if cell == "1F0":
        with pytest.raises(InvalidSchedule, match="rank 1, action 3"):
            from_csv(text, "file")
    else:
        with pytest.raises(BadInput, match=r"^file: row 2, cell 4: got"):
            from_csv(text, "file")


def test_empty_lines_at_the_end_are_no_ranks() -> None:
    assert from_csv("0F0,0B0\r\n\r\n  \n", "file") == from_csv("0F0,0B0", "file")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "stages"),
        ("0F0,0B0\n\n1F0,1B0\n", "row 2"),
        ("0F0,0B0\n,,\n", "row 2"),
        ("0F0,0B0\n2F0,2B0\n", "stages"),
        ("0F0,0B0\n1F0,1B0,0F1,0B1\n", "row 2, cell 3"),
        ("0F99999999999,0B0", "microbatches"),
        ("0F0,0F0,0B0", "already"),
        ("0F5,0B5,0F9,0B9,0F0,0B0,0F1,0B1,0F2,0B2", "stage 0, microbatch 3"),
        ("0F0,0B0,0I0,0W0", "expected F and B"),
        ("0B0,0F0", "comes before"),
        ("0F0,0W0,0I0", "comes before"),
        ("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", "waits for ever"),
        ('0F0,"0B0', "expected a CSV file"),
    ],
)
def test_a_file_that_is_no_schedule_is_refused(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        from_csv(text, "file")


def test_the_number_of_microbatches_is_checked_when_given() -> None:
    with pytest.raises(BadInput, match="microbatch"):
        from_csv("0F0,0B0", "file", 2)
    with pytest.raises(BadInput, match="microbatch"):
        from_csv("0F0,0B0,0F1,0B1", "file", 1)
