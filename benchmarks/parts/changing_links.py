"""A shaper whose lab changes while schedules are trained: the text of a plug-in, to which a line says what, and when.

`Changing([(KIND, AFTER_S), ...])` is the shaper that the machine has. When counters are read with `reset_peaks`, which
is when the iterations of a case begin, a thread waits for that case's AFTER_S and makes its change: of qdiscs and links
that carry traffic, in the kernel or the relay, or of the processes that train. When counters are read at the end of the
case, all is as asked for again. Nothing is told to the session.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyroute2.netlink.rtnl import RTM_NEWQDISC

from testbed.lab import addresses
from testbed.lab.netlink import Netlink
from testbed.lab.shaping import LinkCounters, ShapedLink, TimedChange, TimedShaper, choose, netem, qdisc, tbf

STEP_S, EVERYWHERE_S, BLIP_S = 10e-3, 0.9e-3, 0.3
SLOW_BPS = 8e6


class Changing:
    """See Shaper."""

    def __init__(self, changes: Sequence[tuple[str, float]], inner: str = "auto") -> None:
        self._inner = choose(inner)
        self.name = self._inner.name
        self._left = list(changes)
        self._thread: threading.Thread | None = None
        self.links: Sequence[ShapedLink] = ()
        self.over = threading.Event()
        """The case has ended."""
        self.interfaces: dict[int, Any] = {}
        """By process in a node, the request that gives its interface back what it had."""

    @property
    def pid(self) -> int | None:
        """See Shaper."""
        return self._inner.pid

    def build(self, links: Sequence[ShapedLink]) -> None:
        """See Shaper."""
        self._inner.build(links)
        self.links = links

    def counters(self, *, reset_peaks: bool = False) -> list[LinkCounters]:
        """See Shaper."""
        if reset_peaks and self._left:
            self.over = threading.Event()
            self._thread = threading.Thread(target=self._later, args=self._left.pop(0), daemon=True)
            self._thread.start()
        elif self._thread is not None:
            self._restore(self._thread)
            self._thread = None
        return self._inner.counters(reset_peaks=reset_peaks)

    def _later(self, kind: str, after_s: float) -> None:
        if not self.over.wait(after_s):
            KINDS[kind](self)

    def _restore(self, thread: threading.Thread) -> None:
        self.over.set()
        thread.join()
        for number in range(2 * len(self.links)):
            link = self.links[number // 2]
            asked = (link.reverse if number % 2 else link.forward).asked
            self.change(number, delay_s=asked.delay_s, rate_bps=asked.rate_bps)
        for pid, request in self.interfaces.items():
            with Netlink(pid, f"process {pid}") as netlink:
                netlink.send(request, RTM_NEWQDISC, qdisc.CHANGE, shown="a qdisc as it was")
        self.interfaces.clear()

    def change(self, direction: int, **values: float) -> None:
        """See Shaper."""
        self._inner.change(direction, **values)

    def schedule(self, changes: Sequence[TimedChange]) -> None:
        """See TimedShaper, which `inner` has to be for that: what the plan says happens beside what it does not."""
        assert isinstance(self._inner, TimedShaper)
        self._inner.schedule(changes)

    def happened(self) -> list[float]:
        """See TimedShaper."""
        assert isinstance(self._inner, TimedShaper)
        return self._inner.happened()

    def describe(self) -> list[dict[str, Any]]:
        """See Shaper."""
        return self._inner.describe()

    def close(self) -> None:
        """See Shaper."""
        self.over.set()
        self._inner.close()

    def add_s(self, seconds: float, *directions: int) -> None:
        """Directions take so much longer than asked; by default both of the first link."""
        for number in directions or (0, 1):
            link = self.links[number // 2]
            asked = (link.reverse if number % 2 else link.forward).asked
            self.change(number, delay_s=asked.delay_s + seconds)


def delay(lab: Changing) -> None:
    """Both directions of the first link take 10 ms more."""
    lab.add_s(STEP_S)


def sooner(lab: Changing) -> None:
    """Both directions of the first link take half of their delay."""
    for number, one in enumerate((lab.links[0].forward, lab.links[0].reverse)):
        lab.change(number, delay_s=0.5 * one.asked.delay_s)


def rate(lab: Changing) -> None:
    """Both directions of the first link have half their rate."""
    for number, one in enumerate((lab.links[0].forward, lab.links[0].reverse)):
        lab.change(number, rate_bps=0.5 * one.asked.rate_bps)


def both(lab: Changing) -> None:
    """The first link has three quarters of its rate, and takes 3 ms more."""
    for number, one in enumerate((lab.links[0].forward, lab.links[0].reverse)):
        lab.change(number, rate_bps=0.75 * one.asked.rate_bps, delay_s=one.asked.delay_s + 3e-3)


def one_way(lab: Changing) -> None:
    """The way back of the first link takes 10 ms more."""
    lab.add_s(STEP_S, 1)


def interface(lab: Changing) -> None:
    """What leaves the first node takes 20 ms more; without netem it leaves at 8 Mbit/s."""
    for pid in containers()[:1]:
        _on_interface(lab, pid, 2 * STEP_S)


def everywhere(lab: Changing) -> None:
    """What leaves any node takes 0.9 ms more; without netem both directions of every link do."""
    if netem.available() is not None:
        lab.add_s(EVERYWHERE_S, *range(2 * len(lab.links)))
        return
    for pid in containers():
        _on_interface(lab, pid, EVERYWHERE_S)


def blip(lab: Changing) -> None:
    """The first link takes 20 ms more for 0.3 s."""
    lab.add_s(2 * STEP_S)
    time.sleep(BLIP_S)
    lab.add_s(0.0)


def slow_rank(lab: Changing) -> None:
    """The first rank stands still for 12 ms of every 30."""
    (first, *_) = containers()
    workers = [pid for pid in _processes() if _network(pid) == _network(first) and b"mininet:" not in _line(pid)]
    while not lab.over.wait(18e-3):
        for stop in (signal.SIGSTOP, signal.SIGCONT):
            for pid in workers:
                os.kill(pid, stop)
            if stop is signal.SIGSTOP:
                time.sleep(12e-3)


def drift(lab: Changing) -> None:
    """The first link takes 1 ms more every 0.3 s, up to 12 ms."""
    for more in range(1, 13):
        lab.add_s(more * 1e-3)
        if lab.over.wait(0.3):
            return


def jitter(lab: Changing) -> None:
    """The first link takes up to 8 ms more, another amount every 20 ms."""
    draw = random.Random(1)
    while not lab.over.wait(20e-3):
        lab.add_s(draw.uniform(0, 8e-3))


def on_and_off(lab: Changing) -> None:
    """The first link takes 10 ms more for 0.4 s, then what was asked for as long, and so on."""
    while True:
        for more in (STEP_S, 0.0):
            lab.add_s(more)
            if lab.over.wait(0.4):
                return


def unshaped(lab: Changing) -> None:
    """The way there of the first link loses all delay, and its rate is 20 Gbit/s."""
    lab.change(0, delay_s=0.0, rate_bps=20e9)


KINDS: dict[str, Callable[[Changing], None]] = {
    one.__name__.replace("_", "-"): one
    for one in (
        *(delay, sooner, rate, both, one_way, interface, everywhere),
        *(blip, slow_rank, drift, jitter, on_and_off, unshaped),
    )
}


def containers() -> list[int]:
    """A process in every node's namespaces, node by node: its shell, which Mininet names after it."""
    found: dict[str, int] = {}
    for pid in _processes():
        name = next((word[8:] for word in _line(pid).split(b"\0") if word.startswith(b"mininet:")), b"").decode()
        if "/" in name:
            found.setdefault(name, pid)
    return [found[name] for name in sorted(found)]


