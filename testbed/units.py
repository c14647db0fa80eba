"""Quantities with units ("120 km", "400 Gbit/s", "64 MB", "10 ms") to and from SI floats.

Inside the code times are seconds, rates bits per second, sizes bytes, lengths metres, all as floats.
Units exist only in the YAML files and on screen.
"""

from __future__ import annotations

import math
import re

TIME = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
RATE = {"bit/s": 1.0, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9, "Tbit/s": 1e12}
SIZE = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
LENGTH = {"m": 1.0, "km": 1e3}

FIBRE_SECONDS_PER_METRE = 5e-9
"""One-way delay of light in glass: 5 us per km, a group index of 1.5."""

_QUANTITY = re.compile(r"(?P<number>[0-9]+(?:[_,][0-9]{3})*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*(?P<unit>\S+)")


def parse(text: object, units: dict[str, float], kind: str) -> float:
    """The SI value of `text`, e.g. parse("10 ms", TIME, "a time") == 0.01.

    A bare 0 needs no unit. Raises ValueError naming the units that would have been understood.
    """
    example = f"{kind} with a unit ({', '.join(units)})"
    if isinstance(text, (int, float)) and not isinstance(text, bool) and text == 0:
        return 0.0
    match = _QUANTITY.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None or match["unit"] not in units:
        raise ValueError(example)
    value = float(re.sub(r"[_,]", "", match["number"])) * units[match["unit"]]
    if not math.isfinite(value):
        raise ValueError(f"a finite {example}")
    return value


def _show(value: float, units: dict[str, float], names: tuple[str, ...]) -> str:
    name = next((n for n in names if abs(value) >= units[n]), names[-1])
    return f"{value / units[name]:.4g} {name}"


def show_time(seconds: float) -> str:
    """Seconds in the unit a person would choose, e.g. 0.0101 -> "10.1 ms"."""
    return "0 s" if seconds == 0 else _show(seconds, TIME, ("s", "ms", "us", "ns"))


def show_rate(bits_per_second: float) -> str:
    """A rate as a person would write it, e.g. 1e9 -> "1 Gbit/s"."""
    return _show(bits_per_second, RATE, ("Tbit/s", "Gbit/s", "Mbit/s", "kbit/s", "bit/s"))


def show_size(size_bytes: float) -> str:
    """A size as a person would write it, e.g. 65536 -> "65.54 kB"."""
    return _show(size_bytes, SIZE, ("GB", "MB", "kB", "B"))
