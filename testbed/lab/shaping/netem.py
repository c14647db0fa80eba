"""The netem shaper: one kernel qdisc per direction, `delay D rate R limit L`, on the sending border's egress.

netem serialises (`rate`) and delays in one queue: send time = max(last, now + delay) + 8 x bytes / rate. Its one limit
is of packets that wait or are on their way, so a queue that a file asks for stands before it, in bytes (police.py).
Everything asked for is read back and compared; a difference is fatal.

In an outage it keeps what comes by the same formula: as it begins, a frame to nobody is put behind all that is there,
which is to come out one delay after its end. That is `last` for whatever comes then, so it is sent as if it came at the
end of the outage, in order, and nothing is dropped; what came before is on its way.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pyroute2.netlink.rtnl import RTM_NEWQDISC
from pyroute2.netlink.rtnl.tcmsg import sched_netem, tcmsg

from testbed.errors import MachineLacks, RunFailed
from testbed.lab.namespaces import inside
from testbed.lab.netlink import KeptConnections, Netlink
from testbed.lab.shaping import CHANGEABLE, LinkCounters, ShapedDirection, ShapedLink, TimedChange, police, qdisc
from testbed.lab.shaping.change_clock import ChangeClock
from testbed.lab.shaping.outages import ends_known
from testbed.lab.sizing import netem_limit
from testbed.spec.topology import Direction
from testbed.units import show_size

REMEDY = "apt-get install linux-modules-extra-$(uname -r) && modprobe sch_netem, or use --shaper relay"

_TX_QUEUE_PACKETS = 20_000

_TO_NOBODY = bytes.fromhex("02ffffffffff 020000000000 0800") + bytes(46)
"""A frame that no border takes: it is only there to be `last`."""


class NetemParameters(NamedTuple):
    """A netem qdisc in the kernel's own units: nanoseconds, bytes per second, packets, 32-bit fractions."""

    delay_ns: int
    jitter_ns: int
    rate_bytes_per_s: int
    limit_packets: int
    loss_u32: int


class _NetemOptions(sched_netem.options):  # type: ignore[misc]
    """pyroute2's netem attributes, and the later ones that it does not know: exact times, and the random seed."""

    nla_map = (
        *sched_netem.options.nla_map,
        ("TCA_NETEM_ECN", "none"),
        ("TCA_NETEM_RATE64", "uint64"),
        ("TCA_NETEM_PAD", "none"),
        ("TCA_NETEM_LATENCY64", "int64"),
        ("TCA_NETEM_JITTER64", "int64"),
        ("TCA_NETEM_SLOT", "none"),
        ("TCA_NETEM_SLOT_DIST", "none"),
        ("TCA_NETEM_PRNG_SEED", "uint64"),
    )


sched_netem.options = _NetemOptions  # by which pyroute2 decodes what the kernel says of a qdisc, too


class QdiscMessage(tcmsg):  # type: ignore[misc]
    """A qdisc request whose netem options are complete.

    Not IPRoute.tc(): in pyroute2 0.9.7 that sends `rate` a second time, as a rate estimator.
    """

    @staticmethod
    def get_options(_message: object, *_: object, **__: object) -> type[_NetemOptions]:
        """The class that encodes TCA_OPTIONS."""
        return _NetemOptions


def parameters(direction: ShapedDirection) -> NetemParameters:
    """What to ask the kernel for."""
    asked = direction.asked
    return NetemParameters(
        delay_ns=round(asked.delay_s * 1e9),
        jitter_ns=round(asked.jitter_s * 1e9),
        rate_bytes_per_s=round(asked.rate_bps / 8),
        limit_packets=min(_limit(direction), qdisc.UINT32),
        loss_u32=round(qdisc.UINT32 * asked.loss),
    )


def _limit(direction: ShapedDirection) -> int:
    """Packets that netem may hold; as many as it can count where another stage has dropped what is too much."""
    return qdisc.UINT32 if direction.asked.queue_bytes else netem_limit(direction.asked, direction.queue_bytes)


def request(interface_index: int, want: NetemParameters, seed: int, tick_ns: float) -> QdiscMessage:
    """The netlink message that puts `want` at the root of an interface."""
    message = QdiscMessage()
    message["index"], message["handle"], message["parent"] = interface_index, qdisc.HANDLE, qdisc.ROOT
    plain, wider = qdisc.rate_fields(want.rate_bytes_per_s)
    rate = {"rate": plain, "packet_overhead": 0, "cell_size": 0, "cell_overhead": 0}
    wide = [] if wider is None else [["TCA_NETEM_RATE64", wider]]
    options = {
        # Times twice: in ticks as every kernel reads them, in nanoseconds as kernels since 4.15 prefer them.
        "delay": min(round(want.delay_ns / tick_ns), qdisc.UINT32),
        "jitter": round(want.jitter_ns / tick_ns),
        "limit": want.limit_packets,
        "loss": want.loss_u32,
        "gap": 0,
        "duplicate": 0,
        "attrs": [
            ["TCA_NETEM_RATE", rate],
            *wide,
            ["TCA_NETEM_LATENCY64", want.delay_ns],
            ["TCA_NETEM_JITTER64", want.jitter_ns],
            ["TCA_NETEM_PRNG_SEED", seed],
        ],
    }
    message["attrs"] = [["TCA_KIND", "netem"], ["TCA_OPTIONS", options]]
    return message


