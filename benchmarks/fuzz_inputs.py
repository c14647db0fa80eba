"""20,000 damaged inputs through the command line, some in processes of their own: tracebacks, hangs, memory, wording.

    python benchmarks/fuzz_inputs.py [--cases 20000] [--apart 200] [--first 0] [--edits] [--damages] [--stride 1]
        [--record [NAME]]

With --edits instead: every edit of one field of two plan.json, and with --damages: every damage to one file of a run's
results, given to `report --recheck`; of both one in --stride.

Every case is made from its number alone, so `--first N --cases 1` repeats one. Exit code 1 when something is wrong.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "unit"))

from damaged_results import damages
from damaged_results import fault as fault_of_damage
from fuzzed_inputs import make_case, samples
from fuzzing import run_apart, run_here
from harness import options
from harness.record import Claim, Topic, each, finish
from plan_edits import edits
from plan_edits import fault as fault_of_edit
from test_data_format import found, write


def every_edit(scratch: Path, stride: int) -> Claim:
    """That no edit of one field of a plan is a traceback, or accepted wrongly."""
    wrong, tried = 0, 0
    for plan in samples(scratch).plans:
        for edit in islice(edits(json.loads(plan.read_text())), 0, None, stride):
            tried += 1
            if why := fault_of_edit(edit):
                wrong += 1
                print(f"{edit.field} = {edit.value!r}: {why}", flush=True)
    return claim_of("edits of one field of a plan.json", tried, wrong)


def every_damage(scratch: Path, stride: int) -> Claim:
    """That no damage to one file of results is anything but one line, or a verdict."""
    good = scratch / "results"
    good.mkdir()
    write(good, found())
    (good / "timeline.svg").write_text("")
    wrong, tried = 0, 0
    for damage in islice(damages(good), 0, None, stride):
        tried += 1
        if why := fault_of_damage(good, damage, scratch / "damaged"):
            wrong += 1
            print(why, flush=True)
    return claim_of("damages to one file of results", tried, wrong)


def claim_of(what: str, tried: int, wrong: int, more: str = "") -> Claim:
    """That none of them is wrong."""
    return each(what, wrong, tried, "no traceback, hang, or wrong answer", more=more)


def main() -> int:
    """Try all that is asked for; 1 when something is wrong."""
    parser = options.parser(__doc__)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--apart", type=int, default=200, help="as many more in processes of their own")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--edits", action="store_true")
    parser.add_argument("--damages", action="store_true")
    parser.add_argument("--stride", type=int, default=1)
    asked = parser.parse_args()
    if asked.edits or asked.damages:
        with tempfile.TemporaryDirectory(prefix="testbed-fuzz-") as scratch:
            claims = [every_edit(Path(scratch), asked.stride)] if asked.edits else []
            claims += [every_damage(Path(scratch), asked.stride)] if asked.damages else []
        return finish(asked, Topic.ROBUSTNESS, claims, clock="none")
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
    print(f"{len(numbers)} cases in {took:.0f} s")
    more = f"; slowest {slowest:.2f} s of CPU"
    claims = [claim_of("damaged inputs through the command line", len(numbers), faults, more)]
    return finish(asked, Topic.ROBUSTNESS, claims, clock="none")


if __name__ == "__main__":
    sys.exit(main())
