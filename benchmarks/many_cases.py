"""Writing the tables of a run case by case: what a case costs must not grow with how many there were before it.

A trace of 16 ranks x 64 microbatches, as measured in 11 iterations, is written under one label after the other as a
session does it (`save_new`, then everything once), and as earlier versions did (`save_tables` after every case).

    python benchmarks/many_cases.py [--cases 64]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from harness import options
from harness.record import Claim, Topic, finish

from testbed.model.simulate import simulate
from testbed.pipeline.problem import uniform
from testbed.results.directory import ResultsWriter
from testbed.schedule.registry import generate
from testbed.trace.tables import Trace

RANKS, MICROBATCHES, ITERATIONS = 16, 64, 11
MOST_GROWTH = 1.5


def trace() -> Trace:
    """Of one iteration."""
    problem = uniform(RANKS, MICROBATCHES, delay_s=2.0, cuts=(RANKS // 2 - 1,))
    return simulate(problem, generate("1f1b", problem))


def written(cases: int, *, anew: bool) -> list[float]:
    """CPU seconds for each case, and for the end; `anew`: all tables after every case."""
    one, taken_s = trace(), []
    with tempfile.TemporaryDirectory() as scratch:
        results = ResultsWriter(Path(scratch))
        for number in range(cases):
            began = time.process_time()
            for source, times in (("predicted", 1), ("measured", ITERATIONS)):
                for _ in range(times):
                    results.add_trace(f"case {number}", source, one)
            if anew:
                results.save_tables()
            else:
                results.save_new()
            taken_s.append(time.process_time() - began)
        began = time.process_time()
        results.save_tables()
        return [*taken_s, time.process_time() - began]


def main() -> int:
    """1 where a case costs more the later it comes."""
    parser = options.parser(__doc__)
    parser.add_argument("--cases", type=int, default=64)
    asked = parser.parse_args()
    quarter = max(1, asked.cases // 4)
    (*each, end), before = written(asked.cases, anew=False), written(asked.cases, anew=True)
    growth = sum(each[-quarter:]) / sum(each[:quarter])
    got = f"{growth:.2f}; {sum(each):.1f} CPU s and {end:.1f} at the end, {sum(before):.1f} where all is written anew"
    claims = [
        Claim(
            f"writing the tables of {asked.cases} cases, the last quarter over the first",
            f"<= {MOST_GROWTH:g}",
            got,
            growth <= MOST_GROWTH,
            value=growth,
        )
    ]
    return finish(asked, Topic.SPEED, claims)


if __name__ == "__main__":
    sys.exit(main())
