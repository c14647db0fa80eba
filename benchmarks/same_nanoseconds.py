"""Does the same input give the same nanoseconds, wherever it lies and whoever runs it? Byte for byte, in virtual time.

    python benchmarks/same_nanoseconds.py [--plans 20] [--schedules 4] [--seed 1] [--uids 0,12345] [--places 3]
                                          [--jobs 1] [--out DIR]

Plans drawn at random are measured in one boot per place and user. A place is a copy of this checkout, of its Python
environment and of the kernel's cache, in directories of unlike length and depth; the shell's environment differs as
well. Another user than root gets a user namespace of its own. Actions, messages and iterations of all boots must be
the same files. One more boot measures the plans in the opposite order: what came before a plan may move its medians by
microseconds, and no more.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from argparse import SUPPRESS
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from harness import options
from harness.options import ROOT
from harness.record import Claim, Topic, each, finish

from testbed.errors import ExitCode

COMPARED = ("actions.parquet", "messages.parquet", "iterations.parquet")
PLACES = ("a", "another-checkout/of-the-same-commit", f"{'deep/' * 12}{'long-name-' * 8}")
"""Below a temporary directory each."""
REVERSED = "the plans in the opposite order"
WITHIN_BOOT_NS = 5_000
"""By so much a schedule's median may depend on what ran before it in the same boot."""
QUICK = (
    "gpipe",
    "1f1b",
    "zb-h1",
    "zb-h2",
    "interleaved-1f1b",
    "looped-bfs",
    "zb1p",
    "zb-v",
    "dualpipe-v",
    "wave-greedy",
)
"""Schedules that are made at once."""
LIMIT_S = 3000.0


class Place(NamedTuple):
    """A checkout, and what runs it."""

    name: str
    checkout: Path
    base: Path
    python: Path
    cache: Path


def drawn_plans(count: int, schedules: int, seed: int, out: Path) -> list[Path]:
    """Plans of random cells: chains, rings and stars of unlike links, every second one of much that coincides."""
    import random_grid
    from harness.plans import training

    from testbed.plan.plan import Clock
    from testbed.planning import file
    from testbed.planning.resolve import with_clock

    files = []
    for number in range(count):
        draw, equal = random.Random(f"same/{seed}/{number}"), number % 2 == 1
        ranks, message = draw.randint(3, 7), 60e3 if equal else 10 ** draw.uniform(4, 6)
        network = (random_grid.equal_topology if equal else random_grid.topology)(draw, ranks, message)
        nodes = [f"{site}/{n}" for site, spec in network["datacenters"].items() for n in range(spec["nodes"])]
        job = random_grid.workload(draw, ranks, message, nodes, 1)
        job |= {
            "schedules": draw.sample(QUICK, min(schedules, len(QUICK))),
            "receives": ("early", "late")[number % 4 > 1],
        }
        plan = with_clock(training(out, f"{number:02d}", network, job).plan, Clock("virtual", seed))
        files.append(out / f"{number:02d}.plan.json")
        files[-1].write_text(file.to_json(plan), encoding="utf-8")
    return files


def copy_tree(source: Path, target: Path) -> None:
    """Hard links where source and target lie on one disk, copies elsewhere; symbolic links stay what they are."""

    def link(one: str, other: str) -> None:
        try:
            os.link(one, other)
        except OSError:
            shutil.copy2(one, other)

    shutil.copytree(source, target, symlinks=True, copy_function=link)


def installed(directory: Path) -> Place:
    """This checkout's package, Python and kernel, copied to `directory`."""
    from testbed.vm import kernel

    checkout, base, prefix = directory / "checkout", directory / "base", directory / "environment"
    checkout.mkdir(parents=True)
    shutil.copytree(ROOT / "testbed", checkout / "testbed", ignore=shutil.ignore_patterns("__pycache__"))
    (checkout / "benchmarks").mkdir()
    shutil.copy2(__file__, checkout / "benchmarks")
    shutil.copytree(Path(__file__).parent / "harness", checkout / "benchmarks/harness")
    copy_tree(Path(sys.base_prefix), base)
    python = base / Path(sys.executable).resolve().relative_to(Path(sys.base_prefix).resolve())
    if sys.prefix != sys.base_prefix:
        copy_tree(Path(sys.prefix), prefix)
        (prefix / "pyvenv.cfg").unlink()
        (prefix / "pyvenv.cfg").write_text(f"home = {python.parent}\ninclude-system-site-packages = false\n")
        for name in ("python", "python3", python.name):
            (prefix / "bin" / name).unlink(missing_ok=True)
            (prefix / "bin" / name).symlink_to(python)
        python = prefix / "bin/python"
    cache = directory / "cache"
    built = kernel.require().path.parent
    shutil.copytree(built, cache / "testbed/kernel" / built.name)
    return Place(directory.name, checkout, base, python, cache)


