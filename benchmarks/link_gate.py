"""How true are the links? Delay x rate, every link and direction measured by the link gate, as one table.

    python benchmarks/link_gate.py [--shaper auto|relay|netem]

Figure of issue A: median RTT within max(2 %, 0.4 ms) and rate within 2 % of asked, nothing dropped. Needs root.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

import yaml
from rich.console import Console
from rich.table import Table

from testbed.units import show_rate, show_time

DELAYS = ("1 ms", "10 ms", "50 ms")
RATES = ("100 Mbit/s", "1 Gbit/s")


def topology() -> dict[str, object]:
    """One link for every delay and rate, each between two datacenters of its own."""
    datacenters, links = {}, []
    for number, (delay, rate) in enumerate(product(DELAYS, RATES)):
        ends = [f"a{number}", f"b{number}"]
        datacenters |= {end: {"nodes": 1} for end in ends}
        links.append({"between": ends, "delay": delay, "rate": rate})
    return {"name": "gate", "datacenters": datacenters, "links": links}


def main() -> int:
    """Measure, print, and return the command's own verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shaper", default="auto")
    shaper = parser.parse_args().shaper
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "gate.yaml"
        path.write_text(yaml.safe_dump(topology(), sort_keys=False))
        command = [sys.executable, "-m", "testbed", "calibrate", str(path), "--shaper", shaper, "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600, check=False)
    if done.returncode not in (0, 5):
        return done.returncode
    result = json.loads(done.stdout)
    table = Table(title=f"link gate, {result['shaper']}", title_justify="left")
    for column in (
        "one-way",
        "rate",
        "way",
        "RTT median",
        "error",
        "p99",
        "wire rate",
        "error",
        "drops",
        "tries",
        "ok",
    ):
        table.add_column(column, justify="right")
    for link in result["links"]:
        asked, measured = link["asked"], link["measured"]
        rtt, rate = measured["rtt_s"], measured["rate_bps"]
        table.add_row(
            show_time(asked["delay_s"]),
            show_rate(asked["rate_bps"]),
            link["label"],
            show_time(rtt["median"]),
            f"{(rtt['median'] - asked['rtt_s']) * 1e3:+.2f} ms",
            show_time(rtt["p99"]),
            show_rate(rate),
            f"{rate / asked['rate_bps'] - 1:+.2%}",
            str(measured["dropped"]),
            str(link["attempts"]),
            "yes" if link["ok"] else "NO: " + "; ".join(link["reasons"]),
        )
    Console(width=150).print(table)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
