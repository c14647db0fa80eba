"""Properties of the event model that hold for every schedule and every network."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import QUICK, fitting, quick

from testbed.model.simulate import DeadlockError, simulate
from testbed.pipeline.ir import Kind, Schedule, parse_action
from testbed.pipeline.link import LinkCost
from testbed.pipeline.problem import PipelineRoutes, Problem, uniform
from testbed.schedule.registry import generate
from testbed.trace.tables import ACTIVATION, GRADIENT, KINDS, MESSAGE_LETTERS, NOTICE, Trace

small = st.integers(0, 6)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Problem, Schedule]:
    p, m = draw(st.integers(2, 5)), draw(st.integers(1, 10))
    name = draw(st.sampled_from(QUICK))
    problem = fitting(name, p, m, delay_s=draw(small), wire_s=draw(small))
    stages = problem.n_stages
    per_stage = [tuple(float(draw(st.integers(low, 6))) for _ in range(stages)) for low in (1, 0, 0)]
    problem = replace(problem, forward_s=per_stage[0], input_s=per_stage[1], weight_s=per_stage[2])
    return problem, quick(name, problem)


@given(cases())
@settings(max_examples=150)
def test_a_trace_is_physically_possible(case: tuple[Problem, Schedule]) -> None:
    problem, schedule = case
    trace = simulate(problem, schedule)
    actions, messages = trace.actions, trace.messages
    assert len(actions) == sum(map(len, schedule.rows))
    for rank, row in enumerate(schedule.rows):
        own = actions[actions["rank"] == rank]
        assert [str(KINDS[a["kind"]]) for a in own] == [str(a.kind) for a in row]
        assert (own["start_s"][1:] >= own["end_s"][:-1]).all(), "actions of a rank overlap"
        assert np.allclose(own["end_s"] - own["start_s"], [problem.duration(a) for a in row])
        assert (own["start_s"] >= own["ready_s"] - 1e-12).all()
    for message in messages:
        cost = (
            problem.links[problem.route(message["source_rank"], message["target_rank"])[0]] if problem.links else None
        )
        transit = message["arrived_s"] - message["sent_s"]
        assert transit >= (cost.delay_s + cost.seconds_per_byte if cost else 0) - 1e-12
    for source, target in {(int(m["source_rank"]), int(m["target_rank"])) for m in messages}:
        route = problem.route(source, target)
        if not route:
            continue
        wire = problem.links[route[0]].seconds_per_byte
        arrivals = np.sort(
            messages[(messages["source_rank"] == source) & (messages["target_rank"] == target)]["arrived_s"]
        )
        assert (np.diff(arrivals) >= wire - 1e-9).all(), "two messages on one link at once"


@given(cases(), st.integers(1, 5))
@settings(max_examples=60)
def test_slower_networks_and_late_receives_never_help(case: tuple[Problem, Schedule], more: int) -> None:
    problem, schedule = case
    time = makespan(simulate(problem, schedule))
    links = tuple(LinkCost(link.delay_s + more, link.seconds_per_byte) for link in problem.links)
    assert makespan(simulate(replace(problem, links=links), schedule)) >= time
    assert makespan(simulate(problem, schedule, receives="late")) >= time - 1e-9


@given(cases(), st.integers(2, 9))
@settings(max_examples=30)
def test_time_has_no_unit(case: tuple[Problem, Schedule], factor: int) -> None:
    problem, schedule = case
    scaled = replace(
        problem,
        forward_s=tuple(t * factor for t in problem.forward_s),
        input_s=tuple(t * factor for t in problem.input_s),
        weight_s=tuple(t * factor for t in problem.weight_s),
        links=tuple(LinkCost(c.delay_s * factor, c.seconds_per_byte * factor) for c in problem.links),
    )
    assert makespan(simulate(scaled, schedule)) == pytest.approx(factor * makespan(simulate(problem, schedule)))


def makespan(trace: Trace) -> float:
    return float(trace.makespans()[0])


def hand_made(*rows: str, microbatches: int) -> Schedule:
    parsed = tuple(tuple(parse_action(word) for word in row.split()) for row in rows)
    return Schedule("hand-made", parsed, tuple(range(len(rows))), microbatches)


def test_latency_is_pipelined_and_bandwidth_is_not() -> None:
    """Two forwards one after the other: the link is taken 3 s by each, and both fly 10 s at the same time."""
    problem = uniform(2, 2, delay_s=10, wire_s=3)
    schedule = hand_made("0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1", microbatches=2)
    messages = simulate(problem, schedule).messages
    forward = np.sort(messages[messages["kind"] == ACTIVATION]["arrived_s"])
    # sent at 1 and 2; on the wire 1-4 and 4-7
    assert forward.tolist() == [14.0, 17.0]


def test_the_rendezvous_law() -> None:
    """arrival = max(t_send, t_recv_posted + L) + L + bytes/BW, where nothing else is on the link."""
    problem = uniform(2, 1, delay_s=10, wire_s=3)
    schedule = hand_made("0F0 0B0", "1F0 1B0", microbatches=1)
    messages = simulate(problem, schedule, receives="late").messages
    late = messages[messages["kind"] != NOTICE]
    # rank 1 posts at 0 and is heard at 10, so F (ready at 1) leaves then; rank 0 posts for G early enough
    assert dict(zip(late["kind"].tolist(), late["sent_s"].tolist(), strict=True)) == {0: 1.0, 1: 26.0}
    assert dict(zip(late["kind"].tolist(), late["arrived_s"].tolist(), strict=True)) == {0: 23.0, 1: 39.0}


def test_a_notice_waits_behind_what_its_rank_has_sent() -> None:
    """Rank 0 posts for the gradient right behind its forward, which has the link from 1 to 4."""
    problem = replace(uniform(2, 1, wire_s=3), notice_bytes=0.25)
    schedule = hand_made("0F0 0B0", "1F0 1B0", microbatches=1)
    messages = simulate(problem, schedule, receives="late").messages
    # rank 1's notice takes 0.75 s, the announcement of F0 as long, F0 the rest of 3 s, then comes the notice
    rows = messages[["kind", "source_rank", "sent_s", "arrived_s"]].tolist()
    assert (NOTICE, 1, 0.0, 0.75) in rows
    assert (NOTICE, 0, 1.0, 1.75) in rows
    assert (0, 0, 1.0, 4.0) in rows
    assert (NOTICE, 0, 1.0, 4.75) in rows


def test_a_free_notice_is_late_without_the_way_back() -> None:
    """arrival = max(t_send, t_recv_posted) + L + bytes/BW: rank 1 is busy with F0 when rank 0 has F1 ready."""
    problem = replace(uniform(2, 2, delay_s=10, wire_s=3), forward_s=(1.0, 50.0))
    schedule = hand_made("0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1", microbatches=2)
    messages = simulate(problem, schedule, receives="late-free-notice").messages
    forward = np.sort(messages[messages["kind"] == ACTIVATION]["arrived_s"])
    # F0: sent at 1, there at 14; F1 is asked for when F0's 50 s are over, at 64
    assert forward.tolist() == [14.0, 77.0]


def test_two_hops_are_cut_through() -> None:
    """Over two links of 3 s per message the second overlaps the first; the slower link sets the pace."""
    links = (LinkCost(5.0, 3.0), LinkCost(7.0, 4.0))
    schedule = hand_made("0F0 0B0", "1F0 1B0", microbatches=1)
    two = replace(
        uniform(2, 1),
        links=links,
        pipelines=(PipelineRoutes({(0, 1): (0, 1)}),),
        message_bytes=(1.0,),
        n_microbatches=1,
    )
    arrived = simulate(two, schedule).messages
    forward = arrived[arrived["kind"] == 0]["arrived_s"][0]
    # first bit at the second link at 1 + 5 = 6, busy 6-10, then 7 s of delay
    assert forward == 17.0


def arrivals(problem: Problem, *rows: str) -> dict[str, float]:
    """Kind, stage and microbatch of every message ("F0:1") -> when it arrives."""
    parsed = tuple(tuple(map(parse_action, row.split())) for row in rows)
    schedule = Schedule("hand-made", parsed, problem.stage_to_rank, problem.n_microbatches)
    messages = simulate(problem, schedule).messages
    named = ((f"{MESSAGE_LETTERS[int(row['kind'])]}{row['stage']}:{row['microbatch']}", row) for row in messages)
    return {name: float(row["arrived_s"]) for name, row in named}


def cut(problem: Problem, piece_bytes: float, *ack_bytes: float) -> Problem:
    """The problem with messages in pieces, with or without acknowledgements."""
    n, (pipeline,) = problem.n_ranks, problem.pipelines
    pipeline = pipeline._replace(piece_bytes=(piece_bytes,) * n, ack_bytes=ack_bytes * n)
    return replace(problem, pipelines=(pipeline,))


def test_a_burst_at_a_router_comes_between_the_pieces_of_what_passes_it() -> None:
    """Stage 0 sends over both links, stage 2 over the second alone, while stage 0's second message comes in there."""
    links = (LinkCost(5.0, 4.0), LinkCost(5.0, 4.0))
    routes = {(0, 2): (0, 1), (1, 3): (1,)}
    plain = uniform(4, 2, stage_to_rank=(0, 2, 1, 3))
    whole = replace(plain, links=links, pipelines=(PipelineRoutes(routes),), forward_s=(9.5, 1.0, 1.0, 1.0))
    rows = "0F0 0F1 0B0 0B1", "2F0 2F1 2B0 2B1", "1F0 1F1 1B0 1B1", "3F0 3F1 3B0 3B1"
    together = arrivals(whole, *rows)
    # F0:1 takes the second link from 24 to 28, cut through; F2:0, there at 25.5, comes after it
    assert (together["F0:0"], together["F0:1"], together["F2:0"]) == (23.5, 33.0, 37.0)
    pieces = arrivals(cut(whole, 0.25), *rows)
    # a piece is a second; the first of F0:1 is at the second link at 25. F2:0, there at 26.5, comes after two of them
    assert (pieces["F0:0"], pieces["F2:0"], pieces["F0:1"]) == (24.5, 36.0, 38.0)


