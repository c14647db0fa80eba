"""Every direction of every link measured, and compared with what was asked; gate.py says what follows from it.

The bands stand in judge/thresholds.py. A link outside them is measured up to two more times, since other work on the
host can disturb a measurement; all attempts are kept, with what the machine did meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from testbed.errors import RunFailed
from testbed.judge.thresholds import ATTEMPTS, DELAY_BAND_S, RELATIVE_BAND
from testbed.lab.disturbance import Disturbance, between, count, sleep_lateness
from testbed.lab.host import real_time
from testbed.lab.network import Lab
from testbed.lab.probes import (
    Ends,
    Spread,
    one_way_delays,
    ping_overhead_s,
    probe_overhead_s,
    round_trips,
    wire_rate,
)
from testbed.lab.sizing import queue_room
from testbed.units import show_rate, show_time


@dataclass(frozen=True)
class Asked:
    """What the topology says about a direction; `rtt_s` is both directions of its link together."""

    delay_s: float
    rtt_s: float
    rate_bps: float


@dataclass(frozen=True)
class Measured:
    """What was found, delays without the probe's own time on the wire. None: could not be measured."""

    rtt: Spread | None = None
    one_way: Spread | None = None
    rate_bps: float | None = None
    dropped: int = 0


@dataclass(frozen=True)
class LinkCheck:
    """The verdict on one direction. `earlier` are the measurements that failed before this one, with their reasons."""

    direction: int
    label: str
    asked: Asked
    measured: Measured
    reasons: tuple[str, ...]
    notes: tuple[str, ...] = ()
    earlier: tuple[LinkCheck, ...] = field(default=())
    broken: bool = False
    """Whether probes did not come through: the lab itself is broken, whatever the machine does."""
    machine: Disturbance | None = None
    """What the machine did meanwhile."""

    @property
    def ok(self) -> bool:
        """Whether the direction is what was asked for."""
        return not self.reasons

    @property
    def attempts(self) -> int:
        """How often it was measured."""
        return 1 + len(self.earlier)

    def as_json(self) -> dict[str, Any]:
        """JSON-able, times in seconds and rates in bit/s."""

        def spread(value: Spread | None) -> dict[str, float] | None:
            return None if value is None else value._asdict()

        return {
            "direction": self.direction,
            "label": self.label,
            "asked": asdict(self.asked),
            "measured": {
                "rtt_s": spread(self.measured.rtt),
                "one_way_s": spread(self.measured.one_way),
                "rate_bps": self.measured.rate_bps,
                "dropped": self.measured.dropped,
            },
            "ok": self.ok,
            "reasons": list(self.reasons),
            "notes": list(self.notes),
            "broken": self.broken,
            "machine": self.machine and self.machine.as_json(),
            "attempts": self.attempts,
            "earlier": [check.as_json() for check in self.earlier],
        }


