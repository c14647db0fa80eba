"""What does a kept guest save, and does a copy of it give the nanoseconds of a boot?

    python benchmarks/kept_guest.py [--plans 12] [--schedules 2] [--times 10] [--seed 1] [--record [NAME]]

The light demo and one schedule of it are measured in guests of their own, and in copies of a kept one: CPU seconds of
all processes, those of whoever keeps the guest included. Plans drawn at random are each measured in a boot of its own,
and in copies in another order, one of them so many times: actions, messages and iterations are compared byte for byte.
What the kept guest has of memory and processes is counted after every run. None may be kept before.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from harness import boots, options
from harness.record import Claim, Topic, each, finish
from same_nanoseconds import compare, drawn_plans
from virtual_cost import JOB, SHORT, run

from testbed.errors import ExitCode
from testbed.vm.kept_guest import VARIABLE

DEMOS = {
    "the light demo": (*JOB, "--light", *SHORT),
    "one schedule of it": (*JOB, "--light", *SHORT, "--schedule", "1f1b"),
}
LIMIT_S = 200.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Keeper(NamedTuple):
    """The processes of whoever keeps a guest, at a moment."""

    processes: int
    cpu_s: float
    memory_bytes: int


def guest(*words: str) -> dict[str, Any]:
    """What `testbed guest` says. Raises SystemExit where it fails."""
    line = [sys.executable, "-m", "testbed", "guest", *words, "--json"]
    done = subprocess.run(line, cwd=options.ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode != ExitCode.OK:
        sys.exit(f"testbed guest {' '.join(words)}: exit code {done.returncode}\n{done.stderr}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def keeper() -> Keeper:
    """Of the one that there is: CPU of its processes, and of those that have ended and were waited for."""
    status, children, spent_s = guest("status"), dict[int, list[int]](), dict[int, float]()
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            fields = (directory / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        pid = int(directory.name)
        children.setdefault(int(fields[1]), []).append(pid)
        spent_s[pid] = sum(map(int, fields[11:15])) / _TICKS_PER_S
    tree, left = list[int](), [status["process"]]
    while left:
        tree.append(left.pop())
        left += children.get(tree[-1], [])
    return Keeper(len(tree), sum(spent_s.get(pid, 0.0) for pid in tree), status["memory_bytes"])


@contextmanager
def own_guests() -> Iterator[None]:
    """Commands in its body boot guests of their own."""
    os.environ[VARIABLE] = "no"
    yield
    del os.environ[VARIABLE]


def in_copy(out: Path) -> bool:
    """Whether a run was measured in a copy."""
    return "kept_guest" in json.loads((out / "manifest.json").read_text(encoding="utf-8"))


def measured(plan: Path, out: Path) -> Path:
    """A plan measured, as a command does it; the exit code is no matter: an untrusted one has nanoseconds as well."""
    code, _, said = boots.run_testbed("run", str(plan), "--out", str(out), "--no-picture")
    if code not in (ExitCode.OK, ExitCode.UNTRUSTED):
        sys.exit(f"{plan.name}: exit code {code}\n{said}")
    return out


def costs(place: Path) -> list[Claim]:
    """CPU of short runs, each in a guest of its own and in a copy."""
    claims = []
    for name, words in DEMOS.items():
        with own_guests():
            cold_s = run(place / f"{name} cold", *words)
        before = keeper()
        kept_s = run(place / f"{name} kept", *words)
        kept_s += keeper().cpu_s - before.cpu_s
        if not in_copy(place / f"{name} kept"):
            sys.exit("the kept guest was not used")
        got = f"{cold_s:.1f} s booted, {kept_s:.1f} s in a copy"
        claims.append(Claim(f"CPU of {name}", "less in a copy", got, kept_s < cold_s, kept_s, "s"))
    return claims


def same(place: Path, plans: Sequence[Path], times: int, seed: int) -> list[Claim]:
    """Plans in boots of their own, and in copies in another order, the first of them again and again."""
    names = [plan.name.partition(".")[0] for plan in plans]
    with own_guests():
        for name, plan in zip(names, plans, strict=True):
            measured(plan, place / "booted" / name)
    wanted = [(0, n) for n in range(times)] + [(number, 0) for number in range(1, len(plans))]
    random.Random(f"kept/{seed}").shuffle(wanted)
    counts, unlike, copies = [keeper()], list[tuple[str, float, float]](), 0
    for number, repetition in wanted:
        out = place / f"copy-{repetition}"
        copies += in_copy(measured(plans[number], out / names[number]))
        unlike += compare(place / "booted", out, [names[number]])
        counts.append(keeper())
    for name, action_ns, median_ns in unlike:
        print(f"plan {name}: actions up to {action_ns:.0f} ns apart, medians up to {median_ns:.0f} ns", flush=True)
    worst_ns = max((action_ns for _, action_ns, _ in unlike), default=0.0)
    what = f"runs in copies as in boots of their own: {len(plans)} drawn plans, one {times} times"
    return [
        each(what, len(unlike) + len(wanted) - copies, len(wanted), "byte for byte", unit="runs", more=" runs"),
        Claim(
            "any time of an action, booted and in a copy",
            "0 ns apart",
            f"{worst_ns:.0f} ns",
            not worst_ns,
            worst_ns,
            "ns",
        ),
        grown(counts),
    ]


def grown(counts: Sequence[Keeper]) -> Claim:
    """What the kept guest has more after all runs than before the first."""
    memory = counts[-1].memory_bytes - counts[0].memory_bytes
    processes = counts[-1].processes - counts[0].processes
    got = f"{memory / 1e6:.1f} MB, {processes} processes"
    fine = not memory and not processes
    return Claim(f"growth of a kept guest over {len(counts) - 1} runs", "none", got, fine, float(memory), "bytes")


def main() -> int:
    """1 where a claim is missed; 0 otherwise."""
    parser = options.parser(__doc__)
    parser.add_argument("--plans", type=int, default=12)
    parser.add_argument("--schedules", type=int, default=2, help="per plan")
    parser.add_argument("--times", type=int, default=10, help="that one of them is measured")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    if guest("status")["kept"]:
        sys.exit("a guest is kept already: testbed guest stop ends it")
    with TemporaryDirectory(prefix="kept-guest-") as scratch:
        place = Path(scratch)
        (place / "plans").mkdir()
        plans = drawn_plans(asked.plans, asked.schedules, asked.seed, place / "plans")
        guest("start", "--idle", "3600 s")
        try:
            claims = [*costs(place), *same(place, plans, asked.times, asked.seed)]
        finally:
            guest("stop")
    return finish(asked, Topic.SPEED, claims)


if __name__ == "__main__":
    sys.exit(main())
