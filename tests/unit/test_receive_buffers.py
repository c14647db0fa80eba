"""Messages that share a buffer: as few as the order of actions proves, and never one that is still needed."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from testbed.model.simulate import simulate
from testbed.pipeline.depend import Message
from testbed.pipeline.ir import Schedule
from testbed.pipeline.receive_buffers import come_in_order, incoming, own_buffers, shared_buffers
from testbed.plan import costs
from testbed.plan.memory_bytes import buffer_bytes
from testbed.plan.plan import Plan
from testbed.plan.timeline import Moment, ScheduleSwapped
from testbed.planning.resolve import generate, load_plan
from testbed.planning.schedules import choose, make, with_selected
from testbed.schedule.registry import FAMILIES
from testbed.spec.choice import ScheduleChoice
from testbed.trace.tables import MESSAGE_LETTERS, Trace

FILES = Path("two-dc-longhaul"), Path("tiny-gpt-pp4")
EVALUATIONS = {name: {"evaluations": 4} for name in FAMILIES if "evaluations" in FAMILIES[name].option_names()}
WITHOUT_SOLVER = sorted(name for name in FAMILIES if not FAMILIES[name].solver and name != "from-file")


def made(name: str, ranks: int, microbatches: int, *settings: str) -> tuple[Plan, Schedule]:
    """A plan with that schedule alone."""
    shape = [f"parallelism.pipeline={ranks}", f"model.layers={2 * ranks}", f"microbatches={microbatches}", "memory=40"]
    plan = load_plan(*FILES, settings=[*shape, *settings])
    return plan, generate(plan, ScheduleChoice.model_validate({"schedule": name, **EVALUATIONS.get(name, {})})).schedule


def counts(schedule: Schedule) -> list[int]:
    """How many buffers each rank has."""
    found = [max(numbers, default=-1) + 1 for numbers in shared_buffers(schedule)]
    assert [len(set(numbers)) for numbers in shared_buffers(schedule)] == found, "none is left out"
    return found


def test_1f1b_needs_no_more_however_many_microbatches_there_are() -> None:
    assert counts(made("1f1b", 4, 32)[1]) == counts(made("1f1b", 4, 8)[1]) == [4, 6, 5, 2]
    assert [len(numbers) for numbers in own_buffers(made("1f1b", 4, 32)[1])] == [32, 64, 64, 32]


def test_messages_come_in_order_where_they_are_taken_as_they_are_sent() -> None:
    _, schedule = made("1f1b", 4, 8)
    assert come_in_order(schedule) == (True,) * 4
    rows = list(schedule.rows)
    first, second = (next(i for i, action in enumerate(rows[1]) if action.microbatch == n) for n in (0, 1))
    rows[1] = (*rows[1][:first], rows[1][second], rows[1][first], *rows[1][first + 1 : second], *rows[1][second + 1 :])
    swapped = replace(schedule, rows=tuple(rows))
    assert come_in_order(swapped) == (True, False, False, True), "rank 1 takes them in another order, and sends so"


def test_gpipe_proves_nothing_of_its_forwards() -> None:
    """All forwards of a rank may be sent before its neighbour takes any."""
    assert counts(made("gpipe", 2, 8)[1]) == [8, 8]


@pytest.mark.parametrize("name", WITHOUT_SOLVER)
@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 5), (3, 7), (4, 12)])
def test_no_message_is_sent_while_the_one_before_it_is_needed(name: str, ranks: int, microbatches: int) -> None:
    """Whatever links and slots are: with times drawn over three orders of magnitude."""
    draw = random.Random(f"{name} {ranks}")
    _, schedule = made(name, ranks, microbatches)
    shared = shared_buffers(schedule)
    for _ in range(4):
        slots = ", ".join(f"{kind}: {10 ** draw.uniform(-3, 0):.6f} s" for kind in "FIW")
        delay = f"topology.links.0.delay={10 ** draw.uniform(-4, -0.1):.6f} s"
        plan, _ = made(name, ranks, microbatches, f"pacing={{{slots}}}", delay)
        trace = simulate(costs.problem_for(plan, schedule), schedule)
        ended_s, sent_s = _last_ended_s(trace), _sent_s(trace)
        for rank, numbers in enumerate(shared):
            by_buffer: dict[int, list[Message]] = {}
            for message, number in zip(incoming(schedule, rank), numbers, strict=True):
                by_buffer.setdefault(number, []).append(message)
            for messages in by_buffer.values():
                messages.sort(key=sent_s.__getitem__)
                for before, after in pairwise(messages):
                    assert ended_s[before.consumer, before.microbatch] <= sent_s[after], (rank, before, after)


def _last_ended_s(trace: Trace) -> dict[tuple[int, int], float]:
    """By stage and microbatch, when its last action is over."""
    found: dict[tuple[int, int], float] = {}
    for row in trace.actions:
        key = int(row["stage"]), int(row["microbatch"])
        found[key] = max(found.get(key, 0.0), float(row["end_s"]))
    return found


def _sent_s(trace: Trace) -> dict[Message, float]:
    return {
        Message(MESSAGE_LETTERS[int(row["kind"])], int(row["stage"]), int(row["microbatch"])): float(row["sent_s"])
        for row in trace.messages
    }


def test_rows_that_wait_for_each_other_are_found() -> None:
    _, schedule = made("1f1b", 2, 4)
    circle = replace(schedule, rows=(schedule.rows[0][::-1], schedule.rows[1]))
    with pytest.raises(ValueError, match="waits for ever"):
        shared_buffers(circle)


def test_a_guest_needs_less_memory_for_many_microbatches() -> None:
    """Unless the training may go on with another schedule, of which nothing is proven."""

    def needed(microbatches: int, **more: object) -> int:
        plan, _ = made("1f1b", 4, microbatches, "message=1 MB")
        plan = with_selected(plan, [make(plan, choose(plan, ["1f1b"]))])
        return buffer_bytes(replace(plan, **more))  # type: ignore[arg-type]

    swap = ScheduleSwapped("tiny-gpt-pp4", Moment(3), "zb-h1")
    assert needed(64) < 2 * needed(8), "of what is sent the tensors themselves"
    assert needed(64, events=(swap,)) > 6 * needed(64)


def test_a_guest_that_leaves_padding_alone_needs_memory_for_tensors_only() -> None:
    def needed(message: str, **more: object) -> tuple[int, int]:
        plan, _ = made("1f1b", 4, 16, f"message={message}")
        plan = replace(with_selected(plan, [make(plan, choose(plan, ["1f1b"]))]), **more)  # type: ignore[arg-type]
        return buffer_bytes(plan), buffer_bytes(plan, padded=False)

    swap = ScheduleSwapped("tiny-gpt-pp4", Moment(3), "zb-h1")
    (small, own), (large, same) = needed("1 MB"), needed("100 MB")
    assert large > 20 * small
    assert own == same < small
    padded, unpadded = needed("1 MB", events=(swap,))
    assert own < unpadded < padded / 5
    plan, _ = made("1f1b", 4, 16)
    whole = plan.jobs[0].workload.tensor_bytes()
    exact, alike = needed(f"{whole} B")
    assert exact == alike, "a message without padding"
