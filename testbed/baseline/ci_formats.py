"""A check in the formats of programs that draw times over commits, and as a badge: plain JSON and SVG, by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape, quoteattr

from testbed.baseline.history import CheckRecord
from testbed.baseline.regression import CheckVerdict
from testbed.errors import BadInput
from testbed.grouping import grouped


class Target(NamedTuple):
    """A file to write, and in which of FORMATS."""

    format: str
    file: Path


def targets_of(asked: Sequence[str]) -> list[Target]:
    """What `--write FORMAT=FILE` asks for. Raises BadInput."""
    found = list[Target]()
    for text in asked:
        name, equals, file = text.partition("=")
        if name not in FORMATS or not equals or not file:
            raise BadInput.of("--write", "option", text, f"FORMAT=FILE, with a FORMAT of {', '.join(FORMATS)}")
        if Path(file) in [target.file for target in found]:
            raise BadInput.of("--write", "option", text, "a file of its own for each FORMAT")
        found.append(Target(name, Path(file)))
    return found


def bencher(record: CheckRecord) -> str:
    """Bencher Metric Format: per schedule its built-in measure `latency`, in nanoseconds. Without a time: left out."""
    return _json({name: {"latency": {"value": seconds * 1e9}} for name, seconds, _ in _timed(record)})


def github_benchmark(record: CheckRecord) -> str:
    """github-action-benchmark's customSmallerIsBetter, in milliseconds. A schedule without a time is left out."""
    return _json(
        [
            {"name": name, "unit": "ms", "value": seconds * 1e3, "extra": f"{verdict} ({record.commit_name})"}
            for name, seconds, verdict in _timed(record)
        ]
    )


def _timed(record: CheckRecord) -> list[tuple[str, float, CheckVerdict]]:
    """(name, seconds of an iteration, verdict) of every schedule with a time."""
    return [(row.name, row.time_s, row.verdict) for row in record.schedules if row.time_s is not None]


def _json(document: Any) -> str:
    return json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def badge(record: CheckRecord) -> str:
    """How many baselines are as they were saved, as an SVG: "baselines 18/18", green if all of them are."""
    verdicts = grouped((row.baseline, row.verdict) for row in record.schedules)
    good = sum(set(found) == {CheckVerdict.same} for found in verdicts.values())
    return badge_of("baselines", f"{good}/{len(verdicts)}", good=good == len(verdicts))


_GREEN, _RED, _GREY = "#2e7d32", "#c62828", "#555555"
_HEIGHT, _MARGIN, _CHARACTER = 20, 6, 7
"""In pixels; the last is the width of a character, at most, in the font's size of 11."""


def badge_of(label: str, message: str, *, good: bool) -> str:
    """Two words on one line in an SVG, the second on green or red."""
    left, right = (len(text) * _CHARACTER + 2 * _MARGIN for text in (label, message))
    said = f"{label}: {message}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="{_HEIGHT}" role="img" '
        f"aria-label={quoteattr(said)}>",
        f"  <title>{escape(said)}</title>",
        f'  <rect width="{left}" height="{_HEIGHT}" fill="{_GREY}"/>',
        f'  <rect x="{left}" width="{right}" height="{_HEIGHT}" fill="{_GREEN if good else _RED}"/>',
        '  <g fill="#ffffff" font-family="DejaVu Sans,Verdana,sans-serif" font-size="11" text-anchor="middle">',
        f'    <text x="{left / 2:g}" y="14">{escape(label)}</text>',
        f'    <text x="{left + right / 2:g}" y="14">{escape(message)}</text>',
        "  </g>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


FORMATS: Mapping[str, Callable[[CheckRecord], str]] = {
    "bencher": bencher,
    "github-benchmark": github_benchmark,
    "badge": badge,
}
"""By name in `--write`, what makes the text of a file."""
