"""How long does a browser take to open the page of a large run?

    python benchmarks/report_page.py [--stages 64] [--microbatches 256] [--iterations 10] [--loads 7] [--out DIR]

The page of 64 stages x 256 microbatches x 10 iterations can be used within 1.5 s: from the beginning of navigation
until its timelines are drawn and keys are listened to, in a headless Chromium without a graphics card, the median of
some loads of the file. The page without a run's data is within 600 kB, asks for no address but its own and makes no
complaint. The run is made by the model, with chance on every instant (1F1B, eight datacenters); writing its page is
timed too.
"""

from __future__ import annotations

import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path

from harness import options, plans
from harness.record import Claim, Topic, each, finish
from parts.chromium import browser, program
from parts.generated_run import write_run

from testbed.cli.web_page import write_report
from testbed.errors import MachineLacks
from testbed.page.report_page import assets_bytes
from testbed.plan.plan import Plan
from testbed.results.load import load_run
from testbed.spec.document import validate
from testbed.spec.workload import Workload

MOST_S, MOST_BYTES = 1.5, 600_000
SITES = 8


def plan_of(stages: int, microbatches: int) -> Plan:
    """A chain of datacenters, as many stages in each as in the others."""
    sites = [f"site{number}" for number in range(SITES)]
    network = {
        "name": "chain",
        "datacenters": {site: {"nodes": -(-stages // SITES)} for site in sites},
        "links": [{"between": [a, b], "delay": "3 ms", "rate": "1 Gbit/s"} for a, b in pairwise(sites)],
    }
    job = {
        "name": f"pp{stages}",
        "model": {"layers": stages, "d_model": 64, "heads": 4, "sequence": 32},
        "parallelism": {"pipeline": stages},
        "microbatches": microbatches,
        "microbatch_size": 1,
        "pacing": {"F": "20 ms", "I": "20 ms", "W": "20 ms"},
        "message": "1 MB",
        "schedules": ["1f1b"],
    }
    return plans.with_every(plans.made(network, validate(Workload, job, "benchmark")))


def main() -> int:
    parser = options.parser(__doc__)
    parser.add_argument("--stages", type=int, default=64)
    parser.add_argument("--microbatches", type=int, default=256)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--loads", type=int, default=7, help="how often the page is opened")
    options.add_out(parser, "report-page", recorded=False)
    arguments = parser.parse_args()
    found = program()
    if found is None:
        raise MachineLacks("chromium is needed to open a page: Debian's package chromium")
    write_run(arguments.out, plan_of(arguments.stages, arguments.microbatches), arguments.iterations)
    page = arguments.out / "report.html"
    began = time.perf_counter()
    size = write_report({arguments.out: load_run(arguments.out)}, page)
    written_s = time.perf_counter() - began
    seconds, complaints = opened(found, page, arguments.loads)
    median = statistics.median(seconds)
    shape = f"{arguments.stages} stages x {arguments.microbatches} microbatches x {arguments.iterations} iterations"
    actions = 2 * arguments.stages * arguments.microbatches * (arguments.iterations + 2)
    spread = f"{min(seconds):.2f} to {max(seconds):.2f} s, {arguments.loads} loads"
    print(f"{actions:,} actions; page written in {written_s:.1f} s; opened in {spread}")
    claims = [
        Claim(
            f"report page of {shape}: time to interactive (median)",
            f"<= {MOST_S:g} s",
            f"{median:.2f} s ({spread}; {actions:,} actions, {size / 1e6:.1f} MB)",
            median <= MOST_S,
            median,
            "s",
            len(seconds),
            arguments.loads,
        ),
        Claim(
            "report page without a run's data: scripts, style and uPlot",
            f"<= {MOST_BYTES // 1000} kB",
            f"{assets_bytes() / 1e3:.0f} kB",
            assets_bytes() <= MOST_BYTES,
            float(assets_bytes()),
            "B",
        ),
        each("report page: loads without a console error or another address", complaints, arguments.loads),
    ]
    return finish(arguments, Topic.SPEED, claims, clock="real")


def opened(found: str, page: Path, loads: int) -> tuple[list[float], int]:
    """Seconds of every load, and how many of them complained or asked for something else."""
    seconds, wrong = [], 0
    with browser(found) as tab:
        for _ in range(loads):
            tab.events.clear()
            tab.show(page)
            seconds.append(float(tab.value("document.documentElement.dataset.interactiveMs")) / 1e3)
            wrong += bool(tab.complaints()) or tab.requested() != [page.resolve().as_uri()]
    return seconds, wrong


if __name__ == "__main__":
    sys.exit(main())
