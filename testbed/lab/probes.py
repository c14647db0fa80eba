"""Probes of one link: round trips by ICMP echoes, one-way delays and losses by UDP, rates by TCP; no helper process.

Both clocks ends are in this process: sockets are opened in the borders' namespaces, and CLOCK_MONOTONIC is one clock.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import select
import socket
import struct
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from testbed.errors import RunFailed
from testbed.lab.container import Container
from testbed.lab.echoes import SO_TIMESTAMPNS, TIMESPEC_BYTES, Echoes, arrival_ns, exchange
from testbed.lab.loss import LossCount, packets_to_send
from testbed.lab.namespaces import inside
from testbed.lab.sizing import SMALLEST_QUEUE, RouteFacts, rate_probe_bytes
from testbed.plan.framing import ETHERNET_HEADER, MSS, MTU

_PING_PAYLOAD_BYTES = 56
_PING_BYTES = ETHERNET_HEADER + 20 + 8 + _PING_PAYLOAD_BYTES
_PATIENCE_S = 1.0
"""And two round trips: so long after the last ping its answer is waited for."""

_PROBE_BYTES = ETHERNET_HEADER + 20 + 8 + 12
_SO_MAX_PACING_RATE = 47  # asm-generic; the socket module lacks it, as it does the two below
_FORCED = {socket.SO_SNDBUF: 32, socket.SO_RCVBUF: 33}
"""The same without the machine's limit."""
_WAITING_S = 0.02
"""How much of the link's time the probe may keep waiting in its queue, if that has the room."""

_UNPACED_SEGMENTS = 12
"""TCP does not pace the first ten segments of a connection; the probe does it for them."""

_BLOCK_S = 5e-3
_LOOK_S = 1e-3
"""How often to look for the last acknowledgement."""
_READ_BYTES = 1 << 23
_LARGEST_BUFFER = 2**30 - 1
"""The kernel doubles what it is asked for, in a C int."""
_UNACKNOWLEDGED = 0.8
"""Of TCP's largest window, what may be sent before an acknowledgement has come."""

WINDOW_S = 0.4
"""In which a rate is measured, on a machine that may be late and over links that jitter."""
_FEWEST_PACKETS = 40
_PACING = 1.1
"""The sender's pace over the asked rate: enough to keep the link busy, too little to burst into its queue."""

_FIRST_WINDOW_BYTES = 65535
"""What a receiver offers at first and then, from round trip to round trip, at least twice as much each time: Linux 6.1
(Debian's guest) does so whatever a route's initrwnd says. A rate is measured when the window has opened."""

_BURST_BYTES = 16 * 2**20
"""What a sender may hand over at once where the queue has the room, as training does. Pacing is only for the rest: it
needs timers on time, and where they are late (a guest in real time) it would measure them."""


class Ends(NamedTuple):
    """Where a direction starts and ends: containers, and their addresses on the link."""

    source: Container
    source_address: str
    target: Container
    target_address: str


class Spread(NamedTuple):
    """Minimum, median and 99th percentile of times in seconds, and how many there were."""

    minimum: float
    median: float
    p99: float
    samples: int

    def less(self, overhead_s: float) -> Spread:
        """The same without what each of them has on top."""
        minimum, median, p99, samples = self
        return Spread(minimum - overhead_s, median - overhead_s, p99 - overhead_s, samples)


