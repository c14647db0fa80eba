"""What a process of a guest reads as the time: without its kernel the same as from it, and no event is passed over.

And when it wakes, where it may be late.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from one_boot import MARKS, Asked, Measured
from probes import asked_of_a_worker, told_by_a_worker

from testbed.vm import kernel
from testbed.vm.kernel_changes import patches_of

pytestmark = MARKS

READS = 2000
AFTER_NS = (20_000, 20_001, 300_000)
"""After which an alarm is asked for."""
LOOK_S, LATE_NS, SLEPT_S = 0.01, 100_000_000, 2.0
"""When gloo's threads look whether they are to end, by how much later they may, and how long they are watched."""

PROBE = f"""

def told():
    global told
    told = lambda: None
    import ctypes, glob, json, select, signal, time
    libc = ctypes.CDLL(None)
    spec = (ctypes.c_long * 2)()

    def asked(clock):  # of the kernel
        libc.syscall(228, clock, spec)
        return spec[0] * 10**9 + spec[1]

    def of_day():
        libc.gettimeofday(spec, None)
        return spec[0] * 10**6 + spec[1]

    alarms = []
    before = signal.signal(signal.SIGALRM, lambda *_: alarms.append(time.monotonic_ns()))
    found = {{"alone": [time.monotonic_ns() for _ in range({READS})], "after": []}}
    found["in turn"] = [read for _ in range({READS}) for read in (time.monotonic_ns(), asked(1))]
    found["apart"] = [time.time_ns() - time.monotonic_ns() for _ in range(20)]
    found["apart"] += [asked(0) - asked(1) for _ in range(20)]
    found["day"] = [of_day() - time.time_ns() // 1000 for _ in range(20)]
    for after_ns in {AFTER_NS}:
        alarms.clear()
        began = time.monotonic_ns()
        signal.setitimer(signal.ITIMER_REAL, after_ns / 1e9)
        reads = 0
        while not alarms and reads < 10**7:
            reads += 1
            time.monotonic_ns()
        found["after"].append([alarms[0] - began, reads])
    signal.signal(signal.SIGALRM, before)

    def waited(late_ns):
        libc.prctl(29, ctypes.c_ulong(late_ns))
        began = time.monotonic_ns()
        select.epoll().poll({LOOK_S})
        return time.monotonic_ns() - began

    def woken():
        threads = [open(task + "/status").read() for task in glob.glob("/proc/self/task/*")]
        looking = [status for status in threads if status.startswith("Name:\\tgloo")]
        return [int(status.partition("\\nvoluntary_ctxt_switches:")[2].split()[0]) for status in looking]

    found["waited"] = [waited(late_ns) for late_ns in (1, {LATE_NS}, 1)]
    before = woken()
    time.sleep({SLEPT_S})
    found["woken"] = [after - at for at, after in zip(before, woken(), strict=True)]
    print("CLOCK " + json.dumps(found), flush=True)
"""


def asked(place: Path) -> dict[str, Asked]:
    return {"reader": asked_of_a_worker(place, PROBE)}


@pytest.fixture
def found(measured: Mapping[str, Measured]) -> dict[str, Any]:
    """What a worker has read."""
    assert all(row["trusted"] for row in measured["reader"].document["schedules"])
    return told_by_a_worker(measured["reader"], "CLOCK")


def test_each_read_moves_time_by_a_nanosecond_whoever_answers(found: dict[str, Any]) -> None:
    for reads in (found["alone"], found["in turn"]):
        steps = [after - before for before, after in pairwise(reads)]
        # Python itself reads no clock between two of them; an event in between may
        assert sum(step == 1 for step in steps) >= 0.99 * len(steps), sorted(steps)[-20:]
        assert min(steps) == 1


def test_clocks_stay_as_far_apart_as_the_kernel_has_them(found: dict[str, Any]) -> None:
    assert len(set(found["apart"])) == 1, found["apart"]
    assert set(found["day"]) <= {0, -1}


def test_an_alarm_comes_on_time_to_a_process_that_only_reads_the_clock(found: dict[str, Any]) -> None:
    for asked_ns, (took_ns, reads) in zip(AFTER_NS, found["after"], strict=True):
        assert 0 <= took_ns - asked_ns < 2000, (asked_ns, took_ns)
        assert asked_ns - 2000 < reads <= took_ns


@pytest.fixture
def patched(time_travel_kernel: kernel.Kernel) -> None:
    """Skips where the kernel is one that has no patches."""
    if not patches_of(time_travel_kernel.source_version):
        pytest.skip(f"Linux {time_travel_kernel.series} has no patches")


@pytest.mark.usefixtures("patched")
def test_who_may_be_late_is_late_and_nobody_else(found: dict[str, Any]) -> None:
    exactly, late, again = found["waited"]
    look_ns = LOOK_S * 1e9
    assert (exactly, again) == pytest.approx((look_ns, look_ns), abs=2000)
    assert late == pytest.approx(look_ns + LATE_NS, abs=2000)


@pytest.mark.usefixtures("patched")
def test_threads_of_gloos_seldom_look_whether_they_are_to_end(found: dict[str, Any]) -> None:
    looks = SLEPT_S / (LOOK_S + LATE_NS / 1e9)
    assert found["woken"], "no such thread"
    assert all(looks - 2 <= times <= looks + 5 for times in found["woken"]), found["woken"]
