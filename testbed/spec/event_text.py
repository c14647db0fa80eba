"""What happens to a link while jobs train, as a file or `--event` says it: one line of text for each event.

    link NAME [A -> B] rate 200 Mbit/s | rate 60 % | delay 12 ms | down for 30 ms [then delay 9 ms] [then rate 50 %]
    link NAME [A -> B] trace FILE.csv
    datacenter NAME down for 8 s

and, behind any of these, when: `at iteration 4`, `at iteration 4 + 120 ms`, or `at 3.2 s`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

from testbed.errors import listed, meant
from testbed.spec.document import FieldError
from testbed.units import RATE, TIME, parse

MOST_CHARACTERS = 200
MOST_SECONDS = 3600.0
"""Into an iteration, or without a link."""
LEAST_RATE_BPS, MOST_EVENT_RATE_BPS, MOST_EVENT_DELAY_S = 1e3, 1e15, 10.0
_MOST_DIGITS = 9

_WHAT = "link NAME [A -> B], or datacenter NAME, then what happens to it"
_HAPPENS = (
    "rate 200 Mbit/s, rate 60 %, delay 12 ms, down for 30 ms [then delay 9 ms] [then rate 60 %], or trace FILE.csv"
)
_WHEN = "at iteration 4, at iteration 4 + 120 ms, or at 3.2 s, behind what happens"


class Becomes(NamedTuple):
    """What a direction has from then on; None: what it had."""

    delay_s: float | None = None
    rate_bps: float | None = None
    rate_share: float | None = None
    """Of the rate that the topology says, instead of a rate."""


class EventText(NamedTuple):
    """One event, read."""

    text: str
    what: Literal["link", "datacenter"]
    name: str
    ends: tuple[str, str] | None
    """The one direction that is meant; None: both."""
    iteration: int
    seconds: float
    """From the beginning of that measured iteration."""
    down_s: float
    """For so long nothing is sent; 0: it goes on."""
    becomes: Becomes
    """Where nothing is sent for a while, after that."""
    trace: str = ""
    """A file of rates and delays from then on; "" without one."""


def read_event(text: str) -> EventText:
    """The event that a line says. Raises FieldError, without a field, saying what is expected."""
    if len(text) > MOST_CHARACTERS or not text.isprintable():
        raise FieldError("", text, f"one line of at most {MOST_CHARACTERS} characters")
    before, found, when = " ".join(text.split()).rpartition(" at ")
    if not found:
        raise FieldError("", text, _WHEN)
    iteration, seconds = _moment(when)
    match = re.fullmatch(r"(link|datacenter) (\S+)(?: (\S+) -> (\S+))?(?: (.*))?", before)
    if match is None:
        raise FieldError("", before, _WHAT)
    what, name, source, target, happens = match.groups()
    trace = (happens or "").removeprefix("trace ") if (happens or "").startswith("trace ") else ""
    down_s, becomes = (0.0, Becomes()) if trace else _happens(happens or "")
    if what == "datacenter" and (source or not down_s or becomes != Becomes()):
        raise FieldError("", before, "datacenter NAME down for 8 s: its links have all else by their own names")
    of: Literal["link", "datacenter"] = "link" if what == "link" else "datacenter"
    ends = (source, target) if source else None
    return EventText(" ".join(text.split()), of, name, ends, iteration, seconds, down_s, becomes, trace)


def _moment(when: str) -> tuple[int, float]:
    """The iteration, and seconds from its beginning."""
    match = re.fullmatch(r"iteration (\S+)(?: \+ (.+))?", when)
    if match is None:
        return 0, _quantity(when, TIME, "a time", 0.0, MOST_SECONDS)
    number, more = match.groups()
    if not (number.isdecimal() and number.isascii() and len(number) <= _MOST_DIGITS):
        raise FieldError("", number, "the number of a measured iteration, the first is 0")
    return int(number), 0.0 if more is None else _quantity(more, TIME, "a time", 0.0, MOST_SECONDS)


def _happens(text: str) -> tuple[float, Becomes]:
    """For how long nothing is sent, and what becomes of the direction."""
    first, *further = text.split(" then ")
    if not first.startswith("down for "):
        if further:
            raise FieldError("", text, f"one of {_HAPPENS}: `then` is for what comes back")
        return 0.0, _becomes(first)
    down_s = _quantity(first.removeprefix("down for "), TIME, "a time", 1e-9, MOST_SECONDS)
    found: dict[str, float | None] = {}
    for more in further:
        found |= {name: value for name, value in _becomes(more)._asdict().items() if value is not None}
    return down_s, Becomes(**found)


def _becomes(text: str) -> Becomes:
    name, _, value = text.partition(" ")
    if name == "delay":
        return Becomes(delay_s=_quantity(value, TIME, "a time", 0.0, MOST_EVENT_DELAY_S))
    if name == "rate" and value.endswith("%"):
        return Becomes(rate_share=_share(value))
    if name == "rate":
        return Becomes(rate_bps=_quantity(value, RATE, "a rate", LEAST_RATE_BPS, MOST_EVENT_RATE_BPS))
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


def check_names(event: EventText, links: Mapping[str, tuple[str, str]]) -> None:
    """Raises FieldError, without a field, for a name that is no link's (by name, with its ends) or datacenter's."""
    sites = sorted({end for ends in links.values() for end in ends})
    known = sites if event.what == "datacenter" else list(links)
    if event.name not in known:
        words = "datacenters that have links" if event.what == "datacenter" else "links"
        raise FieldError("", event.name, f"one of the {words} ({listed(known)}){meant(event.name, known)}")
    if event.ends is not None and event.ends not in (ends := links[event.name], ends[::-1]):
        one, other = ends
        raise FieldError("", " -> ".join(event.ends), f"{one} -> {other} or {other} -> {one}, as {event.name} goes")
