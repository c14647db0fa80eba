"""Every direction of every link measured, and compared with what was asked; gate.py says what follows from it.

The bands stand in thresholds.py. A link outside them is measured up to two more times, since other work on the
host can disturb a measurement; all attempts are kept, with what the machine did meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from testbed.errors import RunFailed
from testbed.grouping import grouped
from testbed.lab.cards import delay_note
from testbed.lab.disturbance import Disturbance, between, count, sleep_lateness
from testbed.lab.host_settings import real_time
from testbed.lab.lab import Lab
from testbed.lab.loss import LossCount, likely_losses
from testbed.lab.probes import (
    WINDOW_S,
    Ends,
    ShortProbe,
    Spread,
    losses,
    one_way_delays,
    ping_overhead_s,
    probe_overhead_s,
    room_for_rate_probe,
    round_trips,
    short_probe,
    wire_rate,
)
from testbed.lab.shaping import LinkCounters
from testbed.lab.sizing import RouteFacts
from testbed.plan.framing import ACK_BYTES, LARGEST_GSO
from testbed.spec.topology import Direction
from testbed.thresholds import ATTEMPTS, DELAY_BAND_S, LOSS_CHANCE, RELATIVE_BAND
from testbed.units import show_rate, show_time


@dataclass(frozen=True)
class AskedDirection:
    """What the topology says about a direction; `rtt_s` is both directions of its link together."""

    delay_s: float
    rtt_s: float
    rate_bps: float
    loss: float = 0.0


@dataclass(frozen=True)
class MeasuredDirection:
    """What was found, delays without the probe's own time on the wire. None: could not be measured."""

    rtt: Spread | None = None
    one_way: Spread | None = None
    rate_bps: float | None = None
    dropped: int = 0
    losses: LossCount | None = None
    """Of probes, where losses are asked for."""


@dataclass(frozen=True)
class LinkCheck:
    """The verdict on one direction. `earlier` are the measurements that failed before this one, with their reasons."""

    direction: int
    label: str
    asked: AskedDirection
    measured: MeasuredDirection
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
                "losses": self.measured.losses and self.measured.losses._asdict(),
            },
            "ok": self.ok,
            "reasons": list(self.reasons),
            "notes": list(self.notes),
            "broken": self.broken,
            "machine": self.machine and self.machine.as_json(),
            "attempts": self.attempts,
            "earlier": [check.as_json() for check in self.earlier],
        }


class _Line(NamedTuple):
    """A direction to measure: its number, what is asked, and between which ends."""

    number: int
    asked: Direction
    ends: Ends


