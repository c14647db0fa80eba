"""What happens while jobs train, as a file or `--event` says it: one line of text for each event.

    link NAME [A -> B] rate 200 Mbit/s | rate 60 % | rate x0.6 | delay 12 ms | delay x4 | loss 1 % | jitter 2 ms
    link NAME [A -> B] down | down for 30 ms [then delay 9 ms] [then rate 50 %]
    link NAME [A -> B] cut | shared 40 % for 50 ms every 3 s until 20 s [seed 7]
    link NAME [A -> B] trace FILE.csv
    link NAME lost | traffic 60 % every 6
    datacenter NAME down for 8 s
    [JOB] rank 2 slower x1.5

and, behind any of these, when: `at iteration 4` or `at 4`, `at iteration 4 + 120 ms` or `at 4 + 120 ms`, or `at 3.2 s`;
behind an iteration `to 9`, the first one in which it is over, behind any time `for 300 ms`. Whoever plays events says
which of these it can: a run (planning/link_events.py, planning/rank_events.py), a rehearsal
(adaptation/rehearsal_changes.py).
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

from testbed.errors import BadInput, listed, meant
from testbed.spec.document import FieldError
from testbed.units import RATE, TIME, parse

MOST_CHARACTERS = 200
MOST_SECONDS = 3600.0
"""Into an iteration, or without a link."""
LEAST_RATE_BPS, MOST_EVENT_RATE_BPS, MOST_EVENT_DELAY_S = 1e3, 1e15, 10.0
_MOST_DIGITS = 9

_FAILS = "; what fails is said with --failure"
_WHAT = f"link NAME [A -> B], datacenter NAME, or rank N, then what happens to it{_FAILS}"
_HAPPENS = (
    "rate 200 Mbit/s, rate 60 %, delay 12 ms, delay x4, loss 1 %, jitter 2 ms, down for 30 ms [then delay 9 ms] "
    "[then rate 60 %], trace FILE.csv, lost, traffic 60 % every 6, or cut (shared 40 %) for 50 ms every 3 s until 20 s "
    "[seed 7]"
)
_SLOWER = f"[JOB] rank 2 slower x1.5{_FAILS}"
LEAST_FACTOR, MOST_FACTOR = 0.01, 1000.0
"""Of a delay, a rate or a slot."""
MOST_LOSS = 0.5
MOST_TIMES = 2000
"""That something comes and goes."""
_WHEN = "at iteration 4, at iteration 4 + 120 ms, or at 3.2 s, behind what happens"
_LASTS = "an end only of what changes a rate, a delay, a loss, a jitter or a rank, and one of `to` and `for`"


class Becomes(NamedTuple):
    """What a direction has from then on; None: what it had."""

    delay_s: float | None = None
    rate_bps: float | None = None
    rate_share: float | None = None
    """Of the rate that the topology says, instead of a rate."""
    delay_factor: float | None = None
    """Of the delay that the topology says, instead of a delay."""
    loss: float | None = None
    """Share of packets."""
    jitter_s: float | None = None


class ComesAndGoes(NamedTuple):
    """What a direction has again and again for a while."""

    share: float
    """Of its rate that others take; 1: it is cut, and sends nothing."""
    for_s: float
    every_s: float
    """From one beginning to the next."""
    until_s: float
    """From the event on."""
    seed: int | None
    """Of random times with these means (exponential, as of independent faults); None: regular ones."""

    def spans(self) -> list[tuple[float, float]]:
        """Beginnings and ends, in seconds from the event on."""
        draw, found, at = random.Random(self.seed), list[tuple[float, float]](), 0.0
        while len(found) < MOST_TIMES:
            gap_s, length_s = self.every_s - self.for_s, self.for_s
            if self.seed is not None:
                gap_s, length_s = draw.expovariate(1 / gap_s), draw.expovariate(1 / length_s)
                at += gap_s
            if at >= self.until_s:
                break
            found.append((at, min(at + length_s, self.until_s)))
            at = found[-1][1] + (gap_s if self.seed is None else 0.0)
        return found


class IterationTraffic(NamedTuple):
    """What others take of a rate, for some iterations and then for as many not."""

    share: float
    every: int


class EventText(NamedTuple):
    """One event, read."""

    text: str
    what: Literal["link", "datacenter", "rank"]
    name: str
    """Of a rank, its job's; "" where that is the only one."""
    ends: tuple[str, str] | None
    """The one direction that is meant; None: both."""
    iteration: int
    seconds: float
    """From the beginning of that measured iteration."""
    down_s: float
    """For so long nothing is sent; 0: it goes on; infinite: never again."""
    becomes: Becomes
    """Where nothing is sent for a while, after that."""
    trace: str = ""
    """A file of rates and delays from then on; "" without one."""
    comes_and_goes: ComesAndGoes | None = None
    rank: int = 0
    factor: float = 1.0
    """By which all that a rank computes takes longer."""
    lost: bool = False
    """A link is gone."""
    traffic: IterationTraffic | None = None
    until: int | None = None
    """The first measured iteration in which it is over ..."""
    for_s: float | None = None
    """... or how long it lasts; both None: it stays."""


