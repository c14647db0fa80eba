"""Background traffic in a lab: a process in the router of each datacenter that sends, for every flow of the plan."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from testbed.errors import RunFailed
from testbed.lab import datagram_sender
from testbed.lab.lab import Lab
from testbed.lab.namespaces import inside
from testbed.plan.background import DATAGRAM_BYTES, route_of, spans_of
from testbed.plan.framing import ETHERNET_HEADER
from testbed.plan.network_state import planned
from testbed.plan.plan import Plan
from testbed.plan.timeline import LinkEvent

_PORT = 9
"""Discard (RFC 863): who has it reads nothing. What comes to the next one is the last of its sender's."""

_IP_UDP_HEADERS = 28
_ANSWER_S = 30.0
"""For a process to begin, or to say what it has sent."""

_OVER_S = 0.2
"""Behind the delay of its route, for the last datagram to have come out of every queue, where it may be lost."""


class BackgroundSenders:
    """They send from `begin` to `pause`, and nothing of that is on its way when `pause` returns.

    As a context manager: all that it has started ends.
    """

    def __init__(self, lab: Lab, plan: Plan) -> None:
        network = planned(plan.network)
        self._lab, self._flows = lab, plan.background
        routes = [route_of(network, flow) for flow in plan.background]
        self._over_s = _OVER_S + max(sum(network.links[index].delay_s for index in route) for route in routes)
        by_chance = any(isinstance(event, LinkEvent) and event.by_chance for event in plan.events)
        self._all_come = not by_chance and not any(link.loss or link.jitter_s for link in network.links)
        self._senders: list[subprocess.Popen[bytes]] = []
        self._ends: dict[str, socket.socket] = {}
        """By datacenter, where the last datagrams of those come that send there."""
        self._sending = False
        self._sent = [0] * len(self._flows)
        """Datagrams of each flow ..."""
        self._told = [0] * len(self._flows)
        """... and how many of them were told of."""
        self._stack = ExitStack()

    def __enter__(self) -> BackgroundSenders:
        with ExitStack() as opened:
            for target in dict.fromkeys(flow.target for flow in self._flows):
                with inside(self._lab.routers[target].pid):
                    for port in (_PORT, _PORT + 1):
                        sink = opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                        sink.bind((self._lab.address(target), port))
                self._ends[target] = sink
            for flow in self._flows:
                ends = self._lab.address(flow.source), self._lab.address(flow.target), str(_PORT)
                payload = DATAGRAM_BYTES - ETHERNET_HEADER - _IP_UDP_HEADERS
                program = [sys.executable, str(Path(datagram_sender.__file__))]
                command = [*program, *ends, str(payload)]
                sender = self._lab.routers[flow.source].popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
                )
                opened.callback(_end, sender)
                self._senders.append(sender)
            for number in range(len(self._senders)):
                self._answer(number)
            self._stack = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def begin(self, start_s: float, since_s: float | None) -> None:
        """Jobs begin at this instant of the monotonic clock, and nothing is sent until then; the time of the traffic
        has come so far (see `spans_of`). Raises RunFailed."""
        self._sending = True
        for number, flow in enumerate(self._flows):
            numbers = [start_s, *(value for span in spans_of(flow, since_s) for value in span)]
            self._tell(number, f"begin {' '.join(map(repr, numbers))}\n")

    def pause(self) -> None:
        """Send no more; returns when the last datagram has come. Raises RunFailed."""
        if not self._sending:
            return
        self._sending = False
        for number in range(len(self._senders)):
            self._tell(number, "pause\n")
        self._sent = [int(self._answer(number)) for number in range(len(self._senders))]
        if not self._all_come:
            time.sleep(self._over_s)
            return
        for flow in self._flows:  # of each one datagram
            end = self._ends[flow.target]
            if not select.select([end], [], [], _ANSWER_S)[0]:
                raise RunFailed(f"background traffic to {flow.target} did not come within {_ANSWER_S:g} s")
            end.recv(1)

    def sent_bytes(self) -> Sequence[int]:
        """Per flow, the wire bytes that it has sent until the last pause, since this was asked last."""
        found = [DATAGRAM_BYTES * (sent - told) for sent, told in zip(self._sent, self._told, strict=True)]
        self._told = list(self._sent)
        return found

    def _tell(self, number: int, line: str) -> None:
        pipe = self._senders[number].stdin
        assert pipe is not None
        try:
            pipe.write(line.encode())
            pipe.flush()
        except OSError as error:
            raise self._failed(number) from error

    def _answer(self, number: int) -> str:
        pipe = self._senders[number].stdout
        assert pipe is not None
        said = pipe.readline() if select.select([pipe], [], [], _ANSWER_S)[0] else b""
        if not said:
            raise self._failed(number)
        return said.decode().strip()

    def _failed(self, number: int) -> RunFailed:
        flow, sender = self._flows[number], self._senders[number]
        sender.kill()
        _, said = sender.communicate()
        words = said.decode(errors="replace").strip().splitlines()[-1:]
        return RunFailed(f"background traffic from {flow.source} to {flow.target} has ended: {''.join(words)}")


def _end(sender: subprocess.Popen[bytes]) -> None:
    sender.kill()
    sender.communicate()