def spread(values: list[float]) -> Spread:
    """The Spread of at least one value."""
    ordered = sorted(values)
    return Spread(
        ordered[0],
        ordered[len(ordered) // 2],
        ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
        len(ordered),
    )


def serialisation_s(frame_bytes: int, rate_bps: float) -> float:
    """Time a frame needs on the wire."""
    return 8 * frame_bytes / rate_bps


def ping_overhead_s(rate_bps: float) -> float:
    """What one passage of a ping adds to the delay."""
    return serialisation_s(_PING_BYTES, rate_bps)


def probe_overhead_s(rate_bps: float) -> float:
    """What one passage of a UDP probe adds to the delay."""
    return serialisation_s(_PROBE_BYTES, rate_bps)


_SHORT_WAIT_S = 0.1e-3
"""What a ping may wait for another one: a quarter of the band of delays."""
_PROBES = 25
_MOST_PROBES = 200


def probes_for(arriving: float) -> tuple[int, int]:
    """(how many probes to send, how many must come through) where a share `arriving` (0..1] of them does: 25 and 13
    where nothing is lost.
    """
    count = min(_MOST_PROBES, math.ceil(_PROBES / arriving))
    return count, max(1, math.ceil(count * arriving / 2))


def round_trips(both: Sequence[Ends], rtt_s: float, slowest_bps: float, *, arriving: float = 1.0) -> list[Spread]:
    """RTTs by ping for each of `both` ends of a link, a ping every 15 ms; of them `arriving` should come back.

    Both at once, unless an answer to the one would wait long behind the other's on a slow direction. Raises RunFailed
    when fewer than half of these answers come back.
    """
    if serialisation_s(_PING_BYTES, slowest_bps) <= _SHORT_WAIT_S:
        return _round_trips_at_once(both, rtt_s, slowest_bps, arriving)
    return [spread for ends in both for spread in _round_trips_at_once([ends], rtt_s, slowest_bps, arriving)]


def _round_trips_at_once(both: Sequence[Ends], rtt_s: float, slowest_bps: float, arriving: float) -> list[Spread]:
    count, needed = probes_for(arriving)
    interval = max(0.015, 8 * serialisation_s(_PING_BYTES, slowest_bps))
    with ExitStack() as stack:
        echoes = []
        for ends in both:
            own = stack.enter_context(_socket(ends.source, socket.SOCK_RAW, socket.IPPROTO_ICMP))
            echoes.append(Echoes(own, ends.target_address, _PING_PAYLOAD_BYTES))
        exchange(echoes, count, interval, 2 * rtt_s + _PATIENCE_S)
    for ends, echo in zip(both, echoes, strict=True):
        if len(echo.round_trips_s) < needed:
            came = f"{len(echo.round_trips_s)} of {count} came back"
            raise RunFailed(f"ping {ends.source.name} -> {ends.target.name}: {came}")
    return [spread(echo.round_trips_s) for echo in echoes]


_STAMP = struct.Struct("=iq")


@contextmanager
def udp(ends: Ends) -> Iterator[tuple[socket.socket, socket.socket]]:
    """What sends from one end, and what receives at the other without blocking."""
    with _socket(ends.source, socket.SOCK_DGRAM) as sender, _socket(ends.target, socket.SOCK_DGRAM) as receiver:
        receiver.bind((ends.target_address, 0))
        receiver.setblocking(False)
        sender.connect(receiver.getsockname())
        yield sender, receiver


def one_way_delays(
    ends: Ends,
    delay_s: float,
    rate_bps: float,
    *,
    arriving: float = 1.0,
    at_most: int = _MOST_PROBES,
    frame_bytes: int = _PROBE_BYTES,
) -> Spread:
    """Delays from source to target by UDP probes, one every 10 ms, of which `arriving` should come.

    Raises RunFailed when fewer than half of these come.
    """
    count, needed = (min(at_most, probes) for probes in probes_for(arriving))
    interval, padding = max(0.010, 4 * serialisation_s(frame_bytes, rate_bps)), bytes(frame_bytes - _PROBE_BYTES)
    with udp(ends) as (sender, receiver):
        begin = time.monotonic()
        deadline = begin + count * interval + 3 * delay_s + 2
        delays: list[float] = []
        sent = 0
        while len(delays) < count and (now := time.monotonic()) < deadline:
            due = begin + sent * interval
            if sent < count and now >= due:
                sender.send(_STAMP.pack(sent, time.monotonic_ns()) + padding)
                sent += 1
                continue
            until = due if sent < count else deadline
            if select.select([receiver], [], [], max(0.0, until - now))[0]:
                arrived = time.monotonic_ns()
                delays.append((arrived - _STAMP.unpack_from(receiver.recv(MTU))[1]) / 1e9)
    if len(delays) < needed:
        raise RunFailed(f"{ends.source.name} -> {ends.target.name}: {len(delays)} of {count} UDP probes arrived")
    return spread(delays)


def losses(ends: Ends, delay_s: float, rate_bps: float, loss: float) -> LossCount:
    """How many small UDP packets a direction that is asked to lose a share `loss` (0..1) of them does lose.

    Sent no faster than half of the rate and 20,000 a second, for two seconds at most.
    """
    interval = max(50e-6, 2 * serialisation_s(_PROBE_BYTES, rate_bps))
    count, arrived, sent = packets_to_send(loss, interval), 0, 0
    with udp(ends) as (sender, receiver):
        give_room(receiver, socket.SO_RCVBUF, 1 << 26)
        begin = time.monotonic()
        while sent < count:
            due = min(count, 1 + int((time.monotonic() - begin) / interval))
            for _ in range(sent, due):
                sender.send(_STAMP.pack(0, 0))
            sent = due
            time.sleep(interval)
        last = time.monotonic() + 2 * delay_s + 0.2
        while arrived < count and (left_s := last - time.monotonic()) > 0:
            if select.select([receiver], [], [], left_s)[0]:
                receiver.recv(64)
                arrived += 1
    return LossCount(count, count - arrived)


class _Read(NamedTuple):
    """Bytes that were read, and when the last of them came, in seconds of the steady clock."""

    payload_bytes: int
    came_s: float


class _Flow:
    """A TCP connection between two sockets of this process, the sender at most `window` bytes ahead of the receiver.

    TCP's own window cannot be set that exactly. What the probe itself costs would be measured where a guest's one CPU
    does everything, so: one thread for both ends, few system calls, each for `block` bytes, and nothing is copied. The
    sender's pages are a file's (sendfile), and the receiver has the kernel throw the data away (MSG_TRUNC, tcp(7)).
    """

    def __init__(
        self,
        sender: socket.socket,
        receiver: socket.socket,
        window: int,
        block: int,
        *,
        block_s: float,
        patience_s: float,
    ) -> None:
        """`block_s` is what a block takes on the wire, `patience_s` how long nothing may arrive."""
        self._sender, self._receiver = sender, receiver
        self._window, self._block, self._block_s, self._patience_s = window, block, block_s, patience_s
        self._ahead = 0
        self._content = os.memfd_create("rate probe")
        os.ftruncate(self._content, block)
        self._buffer = bytearray(_READ_BYTES)
        self._poll = select.poll()
        self._poll.register(receiver, select.POLLIN)
        for end in (sender, receiver):
            end.setblocking(False)
        # whenever it is read: between two arrivals packets are whole
        receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)

    def __enter__(self) -> _Flow:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._drain()
        finally:
            os.close(self._content)

    def send_spaced(self, segments: int, pause_s: float) -> None:
        """The first segments, which TCP does not pace, `pause_s` apart."""
        for _ in range(segments):
            self._ahead += self._sender.send(bytes(MSS))
            time.sleep(pause_s)

    def receive_in_blocks(self) -> None:
        """From now on, wake up for whole blocks only."""
        self._receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, self._block)

    def receive(self) -> _Read:
        """What has arrived by now, after sending what may be sent meanwhile.

        Raises RunFailed when nothing arrives for `patience_s` or the connection is closed.
        """
        until = time.monotonic() + self._patience_s
        while (left_s := until - time.monotonic()) > 0:
            room = self._send()
            self._poll.register(self._sender, 0 if room else select.POLLOUT)
            self._poll.poll(1e3 * min(left_s, self._block_s))
            # ready or not: a guest's kernel says so at the end of what was written, which may be many blocks
            with contextlib.suppress(BlockingIOError):
                return self._read()
        raise RunFailed("rate probe: nothing arrives")

    def _send(self) -> bool:
        """Send blocks as far as the window lets us; False when the socket has no room for more."""
        while self._ahead + self._block <= self._window:
            try:
                self._ahead += os.sendfile(self._sender.fileno(), self._content, 0, self._block)
            except BlockingIOError:
                return False
        return True

    def _read(self) -> _Read:
        room = socket.CMSG_SPACE(TIMESPEC_BYTES)
        got, control, _, _ = self._receiver.recvmsg_into([self._buffer], room, socket.MSG_TRUNC)
        if not got:
            raise RunFailed("rate probe: the connection was closed")
        self._ahead -= got
        return _Read(got, arrival_ns(control) / 1e9)

    def _drain(self) -> None:
        """Send no more, and read to the last byte; wait for the last acknowledgement.

        What is left in a queue would disturb who comes next.
        """
        self._sender.shutdown(socket.SHUT_WR)
        self._receiver.settimeout(self._patience_s)
        try:
            while self._receiver.recv_into(self._buffer, 0, socket.MSG_TRUNC):
                pass
        except TimeoutError:  # a dead link; that is what the caller is about to report
            return
        before, until = self._unacknowledged(), time.monotonic() + self._patience_s
        while before and time.monotonic() < until:
            time.sleep(_LOOK_S)
            if (left := self._unacknowledged()) < before:
                before, until = left, time.monotonic() + self._patience_s

    def _unacknowledged(self) -> int:
        """Bytes that the sender still keeps (SIOCOUTQ, tcp(7))."""
        return int.from_bytes(fcntl.ioctl(self._sender, termios.TIOCOUTQ, bytes(4)), sys.byteorder)


