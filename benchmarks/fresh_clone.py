"""A fresh clone as its README has it: how long set-up, the main job and all tests take.

    python benchmarks/fresh_clone.py [--only demo] [--record [NAME]]

What is committed is cloned into a new directory; `make setup`, `make demo` and `make test` are run there, one after the
other, with the packages and the kernel that this machine has. Nothing else should run meanwhile.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import options
from harness.options import ROOT
from harness.record import Claim, Topic, finish

MOST_DEMO_S = 90.0
MOST_TESTS_S = 900.0
LIMIT_S = 5400.0
COUNTS = re.compile(r"\b(\d+) (passed|failed|errors?|skipped)\b")


def timed(clone: Path, target: str) -> tuple[float, int, str]:
    """Seconds that `make TARGET` takes, its exit code, and what it printed."""
    began = time.monotonic()
    done = subprocess.run(
        ["make", target],
        cwd=clone,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return time.monotonic() - began, done.returncode, done.stdout


def clock(seconds: float) -> str:
    """As "19 min 51 s"."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def demo(clone: Path, setup_s: float) -> Claim:
    """The main job after set-up."""
    seconds, code, _ = timed(clone, "demo")
    rows = json.loads((clone / "results/demo/comparison.json").read_text())["schedules"] if code == 0 else []
    trusted = sum(row["trusted"] for row in rows)
    got = f"{clock(seconds)} after a set-up of {clock(setup_s)}; {trusted} of {len(rows)} schedules trusted"
    kept = seconds <= MOST_DEMO_S and bool(rows) and trusted == len(rows)
    return Claim("main job from a fresh clone", f"<= {MOST_DEMO_S:.0f} s, trusted", got, kept, value=seconds, unit="s")


def tests(clone: Path) -> Claim:
    """All tests."""
    seconds, code, printed = timed(clone, "test")
    counted: dict[str, int] = {}
    for line in printed.splitlines():
        if line.startswith("=") and " in " in line:
            for count, word in COUNTS.findall(line):
                counted[word] = counted.get(word, 0) + int(count)
    got = f"{clock(seconds)}: " + (", ".join(f"{count:,} {word}" for word, count in counted.items()) or "no tests ran")
    if code:
        print(*[line for line in printed.splitlines() if line.startswith(("FAILED", "ERROR"))], sep="\n")
        got += f"; exit code {code}"
    name = "all tests from a fresh clone, environment made, kernel cached"
    kept = code == 0 and seconds <= MOST_TESTS_S
    return Claim(name, f"<= {MOST_TESTS_S / 60:.0f} min", got, kept, value=seconds, unit="s")


def main() -> int:
    parser = options.parser(__doc__)
    parser.add_argument("--only", choices=("demo", "test"), help="one of both")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="testbed-clone-") as scratch:
        clone = Path(scratch, "clone")
        subprocess.run(["git", "clone", "--quiet", "--no-local", ROOT, clone], check=True, timeout=LIMIT_S)
        setup_s, code, printed = timed(clone, "setup")
        if code:
            print(printed[-2000:])
            return 1
        claims = [demo(clone, setup_s)] if arguments.only != "test" else []
        claims += [tests(clone)] if arguments.only != "demo" else []
    return finish(arguments, Topic.SPEED, claims, clock="real")


if __name__ == "__main__":
    sys.exit(main())
