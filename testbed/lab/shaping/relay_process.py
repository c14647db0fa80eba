"""The relay: a userspace delay line between TAPs, one process for all links; started by relay.py, stdlib only.

Every direction is a queue, then a wire, and does what tc's `police rate R burst Q` and netem's `delay D rate R` do:

    waiting = max(0, when the queue is empty - arrival) * rate / 8 + wire_bytes: beyond `queue_bytes` it is dropped
    sent = max(previous sent, arrival + jitter) + 8 * wire_bytes / rate
    release = max(previous release, sent + delay - early)

`early` is what a passage through this process takes on this machine by itself (passage.py).

Unlike netem it changes what waits as well: from an instant on all bytes that are not sent yet go at the new rate, the
rest of a frame on the wire included, and while a direction sends nothing they wait. What is sent comes out as it would
have, and nothing overtakes it.

A frame is stamped when it is read, and released in order. What is lost as asked has waited for the wire, but does not
take its time. Bytes are charged as on a real wire: a GSO super-packet pays for the headers of each of its segments.
It talks JSON, one object per line, over the socket whose number is its only argument: first the configuration, then
requests (`counters`, `set`, `stay_awake`, `schedule`, `happened`), each answered by one line. It ends when that socket
closes or its parent dies.
"""

import contextlib
import ctypes
import errno
import gc
import heapq
import json
import math
import os
import random
import select
import signal
import socket
import struct
import sys
import time
from collections import deque
from typing import NamedTuple

VNET_HEADER = struct.Struct("=BBHHHH")
"""struct virtio_net_hdr: flags, GSO type, header length, segment size, checksum start, checksum offset."""

_NEEDS_CHECKSUM = 1
_LARGEST_READ = 70_000  # 64 KiB and headers
_READS_PER_WAKE_UP = 64
_PROTOCOL_OFFSET, _TCP = 23, 6  # in an Ethernet frame that carries IPv4

LATENESS_BUCKETS = 160
"""Log-spaced, four per octave of nanoseconds; relay.py turns a bucket back into seconds."""


def lateness_bucket(nanoseconds: int) -> int:
    """The bucket of a lateness; four buckets per octave, so a bound is at most 25 % above its values."""
    if nanoseconds < 4:
        return max(nanoseconds, 0)
    octave = nanoseconds.bit_length()
    return min(octave * 4 + ((nanoseconds >> (octave - 3)) & 3) - 8, LATENESS_BUCKETS - 1)


def lateness_bound(bucket: int) -> int:
    """The first number of nanoseconds beyond `bucket`."""
    if bucket < 4:
        return bucket + 1
    octave, quarter = divmod(bucket + 8, 4)
    return (4 + quarter + 1) << (octave - 3)


