"""What README says to type, in a new Debian that has nothing but make; and the wheel alone, as a stranger installs it.

    python benchmarks/provisioning.py [--suites trixie,bookworm] [--cache DIR] [--kernel DIR]
        [--only checkout|guest|wheel]

Each suite is a new root by scripts/clean_root.sh, and each step in it is timed. `checkout`: in a clone, as it is
committed, set-up, the demo, some unit tests, the documentation; and where --kernel names a cache with a kernel of the
virtual clock that this machine's testbed has built, a kept baseline repeated on it: its times are the same nanoseconds
in every Debian. `guest`: the demo once more in a virtual machine, that kernel booted over
another new root, which was set up before; a guest has one processor, and its time is this machine's. `wheel`: in
another new root, without the checkout, scripts/installed.py with the wheel. --cache keeps packages. An untrusted demo
is a result: another program was busy.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from harness import options
from harness.record import Claim, Topic, finish

from testbed.errors import MachineLacks
from testbed.vm import kernel

CLEAN_ROOT = options.ROOT / "scripts/clean_root.sh"
INSTALLED = options.ROOT / "scripts/installed.py"
TESTS = ("test_spec.py", "test_simulate.py", "test_plan.py", "test_schema.py", "test_perfetto_trace.py", "test_docs.py")
BASELINE = "small-longhaul"
PARTS = ("checkout", "guest", "wheel")
PACKAGES = "python3-venv mininet iputils-ping"
"""Of Debian, for the wheel on the real clock, as README says."""

SET_UP = "step set-up make setup"
DEMO = "step demo sh -c 'make demo || test -f results/demo/timeline.svg'"
"""make's own exit code says only that it was not 0; the picture is of a run that finished, trusted or not."""

STEP = """
step() {
    name=$1; shift
    began=$(date +%s.%N) code=0
    "$@" >/tmp/step.log 2>&1 || code=$?
    echo "STEP $name $code $began $(date +%s.%N)"
    if [ "$code" -ne 0 ]; then tail -n 30 /tmp/step.log; failed=1; fi
}
failed=0
"""
"""In the shell of the new root: a command, a line on how it went, and the end of what it said where it failed."""


LAST = ("tail -n 12 /tmp/step.log",)
"""Of the demo, its verdict: an untrusted one is a result."""


class Step(NamedTuple):
    """A command that ended."""

    name: str
    code: int
    seconds: float


def checkout_script(kernels: Path | None) -> str:
    """What is done in a clone of the checkout; `kernels`: where the new root finds built kernels."""
    tests = " ".join(f"tests/unit/{name}" for name in TESTS)
    lines = [
        SET_UP,
        DEMO,
        f"step unit-tests .venv/bin/python -m pytest -q -p no:cacheprovider {tests}",
        "step docs make docs",
    ]
    if kernels is not None:
        lines += [
            f"mkdir -p /tmp/cache/testbed && cp -r {shlex.quote(str(kernels))} /tmp/cache/testbed/kernel",
            f"step virtual-clock env XDG_CACHE_HOME=/tmp/cache .venv/bin/testbed baseline check {BASELINE}",
        ]
    return "\n".join([STEP, *lines, "exit $failed"])


def in_guest(arguments: Namespace, suite: str, kernels: Path) -> tuple[int, list[Step], float]:
    """As `in_clean_root`, of the demo in a guest."""
    program = max(kernels.glob("*/linux"))
    before, demo = ("\n".join([STEP, step, *shown, "exit $failed"]) for step, shown in ((SET_UP, ()), (DEMO, LAST)))
    return in_clean_root(arguments, suite, demo, "--guest", str(program), "--before", before)


def wheel_script(shared: Path, wheel: str, kernels: bool) -> str:
    """The same without a checkout: `shared` has the wheel, scripts/installed.py and the kernels."""
    there = shlex.quote(str(shared))
    words = [f"python3 {there}/{INSTALLED.name} --train --wheel {there}/{wheel}", *["--kernel"] * kernels]
    asked = " ".join([*words, *[f"{there}/kernel"] * kernels, "python3"])
    return "\n".join(
        [
            STEP,
            "export DEBIAN_FRONTEND=noninteractive",
            f"step packages sh -c 'apt-get update && apt-get install -y --no-install-recommends {PACKAGES}'",
            f"step used {asked}",
            "cat /tmp/step.log",
            "exit $failed",
        ]
    )