def read_back(message: Any, tick_ns: float) -> NetemParameters:
    """The parameters in a decoded qdisc message. `tick_ns` is one tick of the packet-scheduler clock."""
    options = message.get_attr("TCA_OPTIONS")
    rate, wide = options.get_attr("TCA_NETEM_RATE"), options.get_attr("TCA_NETEM_RATE64")
    return NetemParameters(
        delay_ns=round(options["delay"] * tick_ns),
        jitter_ns=round(options["jitter"] * tick_ns),
        rate_bytes_per_s=wide or (0 if rate is None else rate["rate"]),
        limit_packets=options["limit"],
        loss_u32=options["loss"],
    )


def differences(asked: NetemParameters, found: NetemParameters, tick_ns: float) -> list[str]:
    """Every parameter that did not come back as asked, as text. Times come back in whole ticks."""
    wrong = []
    for name, want, got in zip(NetemParameters._fields, asked, found, strict=True):
        if abs(want - got) > (tick_ns if name.endswith("_ns") else 0):
            wrong.append(f"{name}: asked {want}, the kernel has {got}")
    return wrong


def tick_nanoseconds(psched: str) -> float:
    """One tick of the packet-scheduler clock, from the text of /proc/net/psched: four hexadecimal numbers."""
    ns_per_us_times, ticks, resolution, _ = (int(word, 16) for word in psched.split())
    ticks_per_us = ns_per_us_times / ticks * resolution / 1e6
    return 1e3 / ticks_per_us


def available() -> str | None:
    """None when this kernel has netem (tried on a scratch interface), else why not."""
    want = NetemParameters(1_000_000, 0, 125_000, 10, 0)
    return qdisc.refusal(lambda netlink: _send(netlink, netlink.index("lo"), want, 1, qdisc.ADD))


def require() -> None:
    """Raise MachineLacks, naming the command that adds it, when this kernel has no netem."""
    if (reason := available()) is not None:
        raise MachineLacks(f"this kernel has no netem qdisc ({reason}); add it with: {REMEDY}")


def make() -> NetemShaper:
    """A shaper, where the kernel can. Raises MachineLacks."""
    require()
    return NetemShaper()


def _require_police(directions: Iterable[ShapedDirection]) -> None:
    """Raise MachineLacks, naming a direction, when this kernel cannot bound a queue in bytes and one is asked for."""
    asked = next((direction.asked for direction in directions if direction.asked.queue_bytes), None)
    if asked is not None and (reason := no_room_in_bytes()) is not None:
        raise MachineLacks(
            f"{asked.label} asks for a queue of {show_size(asked.queue_bytes)}, and this kernel has nothing that "
            f"bounds one in bytes before netem ({reason}); add it with: {police.REMEDY}"
        )


def no_room_in_bytes() -> str | None:
    """None when this kernel can bound a queue in bytes before netem, else why not."""
    return police.available(_tick())


