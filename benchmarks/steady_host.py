"""What spinners and real-time workers are worth, each alone and together, here and on poorer hosts, and what they cost.

    python benchmarks/steady_host.py [--messages 60] [--busy 0] [--host all|here|one-core|no-real-time]

Hosts: this machine as it is; kept to one of its processors; without the right to real-time priority (no CAP_SYS_NICE,
RLIMIT_RTPRIO 0). On each, for every combination of means that it allows: how late sleeps of 1 ms end, and what a
message of 1 MB takes beyond its delay and its time on the wire, over a link of 1 Gbit/s and 5 ms and inside a
datacenter. "others" is what an ordinary busy process computes meanwhile, over what it computes on the machine alone.
`--busy N` keeps N more of them computing. Takes about 10 s for each of at most ten combinations.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
import socket
import statistics
import subprocess
import sys
import time
from argparse import SUPPRESS
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from harness import options
from harness.record import Claim, Topic, finish
from harness.report import show_table

from testbed.lab.disturbance import sleep_lateness
from testbed.lab.host_settings import Host, HostPriority, real_time, real_time_refused
from testbed.lab.lab import Lab
from testbed.lab.namespaces import die_with_parent, inside
from testbed.lab.sandbox import run_in_sandbox
from testbed.plan.framing import wire_bytes
from testbed.planning.resolve import measurement_of
from testbed.spec.document import validate
from testbed.spec.topology import Topology

MESSAGE_BYTES = 1_000_000
PAUSE_S = 20e-3
WARM_UP = 5
"""Messages that are not counted: a receiver's window opens with the first ones."""

LIMIT_S = 120
DELAY_S, RATE_BPS = 5e-3, 1e9
NETWORK: dict[str, Any] = {
    "name": "steady",
    "datacenters": {"a": {"nodes": 2}, "b": {"nodes": 1}},
    "links": [{"between": ["a", "b"], "delay": "5 ms", "rate": "1 Gbit/s"}],
}
FLOWS = {
    "over the link": ("a/0", "b/0", DELAY_S + 8 * wire_bytes(MESSAGE_BYTES) / RATE_BPS),
    "inside": ("a/0", "a/1", 0.0),
}
"""Source, target, seconds that a message should take."""

HOSTS = {
    "here": [],
    "one-core": ["taskset", "-c", "0"],
    "no-real-time": ["setpriv", "--bounding-set=-sys_nice", "--inh-caps=-sys_nice"],
}
"""Commands before ours that make this machine a poorer one."""


def compute(count: Any, stop: Event) -> None:
    """Count turns of a loop until told to stop: an ordinary busy process."""
    die_with_parent(signal.SIGKILL)
    turns = 0
    while not stop.is_set():
        for _ in range(10_000):
            turns += 1
        count.value = turns


@contextmanager
def computing(number: int) -> Iterator[list[Any]]:
    """So many busy processes; how far each has counted."""
    stop = multiprocessing.Event()
    counts = [multiprocessing.Value("q", 0, lock=False) for _ in range(number)]
    processes = [multiprocessing.Process(target=compute, args=(count, stop)) for count in counts]
    for process in processes:
        process.start()
    try:
        yield counts
    finally:
        stop.set()
        for process in processes:
            process.join()


def serve(receiver: socket.socket, messages: int, urgent: bool, answers: Any) -> None:
    """Note when each message has come in whole."""
    die_with_parent(signal.SIGKILL)
    buffer, arrived = bytearray(MESSAGE_BYTES), []
    with real_time(urgent):
        for _ in range(WARM_UP + messages):
            left = MESSAGE_BYTES
            while left:
                left -= receiver.recv_into(buffer, left, socket.MSG_WAITALL)
            arrived.append(time.monotonic())
    answers.send(arrived)


def extra_s(lab: Lab, source: str, target: str, should_s: float, messages: int, urgent: bool) -> list[float]:
    """What messages take beyond what they should, both ends under SCHED_RR if `urgent`."""
    with inside(lab.containers[target].pid):
        listener = socket.create_server((lab.address(target), 0))
    with inside(lab.containers[source].pid):
        sender = socket.socket()
    with listener, sender:
        sender.connect(listener.getsockname())
        receiver, _ = listener.accept()
        answer, answers = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.Process(target=serve, args=(receiver, messages, urgent, answers))
        process.start()
        data, sent = bytes(MESSAGE_BYTES), []
        with real_time(urgent):
            for _ in range(WARM_UP + messages):
                time.sleep(PAUSE_S)
                sent.append(time.monotonic())
                sender.sendall(data)
        if not answer.poll(LIMIT_S):
            raise TimeoutError("messages did not arrive")
        arrived = answer.recv()
        process.join()
        receiver.close()
    return [b - a - should_s for a, b in zip(sent, arrived, strict=True)][WARM_UP:]


