"""20,000 damaged inputs through the command line, some in processes of their own: tracebacks, hangs, memory, wording.

    python benchmarks/fuzz_inputs.py [--cases 20000] [--apart 200] [--first 0]

Every case is made from its number alone, so `--first N --cases 1` repeats one. Exit code 1 when something is wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "unit"))

from fuzzed_inputs import make_case, samples
from fuzzing import run_apart, run_here


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--apart", type=int, default=200, help="as many more in processes of their own")
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    began, codes, faults, slowest = time.monotonic(), Counter[str](), 0, 0.0
    with tempfile.TemporaryDirectory(prefix="testbed-fuzz-") as scratch:
        good = samples(Path(scratch))
        numbers = [(n, run_here) for n in range(asked.first, asked.first + asked.cases)]
        numbers += [(n, run_apart) for n in range(asked.first, asked.first + asked.apart)]
        for number, run in numbers:
            outcome = run(make_case(number, good, Path(scratch) / "case"))
            codes[f"{outcome.case.kind} {outcome.code}"] += 1
            slowest = max(slowest, outcome.cpu_s)
            if fault := outcome.fault():
                faults += 1
                print(f"case {number} ({outcome.case.kind}): {fault}\n    {' '.join(outcome.case.arguments)[:300]!a}")
    for name, count in sorted(codes.items()):
        print(f"{name:24}{count:8}")
    took = time.monotonic() - began
    print(f"{len(numbers)} cases in {took:.0f} s, slowest {slowest:.2f} s of CPU: {faults} wrong")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