def packed(shared: Path, kernels: Path | None) -> str:
    """Put what a stranger has into a directory: the wheel, built here, and what tries it; the wheel's name."""
    sources = shared / "sources"
    subprocess.run(["git", "clone", "--quiet", str(options.ROOT), str(sources)], check=True)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", str(shared), str(sources)], check=True)
    shutil.rmtree(sources)
    shutil.copy(INSTALLED, shared)
    if kernels is not None:
        shutil.copytree(kernels, shared / "kernel")
    (wheel,) = shared.glob("*.whl")
    return wheel.name


def in_clean_root(arguments: Namespace, suite: str, script: str, *words: str) -> tuple[int, list[Step], float]:
    """The exit code of `script` in a new root of `suite`, its steps, and how long it took in all (s)."""
    cache = ("--cache", str(arguments.cache)) if arguments.cache else ()
    began, steps = time.monotonic(), []
    command = [str(CLEAN_ROOT), *cache, *words, suite, script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=options.ROOT) as running:
        assert running.stdout is not None
        for line in running.stdout:
            found = re.fullmatch(r"STEP (\S+) (\d+) (\S+) (\S+)\n", line)
            if found is None:
                print(f"  | {line.rstrip()}", flush=True)
                continue
            name, code, start, end = found.groups()
            steps.append(Step(name, int(code), float(end) - float(start)))
            print(f"{suite}: {name}: exit code {code}, {steps[-1].seconds:.1f} s", flush=True)
    return running.returncode, steps, time.monotonic() - began


def claim_of(what: str, suite: str, code: int, steps: Sequence[Step], seconds: float) -> Claim:
    """That every step worked."""
    said = ", ".join(f"{step.name} {step.seconds:.0f} s" for step in steps) or "nothing was done"
    worked = code == 0 and bool(steps)
    return Claim(
        f"{what} in a new Debian {suite}",
        "works",
        f"{said}; {'' if worked else f'exit code {code}; '}{seconds:.0f} s with the root",
        worked,
        seconds,
        "s",
    )


def main() -> int:
    """1 where something does not work."""
    parser = options.parser(__doc__)
    parser.add_argument("--suites", type=options.listed(str), default=["trixie", "bookworm"], help="Debians to try")
    parser.add_argument("--cache", type=Path, help="keep downloaded packages there for the next time")
    parser.add_argument("--kernel", type=Path, help="a cache of built kernels: $XDG_CACHE_HOME/testbed/kernel")
    parser.add_argument("--only", choices=PARTS, help="one of them; guest: by default of this machine's kernels")
    asked = parser.parse_args()
    if asked.only == "guest" and asked.kernel is None:
        asked.kernel = kernel.cache_directory()
    if asked.kernel is not None and not list(asked.kernel.glob("*/build.json")):
        raise MachineLacks(f"{asked.kernel}: no kernel is there; it is built with: {kernel.BUILD_COMMAND}")
    kernels = None if asked.kernel is None else asked.kernel.resolve()
    claims = []
    for suite in asked.suites:
        if asked.only in (None, "checkout"):
            shared = () if kernels is None else ("--share", str(kernels))
            done = in_clean_root(asked, suite, checkout_script(kernels), *shared)
            claims.append(claim_of("what README says", suite, *done))
        if asked.only in (None, "guest") and kernels is not None:
            done = in_guest(asked, suite, kernels)
            claims.append(claim_of("make demo in a User-Mode Linux guest,", suite, *done))
        if asked.only in (None, "wheel"):
            with tempfile.TemporaryDirectory(prefix="testbed-wheel-") as scratch:
                wheel = packed(Path(scratch), kernels)
                script = wheel_script(Path(scratch), wheel, kernels is not None)
                done = in_clean_root(asked, suite, script, "--no-checkout", "--share", scratch)
            claims.append(claim_of("the wheel alone", suite, *done))
    return finish(asked, Topic.FRONT_DOOR, claims, clock="real")


if __name__ == "__main__":
    sys.exit(main())