def environment(place: Place, *, user: str, home: Path) -> dict[str, str]:
    """Of a place's own commands: as little as possible of it is what another's is."""
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{place.checkout}:{place.checkout / 'benchmarks'}",
        "XDG_CACHE_HOME": str(place.cache),
        "HOME": str(home),
        "USER": user,
        "SOMETHING_ELSE": "x" * random.Random(f"{place.name} {user}").randint(1, 3000),
    }


def readable_python(place: Place) -> list[str]:
    """What another user's command begins with: an interpreter looks for its library where it was installed.

    Where only root may look there, the place's copy is mounted there, in a mount namespace of the command's own.
    """
    hidden = [path for path in reversed(Path(sys.base_prefix).parents) if not path.stat().st_mode & 0o001]
    if not hidden:
        return []
    script = 'mount -t tmpfs -o mode=755 own "$1" && mkdir -p "$2" && mount --bind "$3" "$2" && shift 3 && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", script, "sh", str(hidden[0]), sys.base_prefix, str(place.base)]


class Boot(NamedTuple):
    """Plans measured one after another by a user."""

    title: str
    place: Place
    uid: int
    plans: Sequence[Path]
    out: Path


def run(boot: Boot) -> float:
    """Do it; returns its wall-clock seconds."""
    title, place, uid, plans, out = boot
    out.mkdir(parents=True)
    if uid:
        os.chown(out, uid, uid)
    words = [str(place.python), "-P", str(place.checkout / "benchmarks" / Path(__file__).name), "--boot"]
    words += [*map(str, plans), "--out", str(out)]
    if uid:
        own = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--mount-proc"]
        words = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *own, *words]
        words = [*readable_python(place), *words]
    began = time.monotonic()
    other = environment(place, user=f"user-{uid}", home=out)
    done = subprocess.run(words, cwd=out, env=other, capture_output=True, text=True, check=False)
    if done.returncode not in (ExitCode.OK, ExitCode.UNTRUSTED):
        print(f"{title}: exit code {done.returncode}: {done.stderr}", flush=True)
    return time.monotonic() - began


def measure(plans: Sequence[Path], out: Path) -> int:
    """In a place: the boot itself."""
    from testbed.plan.plan import Clock
    from testbed.planning import file
    from testbed.progress import Lines
    from testbed.vm import command

    trainings = [
        command.GuestTraining(file.read(plan), out / plan.name.partition(".")[0], quiet=True) for plan in plans
    ]
    seed = trainings[0].plan.clock.seed
    _, documents = command.train(
        command.choose_machine(Clock("virtual", seed)), trainings, limit_s=LIMIT_S, reporter=Lines(quiet=False)
    )
    return int(None in documents)


def fingerprint(directory: Path) -> str:
    """Of the bytes of all that is compared."""
    return hashlib.sha256(b"".join((directory / name).read_bytes() for name in COMPARED)).hexdigest()


def difference_ns(one: Path, other: Path) -> tuple[float, float]:
    """The largest difference of any time of an action, and of a schedule's median iteration, in nanoseconds."""
    ours, theirs = (pd.read_parquet(path / "actions.parquet") for path in (one, other))
    times = ["start_s", "end_s"]
    largest = np.nanmax(np.abs(ours[times].to_numpy() - theirs[times].to_numpy()))
    documents = [json.loads((path / "comparison.json").read_text()) for path in (one, other)]
    medians = [[row["measured_s"] for row in document["schedules"]] for document in documents]
    return 1e9 * float(largest), 1e9 * max(abs(mine - other) for mine, other in zip(*medians, strict=True))