def calibrate(
    lab: Lab, *, progress: Callable[[str], None] | None = None, again: Sequence[LinkCheck] = ()
) -> list[LinkCheck]:
    """One LinkCheck per direction of the lab, in their order. Raises RunFailed only when the lab itself is broken.

    With the checks of a first time, only links that were not as asked are measured `again`.
    """
    checks: list[LinkCheck] = []
    for link in range(len(lab.directions) // 2):
        pair = again[2 * link : 2 * link + 2]
        if pair and all(check.ok for check in pair):
            checks += pair
        else:
            checks += _measure_with_patience(lab, link, pair, progress)
    return checks


def _measure_with_patience(
    lab: Lab, link: int, earlier: Sequence[LinkCheck], progress: Callable[[str], None] | None
) -> list[LinkCheck]:
    """A link measured until it is as asked, up to ATTEMPTS times."""
    last = list(earlier)
    for attempt in range(ATTEMPTS):
        if progress is not None:
            more = f", attempt {attempt + 1}" if attempt else ""
            progress(f"measuring {lab.directions[2 * link].label}{more}")
        with real_time(lab.real_time_workers):  # or a probe would measure its own wait for a processor
            before = count(lab.carriers())
            found = _measure_link(lab, link)
            machine = between(before, count(lab.carriers()))
            if not all(check.ok for check in found):
                machine = replace(machine, late=sleep_lateness())
        found = [replace(check, machine=machine) for check in found]
        if last:
            found = [
                replace(new, earlier=(*old.earlier, replace(old, earlier=())))
                for new, old in zip(found, last, strict=True)
            ]
        last = found
        if all(check.ok for check in found):
            break
    return last


def _measure_link(lab: Lab, link: int) -> list[LinkCheck]:
    pair = (2 * link, 2 * link + 1)
    asked = [lab.directions[i] for i in pair]
    rtt = sum(direction.delay_s for direction in asked)
    slowest = min(direction.rate_bps for direction in asked)
    lossy = any(direction.loss > 0 for direction in asked)
    before = lab.counters()
    found = [Measured(), Measured()]
    trouble: list[list[str]] = [[], []]
    notes: list[list[str]] = [[], []]
    both = [Ends(*lab.link_ends(index)) for index in pair]
    try:
        overhead = sum(ping_overhead_s(d.rate_bps) for d in asked)
        for i, pings in enumerate(round_trips(both, rtt, slowest)):
            found[i] = replace(found[i], rtt=_less(pings, overhead))
    except RunFailed as error:
        trouble[0].append(str(error))
        trouble[1].append(str(error))
    for i, direction in enumerate(asked):
        try:
            probes = one_way_delays(both[i], direction.delay_s, direction.rate_bps)
            found[i] = replace(found[i], one_way=_less(probes, probe_overhead_s(direction.rate_bps)))
        except RunFailed as error:
            trouble[i].append(str(error))
    for i, direction in enumerate(asked):
        if lossy:
            notes[i].append("rate not measured: the link is asked to lose packets, and TCP would measure that")
            continue
        if trouble[i]:
            continue  # a link that does not carry probes has no rate
        try:
            room = queue_room(direction, len(lab.containers), lab.largest_burst_bytes)
            found[i] = replace(found[i], rate_bps=wire_rate(both[i], direction.delay_s, rtt, direction.rate_bps, room))
        except (RunFailed, OSError) as error:
            trouble[i].append(f"rate probe: {error}")
    after = lab.counters()
    checks = []
    for i, (index, direction) in enumerate(zip(pair, asked, strict=True)):
        counted = after[index].since(before[index])
        dropped = counted.dropped
        if direction.loss > 0 and counted.lost is None:
            dropped = 0
            notes[i].append("drops not checked: this shaper counts asked-for losses among them")
        wanted = Asked(direction.delay_s, rtt, direction.rate_bps)
        complete = replace(found[i], dropped=dropped)
        reasons = (*trouble[i], *verdict(wanted, complete, jitter_s=sum(d.jitter_s for d in asked)))
        broken = bool(trouble[i])
        checks.append(LinkCheck(index, direction.label, wanted, complete, reasons, tuple(notes[i]), broken=broken))
    return checks


def verdict(asked: Asked, measured: Measured, *, jitter_s: float = 0.0) -> list[str]:
    """Why a direction is not what was asked for; [] when it is. Asked-for jitter widens the bands of delays."""
    reasons = []
    for what, want, found in (
        ("RTT", asked.rtt_s, measured.rtt),
        ("one-way delay", asked.delay_s, measured.one_way),
    ):
        band = max(RELATIVE_BAND * want, DELAY_BAND_S) + jitter_s
        if found is not None and abs(found.median - want) > band:
            reasons.append(
                f"{what} median {show_time(found.median)}, asked {show_time(want)}, allowed ±{show_time(band)}"
            )
    rate = measured.rate_bps
    if rate is not None and abs(rate / asked.rate_bps - 1) > RELATIVE_BAND:
        off = f"{100 * (rate / asked.rate_bps - 1):+.1f} %"
        reasons.append(f"rate {show_rate(rate)}, asked {show_rate(asked.rate_bps)} ({off}, allowed ±2 %)")
    if measured.dropped:
        reasons.append(f"{measured.dropped} packets dropped")
    return reasons


def _less(found: Spread, overhead_s: float) -> Spread:
    return Spread(found.minimum - overhead_s, found.median - overhead_s, found.p99 - overhead_s, found.samples)