def wire_size(packet: bytes) -> tuple[int, int, int]:
    """(bytes on the wire, TCP payload bytes, frames) of a packet as read from a TAP, vnet header in front.

    As the kernel's qdisc_pkt_len_init charges it: Ethernet header included, headers once per GSO segment.
    """
    flags, gso_type, _, segment, checksum_start, _ = VNET_HEADER.unpack_from(packet)
    frame = len(packet) - VNET_HEADER.size
    if not flags & _NEEDS_CHECKSUM or packet[VNET_HEADER.size + _PROTOCOL_OFFSET] != _TCP:
        return frame, 0, 1
    # The vnet header's own header length is the length of the linear part and may hold payload: read TCP's.
    headers = checksum_start + 4 * (packet[VNET_HEADER.size + checksum_start + 12] >> 4)
    payload = frame - headers
    if gso_type == 0 or segment == 0 or payload <= segment:
        return frame, payload, 1
    segments = -(-payload // segment)
    return frame + (segments - 1) * headers, payload, segments


class SentFrame(NamedTuple):
    """One that is on its way. Times in nanoseconds."""

    release: int
    packet: bytes
    come: float
    since: float
    """From when on it is sent, or the rest of it."""
    left: float
    """Wire bytes that are not sent by then."""
    sent: float


class RelayDirection:
    """One direction of one link: its parameters, its frames on the way, its counters. Times in nanoseconds."""

    __slots__ = (
        "asked_delay",
        "delay",
        "dropped",
        "early",
        "held",
        "in_flight",
        "jitter",
        "lateness",
        "loss",
        "lost",
        "ns_per_byte",
        "outages",
        "packets",
        "passed",
        "payload_bytes",
        "queue_bytes",
        "queue_empty_at",
        "queue_high_water",
        "random",
        "refused",
        "released",
        "sends",
        "sent",
        "sink",
        "waiting_bytes",
        "wire_bytes",
    )

    def __init__(self, config: dict) -> None:  # type: ignore[type-arg]
        self.sink: int = config["sink"]
        self.random = random.Random(config["seed"])
        self.queue_empty_at = self.released = self.sent = 0.0
        self.in_flight: deque[SentFrame] = deque()
        self.passed = 0  # when the last one was released
        self.outages = 0
        self.sends = True
        self.held: list[SentFrame] = []  # while nothing is sent, what waits
        self.waiting_bytes = 0.0  # how much that is
        self.packets = self.wire_bytes = self.payload_bytes = 0
        self.dropped = self.lost = self.refused = 0
        self.queue_high_water = 0.0
        self.lateness = [0] * LATENESS_BUCKETS
        self.asked_delay = self.delay = self.early = self.jitter = 0
        self.ns_per_byte = self.queue_bytes = self.loss = 0.0
        self.set(config, 0)

    def set(self, values: dict, now: int) -> None:  # type: ignore[type-arg]
        """Change parameters at an instant: of what is not sent by then."""
        waiting = self._taken_back(now)
        if self.sends:
            self.waiting_bytes = max(0.0, self.queue_empty_at - now) / self.ns_per_byte if self.ns_per_byte else 0.0
        self.asked_delay = round(values.get("delay_s", self.asked_delay / 1e9) * 1e9)
        self.early = round(values.get("early_s", self.early / 1e9) * 1e9)
        self.delay = max(0, self.asked_delay - self.early)
        self.jitter = round(values.get("jitter_s", self.jitter / 1e9) * 1e9)
        self.loss = values.get("loss", self.loss)
        self.queue_bytes = values.get("queue_bytes", self.queue_bytes)
        if "rate_bps" in values:
            self.ns_per_byte = 8e9 / values["rate_bps"]
        if "sends" in values:
            self.outages = max(0, self.outages - 1) if values["sends"] else self.outages + 1
        self.sends = self.outages == 0
        if not self.sends:
            self.held += waiting
            return
        self.queue_empty_at = now + self.waiting_bytes * self.ns_per_byte
        waiting, self.held = self.held + waiting, []
        for frame in waiting:
            self._send(frame.packet, max(now, frame.come), frame.left)

    def _taken_back(self, now: int) -> list[SentFrame]:
        """What is not sent by an instant, in order, with what is left of it then."""
        found = []
        while self.in_flight and self.in_flight[-1].sent > now:
            frame = self.in_flight.pop()
            on_wire_ns = max(0.0, now - frame.since)
            left = frame.left - on_wire_ns / self.ns_per_byte if on_wire_ns else frame.left
            found.append(frame._replace(come=max(frame.come, now), left=left))
        if found:
            last = self.in_flight[-1] if self.in_flight else None
            self.sent = float(now) if last is None else last.sent
            self.released = self.passed if last is None else last.release
        return found[::-1]

    def _send(self, packet: bytes, come: float, wire: float) -> None:
        """Put what has come by an instant behind all else."""
        since = max(self.sent, come)
        self.sent = since + wire * self.ns_per_byte
        self.released = max(self.released, self.sent + self.delay)
        self.in_flight.append(SentFrame(int(self.released), packet, come, since, wire, self.sent))

    def accept(self, packet: bytes, now: int) -> bool:
        """Queue a packet, or drop it and count. True when it is now the only one on its way."""
        wire, payload, frames = wire_size(packet)
        begin = max(self.queue_empty_at, now)
        waiting = ((begin - now) / self.ns_per_byte if self.sends else self.waiting_bytes) + wire
        if waiting > self.queue_bytes:
            self.dropped += frames
            return False
        if self.sends:
            self.queue_empty_at = begin + wire * self.ns_per_byte
        else:
            self.waiting_bytes = waiting
        if waiting > self.queue_high_water:
            self.queue_high_water = waiting
        if self.loss and self.random.random() < self.loss:
            self.lost += frames
            return False
        self.packets += frames
        self.wire_bytes += wire
        self.payload_bytes += payload
        come: float = now
        if self.jitter:
            come += self.random.uniform(-self.jitter, self.jitter)
        if not self.sends:
            self.held.append(SentFrame(0, packet, come, come, wire, 0.0))
            return False
        self._send(packet, come, wire)
        return len(self.in_flight) == 1

    def counters(self) -> dict:  # type: ignore[type-arg]
        """Everything counted since the start, as the control socket answers it."""
        return {
            "packets": self.packets,
            "wire_bytes": self.wire_bytes,
            "payload_bytes": self.payload_bytes,
            "dropped": self.dropped,
            "lost": self.lost,
            "refused": self.refused,
            "queue_high_water_bytes": self.queue_high_water,
            "lateness": self.lateness,
        }


class Timer:
    """A timerfd on CLOCK_MONOTONIC with absolute times (Python 3.11 has none, and epoll's timeouts are whole ms)."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        nonblocking_cloexec = os.O_NONBLOCK | os.O_CLOEXEC
        self.fd: int = self._libc.timerfd_create(time.CLOCK_MONOTONIC, nonblocking_cloexec)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._spec = (ctypes.c_int64 * 4)()  # struct itimerspec: interval s, ns; value s, ns
        self._armed_for = 0

    def arm(self, at: int) -> None:
        """Wake at `at`, nanoseconds of the monotonic clock; 0 disarms."""
        if at == self._armed_for:
            return
        self._spec[2], self._spec[3] = divmod(at, 1_000_000_000)
        absolute = 1
        if self._libc.timerfd_settime(self.fd, absolute, self._spec, None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")
        self._armed_for = at

    def fired(self) -> None:
        """Take note that the timer went off."""
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            return  # re-armed meanwhile
        self._armed_for = 0


class Relay:
    """The event loop over TAPs, timer and control socket."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._requests = control.makefile("r", encoding="utf-8")
        config = json.loads(self._requests.readline())
        self._directions = [RelayDirection(entry) for entry in config["directions"]]
        self._sources = {entry["source"]: d for entry, d in zip(config["directions"], self._directions, strict=True)}
        self._timer, self._awake = Timer(), 0
        self._due: list[tuple[int, int]] = []  # (release of the first frame on its way, direction)
        self._changes: list[tuple[int, int, dict]] = []  # type: ignore[type-arg] # (instant, number, request), to come
        self._happened: list[tuple[int, int]] = []  # (number, instant) of those that came
        self._index = {id(d): i for i, d in enumerate(self._directions)}
        self._answer({"ready": True, **_become_urgent(config["parent"])})

    def run(self) -> None:
        """Serve until the control socket closes.

        A lab that is interrupted may close it with a request unanswered or an answer unread: that is its end as well.
        """
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            self._carry()

    def _carry(self) -> None:
        poller = select.epoll()
        for fd in (*self._sources, self._timer.fd, self._control.fileno()):
            poller.register(fd, select.EPOLLIN)
        while True:
            while self._changes and self._changes[0][0] <= time.monotonic_ns():
                at, number, change = heapq.heappop(self._changes)
                self._release_due(at)
                self._change(change, at)
                self._happened.append((number, time.monotonic_ns()))
            self._release_due()
            next_change = self._changes[0][0] if self._changes else 0
            next_release = self._due[0][0] if self._due else next_change
            for fd, _ in self._events(poller, min(next_release, next_change or next_release)):
                if fd in self._sources:
                    self._read(fd, self._sources[fd])
                elif fd == self._timer.fd:
                    self._timer.fired()
                elif not self._serve():
                    return

    def _events(self, poller: select.epoll, until: int) -> list[tuple[int, int]]:
        """What happens next, at the latest at an instant, if it is not 0: who sleeps until then wakes up too late."""
        if self._awake and until:
            if until - time.monotonic_ns() <= self._awake:
                return poller.poll(0)
            until -= self._awake
        self._timer.arm(until)
        return poller.poll()

    def _read(self, fd: int, direction: RelayDirection) -> None:
        read, clock, accept = os.read, time.monotonic_ns, direction.accept
        try:
            for _ in range(_READS_PER_WAKE_UP):
                packet = read(fd, _LARGEST_READ)
                if accept(packet, clock()):
                    heapq.heappush(self._due, (direction.in_flight[0].release, self._index[id(direction)]))
        except BlockingIOError:
            pass

    def _change(self, request: dict, at: int) -> None:  # type: ignore[type-arg]
        """Have a direction change at an instant."""
        index = request["direction"]
        direction = self._directions[index]
        direction.set(request, at)
        self._due = [entry for entry in self._due if entry[1] != index]
        if direction.in_flight:
            self._due.append((direction.in_flight[0].release, index))
        heapq.heapify(self._due)

    def _release_due(self, until: float = math.inf) -> None:
        """Release what is due by now, or by an instant before."""
        due, clock = self._due, time.monotonic_ns
        while due and due[0][0] <= min(until, now := clock()):
            release, index = due[0]
            direction = self._directions[index]
            packet, direction.passed = direction.in_flight.popleft().packet, release
            try:
                os.write(direction.sink, packet)
            except OSError as error:
                # EAGAIN: the TAP is full. EIO, EINVAL: it is down. The frame is gone either way: count it.
                if error.errno not in (errno.EAGAIN, errno.EIO, errno.EINVAL, errno.ENOBUFS):
                    raise
                direction.refused += 1
            direction.lateness[lateness_bucket(now - release)] += 1
            if direction.in_flight:
                heapq.heapreplace(due, (direction.in_flight[0].release, index))
            else:
                heapq.heappop(due)

    def _serve(self) -> bool:
        line = self._requests.readline()
        if not line:
            return False
        request = json.loads(line)
        if request["op"] == "counters":
            self._answer({"directions": [d.counters() for d in self._directions]})
            if request.get("reset_peaks"):
                for direction in self._directions:
                    direction.queue_high_water = 0.0
        elif request["op"] == "set":
            self._change(request, time.monotonic_ns())
            self._answer({"ok": True})
        elif request["op"] == "stay_awake":
            self._awake = round(request["seconds"] * 1e9)
            self._answer({"ok": True})
        elif request["op"] == "schedule":
            for change in request["changes"]:
                heapq.heappush(self._changes, (change["at_ns"], change["number"], change))
            self._answer({"ok": True})
        elif request["op"] == "happened":
            self._answer({"happened": self._happened})
            self._happened = []
        else:
            self._answer({"error": f"unknown request {request['op']!r}"})
        return True

    def _answer(self, answer: dict) -> None:  # type: ignore[type-arg]
        self._control.sendall(json.dumps(answer).encode() + b"\n")


def _become_urgent(parent: int) -> dict[str, object]:
    """Die with the parent, and run before everything else where that is allowed. Returns what was achieved."""
    libc = ctypes.CDLL(None, use_errno=True)
    set_parent_death_signal, set_timer_slack = 1, 29
    libc.prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the lab ended before its relay began")
    libc.prctl(set_timer_slack, 1, 0, 0, 0)
    lock_current_and_future = 3
    locked = libc.mlockall(lock_current_and_future) == 0
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(20))
        scheduler = "SCHED_FIFO 20"
    except OSError as error:
        scheduler = f"normal ({error.strerror})"  # works, only later: the lateness histogram shows it
    gc.collect()
    gc.freeze()
    gc.disable()  # nothing here makes cycles
    return {"scheduler": scheduler, "memory_locked": locked}


def lateness_quantile(histogram: list[int], share: float) -> float:
    """The lateness in seconds that `share` of all released frames stayed below; nan when there were none."""
    total = sum(histogram)
    if total == 0:
        return math.nan
    seen = 0
    for bucket, count in enumerate(histogram):
        seen += count
        if seen >= share * total:
            return lateness_bound(bucket) * 1e-9
    return lateness_bound(len(histogram) - 1) * 1e-9


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the lab, which closes the control socket
    Relay(socket.socket(fileno=int(sys.argv[1]))).run()