def lines(lab: Lab) -> list[tuple[_Line, ...]]:
    """What is measured together: both directions of each link, then of each datacenter the cards of two nodes.

    All cards of a datacenter are asked for in one line of a file, and each is read back from the kernel; measuring
    every one would take a second for each node. A node alone is measured towards its border.
    """
    found = []
    for link in range(len(lab.directions) // 2):
        pair = 2 * link, 2 * link + 1
        found.append(tuple(_Line(i, lab.directions[i], Ends(*lab.link_ends(i))) for i in pair))
    for site, numbers in grouped((card.target, number) for number, card in enumerate(lab.cards)).items():
        two = numbers[:2]
        towards = [lab.cards[other].source for other in reversed(two)] if len(two) == 2 else [site]
        found.append(
            tuple(
                _Line(len(lab.directions) + number, lab.cards[number], Ends(*lab.card_ends(number, neighbour)))
                for number, neighbour in zip(two, towards, strict=True)
            )
        )
    return found


def calibrate(
    lab: Lab, *, progress: Callable[[str], None] | None = None, again: Sequence[LinkCheck] = ()
) -> list[LinkCheck]:
    """One LinkCheck per direction of `lines`, in their order. Raises RunFailed only when the lab itself is broken.

    With the checks of a first time, only links that were not as asked are measured `again`.
    """
    checks: list[LinkCheck] = []
    with lab.alive.blaming("links were measured"):
        counted: Sequence[LinkCounters] = lab.counters()
        for link in lines(lab):
            earlier = again[len(checks) : len(checks) + len(link)]
            if earlier and all(check.ok for check in earlier):
                checks += earlier
            else:
                found, counted = _measure_with_patience(lab, link, earlier, counted, progress)
                checks += found
    if any(check.broken for check in checks):
        lab.alive.require("links were measured")
    return checks


def _measure_with_patience(
    lab: Lab,
    link: Sequence[_Line],
    earlier: Sequence[LinkCheck],
    counted: Sequence[LinkCounters],
    progress: Callable[[str], None] | None,
) -> tuple[list[LinkCheck], Sequence[LinkCounters]]:
    """A link measured until it is as asked, up to ATTEMPTS times, and what all links have counted by then; `counted` is
    what they had counted before.
    """
    last = list(earlier)
    for attempt in range(ATTEMPTS):
        if progress is not None:
            more = f", attempt {attempt + 1}" if attempt else ""
            progress(f"measuring {link[0].asked.label}{more}")
        with real_time(lab.real_time_workers):  # or a probe would measure its own wait for a processor
            before = count(lab.carriers())
            found, counted = _measure_link(lab, link, counted)
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
    return last, counted


def _measure_link(
    lab: Lab, link: Sequence[_Line], before: Sequence[LinkCounters]
) -> tuple[list[LinkCheck], Sequence[LinkCounters]]:
    """Round trips and one-way delays first, then rates, direction by direction; and what all links have counted then.

    `before` is what they had counted before.
    """
    asked = [line.asked for line in link]
    rtt = _rtt_s(link)
    found = [MeasuredDirection() for _ in link]
    trouble: list[list[str]] = [[] for _ in link]
    notes: list[list[str]] = [[] for _ in link]
    try:
        overhead = sum(ping_overhead_s(d.rate_bps) for d in asked)
        arriving = math.prod(1.0 - direction.loss for direction in asked)
        slowest_bps = min(direction.rate_bps for direction in asked)
        pings = round_trips([line.ends for line in link], rtt, slowest_bps, arriving=arriving)
        found = [MeasuredDirection(rtt=ping.less(overhead)) for ping in pings]
    except RunFailed as error:
        trouble = [[str(error)] for _ in link]
    for i, (_, direction, ends) in enumerate(link):
        try:
            probes = one_way_delays(ends, direction.delay_s, direction.rate_bps, arriving=1.0 - direction.loss)
            found[i] = replace(found[i], one_way=probes.less(probe_overhead_s(direction.rate_bps)))
            if direction.loss > 0:
                lost = losses(ends, direction.delay_s, direction.rate_bps, direction.loss)
                found[i] = replace(found[i], losses=lost)
        except RunFailed as error:
            trouble[i].append(str(error))
    _measure_rates(lab, link, found, trouble, notes)
    after = lab.counters()
    checks = []
    for i, (index, direction, _) in enumerate(link):
        counted = after[index].since(before[index])
        dropped = counted.dropped + (0 if direction.loss > 0 else counted.lost or 0)
        if direction.loss > 0 and counted.lost is None:
            dropped = 0
            notes[i].append("drops not checked: this shaper counts asked-for losses among them")
        wanted = AskedDirection(direction.delay_s, rtt, direction.rate_bps, direction.loss)
        complete = replace(found[i], dropped=dropped)
        notes[i] += _notes_on_card(lab, index, complete)
        reasons = (*trouble[i], *verdict(wanted, complete, jitter_s=sum(d.jitter_s for d in asked)))
        broken = bool(trouble[i])
        checks.append(LinkCheck(index, direction.label, wanted, complete, reasons, tuple(notes[i]), broken=broken))
    return checks, after


_MOST_UNDER_WAY_BYTES = 2**28
"""To fill a link with more takes long, and TCP has a GiB under way at most: its delays are shorter meanwhile."""


def _measure_rates(
    lab: Lab, link: Sequence[_Line], found: list[MeasuredDirection], trouble: list[list[str]], notes: list[list[str]]
) -> None:
    """Add the rates to what was `found` of directions, or why there are none to `trouble` or `notes`."""
    if any(line.asked.loss > 0 for line in link):
        for of_direction in notes:
            of_direction.append("rate not measured: the link is asked to lose packets, and TCP would measure that")
        return
    jitter_s = sum(line.asked.jitter_s for line in link)
    window_s = _EXACT_WINDOW_S if lab.virtual and not jitter_s else WINDOW_S
    short = {line.number: short_probe(_facts(link, line), window_s) for line in _slowly_acknowledged(link)}
    with _shortened(lab, link, min((probe.share for probe in short.values()), default=1.0)) as share, _roomy(lab, link):
        for i, line in enumerate(link):
            if trouble[i]:  # a link that does not carry probes has no rate
                continue
            probe = short.get(line.number, ShortProbe(share, window_s))
            if share < 1:
                notes[i].append(f"rate measured with {share:.0%} of the delays: TCP could not fill the link with all")
            try:
                found[i] = replace(found[i], rate_bps=_rate(lab, line, share, _rtt_s(link), probe.window_s))
            except (RunFailed, OSError) as error:
                trouble[i].append(str(error) if isinstance(error, RunFailed) else f"rate probe: {error}")


def _rtt_s(link: Sequence[_Line]) -> float:
    return sum(line.asked.delay_s for line in link)


def _facts(link: Sequence[_Line], line: _Line) -> RouteFacts:
    return RouteFacts(line.asked.rate_bps, _rtt_s(link))


_SLOW_WAY_BACK = LARGEST_GSO / ACK_BYTES / 4
"""So many times slower, and acknowledgements of super-packets a quarter as long as the longest come more slowly than
they would have to."""


def _slowly_acknowledged(link: Sequence[_Line]) -> list[_Line]:
    """Directions whose way back has no room for the acknowledgements of all that they carry."""
    slowest_bps = min(line.asked.rate_bps for line in link)
    return [line for line in link if line.asked.rate_bps > _SLOW_WAY_BACK * slowest_bps]


@contextmanager
def _shortened(lab: Lab, link: Sequence[_Line], most: float) -> Iterator[float]:
    """While rates are measured, a link that holds too much has shorter delays; yields the share of them in force, at
    `most` so much."""
    holds = max(_rtt_s(link) * line.asked.rate_bps / 8 for line in link)
    share = min(most, _MOST_UNDER_WAY_BYTES / holds if holds > _MOST_UNDER_WAY_BYTES else 1.0)
    if share == 1 or link[0].number >= len(lab.directions):  # cards are as near as they are
        yield 1.0
        return
    try:
        for line in link:
            one = line.asked
            lab.change_link(line.number, delay_s=share * one.delay_s, jitter_s=share * one.jitter_s)
        yield share
    finally:
        for line in link:
            lab.change_link(line.number, delay_s=line.asked.delay_s, jitter_s=line.asked.jitter_s)


@contextmanager
def _roomy(lab: Lab, link: Sequence[_Line]) -> Iterator[None]:
    """While rates are measured, queues that a link asks for have the room that probes and acknowledgements need."""
    widened = []
    for line in link:
        needed = room_for_rate_probe(line.asked.rate_bps, line.asked.delay_s)
        if 0 < line.asked.queue_bytes < needed:
            widened.append(line)
            lab.change_link(line.number, queue_bytes=needed)
    try:
        yield
    finally:
        for line in widened:
            lab.change_link(line.number, queue_bytes=line.asked.queue_bytes)


_EXACT_WINDOW_S = 0.1
"""In which a rate is measured where neither the machine nor the link makes a packet late."""


def _rate(lab: Lab, line: _Line, share: float, rtt: float, window_s: float) -> float:
    """In bit/s; `share` of the delays is in force."""
    one = line.asked
    room = lab.queue_room(line.number)
    if one.queue_bytes:
        room = max(room, room_for_rate_probe(one.rate_bps, one.delay_s))  # as `_roomy` has it
    longest_s = share * (one.delay_s + one.jitter_s)  # of many packets in order the latest delays all
    return wire_rate(line.ends, longest_s, RouteFacts(one.rate_bps, share * rtt), room, window_s=window_s)


def _notes_on_card(lab: Lab, index: int, measured: MeasuredDirection) -> list[str]:
    """What is to be said about the delay of a direction that is a network card."""
    number = index - len(lab.directions)
    if number < 0 or lab.card_shaper_name is None:
        return []
    taken = None if measured.one_way is None else measured.one_way.median
    note = delay_note(lab.card_shaper_name, lab.cards[number].delay_s, taken)
    return [] if note is None else [note]


def verdict(asked: AskedDirection, measured: MeasuredDirection, *, jitter_s: float = 0.0) -> list[str]:
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
    if measured.losses is not None:
        sent, lost = measured.losses
        fewest, most = likely_losses(sent, asked.loss, LOSS_CHANCE)
        if not fewest <= lost <= most:
            reasons.append(f"{lost} of {sent} packets lost, asked {100 * asked.loss:g} %, allowed {fewest} to {most}")
    if measured.dropped:
        reasons.append(f"{measured.dropped} packets dropped")
    return reasons
