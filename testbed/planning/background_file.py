"""What datacenters send each other beside the jobs: rows of a topology or of a CSV file, as flows of a plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from testbed.errors import BadInput, listed, require
from testbed.files import csv_rows, read_text
from testbed.plan.background import most_bps
from testbed.plan.network_state import planned
from testbed.plan.plan import Background, Network, RateChange
from testbed.spec.event_text import MOST_SECONDS
from testbed.spec.topology import Topology
from testbed.units import RATE, TIME, parse, show_time

COLUMNS = "from", "to", "rate"
TIMED = *COLUMNS, "at"
_MOST_BYTES, _MOST_ROWS, _MOST_FLOWS = 1_000_000, 10_000, 1_000


class _Row(NamedTuple):
    """From a time on, one datacenter sends another one so much."""

    prefix: str
    """What errors call its columns by."""
    source: str
    target: str
    rate_bps: float
    at_s: float


def background_of(topology: Topology, network: Network) -> tuple[Background, ...]:
    """The flows of a topology, whose network is `network`. Raises BadInput."""
    rows = [
        _Row(f"background.{number}.", row.source, row.target, row.rate, row.at)
        for number, row in enumerate(topology.background)
    ]
    own = _flows(rows, topology.name, network)
    return own + (() if topology.background_file is None else read_background(Path(topology.background_file), network))


def read_background(path: Path, network: Network) -> tuple[Background, ...]:
    """The flows of a file: from one datacenter to another one, a rate, and from when on, each with its unit.

    Raises BadInput that names the file, the line and the column.
    """
    name = str(path)
    rows = csv_rows(read_text(path, _MOST_BYTES, "a readable CSV file"), name)
    columns = tuple(map(str.strip, rows[0])) if rows else ()
    expected = f"{','.join(COLUMNS)} or {','.join(TIMED)}"
    require(columns in (COLUMNS, TIMED), name, "line 1", ",".join(columns) or "nothing", expected)
    count = len(rows) - 1
    require(1 <= count <= _MOST_ROWS, name, "rows", count, f"1 to {_MOST_ROWS} below the names of columns")
    return _flows([_read(name, line, columns, row) for line, row in enumerate(rows[1:], 2)], name, network)


def _read(name: str, line: int, columns: Sequence[str], row: Sequence[str]) -> _Row:
    expected = f"{len(columns)} values ({','.join(columns)})"
    require(len(row) == len(columns), name, f"line {line}", ",".join(row), expected)
    source, target, rate, *at = map(str.strip, row)
    values = []
    for column, text, units, kind in (("rate", rate, RATE, "a rate"), ("at", "".join(at) or "0 s", TIME, "a time")):
        try:
            values.append(parse(text, units, kind))
        except ValueError as error:
            raise BadInput.of(name, f"line {line}: {column}", text, str(error)) from error
    return _Row(f"line {line}: ", source, target, *values)


def _flows(rows: Iterable[_Row], name: str, network: Network) -> tuple[Background, ...]:
    """A row at 0 s begins a flow, a later one changes the one of its pair. Raises BadInput."""
    known = planned(network)
    found: dict[tuple[str, str], list[Background]] = {}
    first: dict[tuple[str, str], _Row] = {}
    for row in rows:
        pair = row.source, row.target
        for column, end in zip(COLUMNS, pair, strict=False):
            expected = f"one of the datacenters ({listed(known.datacenters)})"
            require(end in known.datacenters, name, f"{row.prefix}{column}", end, expected)
        require(row.source != row.target, name, f"{row.prefix}to", row.target, "another datacenter than it is from")
        there = bool(known.routes.get(pair))
        require(there, name, f"{row.prefix}to", row.target, f"one that links of {row.source} lead to")
        shown = show_time(row.at_s)
        require(0 <= row.at_s <= MOST_SECONDS, name, f"{row.prefix}at", shown, f"0 s to {MOST_SECONDS:g} s")
        mine = found.setdefault(pair, [])
        first.setdefault(pair, row)
        if row.at_s == 0:
            changed = any(flow.changes for flow in mine)
            require(not changed, name, f"{row.prefix}at", shown, "rows of one pair in order of time")
            mine.append(Background(*pair, row.rate_bps))
            continue
        if not mine:
            mine.append(Background(*pair, 0.0))
        require(len(mine) == 1, name, f"{row.prefix}at", shown, "one row at 0 s of a pair whose rate changes")
        (flow,) = mine
        latest_s = flow.changes[-1].at_s if flow.changes else 0.0
        require(
            row.at_s > latest_s, name, f"{row.prefix}at", shown, f"more than {show_time(latest_s)}, in order of time"
        )
        mine[0] = Background(*pair, flow.rate_bps, (*flow.changes, RateChange(row.at_s, row.rate_bps)))
    for pair, flows in found.items():
        for flow in flows:
            expected = "more than 0 bit/s, at some time"
            require(most_bps(flow) > 0, name, f"{first[pair].prefix}rate", f"{flow.rate_bps:g} bit/s", expected)
    every = tuple(flow for flows in found.values() for flow in flows)
    require(len(every) <= _MOST_FLOWS, name, "flows", len(every), f"at most {_MOST_FLOWS}: a process sends each")
    return every