def _on_interface(lab: Changing, pid: int, delay_s: float) -> None:
    """More delay of all that leaves a node, beside what its network card has; without netem less rate."""
    with Netlink(pid, f"process {pid}") as netlink:
        index = netlink.index(addresses.NODE_INTERFACE)
        there = [one for one in netlink.ask("get_qdiscs", index=index) if one["parent"] == qdisc.ROOT]
        kind = there[0].get_attr("TCA_KIND") if there else None
        flags = qdisc.CHANGE if kind in ("netem", "tbf") else qdisc.ADD
        if netem.available() is not None:
            slow, fast = (tbf.TbfParameters(round(bps / 8), 80_000, 2**30) for bps in (SLOW_BPS, 30e9))
            message, lab.interfaces[pid] = tbf.request(index, slow), tbf.request(index, fast)
        else:
            tick_ns = netem.tick_nanoseconds(Path("/proc/net/psched").read_text(encoding="ascii"))
            nothing = netem.NetemParameters(0, 0, 0, 100_000, 0)
            was = netem.read_back(there[0], tick_ns) if kind == "netem" else nothing
            more = was._replace(delay_ns=was.delay_ns + round(delay_s * 1e9))
            message, lab.interfaces[pid] = (netem.request(index, want, 1, tick_ns) for want in (more, was))
        netlink.send(message, RTM_NEWQDISC, flags, shown="a qdisc that was not asked for")


def _processes() -> list[int]:
    return sorted(int(entry.name) for entry in Path("/proc").glob("[0-9]*"))


def _line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _network(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:
        return ""
