"""The wheel as a user has it: built, installed by pip with real downloads in a new environment, and used there by name.

    python3 scripts/installed.py [--train] [--wheel FILE] [--kernel DIR] [PYTHON ...]

PYTHON: the interpreters to do it with; default: those of 3.11 to 3.14 that this machine has. Predicting is done without
torch; then `testbed run` has to name the command that adds what it lacks. With --train (root, Debian's packages of
scripts/provision.sh) that command is carried out, a run and a baseline are measured on the real clock, and the run is
shown as tables and as a page; what a busy machine adds to them is said, and no fault of the wheel's. --kernel: the same
plan on the virtual clock, with a kernel from that directory (a copy of $XDG_CACHE_HOME/testbed/kernel). --wheel: one
that is built already; then this file needs no checkout. Exit code 1: something else is not as it should be.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
NAMES = ("two-dc-longhaul", "tiny-gpt-pp4")
OUTSIDE, LACKS, UNTRUSTED = 1, 3, 5
"""Exit codes of testbed."""
LIMIT_S = 3600.0

PREDICTING = (
    ("presets",),
    ("predict", *NAMES),
    ("schedule", "compare", *NAMES, "--schedule", "zb-h1", "--schedule", "1f1b"),
    ("knee", *NAMES, "--points", "3", "--schedule", "1f1b"),
    ("route", "nsfnet", "paper-llama2-13b", "--policy", "greedy", "--schedule", "1f1b"),
    ("baseline", "save", "predicted", *NAMES, "--predict-only"),
    ("baseline", "check", "predicted"),
)
RUN = ("run", *NAMES, "--iterations", "5", "--out", "run")
VIRTUAL = (*RUN[:-1], "virtual", "--clock", "virtual")
OF_THE_RUN = (("report", "run", "--details"), ("report", "run", "--html", "run.html"))
BASELINE = (("baseline", "save", "measured", "--run", "run"), ("baseline", "check", "measured"))


class Wrong(Exception):
    """Something is not as it should be."""


def call(directory: Path, *words: str | Path, allowed: Sequence[int] = (0,)) -> subprocess.CompletedProcess[str]:
    """Run a command; what the calling environment says of Python is not for it. Raises Wrong for other exit codes.

    Kernels that lie in a `cache` of the directory are found.
    """
    seen = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    if (cache := directory / "cache").is_dir():
        seen["XDG_CACHE_HOME"] = str(cache)
    line = [str(word) for word in words]
    done = subprocess.run(line, cwd=directory, env=seen, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode not in allowed:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-12:])
        raise Wrong(f"{shlex.join(line)}: exit code {done.returncode}\n{last}")
    return done


def on_this_machine() -> Iterator[str]:
    """Interpreters of the versions that the wheel allows; a name in PATH may stand for none."""
    for version in VERSIONS:
        found = shutil.which(f"python{version}")
        if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
            yield found
        else:
            print(f"Python {version}: not here", flush=True)


def build(python: str, directory: Path) -> Path:
    """The wheel, from a copy of the sources: building writes beside them."""
    sources = directory / "sources"
    shutil.copytree(ROOT, sources, ignore=_no_sources)
    call(directory, python, "-m", "venv", "builder")
    call(directory, "builder/bin/python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", ".", sources)
    (wheel,) = directory.glob("*.whl")
    return wheel


def _no_sources(directory: str, names: list[str]) -> list[str]:
    """Of the checkout what git does not have: environments, what was measured, machine code."""
    at_top = Path(directory) == ROOT
    return [name for name in names if name == "__pycache__" or (at_top and (name[0] == "." or name == "results"))]


def step(said: str, directory: Path, *words: str | Path, allowed: Sequence[int] = (0,)) -> int:
    """A command, and a line on how it went; its exit code. Raises Wrong."""
    began = time.monotonic()
    code = call(directory, *words, allowed=allowed).returncode
    print(f"  {said}: exit code {code}, {time.monotonic() - began:.1f} s", flush=True)
    return code


def use(python: str, wheel: Path, directory: Path, kernels: Path | None, *, train: bool) -> None:
    """Install the wheel for an interpreter and use it. Raises Wrong."""
    directory.mkdir()
    call(directory, python, "-m", "venv", "env")
    inside, testbed = directory / "env/bin/python", directory / "env/bin/testbed"
    step("pip install of the wheel", directory, inside, "-m", "pip", "install", "--quiet", wheel)
    print("  packages:", *call(directory, inside, "-m", "pip", "freeze").stdout.split(), flush=True)
    if call(directory, inside, "-c", "import torch", allowed=(0, 1)).returncode == 0:
        raise Wrong("torch was installed, which predicting does without")
    for words in PREDICTING:
        step(f"testbed {shlex.join(words)}", directory, testbed, *words)
    head, _, adding = call(directory, testbed, *RUN, allowed=(LACKS,)).stderr.strip().partition("; add it with: ")
    print(f"  testbed run: {head}", flush=True)
    if not adding:
        raise Wrong("testbed run names no command")
    if train:
        step(f"pip install of {adding.partition(' install ')[2]}", directory, *shlex.split(adding))
        measure(testbed, directory)
    if train and kernels is not None:
        shutil.copytree(kernels, directory / "cache/testbed/kernel")
        step(f"testbed {shlex.join(VIRTUAL)}", directory, testbed, *VIRTUAL)
        show_times(directory / "virtual")


def show_times(run: Path) -> None:
    """What a run measured."""
    for row in json.loads((run / "comparison.json").read_text(encoding="utf-8"))["schedules"]:
        times = f"measured {row['measured_s'] * 1e3:.1f} ms, predicted {row['predicted_s'] * 1e3:.1f} ms"
        print(f"    {row['label']}: {times}; {'; '.join(row['reasons']) or 'trusted'}", flush=True)


def measure(testbed: Path, directory: Path) -> None:
    """A run on the real clock, shown, and a baseline of it where it can be trusted. Raises Wrong."""
    code = step(f"testbed {shlex.join(RUN)}", directory, testbed, *RUN, allowed=(0, UNTRUSTED))
    show_times(directory / "run")
    for words in OF_THE_RUN:
        step(f"testbed {shlex.join(words)}", directory, testbed, *words)
    # told from the files alone, the verdict is the run's own
    step("testbed report run --recheck", directory, testbed, "report", "run", "--recheck", allowed=(code,))
    for words in () if code else BASELINE:
        step(f"testbed {shlex.join(words)}", directory, testbed, *words, allowed=(0, OUTSIDE))


def main() -> int:
    """All of it for every interpreter; 1 where something is wrong with one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", action="store_true", help="install what a run needs, too, and train")
    parser.add_argument("--wheel", type=Path, metavar="FILE", help="this one; default: built from the checkout")
    parser.add_argument("--kernel", type=Path, metavar="DIR", help="with --train: run on the virtual clock, too")
    parser.add_argument("pythons", metavar="PYTHON", nargs="*", help="default: those that this machine has")
    asked = parser.parse_args()
    wrong = []
    with tempfile.TemporaryDirectory(prefix="testbed-installed-") as scratch:
        wheel = asked.wheel and asked.wheel.resolve()
        kernels = asked.kernel and asked.kernel.resolve()
        for number, python in enumerate(asked.pythons or on_this_machine()):
            said = call(Path(scratch), python, "-c", "import platform; print(platform.python_version())").stdout.strip()
            print(f"Python {said} ({python})", flush=True)
            try:
                wheel = wheel or build(python, Path(scratch))
                use(python, wheel, Path(scratch) / str(number), kernels, train=asked.train)
            except Wrong as error:
                print(f"  WRONG: {error}", flush=True)
                wrong.append(said)
    print(f"wrong with {', '.join(wrong)}" if wrong else "all as it should be")
    return 1 if wrong or wheel is None else 0


if __name__ == "__main__":
    sys.exit(main())
