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
from testbed.plan.background import DATAGRAM_BYTES, every_s, route_of
from testbed.plan.framing import ETHERNET_HEADER
from testbed.plan.network_state import planned
from testbed.plan.plan import Plan, Route

_PORT = 9
"""Discard (RFC 863): who has it reads nothing."""

_IP_UDP_HEADERS = 28
_ANSWER_S = 30.0
"""For a process to begin, or to say what it has sent."""

_OVER_S = 0.2
"""Behind the delay of its route, for the last datagram to have come out of every queue."""


class BackgroundSenders:
    """They send from `begin` to `pause`. As a context manager: all that it has started ends."""

    def __init__(self, lab: Lab, plan: Plan) -> None:
        network = planned(plan.network)
        self._lab, self._flows = lab, plan.background
        self._routes = [route_of(network, flow) for flow in plan.background]
        self._over_s = _OVER_S + max(sum(network.links[index].delay_s for index in route) for route in self._routes)
        self._senders: list[subprocess.Popen[bytes]] = []
        self._counted = [0] * len(self._flows)
        self._stack = ExitStack()

    def __enter__(self) -> BackgroundSenders:
        with ExitStack() as opened:
            for target in dict.fromkeys(flow.target for flow in self._flows):
                with inside(self._lab.routers[target].pid):
                    sink = opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                    sink.bind((self._lab.address(target), _PORT))
            for flow in self._flows:
                ends = self._lab.address(flow.source), self._lab.address(flow.target), str(_PORT)
                payload = DATAGRAM_BYTES - ETHERNET_HEADER - _IP_UDP_HEADERS
                program = [sys.executable, str(Path(datagram_sender.__file__))]
                command = [*program, *ends, str(payload), repr(every_s(flow))]
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

    def begin(self, start_s: float) -> None:
        """An iteration begins at this instant of the monotonic clock; nothing is sent until then. Raises RunFailed."""
        for number in range(len(self._senders)):
            self._tell(number, f"begin {start_s!r}\n")

    def pause(self) -> Sequence[tuple[Route, int]]:
        """Send no more; per flow its directions, and the wire bytes that it has sent over each since it was last asked.

        Returns when the last of them has come. Raises RunFailed.
        """
        for number in range(len(self._senders)):
            self._tell(number, "pause\n")
        totals = [int(self._answer(number)) for number in range(len(self._senders))]
        found = [
            (route, (total - before) * DATAGRAM_BYTES)
            for route, total, before in zip(self._routes, totals, self._counted, strict=True)
        ]
        self._counted = totals
        time.sleep(self._over_s)
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