def test_acknowledgements_take_the_link_back() -> None:
    """Half a second for each of a message's four pieces, in turn with what else comes to the link."""
    problem = cut(uniform(2, 2, delay_s=5, wire_s=4, weight_s=0), 0.25)
    rows = "0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"
    without = arrivals(problem, *rows)
    assert (without["G1:0"], without["G1:1"]) == (21.0, 25.0)
    carried = arrivals(cut(problem, 0.25, 0.125), *rows)
    # F0:1 is acknowledged at 11, 12, 13 and 14. G1:0, there at 12, comes after the second, G1:1 after the fourth
    assert (carried["G1:0"], carried["G1:1"]) == (21.5, 26.5)


def test_what_goes_ahead_in_a_packet_of_its_own_is_acknowledged_by_itself() -> None:
    """Half a second of the 3.5 of a message for the packet ahead, and for every acknowledgement; a second per piece."""
    problem = replace(uniform(2, 2, delay_s=5, wire_s=1, weight_s=0), message_bytes=(3.5,), notice_bytes=0.5)
    framed = cut(problem, 1.0, 0.5)
    carried = arrivals(framed, "0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1")
    # F0:1 is acknowledged at 10, 11, 12 and 13: two before G1:0, there at 11.5, two before G1:1, there at 15
    assert (carried["G1:0"], carried["G1:1"]) == (20.0, 24.5)


