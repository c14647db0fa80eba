"""A traffic matrix from CSV: what datacenters send each other beside the jobs, at constant rates."""

from __future__ import annotations

import csv
from pathlib import Path

from testbed.errors import BadInput, require
from testbed.files import read_text
from testbed.plan.network_state import planned
from testbed.plan.plan import Background, Network
from testbed.units import RATE, parse

COLUMNS = "from", "to", "rate"
_MOST_BYTES, _MOST_ROWS = 1_000_000, 1_000


def read_background(path: Path, network: Network) -> tuple[Background, ...]:
    """The rows of a file: from one datacenter to another one, and a rate with its unit. Raises BadInput that names the
    file, the line and the column."""
    name, known = str(path), planned(network)
    rows = list(csv.reader(read_text(path, _MOST_BYTES, "a readable CSV file").splitlines()))
    header, first = ",".join(COLUMNS), ",".join(map(str.strip, rows[0])) if rows else ""
    require(first == header, name, "line 1", first or "nothing", header)
    count = len(rows) - 1
    require(1 <= count <= _MOST_ROWS, name, "rows", count, f"1 to {_MOST_ROWS} below the names of columns")
    found = []
    for line, row in enumerate(rows[1:], 2):
        require(len(row) == len(COLUMNS), name, f"line {line}", ",".join(row), f"{len(COLUMNS)} values ({header})")
        source, target, rate = map(str.strip, row)
        for column, end in zip(COLUMNS, (source, target), strict=False):
            expected = f"one of the datacenters ({', '.join(known.datacenters)})"
            require(end in known.datacenters, name, f"line {line}: {column}", end, expected)
        require(source != target, name, f"line {line}: to", target, "another datacenter than the one it is from")
        near = len(known.routes.get((source, target), ())) == 1
        require(near, name, f"line {line}: to", target, f"one whose default route from {source} is one link")
        try:
            rate_bps = parse(rate, RATE, "a rate")
        except ValueError as error:
            raise BadInput.of(name, f"line {line}: rate", rate, str(error)) from error
        require(rate_bps > 0, name, f"line {line}: rate", rate, "more than 0 bit/s")
        found.append(Background(source, target, rate_bps))
    return tuple(found)