def measure(spinners: bool, urgent: bool, messages: int, busy: int, alone_per_s: float) -> dict[str, Any]:
    """One combination of means: sleeps, messages, and what a busy process beside them computes."""
    network = measurement_of(validate(Topology, NETWORK, "benchmark"))
    host = Host(HostPriority.on if spinners else HostPriority.off)
    with Lab(network, shaper="relay", largest_burst_bytes=MESSAGE_BYTES, host_priority=HostPriority.off) as lab:
        try:
            host.steady()
            with computing(busy):
                with real_time(urgent):
                    late = sleep_lateness(sleeps=300)
                extra = {flow: extra_s(lab, *ends, messages, urgent) for flow, ends in FLOWS.items()}
            with computing(1 + busy) as counts:
                began, before = time.monotonic(), counts[0].value
                for ends in FLOWS.values():
                    extra_s(lab, *ends, messages, urgent)
                others = (counts[0].value - before) / (time.monotonic() - began) / alone_per_s
        finally:
            host.close()
    return {
        "means": " and ".join(n for n, on in (("spinners", spinners), ("real-time", urgent)) if on) or "neither",
        "late_us": [1e6 * late.median, 1e6 * late.p99],
        "extra_us": {flow: quantiles(values) for flow, values in extra.items()},
        "others": others,
    }


def quantiles(values: list[float]) -> list[float]:
    """Median and 90th percentile, in microseconds."""
    ordered = sorted(values)
    return [1e6 * statistics.median(ordered), 1e6 * ordered[int(0.9 * len(ordered))]]


def speed(busy: int) -> float:
    """Turns per second of one of 1 + `busy` busy processes on the machine alone."""
    with computing(1 + busy) as counts:
        time.sleep(0.3)
        began, before = time.monotonic(), counts[0].value
        time.sleep(2.0)
        return float((counts[0].value - before) / (time.monotonic() - began))


def on_this_host(messages: int, busy: int) -> int:
    """Every combination that this process may use; a line of JSON each."""
    alone_per_s = speed(busy)
    for urgent in (False, True):
        if urgent and real_time_refused() is not None:
            continue
        for spinners in (False, True):
            print(json.dumps(measure(spinners, urgent, messages, busy, alone_per_s)), flush=True)
    return 0


def no_real_time_limit() -> None:
    """Of the calling process and its children."""
    resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))


def main() -> int:
    """Measure hosts one after the other, each in a process of its own."""
    parser = options.parser(__doc__)
    parser.add_argument("--messages", type=int, default=60)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--host", choices=["all", *HOSTS], default="all")
    parser.add_argument("--measure", action="store_true", help=SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        return run_in_sandbox(lambda: on_this_host(arguments.messages, arguments.busy))
    rows, claims = [], []
    for name in HOSTS if arguments.host == "all" else [arguments.host]:
        words = ["--measure", "--messages", str(arguments.messages), "--busy", str(arguments.busy)]
        done = subprocess.run(
            [*HOSTS[name], sys.executable, str(Path(__file__).resolve()), *words],
            stdout=subprocess.PIPE,
            text=True,
            timeout=6 * LIMIT_S,
            check=True,
            preexec_fn=no_real_time_limit if name == "no-real-time" else None,
        )
        found = [json.loads(line) for line in done.stdout.splitlines()]
        for row in found:
            times = [f"{a:.0f} / {b:.0f}" for a, b in (row["late_us"], *row["extra_us"].values())]
            rows.append((name, row["means"], *times, f"{row['others']:.0%}"))
        got = ", ".join(f"{row['means']} {row['late_us'][0]:.0f}" for row in found) + " us"
        what = f"sleeps of 1 ms end late by (median), {name}, {arguments.busy} busy processes"
        claims.append(Claim(what, "(report)", got, None, 1e-6 * found[-1]["late_us"][0], "s"))
    columns = ("host", "means", "sleeps late", *(f"messages {flow}" for flow in FLOWS), "others")
    show_table(f"{os.cpu_count()} processors; us, median / 90th percentile (of sleeps: 99th)", columns, rows)
    return finish(arguments, Topic.TRUTH, claims, clock="real")


if __name__ == "__main__":
    sys.exit(main())