def compare(reference: Path, other: Path, names: Sequence[str]) -> list[tuple[str, float, float]]:
    """The plans whose files differ, each with its largest differences: infinite where there are no files."""
    unlike = []
    for name in names:
        if not all((path / name / file).exists() for path in (reference, other) for file in COMPARED):
            unlike.append((name, math.inf, math.inf))
        elif fingerprint(reference / name) != fingerprint(other / name):
            unlike.append((name, *difference_ns(reference / name, other / name)))
    return unlike


def report(title: str, names: Sequence[str], unlike: Sequence[tuple[str, float, float]], wall_s: float) -> None:
    """One line per boot, one per plan that differs."""
    print(f"{title}: {len(names) - len(unlike)} of {len(names)} plans byte for byte the same ({wall_s:.0f} s)")
    for name, action_ns, median_ns in unlike:
        print(f"  plan {name}: actions up to {action_ns:.0f} ns apart, medians up to {median_ns:.0f} ns", flush=True)


def main() -> int:
    """1 when a boot of the same plans gave other bytes than the first, or another order other medians; 0 otherwise."""
    parser = options.parser(__doc__)
    parser.add_argument("--plans", type=int, default=20)
    parser.add_argument("--schedules", type=int, default=4, help="per plan")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--uids", default="0,12345")
    parser.add_argument("--places", type=int, default=len(PLACES))
    parser.add_argument("--jobs", type=int, default=1, help="boots at once")
    parser.add_argument("--out", type=Path, help="kept; default: a temporary directory")
    parser.add_argument("--boot", type=Path, nargs="+", help=SUPPRESS)
    asked = parser.parse_args()
    if asked.boot:
        return measure(asked.boot, asked.out)
    with tempfile.TemporaryDirectory(prefix="same-nanoseconds-") as scratch:
        here = Path(scratch)
        here.chmod(0o755)
        out = asked.out.resolve() if asked.out else here / "results"
        out.mkdir(parents=True)
        plans = drawn_plans(asked.plans, asked.schedules, asked.seed, out)
        names = [plan.name.partition(".")[0] for plan in plans]
        boots: list[Boot] = []
        for below in PLACES[: asked.places]:
            place = installed(here / below)
            for uid in map(int, asked.uids.split(",")):
                title = f"{len(str(place.checkout))} characters of path, uid {uid}"
                boots.append(Boot(title, place, uid, plans, out / f"boot-{len(boots)}"))
        if len(plans) > 1:
            boots.append(Boot(REVERSED, place, 0, plans[::-1], out / f"boot-{len(boots)}"))
        print(f"{len(plans)} plans of {asked.schedules} schedules, {len(boots)} boots", flush=True)
        with ThreadPoolExecutor(asked.jobs) as pool:
            walls = list(pool.map(run, boots))
        unlike = [compare(boots[0].out, boot.out, names) for boot in boots]
        for boot, found, wall_s in zip(boots, unlike, walls, strict=True):
            report(boot.title, names, found, wall_s)
    elsewhere = [found for boot, found in zip(boots, unlike, strict=True) if boot.title != REVERSED]
    within = [one for boot, found in zip(boots, unlike, strict=True) if boot.title == REVERSED for one in found]
    pairs = len(names) * (len(elsewhere) - 1)
    same = f"the same files from {asked.places} paths and users {asked.uids}"
    claims = [each(same, sum(map(len, elsewhere)), pairs, "byte for byte", unit="plans", more=" plans")]
    if len(plans) > 1:
        median_ns = max((median for _, _, median in within), default=0.0)
        what, limit = "medians of plans measured in the opposite order", f"<= {WITHIN_BOOT_NS / 1000:g} us apart"
        got = f"{median_ns / 1000:.2f} us, {len(within)} of {len(names)} plans not the same bytes"
        claims.append(Claim(what, limit, got, median_ns <= WITHIN_BOOT_NS, median_ns, "ns"))
    return finish(asked, Topic.TRUTH, claims)


if __name__ == "__main__":
    sys.exit(main())
