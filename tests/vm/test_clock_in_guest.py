"""What a process of a guest reads as the time: without its kernel the same as from it, and no event is passed over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from escapes import TOPOLOGY, WORKLOAD
from one_boot import MARKS, Asked, Measured, planned

pytestmark = MARKS

ROOT = Path(__file__).parents[2]
READS = 2000
AFTER_NS = (20_000, 20_001, 300_000)
"""After which an alarm is asked for."""

PROBE = f"""

def told():
    global told
    told = lambda: None
    import ctypes, json, signal, time
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
    print("CLOCK " + json.dumps(found), flush=True)


class Reader(Mlp):
    def loss(self, *values):
        told()
        return super().loss(*values)
"""


def asked(place: Path) -> dict[str, Asked]:
    code = (ROOT / "examples/my_model.py").read_text(encoding="utf-8") + PROBE
    for name, text in (("reader.py", code), ("job.yaml", WORKLOAD), ("pair.yaml", TOPOLOGY)):
        (place / name).write_text(text.replace("stranger.py:Stranger", "reader.py:Reader"))
    return {"reader": Asked(planned(place, place / "pair.yaml", place / "job.yaml"), light=False)}


@pytest.fixture
def found(measured: Mapping[str, Measured]) -> dict[str, Any]:
    """What a worker has read."""
    _, document, out, _ = measured["reader"]
    assert all(row["trusted"] for row in document["schedules"])
    text = "".join(path.read_text() for path in sorted((out / "logs").iterdir()))
    (line,) = [line for line in text.splitlines() if line.startswith("CLOCK ")]
    read: dict[str, Any] = json.loads(line.removeprefix("CLOCK "))
    return read


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
