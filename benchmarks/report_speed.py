"""What `testbed report` of a large run takes, and the size of the picture that it draws.

The run is generated: 64 stages over eight datacenters, 1,024 microbatches, 50 iterations under 1F1B. CPU seconds and
memory are those of the command, from its start, with every import.

    python benchmarks/report_speed.py [--stages 64] [--microbatches 1024] [--iterations 50] [--out DIR]
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import report_page
from harness import options
from harness.options import ROOT
from harness.record import Claim, Topic, finish
from parts.generated_run import write_run

from testbed.results.destination import pictures_in

MOST_S, MOST_BYTES = 3.0, 500_000_000


def written(out: Path, stages: int, microbatches: int, iterations: int) -> None:
    """A run of that size."""
    write_run(out, report_page.plan_of(stages, microbatches), iterations)


def reported(directory: str) -> tuple[float, int]:
    """CPU seconds and the most memory in bytes of the command."""
    line = [sys.executable, "-m", "testbed", "report", directory]
    process = os.posix_spawn(sys.executable, line, {**os.environ, "PYTHONPATH": str(ROOT)})
    _, status, used = os.wait4(process, 0)
    if status:
        raise SystemExit(f"report ended with {os.waitstatus_to_exitcode(status)}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def main() -> int:
    """1 where it takes longer, or more, than asked."""
    parser = options.parser(__doc__)
    parser.add_argument("--stages", type=int, default=64)
    parser.add_argument("--microbatches", type=int, default=1024)
    parser.add_argument("--iterations", type=int, default=50)
    options.add_out(parser, "report-speed")
    asked = parser.parse_args()
    if not asked.recorded:
        # in a process of its own: what this one has had at most would count as the command's as well
        with ProcessPoolExecutor(1, get_context("spawn")) as another:
            another.submit(written, asked.out, asked.stages, asked.microbatches, asked.iterations).result()
    for picture in pictures_in(asked.out):
        picture.unlink()
    cpu_s, size = reported(str(asked.out))
    drawn = sum(picture.stat().st_size for picture in pictures_in(asked.out))
    shape = f"{asked.stages} stages x {asked.microbatches} x {asked.iterations} iterations"
    claims = [
        Claim(
            f"`testbed report` of {shape}, picture drawn",
            f"<= {MOST_S:g} CPU s, <= {MOST_BYTES // 1_000_000} MB",
            f"{cpu_s:.1f} CPU s, {size / 1e6:.0f} MB; a picture of {drawn / 1e6:.1f} MB",
            cpu_s <= MOST_S and size <= MOST_BYTES,
            value=cpu_s,
            unit="s",
        )
    ]
    return finish(asked, Topic.STUDIES, claims)


if __name__ == "__main__":
    sys.exit(main())
