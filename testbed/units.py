"""Quantities with units ("120 km", "400 Gbit/s", "64 MB", "10 ms") to and from SI floats.

Inside the code times are seconds, rates bits per second, sizes bytes, lengths metres, all as floats.
Units exist only in the YAML files and on screen.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

TIME = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
RATE = {"bit/s": 1.0, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9, "Tbit/s": 1e12}
SIZE = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
LENGTH = {"m": 1.0, "km": 1e3}
COMPUTE = {"flop/s": 1.0, "Gflop/s": 1e9, "Tflop/s": 1e12, "Pflop/s": 1e15}

FIBRE_SECONDS_PER_METRE = 5e-9
"""One-way delay of light in glass: 5 us per km, a group index of 1.5."""

_NUMBER = r"[0-9]+(?:[_,][0-9]{3})*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_QUANTITY = re.compile(rf"(?P<number>{_NUMBER})\s*(?P<unit>\S+)")


_GREEK_MU = "\N{GREEK SMALL LETTER MU}"
"""Which looks like the sign for micro, and is what many keyboards have."""


def parse(text: object, units: dict[str, float], kind: str) -> float:
    """The SI value of `text`, e.g. parse("10 ms", TIME, "a time") == 0.01.

    A bare 0 needs no unit. Raises ValueError naming the units that would have been understood.
    """
    example = f"{kind} with a unit ({', '.join(units)})"
    if isinstance(text, (int, float)) and not isinstance(text, bool) and text == 0:
        return 0.0
    match = _QUANTITY.fullmatch(text.strip().replace(_GREEK_MU, "µ")) if isinstance(text, str) else None
    if match is None or match["unit"] not in units:
        raise ValueError(example)
    value = float(re.sub(r"[_,]", "", match["number"])) * units[match["unit"]]
    if not math.isfinite(value):
        raise ValueError(f"{example}, finite")
    return value


def pattern(units: dict[str, float]) -> str:
    """What text has to match that `parse` takes, as a regular expression of JSON Schema."""
    return rf"^\s*{_NUMBER}\s*(?:{'|'.join(map(re.escape, units))})\s*$"


_SIGNIFICANT = 4
_SIGNIFICANT_OF_THE_LEAST = 2
_MOST_DECIMALS = 3
_MANY = 100.0
"""From here on the next smaller unit would be harder to read than the least value shown as 0."""

_DUST = 1e-9
"""Relative to the largest of a column: what is left of sums that should cancel."""


def _show(value: float, units: dict[str, float], names: tuple[str, ...]) -> str:
    rounded = float(f"{value:.{_SIGNIFICANT}g}")  # first: 999.99 ms is 1 s, not 1000 ms
    name = _unit(rounded, units, names)
    number = rounded / units[name]
    text = f"{number:.{_SIGNIFICANT}g}"
    if "e" in text or abs(number) >= 10**_SIGNIFICANT:
        text = (
            f"{value / units[name]:.0f}" if abs(number) > 1 else f"{number:z.{_MOST_DECIMALS}f}".rstrip("0").rstrip(".")
        )
    return f"{text} {name}"


def _unit(rounded: float, units: dict[str, float], names: tuple[str, ...]) -> str:
    return next((name for name in names if abs(rounded) >= units[name] * (1 - 1e-9)), names[-1])


def _show_column(values: Sequence[float | None], units: dict[str, float], names: tuple[str, ...]) -> list[str]:
    """All in one unit and with as many decimals, so that a column can be compared by eye; "-" for None.

    The unit is that of the largest, or a smaller one where the least would need more than three decimals.
    """
    sizes = [abs(value) for value in values if value]
    sizes = [size for size in sizes if size > _DUST * max(sizes)]
    if not sizes:
        return ["-" if value is None else f"0 {names[0]}" for value in values]
    least, largest = min(sizes), max(sizes)
    first = names.index(_unit(float(f"{largest:.{_SIGNIFICANT}g}"), units, names))
    for name in names[first:]:
        decimals = max(_decimals(largest / units[name], _SIGNIFICANT), _decimals(least / units[name], 1))
        if decimals <= _MOST_DECIMALS or largest / units[name] >= _MANY:
            break
    decimals = max(decimals, _decimals(least / units[name], _SIGNIFICANT_OF_THE_LEAST))
    decimals = min(decimals, _MOST_DECIMALS)
    known = [None if value is None else f"{value / units[name]:z.{decimals}f}" for value in values]
    while decimals and all(text is None or text.endswith(("0", ".")) for text in known):
        known, decimals = [text and text[:-1].removesuffix(".") for text in known], decimals - 1
    return ["-" if text is None else f"{text} {name}" for text in known]


def _decimals(number: float, significant: int) -> int:
    """How many decimals show so many significant digits of a number that is not 0."""
    return max(0, significant - 1 - math.floor(math.log10(number)))


_TIMES = ("s", "ms", "us", "ns")
_COMPUTE = ("Pflop/s", "Tflop/s", "Gflop/s", "flop/s")
_RATES = ("Tbit/s", "Gbit/s", "Mbit/s", "kbit/s", "bit/s")
_SIZES = ("GB", "MB", "kB", "B")


def show_time(seconds: float) -> str:
    """Seconds in the unit a person would choose, e.g. 0.0101 -> "10.1 ms"."""
    return "0 s" if seconds == 0 else _show(seconds, TIME, _TIMES)


def show_times(seconds: Sequence[float | None]) -> list[str]:
    """A column of times in one unit, e.g. [0.0027, 0.0004] -> ["2.7 ms", "0.4 ms"]; "-" for None."""
    return _show_column(seconds, TIME, _TIMES)


def show_rate(bits_per_second: float) -> str:
    """A rate as a person would write it, e.g. 1e9 -> "1 Gbit/s"."""
    return _show(bits_per_second, RATE, _RATES)


def show_rates(bits_per_second: Sequence[float | None]) -> list[str]:
    """A column of rates in one unit; "-" for None."""
    return _show_column(bits_per_second, RATE, _RATES)


def show_size(size_bytes: float) -> str:
    """A size as a person would write it, e.g. 65536 -> "65.54 kB"."""
    return _show(size_bytes, SIZE, _SIZES)


def show_compute(flop_per_second: float) -> str:
    """A rate of computation as a person would write it, e.g. 5e14 -> "500 Tflop/s"."""
    return _show(flop_per_second, COMPUTE, _COMPUTE)


def show_sizes(sizes_bytes: Sequence[float | None]) -> list[str]:
    """A column of sizes in one unit; "-" for None."""
    return _show_column(sizes_bytes, SIZE, _SIZES)


def show_span(low: str, high: str) -> str:
    """Both ends of a range, e.g. "67.7 ms" and "70.2 ms" -> "67.7 to 70.2 ms"; one of them where they look alike."""
    return high if low == high else f"{low.partition(' ')[0]} to {high}"


def finite(value: float) -> float | None:
    """A number as JSON and tables have it: None for what is infinite or none."""
    return value if math.isfinite(value) else None


def show_change(share: float, decimals: int = 1) -> str:
    """A relative difference in per cent with its sign, e.g. 0.0042 -> "+0.4%"; what rounds to nothing has no sign."""
    text = f"{share:+z.{decimals}%}"
    return text if any(digit in text for digit in "123456789") else text.removeprefix("+")
