"""What a topology says that happens to its links, as events of a plan: a direction each, at a moment, as in the lab."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from testbed.errors import BadInput, require
from testbed.files import csv_rows, read_text
from testbed.full_scale import similitude
from testbed.full_scale.similitude import LEAST_RATE_BPS, MOST_RATE_BPS, Scales
from testbed.plan.network_state import planned
from testbed.plan.plan import Network
from testbed.plan.timeline import LinkEvent, Moment
from testbed.spec.event_text import LEAST_RATE_BPS as LEAST_EVENT_RATE_BPS
from testbed.spec.event_text import (
    MOST_EVENT_DELAY_S,
    MOST_EVENT_RATE_BPS,
    MOST_SECONDS,
    MOST_TIMES,
    Becomes,
    ComesAndGoes,
    EventText,
    IterationTraffic,
)
from testbed.spec.topology import Direction, Topology
from testbed.units import show_rate, show_time


def link_events(
    topology: Topology, network: Network, at: Scales | None = None, *, iterations: int, brought: Collection[str] = ()
) -> tuple[LinkEvent, ...]:
    """In order of time. `network` is that of the topology, `at` the scale that the lab has it at; a training ends after
    so many measured iterations. Raises BadInput, which blames `--event` for texts that it has `brought`.
    """
    reads = [read for read in map(topology.event, topology.events) if read.what != "rank"]
    begins = {read.text: read.iteration for read in reads}
    found = direction_events([(source_of(topology, read, brought), read) for read in reads], network, at)
    return tuple(event for event in found if event.at.iteration < max(iterations, begins[event.said] + 1))


def direction_events(
    reads: Sequence[tuple[str, EventText]], network: Network, at: Scales | None = None
) -> tuple[LinkEvent, ...]:
    """What texts of links and datacenters say, in order of time; what comes last is what a direction has: at one
    moment what begins, behind what ends there.

    With each stands what errors blame for it. Raises BadInput.
    """
    found = [
        part
        for name, read in reads
        for number, direction in enumerate(planned(network).links)
        if _meant(read, direction)
        for part in _of_direction(name, read, number, direction, at)
    ]
    return tuple(part.event for part in sorted(found, key=lambda part: (part.event.at, not part.ends)))


class _Part(NamedTuple):
    """Of what a text says that happens to a direction."""

    event: LinkEvent
    ends: bool = False
    """Whether a rate, a delay, a loss or a jitter is as planned again with it."""


def source_of(topology: Topology, read: EventText, brought: Collection[str]) -> str:
    """What errors of an event blame: the topology, or the option that has `brought` it."""
    return "--event" if read.text in brought else topology.name


def _meant(read: EventText, direction: Direction) -> bool:
    ends = direction.source, direction.target
    if read.what == "datacenter":
        return read.name in ends
    return read.name == direction.link and read.ends in (None, ends)


def _of_direction(name: str, read: EventText, number: int, direction: Direction, at: Scales | None) -> list[_Part]:
    """What an event does to a direction, which `direction` is as planned: at once, and when it is over."""
    time = 1.0 if at is None else at.seconds
    if read.lost:
        expected = f"--lose {read.name}@{read.iteration}, with which flows take other routes, or `down for` a time"
        raise BadInput.of(name, "events", read.text, expected)
    if read.trace:
        return [
            _Part(
                LinkEvent(
                    direction.link,
                    Moment(read.iteration, (read.seconds + at_s) * time),
                    number,
                    read.text,
                    *_in_the_lab(name, read, becomes, direction, at),
                )
            )
            for at_s, becomes in read_trace(read.trace)
        ]
    if read.comes_and_goes is not None:
        return _again_and_again(name, read, read.comes_and_goes, number, direction, at)
    if read.traffic is not None:
        return _iterations_about(name, read, read.traffic, number, direction, at)
    delay_s, rate_bps = _in_the_lab(name, read, read.becomes, direction, at)
    begin = Moment(read.iteration, read.seconds * time)
    if not read.down_s:
        loss, jitter_s = _by_chance(name, read, direction, time)
        first = LinkEvent(direction.link, begin, number, read.text, delay_s, rate_bps, loss=loss, jitter_s=jitter_s)
        return [_Part(first), *_over(read, first, direction, time)]
    down = _Part(LinkEvent(direction.link, begin, number, read.text, sends=False))
    if math.isinf(read.down_s):
        return [down]
    end = Moment(read.iteration, (read.seconds + read.down_s) * time)
    return [down, _Part(LinkEvent(direction.link, end, number, read.text, delay_s, rate_bps, sends=True))]


def _by_chance(name: str, read: EventText, direction: Direction, time: float) -> tuple[float | None, float | None]:
    """Loss and jitter that a direction gets; None where it has what it had. Raises BadInput for jitter beyond delay."""
    loss, jitter_s = read.becomes.loss, read.becomes.jitter_s
    if loss is None and jitter_s is None:
        return None, None
    if jitter_s is not None:
        jitter_s *= time
        expected = f"at most the delay of {direction.label}, {show_time(direction.delay_s)}"
        require(jitter_s <= direction.delay_s, name, "events", read.text, expected)
    return loss, jitter_s


def _over(read: EventText, first: LinkEvent, direction: Direction, time: float) -> list[_Part]:
    """A direction as planned again, where what has changed is to end."""
    if read.until is None and read.for_s is None:
        return []
    end = Moment(read.iteration, (read.seconds + (read.for_s or 0.0)) * time)
    fields = ("delay_s", "rate_bps", "loss", "jitter_s")
    planned_as = {name: getattr(direction, name) for name in fields if getattr(first, name) is not None}
    at = end if read.until is None else Moment(read.until)
    return [_Part(LinkEvent(direction.link, at, first.direction, read.text, **planned_as), ends=True)]


def _iterations_about(
    name: str, read: EventText, traffic: IterationTraffic, number: int, direction: Direction, at: Scales | None
) -> list[_Part]:
    """What others leave of the rate for some iterations, and all of it for as many."""
    require(not read.seconds, name, "events", read.text, "traffic from the beginning of an iteration on: at 4")
    last, found = MOST_TIMES if read.until is None else read.until - read.iteration, list[_Part]()
    moments = list(range(0, last, traffic.every))[:MOST_TIMES]
    for index, moment in enumerate(moments):
        left = Becomes(rate_share=1.0 if index % 2 else 1.0 - traffic.share)
        values = _in_the_lab(name, read, left, direction, at)
        at_moment = Moment(read.iteration + moment)
        found.append(_Part(LinkEvent(direction.link, at_moment, number, read.text, *values), ends=index % 2 == 1))
    if len(moments) % 2 and read.until is not None:
        values = _in_the_lab(name, read, Becomes(rate_share=1.0), direction, at)
        found.append(_Part(LinkEvent(direction.link, Moment(read.until), number, read.text, *values), ends=True))
    return found


def _again_and_again(
    name: str, read: EventText, again: ComesAndGoes, number: int, direction: Direction, at: Scales | None
) -> list[_Part]:
    """Outages, or what others leave of the topology's rate, which is there again afterwards."""
    time, found = 1.0 if at is None else at.seconds, list[_Part]()
    for span in again.spans():
        for seconds, over in zip(span, (False, True), strict=True):
            moment = Moment(read.iteration, (read.seconds + seconds) * time)
            if again.share == 1:
                found.append(_Part(LinkEvent(direction.link, moment, number, read.text, sends=over)))
                continue
            left = Becomes(rate_share=1.0 if over else 1.0 - again.share)
            values = _in_the_lab(name, read, left, direction, at)
            found.append(_Part(LinkEvent(direction.link, moment, number, read.text, *values), ends=over))
    return found


