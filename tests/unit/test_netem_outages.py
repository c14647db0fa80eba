"""Outages under netem, which gives packets their time as they come: what comes in one is as if it came at its end."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from testbed.errors import BadInput, RunFailed
from testbed.lab.shaping import TimedChange
from testbed.lab.shaping.outages import ends_known
from testbed.model.network import LinkChanges, LinkOccupancy, idle, no_queues, occupy
from testbed.plan.plan import Plan
from testbed.planning.prediction import predict_training
from testbed.planning.resolve import load_plan, with_shaper
from testbed.planning.schedules import with_every_job
from testbed.trace.predictions import predicted_times_s


def down(at_s: float, direction: int = 0) -> TimedChange:
    return TimedChange(at_s, direction, sends=False)


def up(at_s: float, direction: int = 0) -> TimedChange:
    return TimedChange(at_s, direction, sends=True)


# --- what netem is told ---------------------------------------------------------------------------


def test_the_end_of_an_outage_and_what_comes_by_then_are_known_as_it_begins() -> None:
    changes = [
        down(1.0),
        TimedChange(2.0, 0, rate_bps=5e6),
        TimedChange(2.0, 1, rate_bps=7e6),
        up(3.0),
        TimedChange(3.0, 0, delay_s=0.1),
        TimedChange(4.0, 0, rate_bps=6e6),
    ]
    assert ends_known(changes) == [
        TimedChange(1.0, 0, delay_s=0.1, rate_bps=5e6, keeps_until_s=3.0),
        TimedChange(2.0, 0),
        TimedChange(2.0, 1, rate_bps=7e6),
        TimedChange(3.0, 0),
        TimedChange(3.0, 0),
        TimedChange(4.0, 0, rate_bps=6e6),
    ]


@pytest.mark.parametrize(
    "outages", [[(1.0, 3.0), (2.0, 5.0)], [(1.0, 5.0), (2.0, 3.0)], [(1.0, 2.0), (2.0, 5.0)], [(1.0, 3.0), (1.0, 5.0)]]
)
def test_outages_that_overlap_are_one(outages: list[tuple[float, float]]) -> None:
    (first, second), other = outages, (0.5, 7.0)
    for order in permutations([(first, 0), (second, 0), (other, 1)]):
        changes = [change for (begin, end), link in order for change in (down(begin, link), up(end, link))]
        found = ends_known(changes)
        assert [one.at_s for one in found] == [one.at_s for one in changes], "each in its place"
        kept = {(one.direction, one.at_s, one.keeps_until_s) for one in found if one.keeps_until_s is not None}
        assert kept == {(0, 1.0, 5.0), (1, 0.5, 7.0)}


def test_two_outages_are_two_and_an_end_alone_is_nothing() -> None:
    found = ends_known([up(0.5), down(1.0), up(2.0), TimedChange(2.5, 0, loss=0.1), down(3.0), up(4.0)])
    assert [one.keeps_until_s for one in found] == [None, 2.0, None, None, 4.0, None]
    assert found[3].loss == 0.1
    with pytest.raises(RunFailed, match="direction 0: netem has to know the end of an outage at 1"):
        ends_known([down(1.0), down(2.0), up(3.0)])


# --- in the model ---------------------------------------------------------------------------------


def stamping(*changes: tuple[float, float, float]) -> LinkOccupancy:
    """A link of 10 bytes a second with a delay of 1 s, which changes: when, delay, seconds per byte."""
    at_s, delay_s, per_byte = (np.array(column) for column in zip(*changes, strict=True))
    made = LinkChanges(np.array([0, len(changes)]), at_s, delay_s, per_byte)
    return idle(np.array([1.0]), np.array([0.1]), made, True, no_queues(1))


def comes_out(link: LinkOccupancy, now: float, size: float = 10.0) -> float:
    occupy(link, 0, size, now, now)
    return float(link.out_s[0])


def test_what_came_before_an_outage_comes_out_and_what_comes_in_it_follows_its_end() -> None:
    link = stamping((5.0, 1.0, np.inf), (9.0, 1.0, 0.1))
    assert comes_out(link, 4.0, 40.0) == 4.0 + 4.0 + 1.0, "though the link is down when its last bytes leave"
    assert [comes_out(link, now) for now in (6.0, 8.0, 8.9)] == [11.0, 12.0, 13.0], "in order, at the link's rate"
    assert comes_out(link, 20.0) == 22.0


def test_it_is_sent_as_the_link_is_then() -> None:
    link = stamping((5.0, 1.0, np.inf), (7.0, 3.0, np.inf), (9.0, 3.0, 0.2), (9.0, 2.0, 0.3), (10.0, 5.0, 0.5))
    assert [comes_out(link, now) for now in (6.0, 8.0)] == [9.0 + 3.0 + 2.0, 9.0 + 6.0 + 2.0]
    assert comes_out(link, 9.5) == 9.0 + 9.0 + 2.0


def test_one_after_the_other_without_a_gap() -> None:
    link = stamping((5.0, 1.0, np.inf), (7.0, 1.0, 0.1), (7.0, 1.0, np.inf), (9.0, 1.0, 0.1))
    assert comes_out(link, 6.0) == 11.0


# --- in a training --------------------------------------------------------------------------------


def planned(event: str) -> Plan:
    files, settings = (Path("two-dc-longhaul"), Path("tiny-gpt-pp4")), ["iterations=4", "warmup=1", "schedules=[1f1b]"]
    return with_every_job(load_plan(*files, settings=settings, events=[f"link paris--warsaw {event}"]))


def times(plan: Plan) -> list[float]:
    trace = predict_training(plan, plan.cases[0]).trace
    return predicted_times_s(trace, range(1, 5)).tolist()  # type: ignore[no-any-return]


def test_an_outage_under_netem_is_predicted() -> None:
    plan = planned("down for 45 ms at iteration 1 + 300 ms")
    steady = times(replace(plan, events=()))
    netem, relay = times(with_shaper(plan, "netem")), times(with_shaper(plan, "relay"))
    assert [now > before for now, before in zip(netem, steady, strict=True)] == [False, True, False, False]
    assert netem[1] <= relay[1], "what has come to the link goes on"


def test_a_long_one_is_too_as_long_as_the_iteration_waits_for_it() -> None:
    plan = with_shaper(planned("down for 8 s then rate 25 % at iteration 1 + 300 ms"), "netem")
    found = times(plan)
    assert found[1] > 8.3
    assert found[0] < found[2] == found[3]


@pytest.mark.parametrize("event", ["down for 8 s at iteration 1 + {end} ms", "down at iteration 1"])
def test_one_that_is_not_over_in_its_iteration_is_refused(event: str) -> None:
    steady = times(replace(planned("rate 99 % at iteration 1"), events=()))
    plan = planned(event.format(end=1e3 * steady[0] - 1))
    netem = with_shaper(plan, "netem")
    with pytest.raises(BadInput, match=r"got 'link .*', expected under netem, an outage that is over in the iteration"):
        predict_training(netem, netem.cases[0])
    assert predict_training(plan, plan.cases[0]).trace.n_ranks == 4, "the relay plays it"