def read_event(text: str) -> EventText:
    """The event that a line says. Raises FieldError, without a field, saying what is expected."""
    if len(text) > MOST_CHARACTERS or not text.isprintable():
        raise FieldError("", text, f"one line of at most {MOST_CHARACTERS} characters")
    before, found, when = " ".join(text.split()).rpartition(" at ")
    if not found:
        raise FieldError("", text, _WHEN)
    when, _, lasting = when.partition(" for ")
    if lasting:
        before += f" for {lasting}"
    iteration, seconds, until = _moment(when)
    slower = re.fullmatch(r"(?:(\S+) )?rank (\S+)(?: (.*))?", before)
    # "link rank down" is of a link called rank, "link rank 3 slower x2" of a job called link
    if slower is not None and (slower[1] not in ("link", "datacenter") or slower[2].isdecimal()):
        rank, factor = _slower(slower, before)
        return EventText(
            " ".join(text.split()),
            "rank",
            slower[1] or "",
            None,
            iteration,
            seconds,
            0.0,
            Becomes(),
            rank=rank,
            factor=factor,
            until=until,
        )
    return _of_network(" ".join(text.split()), before, (iteration, seconds, until), lasting)


def _of_network(text: str, before: str, when: tuple[int, float, int | None], lasting: str) -> EventText:
    """What happens to a link or a datacenter; `lasting`: for how long, where that was said behind its time."""
    match = re.fullmatch(r"(link|datacenter) (\S+)(?: (\S+) -> (\S+))?(?: (.*))?", before)
    if match is None:
        raise FieldError("", before, _WHAT)
    what, name, source, target, happens = match.groups()
    happens, (iteration, seconds, until) = happens or "", when
    read = EventText(
        text,
        "link" if what == "link" else "datacenter",
        name,
        (source, target) if source else None,
        iteration,
        seconds,
        0.0,
        Becomes(),
        until=until,
    )
    if happens.startswith("trace "):
        if lasting:
            raise FieldError("", text, _LASTS)
        read = read._replace(trace=happens.removeprefix("trace "))
    elif happens.startswith(("cut ", "shared ")):
        read = read._replace(comes_and_goes=_comes_and_goes(happens))
    elif happens == "lost":
        read = read._replace(lost=True)
    elif happens.startswith("traffic "):
        read = read._replace(traffic=_traffic(happens))
    else:
        down_s, becomes, for_s = _happens(happens)
        read = read._replace(down_s=down_s, becomes=becomes, for_s=for_s)
    if what == "datacenter" and (source or not read.down_s or read.becomes != Becomes()):
        raise FieldError("", before, "datacenter NAME down for 8 s: its links have all else by their own names")
    lasts = not (read.trace or read.comes_and_goes or read.down_s)
    if until is not None and (not lasts or read.for_s is not None):
        raise FieldError("", text, _LASTS)
    return read


def _slower(match: re.Match[str], text: str) -> tuple[int, float]:
    """Which rank, and by what factor."""
    _, rank, happens = match.groups()
    factor = re.fullmatch(r"slower x ?(\S+)", happens or "")
    if factor is None:
        raise FieldError("", text, _SLOWER)
    return _number(rank, "the number of a rank of the job, the first is 0"), _factor(factor[1])


def _traffic(text: str) -> IterationTraffic:
    match = re.fullmatch(r"traffic (.+ ?%) every (\S+)", text)
    if match is None:
        raise FieldError("", text, _HAPPENS)
    share, every = _share(match[1]), _number(match[2], "a number of iterations")
    if share >= 1 or not every:
        raise FieldError("", text, "traffic of more than 0 % and less than 100 %, every 1 or more")
    return IterationTraffic(share, every)


def _moment(when: str) -> tuple[int, float, int | None]:
    """The iteration, seconds from its beginning, and the iteration in which it is over."""
    whole = re.fullmatch(r"(?:iteration )?([0-9]+)(?: to (?:iteration )?(\S+))?", when)
    number = "the number of a measured iteration, the first is 0"
    if whole is not None:
        begin, until = _number(whole[1], number), None if whole[2] is None else _number(whole[2], number)
        if until is not None and until <= begin:
            raise FieldError("", until, f"more than {begin}, when it begins")
        return begin, 0.0, until
    match = re.fullmatch(r"(?:iteration (\S+)|([0-9]+))(?: \+ (.+))?", when)
    if match is None:
        return 0, _quantity(when, TIME, "a time", 0.0, MOST_SECONDS), None
    begun, more = match[1] or match[2], match[3]
    return _number(begun, number), 0.0 if more is None else _quantity(more, TIME, "a time", 0.0, MOST_SECONDS), None


def _number(text: str, expected: str) -> int:
    if not (text.isdecimal() and text.isascii() and len(text) <= _MOST_DIGITS):
        raise FieldError("", text, expected)
    return int(text)


def _factor(text: str) -> float:
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) or not LEAST_FACTOR <= float(text) <= MOST_FACTOR:
        raise FieldError("", f"x{text}", f"a factor from x{LEAST_FACTOR:g} to x{MOST_FACTOR:g}")
    return float(text)