def _in_the_lab(
    name: str, read: EventText, becomes: Becomes, direction: Direction, at: Scales | None
) -> tuple[float | None, float | None]:
    """Delay and rate that a direction gets; None where it has what it had."""
    delay_s, rate_bps = becomes.delay_s, None
    if delay_s is not None and at is not None:
        delay_s *= at.seconds
    if becomes.delay_factor is not None:
        delay_s = direction.delay_s * becomes.delay_factor
        most = MOST_EVENT_DELAY_S * (1.0 if at is None else at.seconds)
        require(delay_s <= most, name, "events", read.text, f"a delay of at most {show_time(most)}")
    if becomes.rate_share is not None:
        rate_bps = direction.rate_bps * becomes.rate_share
    elif becomes.rate_bps is not None:
        asked = direction._replace(rate_bps=becomes.rate_bps)
        rate_bps = asked.rate_bps if at is None else similitude.direction_at(asked, at).rate_bps
    if rate_bps is not None and not LEAST_RATE_BPS <= rate_bps <= MOST_RATE_BPS:
        expected = f"a rate from {show_rate(LEAST_RATE_BPS)} to {show_rate(MOST_RATE_BPS)} in the lab"
        raise BadInput.of(name, "events", f"{read.text}: {show_rate(rate_bps)}", expected)
    return delay_s, rate_bps


# --- traces --------------------------------------------------------------------------------------


def read_trace(file: str) -> list[tuple[float, Becomes]]:
    """What a CSV file says that a direction has from when on, in seconds from the event. Raises BadInput."""
    text = read_text(Path(file), _MOST_TRACE_BYTES, "a readable CSV file")
    rows = csv_rows(text, file)
    header = ", ".join(_COLUMNS)
    require(bool(rows) and rows[0] == list(_COLUMNS), file, "line 1", rows[0] if rows else "nothing", header)
    require(
        1 < len(rows) <= _MOST_ROWS, file, "rows", len(rows) - 1, f"1 to {_MOST_ROWS - 1} below the names of columns"
    )
    found: list[tuple[float, Becomes]] = []
    for line, row in enumerate(rows[1:], 2):
        require(len(row) == len(_COLUMNS), file, f"line {line}", row, f"{len(_COLUMNS)} values ({header})")
        values = [_number(file, line, *pair) for pair in zip(_COLUMNS, row, strict=True)]
        at_s, delay_s, rate_bps = values
        least = found[-1][0] if found else 0.0
        in_order = at_s is not None and at_s >= least
        require(in_order, file, f"line {line}: at_s", row[0], f"{least:g} or more, in order of time")
        found.append((at_s or 0.0, Becomes(delay_s, rate_bps)))
    return found


_COLUMNS = "at_s", "delay_s", "rate_bps"
_BOUNDS = {
    "at_s": (0.0, MOST_SECONDS),
    "delay_s": (0.0, MOST_EVENT_DELAY_S),
    "rate_bps": (LEAST_EVENT_RATE_BPS, MOST_EVENT_RATE_BPS),
}
_MOST_TRACE_BYTES, _MOST_ROWS = 1_000_000, 10_001


def _number(file: str, line: int, column: str, text: str) -> float | None:
    """A value; None where the field is empty."""
    if not text.strip():
        return None
    least, most = _BOUNDS[column]
    try:
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        value = math.nan
    require(least <= value <= most, file, f"line {line}: {column}", text, f"a number from {least:g} to {most:g}")
    return value
