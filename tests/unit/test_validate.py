"""The validator points at the action that breaks a rule, and passes everything the generators make."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import QUICK, fitting, quick

from testbed.errors import BadInput
from testbed.pipeline.ir import Action, Kind, Part, Schedule, parse_action
from testbed.pipeline.memory import peak_in_flight, peaks
from testbed.pipeline.problem import uniform
from testbed.pipeline.validate import InvalidSchedule, validate
from testbed.schedule.registry import generate


def schedule(*rows: str, microbatches: int = 1) -> Schedule:
    parsed = tuple(tuple(parse_action(word) for word in row.split()) for row in rows)
    return Schedule("hand-made", parsed, tuple(range(len(rows))), microbatches)


GOOD = ("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1I1 1W1")


def test_a_good_schedule_passes() -> None:
    validate(schedule(*GOOD, microbatches=2), uniform(2, 2))


@pytest.mark.parametrize(
    ("rows", "rank", "position", "rule"),
    [
        (("0F0 0F1 0B0", GOOD[1]), 0, None, "microbatch 1: has F"),
        (("0F0 0F0 0F1 0B0 0B1", GOOD[1]), 0, 1, "has been run already"),
        (("0F0 0F1 0B0 0B1 0W1", GOOD[1]), 0, None, "has B, F, W"),
        (("0B0 0F0 0F1 0B1", GOOD[1]), 0, 0, "comes before its F"),
        (("0F0 0F1 0B0 0B1", "1B0 1F0 1F1 1B1"), 1, 0, "comes before its F"),
        (("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1W1 1I1"), 1, 3, "comes before its I"),
        (("0F0 0F1 0B0 0B5", GOOD[1]), 0, 3, "microbatch outside"),
        (("0F0 0F1 0B0 0B1", "0F0 1B0 1F1 1B1"), 1, 0, "stage is on rank 0"),
        (("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"), 0, 1, "waits for ever for 1I0"),
        (("0F0[0:1/2] 0F1 0B0 0B1", GOOD[1]), 0, None, "F ends at part 1 of 2"),
        (("0F0[1:2/2] 0F1 0B0 0B1", GOOD[1]), 0, 0, "begins at 0/2"),
        (("0F0[0:1/2] 0F0[1:3/4] 0F1 0B0 0B1", GOOD[1]), 0, 1, "begins at 1/2"),
        (("0F0 0SEND_F0 0F1 0B0 0B1", GOOD[1]), 0, 1, "only F, B, I and W"),
        (("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 9I1 1W1"), 1, 3, "stage outside 0..1"),
        (("0F0 0F1 0B0[0:1/2] 0B1 0B0[1:2/2] 0B0[1:2/2]", GOOD[1]), 0, 5, "has been run already"),
    ],
)
def test_a_broken_schedule_is_pointed_at(rows: tuple[str, ...], rank: int, position: int | None, rule: str) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        validate(schedule(*rows, microbatches=2), uniform(2, 2))
    assert (caught.value.rank, caught.value.position) == (rank, position), caught.value
    assert rule in str(caught.value)


@pytest.mark.parametrize(
    ("odd", "rule"),
    [
        (Action(1, Kind.F, None), "microbatch outside"),
        (Action(1, Kind.F, 1 << 70), "microbatch outside"),
        (Action(1, Kind.F, 0.5), "microbatch outside"),  # type: ignore[arg-type]
        (Action(-1, Kind.F, 1), "stage outside"),
        (Action(1 << 70, Kind.F, 1), "stage outside"),
        (Action(1, Kind.UNSHARD), "only F, B, I and W"),
        (Action(1, Kind.F, 1, Part(0, 0, 0)), "expected the part that begins at 0/0"),
        (Action(1, Kind.F, 1, Part(0, 2, 1)), "expected the part that begins at 0/1"),
    ],
    ids=str,
)
def test_anything_that_a_generator_of_ones_own_may_hold_is_refused(odd: Action, rule: str) -> None:
    good = schedule(*GOOD, microbatches=2)
    row = (*good.rows[1][:2], odd, *good.rows[1][3:])
    with pytest.raises(InvalidSchedule, match=rule) as caught:
        validate(replace(good, rows=(good.rows[0], row)), uniform(2, 2))
    assert (caught.value.rank, caught.value.position) == (1, 2)


def test_validation_takes_no_function_call_per_action() -> None:
    """What took most of the time of `best`: large schedules are checked as arrays."""
    few, many = (generate("zb-h1", uniform(4, count, memory=8)) for count in (16, 512))

    def calls(made: Schedule) -> int:
        problem, counted = uniform(4, made.n_microbatches, memory=8), Counter[str]()
        sys.setprofile(lambda _frame, event, _argument: counted.update([event]))
        try:
            validate(made, problem)
        finally:
            sys.setprofile(None)
        return counted["call"]

    assert calls(many) < 1.5 * calls(few)


def test_memory_limit() -> None:
    with pytest.raises(InvalidSchedule, match="needs memory for 2 microbatches in flight, the limit is 1"):
        validate(schedule(*GOOD, microbatches=2), uniform(2, 2, memory=1))


def test_gpipe_does_not_fit_where_it_may_not_hold_every_microbatch() -> None:
    with pytest.raises(InvalidSchedule, match="rank 0, action 4: got "):
        generate("gpipe", uniform(4, 8, memory=4))


def test_other_shapes_are_refused() -> None:
    good = schedule(*GOOD, microbatches=2)
    with pytest.raises(InvalidSchedule, match="2 rows for 3 ranks"):
        validate(good, uniform(3, 2))
    with pytest.raises(InvalidSchedule, match="made for 2 microbatches"):
        validate(good, uniform(2, 3))
    with pytest.raises(InvalidSchedule, match="stages on ranks"):
        validate(good, replace(uniform(2, 2), stage_to_rank=(1, 0)))


def test_unknown_names_and_options() -> None:
    with pytest.raises(BadInput, match=r"expected one of gpipe, 1f1b"):
        generate("2f2b", uniform(2, 2))
    with pytest.raises(BadInput, match=r"schedule 1f1b: n_sub: got 4, expected an option of 1f1b \(it has none\)"):
        generate("1f1b", uniform(2, 2), n_sub=4)


times = st.integers(0, 7)


@given(
    name=st.sampled_from(QUICK),
    p=st.integers(1, 6),
    m=st.integers(1, 14),
    f=st.integers(1, 7),
    i=times,
    w=times,
    delay=times,
    wire=times,
    extra_memory=st.integers(0, 6),
    n_sub=st.integers(1, 5),
)
def test_every_generator_makes_valid_schedules(
    name: str, p: int, m: int, f: int, i: int, w: int, delay: int, wire: int, extra_memory: int, n_sub: int
) -> None:
    adaptive = name in ("crosspipe-greedy", "search", "geopipe")
    memory = float(p + extra_memory) if adaptive else float(2 * max(m, p))
    problem = fitting(name, p, m, forward_s=f, input_s=i, weight_s=w, delay_s=delay, wire_s=wire, memory=memory)
    made = quick(name, problem, **({"n_sub": n_sub} if name == "crosspipe-greedy" else {}))  # validates
    assert max(peaks(made, problem)) <= memory + 1e-9


def test_peaks_of_the_static_schedules() -> None:
    problem = uniform(4, 12, memory=12)
    assert peak_in_flight(generate("gpipe", problem)) == (12, 12, 12, 12)
    assert peak_in_flight(generate("1f1b", problem)) == (4, 3, 2, 1)
    assert peak_in_flight(generate("zb-h1", problem)) == (4, 4, 4, 4)
