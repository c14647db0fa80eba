"""What does the virtual clock cost in CPU seconds, and does a light model give the same times?

    python benchmarks/virtual_cost.py [--parts demo,light,cell,light-cell,64,speed] [--record [NAME]]

`demo` is `testbed run two-dc-longhaul tiny-gpt-pp4 --clock virtual`; `light` the same with --light and 5 + 1 iterations
instead of 10 + 2; `cell` a cell of a study of the demo's job, from the difference between a sweep of five and one of
one, `light-cell` the same with --light; `64` a pipeline of 64 stages; `speed` how much faster than real time 16 stages
train, from the difference between twelve iterations and two. User and system time of the whole process tree,
guest included: on a busy machine processors that share a core and caches take up to twice as long for the same, so
parts of one call are to be compared.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness import boots, options
from harness.record import Claim, Topic, finish

JOB = ("two-dc-longhaul", "tiny-gpt-pp4")
SHORT = ("--iterations", "5", "--set", "warmup=1")
TIMES = {"light": 7, "light-cell": 7}
"""How often a part is taken that is short beside what a machine does otherwise; the median of them counts."""
ASKED_S = {"light": 6.0, "light-cell": 1.5, "64": 20.0}
"""Of demo and cell as they are nothing is asked: they are what the light ones are held against."""

WORDS = {
    "demo": "CPU of the demo on the virtual clock",
    "light": "CPU of the demo, --light, 5 + 1 iterations",
    "cell": "CPU of a cell of a study of the demo's job, 3 iterations",
    "light-cell": "CPU of such a cell, --light",
    "64": "CPU of 64 stages, two schedules, 2 iterations",
}
MOST_APART_S = 3.1e-6
CELLS = 5
FEW_AND_MANY, LEAST_TIMES = (2, 12), 4.0
"""Iterations of 16 stages; virtual seconds for one of wall time."""


def cpu_s() -> float:
    """Of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def taken_s(*words: str) -> float:
    """CPU seconds of a command of ours. Raises SystemExit where it fails."""
    began = cpu_s()
    code, _, said = boots.run_testbed(*words)
    if code != 0:
        sys.exit(f"testbed {' '.join(words)}: exit code {code}\n{said}")
    return cpu_s() - began


def run(out: Path, *words: str) -> float:
    """CPU seconds of a run on the virtual clock, whose results go to `out`."""
    return taken_s("run", *words, "--clock", "virtual", "--out", str(out))


def sweep(out: Path, cells: int, *more: str) -> float:
    """CPU seconds of a sweep of as many delays."""
    over = f"links.0.delay=5..80ms/{cells}" if cells > 1 else "links.0.delay=5ms"
    return taken_s("sweep", *JOB, "--over", over, "--iterations", "3", "--jobs", "1", *more, "--out", str(out))


def part(name: str, place: Path) -> float:
    """CPU seconds of what is called so."""
    match name:
        case "demo":
            return run(place / name, *JOB)
        case "light":
            return run(place / name, *JOB, "--light", *SHORT)
        case "cell" | "light-cell":
            more = ("--light",) if name == "light-cell" else ()
            few, many = sweep(place / name / "one", 1, *more), sweep(place / name / "many", CELLS, *more)
            return (many - few) / (CELLS - 1)
        case stages:
            words = deep(int(stages), "warmup=2", "schedules=[1f1b, crosspipe-greedy]")
            return run(place / name, *words, "--iterations", "2", "--light")


def deep(stages: int, *settings: str) -> list[str]:
    """A pipeline of so many stages over two datacenters, as words of a command."""
    sizes = [f"{field}={stages}" for field in ("parallelism.pipeline", "model.layers", "memory")]
    each = f"{{paris: {{nodes: {stages // 2}}}, warsaw: {{nodes: {stages // 2}}}}}"
    every = [*sizes, f"topology.datacenters={each}", *settings]
    return [JOB[0], "tiny-gpt-pp8", *(word for setting in every for word in ("--set", setting))]


def times_real(place: Path) -> float:
    """Virtual seconds of an iteration of 16 stages for each second of wall time, beyond what a run takes anyway."""
    wall_s = {}
    for count in FEW_AND_MANY:
        words, began = deep(16, "warmup=1", "schedules=[1f1b]"), time.monotonic()
        run(place / f"speed-{count}", *words, "--iterations", str(count), "--light")
        wall_s[count] = time.monotonic() - began
    few, many = FEW_AND_MANY
    (iteration_s,) = medians(place / f"speed-{many}").values()
    return float((many - few) * iteration_s / (wall_s[many] - wall_s[few]))


def medians(directory: Path) -> dict[str, Any]:
    """Seconds of an iteration, by schedule."""
    document = json.loads((directory / "comparison.json").read_text(encoding="utf-8"))
    return {row["label"]: row["measured_s"] for row in document["schedules"] if row["trusted"]}


def main() -> int:
    parser = options.parser(__doc__)
    parser.add_argument("--parts", type=options.listed(str), default=["demo", "light", "cell", "light-cell", "64"])
    arguments = parser.parse_args()
    claims = []
    with TemporaryDirectory(prefix="testbed-cost-") as scratch:
        place = Path(scratch)
        if "speed" in arguments.parts:
            found = times_real(place)
            got = f"{found:.1f} times real time"
            claims.append(
                Claim("16 stages, --light", f">= {LEAST_TIMES:g} times real time", got, found >= LEAST_TIMES, found, "")
            )
        for name in [part for part in arguments.parts if part != "speed"]:
            again = [place / str(number) for number in range(1, TIMES.get(name, 1))]
            times, asked = sorted(part(name, each) for each in (place, *again)), ASKED_S.get(name)
            seconds = statistics.median(times)
            got = f"{seconds:.1f} s"
            if len(times) > 1:
                got += f" ({times[0]:.1f} to {times[-1]:.1f} s, median of {len(times)})"
            print(f"{name}: {got} of CPU", file=sys.stderr, flush=True)
            fine = asked is None or seconds <= asked
            wanted = "measured" if asked is None else f"<= {asked:g} s"
            claims.append(Claim(WORDS.get(name, f"{name} stages"), wanted, got, fine, seconds, "s"))
        if {"demo", "light"} <= set(arguments.parts):
            full, light = medians(place / "demo"), medians(place / "light")
            apart_s = max((abs(light[label] - full[label]) for label in full.keys() & light.keys()), default=1.0)
            got = f"{apart_s * 1e6:.3f} us apart at most, {len(light)} of {len(full)} schedules"
            fine = apart_s <= MOST_APART_S and len(light) == len(full)
            claims.append(
                Claim("times with a light model against those with its own", "<= 3.1 us", got, fine, apart_s, "s")
            )
    return finish(arguments, Topic.SPEED, claims, others_stay=True)


if __name__ == "__main__":
    sys.exit(main())
