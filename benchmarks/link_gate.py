"""How true are the links? Delay x rate, every link and direction measured by the link gate, as one table.

    python benchmarks/link_gate.py [--shaper auto|relay|netem] [--vm | --virtual] [--unlike] [--record [NAME]]

With --unlike, links whose directions are nothing alike: a fast one whose way back is long, or slow, or both.
Asked: median RTT within max(2 %, 0.4 ms) and rate within 2 % of asked, nothing dropped. With --vm
or --virtual in Debian's User-Mode Linux or under the virtual clock, to 10 Gbit/s, beside Mininet's plain TCLink in the
same guest. Needs root.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import yaml
from harness import options
from harness.boots import run_testbed
from harness.options import WIDTH
from harness.record import Claim, Topic, finish
from harness.report import show_table
from rich.console import Console

from testbed.units import show_rate, show_time

DELAYS = ("1 ms", "10 ms", "50 ms")
RATES = ("100 Mbit/s", "1 Gbit/s")


FASTEST = "10 Gbit/s"
"""Only where CPU work costs no time, or for netem to try."""


UNLIKE = (
    {"delay": "0.05 ms", "rate": "1 Gbit/s", "reverse": {"delay": "150 ms"}},
    {"delay": "0.05 ms", "rate": "1 Gbit/s", "reverse": {"delay": "200 ms", "rate": "10 Mbit/s"}},
    {"delay": "1 ms", "rate": "100 Mbit/s", "reverse": {"delay": "0.1 ms", "rate": "500 kbit/s"}},
)
"""Of the last one, acknowledgements at the full rate would take more than the way back carries."""


def links_alike(rates: tuple[str, ...]) -> list[dict[str, object]]:
    """One link for every delay and rate."""
    return [{"delay": delay, "rate": rate} for delay, rate in product(DELAYS, rates)]


def topology(asked: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Every link between two datacenters of its own."""
    ends = [[f"a{number}", f"b{number}"] for number in range(len(asked))]
    links = [{"between": pair, **link} for pair, link in zip(ends, asked, strict=True)]
    return {"name": "gate", "datacenters": {end: {"nodes": 1} for pair in ends for end in pair}, "links": links}


def main() -> int:
    """Measure and print; 1 when a direction is not as asked, what the command ended with when it measured nothing."""
    parser = options.parser(__doc__)
    parser.add_argument("--shaper", default="auto")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--vm", action="store_true", help="in Debian's User-Mode Linux, beside Mininet's TCLink")
    where.add_argument("--virtual", action="store_true", help="under the virtual clock, beside Mininet's TCLink")
    parser.add_argument("--unlike", action="store_true", help="links whose directions are nothing alike")
    asked = parser.parse_args()
    guest = ["--vm"] if asked.vm else ["--clock", "virtual"] if asked.virtual else []
    flags = [*guest, "--beside-mininet"] if guest else []
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "gate.yaml"
        links = UNLIKE if asked.unlike else links_alike((*RATES, FASTEST) if guest else RATES)
        path.write_text(yaml.safe_dump(topology(links), sort_keys=False))
        code, result, said = run_testbed("calibrate", str(path), "--shaper", asked.shaper, *flags, limit_s=1800)
    if result is None:
        print(said, file=sys.stderr)
        return code
    rows, late_s, off, drops = [], [], [], 0
    for link in result["links"]:
        wanted, measured = link["asked"], link["measured"]
        rtt, rate = measured["rtt_s"], measured["rate_bps"]
        late_s.append(rtt["median"] - wanted["rtt_s"])
        off.append(rate / wanted["rate_bps"] - 1)
        drops += measured["dropped"]
        asked_for = f"{show_time(wanted['delay_s'])}, {show_rate(wanted['rate_bps'])}"
        times = f"{late_s[-1] * 1e3:+.2f} ms", show_time(rtt["p99"]), f"{off[-1]:+.2%}"
        rows.append(
            (link["label"], asked_for, *times, measured["dropped"], link["attempts"], "" if link["ok"] else "NO")
        )
        for reason in link["reasons"]:
            print(f"{link['label']}: {reason}")
    columns = ("way", "asked", "RTT off", "RTT p99", "rate off", "drops", "tries", "")
    show_table(f"link gate, {result['shaper']} {' '.join(guest)}", columns, rows)
    if guest:
        from testbed.cli.lab_tables import mininet_tables

        for beside in mininet_tables(result["mininet"], WIDTH):
            Console(width=WIDTH).print(beside)
    wrong, worst = sum(not link["ok"] for link in result["links"]), max(map(abs, off))
    got = f"RTT {min(late_s) * 1e3:+.2f} to {max(late_s) * 1e3:+.2f} ms, rate within {worst:.3%}, {drops} drops"
    kind = "links whose directions are nothing alike" if asked.unlike else "links of every delay and rate"
    limit, said = "RTT 2% or 0.4 ms, rate 2%, no drops", f"{got}; {wrong} of {len(off)} directions beyond"
    clock = "virtual" if asked.virtual else "real"
    claim = Claim(f"{kind}, {result['shaper']}", limit, said, not wrong, worst, "share of the rate")
    return finish(asked, Topic.TRUTH, [claim], clock=clock)


if __name__ == "__main__":
    sys.exit(main())