def give_room(end: socket.socket, option: int, room_bytes: int) -> None:
    """Have a socket buffer so much, whatever the machine's limit is.

    In a user namespace nobody may pass that limit (net.core.rmem_max): TCP's buffers then grow by themselves, as the
    lab's transport lets them, which a size that is set would end; those of datagrams get what the limit allows.
    """
    try:
        end.setsockopt(socket.SOL_SOCKET, _FORCED[option], room_bytes)
    except PermissionError:
        if end.type == socket.SOCK_DGRAM:
            end.setsockopt(socket.SOL_SOCKET, option, room_bytes)


def room_for_rate_probe(rate_bps: float, delay_s: float) -> float:
    """Bytes of a queue that a rate probe never overfills, nor acknowledgements of one that goes the other way.

    Through a few frames TCP cannot keep a link busy; and where more is under way than a queue holds, bursts of what
    waited for room in TCP's windows overflow it, however they are paced.
    """
    return max(SMALLEST_QUEUE, 2 * rate_bps * (delay_s + _WAITING_S) / 8)


def wire_rate(
    ends: Ends, delay_s: float, route: RouteFacts, queue_bytes: float, *, window_s: float = WINDOW_S
) -> float:
    """The rate of a direction in bit/s on the wire, from what a TCP receiver gets in a steady window.

    The window is about `window_s`, longer on slow links. A full frame carries MSS bytes in the MTU and an Ethernet
    header. The probe never fills more than half of the queue: it is paced where it could. What is under way fills the
    one-way delay; TCP keeps it for a round trip, and longer where acknowledgements wait on the way back, so its buffers
    hold all that is sent. `route` has the asked rate and round trip. Raises RunFailed when nothing arrives.
    """
    rate_bps, rtt_s = route
    waiting = max(2 * MTU, min(queue_bytes / 2, rate_bps * _WAITING_S / 8))
    window = int(rate_bps * delay_s / 8 + waiting)
    block = MSS * max(1, int(min(waiting / 4, rate_bps * _BLOCK_S / 8) / MSS))  # whole segments: each is a full frame
    settle = _settling_s(route, waiting)
    measure = max(window_s, _FEWEST_PACKETS * serialisation_s(MTU + ETHERNET_HEADER, rate_bps))
    patience = 4 * rtt_s + 5 + 4 * serialisation_s(MTU + ETHERNET_HEADER, rate_bps)
    buffers = min(_LARGEST_BUFFER, int(4 * window + 2 * rate_probe_bytes(route)) + (1 << 20))
    paced = window > min(queue_bytes / 2, _BURST_BYTES)
    # Until the first byte arrives nothing but the pace keeps the route from overfilling.
    fill_pace = 1 + min(_PACING - 1, waiting / 2 / max(1.0, window - waiting))
    with _socket(ends.target, socket.SOCK_STREAM) as listener, _socket(ends.source, socket.SOCK_STREAM) as sender:
        give_room(listener, socket.SO_RCVBUF, buffers)
        listener.bind((ends.target_address, 0))
        listener.listen(1)
        give_room(sender, socket.SO_SNDBUF, buffers)
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        if paced:
            _pace(sender, fill_pace * rate_bps)
        for end in (listener, sender):
            end.settimeout(patience)
        sender.connect(listener.getsockname())
        receiver, _ = listener.accept()
        block_s = 8 * block / rate_bps
        with receiver, _Flow(sender, receiver, window, block, block_s=block_s, patience_s=patience) as flow:
            if paced:
                flow.send_spaced(_UNPACED_SEGMENTS, serialisation_s(MTU + ETHERNET_HEADER, rate_bps))
            flow.receive()
            flow.receive_in_blocks()
            if paced:
                _pace(sender, _PACING * rate_bps)
            payload, seconds = _steady(flow, settle, measure)
    return 8 * payload / seconds * (MTU + ETHERNET_HEADER) / MSS