def test_every_message_between_ranks_is_handed_over() -> None:
    problem = replace(uniform(2, 1), handover_s=0.25)
    assert arrivals(problem, "0F0 0B0", "1F0 1B0") == {"F0:0": 1.25, "G1:0": 4.5}


@pytest.mark.parametrize(("unnoticed", "end"), [(0.0, 3.25), (0.25, 3.0), (0.2, 3.25)])
def test_a_short_wait_does_not_delay_a_rank(unnoticed: float, end: float) -> None:
    """Rank 1 has done F of microbatch 0 when F of microbatch 1 is a quarter of a second from there."""
    problem = replace(uniform(2, 2), handover_s=0.25, unnoticed_wait_s=unnoticed, forward_s=(1.0, 0.75))
    rows = "0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1"
    parsed = tuple(tuple(map(parse_action, row.split())) for row in rows)
    actions = simulate(problem, Schedule("hand-made", parsed, (0, 1), 2)).actions
    second = actions[(actions["rank"] == 1) & (actions["kind"] == KINDS.index(Kind.F)) & (actions["microbatch"] == 1)]
    assert second["end_s"].tolist() == [end - 0.25]


def test_a_circular_wait_is_an_error() -> None:
    schedule = hand_made("0B0 0F0", "1F0 1B0", microbatches=1)
    with pytest.raises(DeadlockError, match="rank 0 never gets past 0B0"):
        simulate(uniform(2, 1), schedule)


def test_bubble_ratio_is_idle_over_total() -> None:
    trace = simulate(uniform(4, 8), generate("1f1b", uniform(4, 8)))
    assert trace.bubble_ratios()[0] == pytest.approx(3 / 11)


def test_a_thread_that_sleeps_takes_a_while_to_answer_a_notice() -> None:
    """Rank 1's notice finds rank 0's thread asleep: the forward leaves that much later."""
    problem = replace(uniform(2, 1, delay_s=10, wire_s=3), wake_s=0.5)
    schedule = hand_made("0F0 0B0", "1F0 1B0", microbatches=1)
    messages = simulate(problem, schedule, receives="late").messages
    arrived = messages[messages["kind"] == ACTIVATION]["arrived_s"]
    assert arrived.tolist() == [23.5]
    early = simulate(problem, schedule).messages
    assert early[early["kind"] == ACTIVATION]["arrived_s"].tolist() == [14.0]


def test_an_acknowledgement_waits_on_its_way_for_what_leaves_after_it() -> None:
    """Rank 0's second message is there at 3. Its acknowledgement comes to the second link at 4, behind the forward
    that rank 1 sends at 3.5, so it comes to the third one at 14.25, ahead of rank 2's gradient, and takes 4 s there."""
    problem = replace(
        uniform(3, 2, forward_s=1.0, input_s=1.0, weight_s=1.0),
        links=(LinkCost(0.0, 1.0), LinkCost(1.0, 0.0), LinkCost(0.5, 1.0), LinkCost(0.0, 16.0)),
        pipelines=(
            PipelineRoutes(
                {(0, 1): (0,), (1, 0): (1, 2, 3), (1, 2): (2,), (2, 1): (3,)}, (100.0,) * 3, (0.25, 0.0, 0.0)
            ),
        ),
        forward_s=(1.0, 1.5, 0.5),
        message_bytes=(1.0, 10.0),
    )
    schedule = hand_made("0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1", "2F0 2I0 2F1 2B1 2W0", microbatches=2)
    messages = simulate(problem, schedule).messages
    (gradient,) = messages[(messages["kind"] == GRADIENT) & (messages["stage"] == 2) & (messages["microbatch"] == 0)]
    assert (gradient["sent_s"], gradient["arrived_s"]) == (15.5, 14.25 + 4 + 160)