class NetemShaper:
    """veth pairs between borders, each end with one netem qdisc, behind a queue in bytes where one is asked for."""

    name = "netem"

    def __init__(self) -> None:
        self._directions: list[ShapedDirection] = []
        self._to_nobody: dict[int, list[float]] = {}
        """By direction, when each of the frames that nobody asked for comes out."""
        self._clock = ChangeClock(self._play)
        self._read_by = KeptConnections()
        """By which the main thread reads; the clock's, which changes links, has its own."""

    @property
    def pid(self) -> int | None:
        """See Shaper: the kernel carries the links."""
        return None

    def build(self, links: Sequence[ShapedLink]) -> None:
        """See Shaper."""
        _require_police(direction for link in links for direction in (link.forward, link.reverse))
        for link in links:
            self._make_wire(link)
            for direction in (link.forward, link.reverse):
                self.shape_existing(direction)

    def shape_existing(self, direction: ShapedDirection) -> None:
        """Shape what leaves an interface that is there already. Raises RunFailed."""
        self._shape(direction, qdisc.ADD)
        self._directions.append(direction)

    def _make_wire(self, link: ShapedLink) -> None:
        here, there = link.forward.source, link.forward.target
        with Netlink(here.pid, here.border) as netlink:
            ends = [
                {"ifname": end.interface, "address": end.hardware_address, "mtu": link.mtu, "txqlen": _TX_QUEUE_PACKETS}
                for end in (here, there)
            ]
            netlink.ask("link", "add", kind="veth", **ends[0], peer=ends[1] | {"net_ns_pid": there.pid})

    def _shape(self, direction: ShapedDirection, flags: int) -> None:
        want = parameters(direction)
        end = direction.source
        with Netlink(end.pid, f"{end.border} ({direction.asked.label})") as netlink:
            _send(netlink, netlink.index(end.interface), want, direction.seed, flags)
            if direction.asked.queue_bytes:
                room = police.bucket(direction.asked.rate_bps, direction.queue_bytes, _tick())
                police.put(netlink, end.interface, room, direction.asked.label)
            found = read_back(qdisc.at_root(netlink, end.interface, self.name), _tick())
        if wrong := differences(want, found, _tick()):
            raise RunFailed(f"{direction.asked.label}: netem is not as asked: {'; '.join(wrong)}")

    def counters(self, *, reset_peaks: bool = False) -> list[LinkCounters]:
        """See Shaper. Where losses are asked for, netem's own drops are those: its limit is out of reach."""
        rows = []
        for direction in self._directions:
            end = direction.source
            with self._read_by.about(end.pid, end.border) as netlink:
                root = qdisc.at_root(netlink, end.interface, self.name)
                dropped = police.dropped(netlink, end.interface) if direction.asked.queue_bytes else 0
                of_netem = qdisc.drops(root)
                lost = of_netem if direction.asked.loss else 0
                row = qdisc.counted(direction, root, dropped=dropped + of_netem - lost, lost=lost)
            own = sum(out_s <= time.monotonic() for out_s in self._to_nobody.get(direction.index, ()))
            size = own * len(_TO_NOBODY)
            rows.append(replace(row, packets=row.packets - own, wire_bytes=row.wire_bytes - size))
        return rows

    def change(self, direction: int, **values: float) -> None:
        """See Shaper. `change` keeps what is in flight, where deleting the qdisc would drop it."""
        if unknown := set(values) - CHANGEABLE:
            raise ValueError(f"cannot change {sorted(unknown)}")
        place = next(i for i, d in enumerate(self._directions) if d.index == direction)
        old = self._directions[place]
        asked, queue = Direction(**(old.asked._asdict() | values)), values.get("queue_bytes", old.queue_bytes)
        new = replace(old, asked=asked, queue_bytes=queue)
        self._shape(new, qdisc.CHANGE)
        self._directions[place] = new

    def schedule(self, changes: Sequence[TimedChange]) -> None:
        """See TimedShaper: for packets that come after it. Raises RunFailed for an outage without its end."""
        self._clock.schedule(ends_known(changes))

    def happened(self) -> list[float]:
        """See TimedShaper. Raises RunFailed for one that the kernel has refused."""
        return self._clock.happened()

    def _play(self, one: TimedChange) -> None:
        values = {name: getattr(one, name) for name in ("delay_s", "rate_bps", "loss", "jitter_s")}
        known = {name: value for name, value in values.items() if value is not None}
        if one.keeps_until_s is not None:
            self._keep(one.direction, known, one.keeps_until_s)
        elif known:
            self.change(one.direction, **known)

    def _keep(self, direction: int, values: dict[str, float], until_s: float) -> None:
        """Send nothing that comes from now on before that instant, then with these values."""
        shaped = next(each for each in self._directions if each.index == direction)
        asked, end = Direction(**(shaped.asked._asdict() | values)), shaped.source
        want = parameters(replace(shaped, asked=asked))._replace(jitter_ns=0, rate_bytes_per_s=0, loss_u32=0)
        with Netlink(end.pid, end.border) as netlink, _raw_socket(end.pid, end.interface) as sender:
            index = netlink.index(end.interface)
            left_s = max(0.0, until_s - time.monotonic())
            kept = want._replace(delay_ns=round(1e9 * (left_s + asked.delay_s)))
            _send(netlink, index, kept, shaped.seed, qdisc.CHANGE)
            if _sent(sender, _TO_NOBODY):
                self._to_nobody.setdefault(direction, []).append(until_s + asked.delay_s)
        self.change(direction, **values)

    def describe(self) -> list[dict[str, Any]]:
        """See Shaper."""
        rows = []
        for direction in self._directions:
            end = direction.source
            with self._read_by.about(end.pid, end.border) as netlink:
                found = read_back(qdisc.at_root(netlink, end.interface, self.name), _tick())
            room = direction.queue_bytes if direction.asked.queue_bytes else None
            rows.append(
                {"direction": direction.asked.label, "shaper": self.name, "queue_bytes": room, **found._asdict()}
            )
        return rows

    def close(self) -> None:
        """See Shaper. The interfaces go with their namespaces."""
        self._clock.close()
        self._read_by.close()


def _send(netlink: Netlink, index: int, want: NetemParameters, seed: int, flags: int) -> None:
    netlink.send(request(index, want, seed, _tick()), RTM_NEWQDISC, flags, shown=f"qdisc netem {want._asdict()}")


def _tick() -> float:
    return tick_nanoseconds(Path("/proc/net/psched").read_text(encoding="ascii"))


def _sent(sender: socket.socket, frame: bytes) -> bool:
    """Send a frame; False where the interface is down, as that of a link that a job has lost. Raises OSError."""
    try:
        sender.send(frame)
    except OSError as error:
        if error.errno == errno.ENETDOWN:
            return False
        raise
    return True


@contextmanager
def _raw_socket(pid: int, interface: str) -> Iterator[socket.socket]:
    """What sends whole frames from an interface in the network namespace of a process. Raises OSError."""
    with inside(pid):
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    with made:
        made.bind((interface, 0))
        yield made