def _settling_s(route: RouteFacts, waiting_bytes: float) -> float:
    """For how long data comes before its rate is steady: TCP's window has opened, and so much waits in the queue."""
    windows = max(0.0, math.log2((route.bdp_bytes + waiting_bytes) / _FIRST_WINDOW_BYTES))
    return (2 + windows) * route.rtt_s + waiting_bytes * 8 / route.rate_bps / (_PACING - 1) * 0.2 + 0.02


class ShortProbe(NamedTuple):
    """How to measure a rate with so few bytes that TCP need not wait for acknowledgements."""

    share: float
    """Of the delays, which have to be as short as that meanwhile."""
    window_s: float
    """What of the time is measured."""


def short_probe(route: RouteFacts, window_s: float) -> ShortProbe:
    """One for a way back that is too slow for the acknowledgements of all that goes: TCP's window is a GiB, which at
    the fastest rate of a lab takes longer than the queue's part of the probe."""
    waiting = route.rate_bps * _WAITING_S / 8
    least_s = _settling_s(RouteFacts(route.rate_bps, 0.0), waiting)
    left_s = 8 * _UNACKNOWLEDGED * _LARGEST_BUFFER / route.rate_bps - least_s
    window_s = min(window_s, left_s / 2)
    for_delays_s = _settling_s(route, waiting) - least_s
    return ShortProbe(min(1.0, (left_s - window_s) / for_delays_s) if for_delays_s else 1.0, window_s)


def _steady(flow: _Flow, settle: float, measure: float) -> tuple[int, float]:
    """(bytes, seconds) between two arrivals: the first after `settle` seconds of data, and one `measure` later."""
    settled = time.monotonic() + settle
    while (begin := flow.receive().came_s) < settled:
        pass
    payload, now = 0, begin
    while now - begin < measure:
        got, now = flow.receive()
        payload += got
    return payload, now - begin


def _pace(sender: socket.socket, rate_bps: float) -> None:
    sender.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("Q", int(rate_bps / 8)))


def _socket(container: Container, kind: socket.SocketKind, protocol: int = 0) -> socket.socket:
    with inside(container.pid):
        return socket.socket(socket.AF_INET, kind, protocol)
