"""What the machine did to a run: read from the kernel, and what follows from it."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from testbed.judge.fidelity import disturbance_check
from testbed.judge.iterations import IterationRow, Witnesses
from testbed.judge.witnesses import disturbance_s, disturbed
from testbed.lab.machine_witness import MachineCounts, MachineWitness, QueueFiles, threads_of
from testbed.session.deadlines import Deadline
from testbed.session.loop import Loop
from testbed.session.rounds import WitnessedRounds
from testbed.train.assignment import IterationRecord
from testbed.train.rank_witness import Accounts


def row(**witnesses: float) -> IterationRow:
    """An iteration of a second."""
    return IterationRow(0, False, 1.0, 0.4, 5.0, (4.0,), (4.0,), 0, 0.0, 96, 0.0, Witnesses(**witnesses))


def test_stolen_time_and_late_wake_ups_count_and_queues_beyond_the_usual() -> None:
    baseline = [row(relay_queued_s=0.003)] * 3
    run = [row(steal_s=0.02, wake_late_s=0.005, relay_queued_s=0.004), row(relay_queued_s=0.001)]
    assert disturbance_s(run, baseline).tolist() == pytest.approx([0.026, 0.0])
    assert disturbed(run, baseline).tolist() == [True, False]


def test_who_sends_twice_as_much_may_queue_twice_as_long() -> None:
    baseline = [row(threads_queued_s=0.01)]
    assert disturbance_s([row(threads_queued_s=0.02)._replace(actions=2 * 96)], baseline).tolist() == [0.0]


def test_what_the_kernel_does_not_tell_disturbs_nothing() -> None:
    assert disturbance_s([row()], []).tolist() == [0.0]


def test_ranks_that_queue_for_each_other_are_not_disturbed() -> None:
    assert disturbance_s([row(rank_queued_s=0.3, kernel_queued_s=0.2)], []).tolist() == [0.0]


def test_a_machine_busy_throughout_is_not_trusted_and_one_busy_now_and_then_is() -> None:
    busy, calm = row(steal_s=0.05), row()
    assert not disturbance_check([busy, busy, calm], []).ok
    assert disturbance_check([busy, calm, calm], []).ok


def test_what_happens_between_rounds_is_not_counted_in_any() -> None:
    """While a controller chooses routes after a loss, nobody trains."""
    stolen_s = 0.0

    class Watching(MachineWitness):
        def read(self) -> MachineCounts:
            return MachineCounts(0.0, 0.0, stolen_s, 0.0)

    class Trained(Loop):
        def of(self, jobs: Sequence[int]) -> Loop:
            return self

        def run(self, *_: object) -> Iterator[list[list[IterationRecord]]]:  # type: ignore[override]
            nonlocal stolen_s
            for _round in range(3):
                stolen_s += 1.0
                yield []

    found = []
    with Watching(active=False) as witness:
        for one in WitnessedRounds(Trained([]), {}, Deadline(1.0, "a second"), witness):
            found.append(one.machine.steal_s)
            stolen_s += 10.0
    assert found == [1.0, 1.0, 1.0]


def test_a_process_that_has_to_queue_is_seen_to() -> None:
    """Two processes on one processor: each is runnable for longer than it runs."""
    core = min(os.sched_getaffinity(0))
    spin = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    both = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(2)]
    try:
        files = QueueFiles(path for one in both for path in threads_of(one.pid))
        before = files.waited_s()
        if math.isnan(before):
            pytest.skip("this kernel keeps no schedstats")
        time.sleep(0.5)
        assert files.waited_s() - before > 0.1
        files.close()
    finally:
        for one in both:
            one.kill()
            one.wait()


def test_the_machine_tells_what_it_can() -> None:
    with MachineWitness() as witness:
        witness.watch([os.getpid()])
        before = witness.read()
        counted = witness.read().since(before)
    assert counted.steal_s >= 0
    assert abs(counted.clock_offset_s) < 1.0
    assert math.isnan(counted.relay_queued_s) or counted.relay_queued_s >= 0


def test_one_that_is_not_active_tells_nothing() -> None:
    with MachineWitness(active=False) as witness:
        assert all(map(math.isnan, witness.read()))
    accounts = Accounts(active=False)
    accounts.begin()
    assert math.isnan(accounts.end(0.0).rank_queued_s)


def test_descriptors_are_closed() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with MachineWitness() as witness:
        witness.watch([os.getpid()])
    assert len(list(Path("/proc/self/fd").iterdir())) == before