def _happens(text: str) -> tuple[float, Becomes, float | None]:
    """For how long nothing is sent, what becomes of the direction, and how long that lasts."""
    first, *further = text.split(" then ")
    if text == "down":
        return math.inf, Becomes(), None
    if not first.startswith("down for "):
        if further:
            raise FieldError("", text, f"one of {_HAPPENS}: `then` is for what comes back")
        changes, _, lasting = first.partition(" for ")
        for_s = _quantity(lasting, TIME, "a time", 1e-9, MOST_SECONDS) if lasting else None
        return 0.0, _becomes(changes), for_s
    down_s = _quantity(first.removeprefix("down for "), TIME, "a time", 1e-9, MOST_SECONDS)
    found: dict[str, float | None] = {}
    for more in further:
        found |= {name: value for name, value in _becomes(more)._asdict().items() if value is not None}
    return down_s, Becomes(**found), None


def _comes_and_goes(text: str) -> ComesAndGoes:
    match = re.fullmatch(r"(?:cut|shared (.+ ?%)) for (.+) every (.+) until (.+?)(?: seed ([0-9]{1,9}))?", text)
    if match is None:
        raise FieldError("", text, _HAPPENS)
    taken, *times, seed = match.groups()
    for_s, every_s, until_s = (_quantity(time, TIME, "a time", 1e-6, MOST_SECONDS) for time in times)
    share = 1.0 if taken is None else _share(taken)
    if taken is not None and share >= 1:
        raise FieldError("", taken, "a share of the rate below 100 %: cut takes all of it")
    if every_s <= for_s or until_s / every_s > MOST_TIMES / 2:
        raise FieldError(
            "", text, f"more time from one to the next than it is for, and at most {MOST_TIMES // 2} times"
        )
    return ComesAndGoes(share, for_s, every_s, until_s, None if seed is None else int(seed))


def _becomes(text: str) -> Becomes:
    name, _, value = text.partition(" ")
    times = value.removeprefix("x").strip() if value.startswith("x") else ""
    if name == "delay" and times:
        return Becomes(delay_factor=_factor(times))
    if name == "delay":
        return Becomes(delay_s=_quantity(value, TIME, "a time", 0.0, MOST_EVENT_DELAY_S))
    if name == "rate" and times:
        return Becomes(rate_share=_factor(times))
    if name == "rate" and value.endswith("%"):
        return Becomes(rate_share=_share(value))
    if name == "rate":
        return Becomes(rate_bps=_quantity(value, RATE, "a rate", LEAST_RATE_BPS, MOST_EVENT_RATE_BPS))
    if name == "loss":
        share = re.fullmatch(r"[0-9]*\.?[0-9]+", value)
        per_cent = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?%", value)
        loss = float(value) if share else float(per_cent[1]) / 100 if per_cent else 0.0
        if not 0 < loss <= MOST_LOSS:
            raise FieldError("", text, f"loss of more than 0 % of packets, at most {100 * MOST_LOSS:g} %")
        return Becomes(loss=loss)
    if name == "jitter":
        return Becomes(jitter_s=_quantity(value, TIME, "a time", 1e-9, MOST_EVENT_DELAY_S))
    raise FieldError("", text, _HAPPENS)


def _share(text: str) -> float:
    number = text.removesuffix("%").strip()
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", number) or not 0 < float(number) <= 1000:
        raise FieldError("", text, "a share of the topology's rate above 0 %, at most 1000 %")
    return float(number) / 100


def _quantity(text: str, units: dict[str, float], kind: str, least: float, most: float) -> float:
    try:
        value = parse(text, units, kind)
    except ValueError as error:
        raise FieldError("", text, str(error)) from error
    if not least <= value <= most:
        unit = next(name for name, factor in units.items() if factor == 1)
        raise FieldError("", text, f"{kind} from {least:g} to {most:g} {unit}")
    return value


def blamed_on(option: str, text: str, error: FieldError) -> BadInput:
    """What is wrong with a text that an option gave, of which there may be several: with all of it, unless that is what
    was found."""
    return BadInput.of(option, "event" if error.value == text else text, error.value, error.expected)


def check_names(event: EventText, links: Mapping[str, tuple[str, str]]) -> None:
    """Raises FieldError, without a field, for a name that is no link's (by name, with its ends) or datacenter's.

    Which ranks there are, only jobs say.
    """
    if event.what == "rank":
        return
    sites = sorted({end for ends in links.values() for end in ends})
    known = sites if event.what == "datacenter" else list(links)
    if event.name not in known:
        words = "datacenters that have links" if event.what == "datacenter" else "links"
        raise FieldError("", event.name, f"one of the {words} ({listed(known)}){meant(event.name, known)}")
    if event.ends is not None and event.ends not in (ends := links[event.name], ends[::-1]):
        one, other = ends
        raise FieldError("", " -> ".join(event.ends), f"{one} -> {other} or {other} -> {one}, as {event.name} goes")
