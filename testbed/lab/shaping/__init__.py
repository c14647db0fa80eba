"""Shaping of OTN links behind one small interface: `netem` where the kernel has it, `relay` where it has not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from testbed.errors import BadInput, require
from testbed.lab.shaping.relay_process import lateness_quantile
from testbed.plugins import Registry, Unusable, in_file, own_code, read_content
from testbed.spec.topology import Direction


@dataclass(frozen=True)
class End:
    """One end of a link: an interface to be made in the network namespace of a border router."""

    border: str
    pid: int
    interface: str
    hardware_address: str


@dataclass(frozen=True)
class ShapedDirection:
    """One direction as asked for: `index` into `topology.directions()`, room in bytes, seed for loss and jitter."""

    index: int
    asked: Direction
    source: End
    target: End
    queue_bytes: float
    seed: int


@dataclass(frozen=True)
class ShapedLink:
    """A link to be made: its two directions (forward, reverse) and its MTU in bytes."""

    forward: ShapedDirection
    reverse: ShapedDirection
    mtu: int


@dataclass(frozen=True)
class LinkCounters:
    """What went through one direction since the lab was built, or between two readings (`since`)."""

    direction: int
    label: str
    packets: int
    """Frames, each segment of a GSO super-packet counted."""
    wire_bytes: int
    """Bytes charged to the rate, Ethernet headers included."""
    payload_bytes: int | None
    """TCP payload; None where the shaper cannot tell."""
    dropped: int
    """Frames lost that nobody asked to lose: queue overflow, full interfaces. A qdisc counts a super-packet as one."""
    lost: int | None
    """Frames lost because `loss` was asked for; None where the shaper counts them as dropped."""
    queue_high_water_bytes: float | None
    """Most bytes that ever waited for the wire."""
    lateness: tuple[int, ...] | None
    """Histogram of (release - due) of every frame, buckets as in relay_process.lateness_bucket."""

    def lateness_s(self, share: float) -> float | None:
        """Seconds that `share` (0..1] of the frames were late at most; None without frames or histogram."""
        value = math.nan if self.lateness is None else lateness_quantile(list(self.lateness), share)
        return None if math.isnan(value) else value

    def since(self, earlier: LinkCounters) -> LinkCounters:
        """What was added after `earlier`; the high water stays that of the later reading."""

        def minus(a: int | None, b: int | None) -> int | None:
            return None if a is None or b is None else a - b

        histogram = None
        if self.lateness is not None and earlier.lateness is not None:
            histogram = tuple(a - b for a, b in zip(self.lateness, earlier.lateness, strict=True))
        return replace(
            self,
            packets=self.packets - earlier.packets,
            wire_bytes=self.wire_bytes - earlier.wire_bytes,
            payload_bytes=minus(self.payload_bytes, earlier.payload_bytes),
            dropped=self.dropped - earlier.dropped,
            lost=minus(self.lost, earlier.lost),
            lateness=histogram,
        )

    def as_row(self) -> dict[str, object]:
        """A flat row for tables and files; times in seconds."""
        shares = {"lateness_p50_s": 0.5, "lateness_p99_s": 0.99, "lateness_max_s": 1.0}
        counts = {name: count for name, count in vars(self).items() if name != "lateness"}
        return counts | {name: self.lateness_s(share) for name, share in shares.items()}


@runtime_checkable
class Shaper(Protocol):
    """Makes the interfaces of links and shapes them. All methods raise RunFailed naming the refused request."""

    name: str

    @property
    def pid(self) -> int | None:
        """The process that carries the links, where the kernel alone does not."""

    def build(self, links: Sequence[ShapedLink]) -> None:
        """Make both interfaces of every link (down, without addresses) and have both directions shaped, read back."""

    def counters(self, *, reset_peaks: bool = False) -> list[LinkCounters]:
        """One reading per direction, in the order of their indexes."""

    def change(self, direction: int, **values: float) -> None:
        """Change delay_s, rate_bps, jitter_s, loss or queue_bytes of a live direction; the rest stays."""

    def describe(self) -> list[dict[str, Any]]:
        """Per direction, what is in force, as read back."""

    def close(self) -> None:
        """Stop shaping; the links are dead afterwards."""


@dataclass(frozen=True)
class TimedChange:
    """What becomes of a live direction at an instant of the monotonic clock; None leaves what it has."""

    at_s: float
    direction: int
    delay_s: float | None = None
    rate_bps: float | None = None
    sends: bool | None = None
    """False: it keeps what comes, once more; True: once less, and sends again if that was the last time."""
    loss: float | None = None
    jitter_s: float | None = None
    keeps_until_s: float | None = None
    """Until when it keeps what comes, of a shaper that has to know that in advance (outages.py)."""


@runtime_checkable
class TimedShaper(Shaper, Protocol):
    """One that changes directions by itself when their time has come, and nothing is lost or overtaken: all bytes that
    are not sent yet go otherwise, and what is sent comes out as it would have; under netem, packets that come later."""

    def schedule(self, changes: Sequence[TimedChange]) -> None:
        """Have these happen, beside those that are still to come."""

    def happened(self) -> list[float]:
        """When those really did that were scheduled, in the order in which they were given to `schedule`; forgotten
        then."""


CHANGEABLE = frozenset({"delay_s", "rate_bps", "jitter_s", "loss", "queue_bytes"})


def _as_maker(name: str, loaded: object) -> Callable[[], Shaper]:
    if callable(loaded):
        return loaded
    raise Unusable(name, f"a class or function that makes a Shaper, not {loaded!r}")


AUTO = "auto"
RELAY = "relay"


def require_timed(name: str, shaper: object) -> None:
    """Raises BadInput where a shaper of this name cannot change links as they are timed to."""
    expected = "relay, netem or another testbed.lab.shaping.TimedShaper, for events of links"
    require(isinstance(shaper, TimedShaper), "--shaper", "shaper", name, expected)


SHAPERS = Registry(
    "testbed.shapers",
    {"relay": "testbed.lab.shaping.relay:RelayShaper", "netem": "testbed.lab.shaping.netem:make"},
    _as_maker,
)
"""What makes a shaper, by name: called without arguments once per lab."""


def choose(name: str, *, timed: bool = False) -> Shaper:
    """The shaper called `name`, or FILE.py:NAME.

    `auto` is netem where adding such a qdisc to a scratch interface works, else relay; the relay where links change as
    they are `timed` to.

    Raises BadInput for an unknown name, MachineLacks when netem is asked for and the kernel has none.
    """
    if name == AUTO and timed:
        name = RELAY
    if name == AUTO:
        from testbed.lab.shaping import netem

        name = "netem" if netem.available() is None else "relay"
    return _made(name)


def anywhere(name: str) -> str:
    """The name of a shaper that exists, with the whole path of its file. Raises BadInput."""
    reference = in_file(name)
    if reference is None:
        if name not in SHAPERS:
            _maker(name)
        return name
    whole = f"{Path(reference.file).resolve()}:{reference.name}"
    _made(whole)
    return whole


def _made(name: str) -> Shaper:
    """A new one. Raises BadInput where it cannot be made, or is none."""

    def refused(problem: str) -> BadInput:
        return BadInput.of("--shaper", "shaper", name, f"a shaper that can be made without arguments ({problem})")

    maker = _maker(name)
    with own_code(in_file(name), refused):
        shaper = maker()
    if not isinstance(shaper, Shaper):
        raise BadInput.of("--shaper", "shaper", name, "something that has all methods of testbed.lab.shaping.Shaper")
    return shaper


def _maker(name: str) -> Callable[[], Shaper]:
    try:
        reference = in_file(name)
        return SHAPERS.find(name, None if reference is None else read_content(reference.file, Path()))
    except Unusable as error:
        expected = error.expected.replace("one of ", f"one of {AUTO}, ", 1)
        raise BadInput.of("--shaper", "shaper", error.value, expected) from error
