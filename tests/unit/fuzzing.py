"""Damaged inputs, made from the shipped ones by a seed, given to the command line; what it must never do with them."""

from __future__ import annotations

import copy
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from unittest.mock import patch

import typer.main
import yaml
from test_results import ASKED, write_run

from testbed.cli import main

ROOT = Path(__file__).parents[2]
MOST_CPU_S = 5.0
MOST_BYTES = 500_000_000
MOST_WAIT_S = 200.0
"""On the wall clock: what waits without computing. A busy machine must not reach it."""

_LINE = re.compile(r"error: (?P<where>.+?): (?P<field>.+?): got (?P<value>.+), expected (?P<expected>.+)")
_LEAKED = re.compile(
    r"[Ii]nput should|[Vv]alue error|pydantic|valid (?:integer|number|string|dictionary|list)\b|type=|Traceback"
    r"|ReaderError|ScannerError|function-|\[key\]|Field required|<class|object at 0x"
)
_MOST_CHARACTERS = 1700
_BAD_INPUT = 2


class Case(NamedTuple):
    """One damaged input and the command that reads it."""

    seed: int
    kind: str
    arguments: tuple[str, ...]
    about: str
    """What a refusal must name: the damaged file or option; "" where that is not one thing."""


class Outcome(NamedTuple):
    """What became of a case."""

    case: Case
    code: int
    said: str
    cpu_s: float
    grown_bytes: int
    """By how much the most memory that the process ever had grew."""

    def fault(self) -> str:
        """What is wrong with it, in a line; "" if nothing."""
        if self.cpu_s > MOST_CPU_S:
            return f"hang: {self.cpu_s:.1f} s"
        if self.grown_bytes > MOST_BYTES:
            return f"memory: {self.grown_bytes / 1e6:.0f} MB"
        if "Traceback" in self.said:
            return "traceback: " + self.said.strip().splitlines()[-1]
        if self.code not in (0, 1, 2, 3, 4, 5):
            return f"exit code {self.code}"
        return self._fault_of_refusal() if self.code == _BAD_INPUT else ""

    def _fault_of_refusal(self) -> str:
        lines = self.said.strip().splitlines()
        if len(lines) != 1:
            return f"{len(lines)} lines: {self.said[:200]}"
        match = _LINE.fullmatch(lines[0])
        if match is None:
            return f"not file, field, value, expected: {lines[0][:300]}"
        if _LEAKED.search(match["where"] + match["field"] + match["expected"]):
            return f"leaked wording: {lines[0][:300]}"
        if len(lines[0]) > _MOST_CHARACTERS:
            return f"{len(lines[0])} characters: {lines[0][:100]}"
        misfit = match["where"].startswith("schedule ")  # a schedule that was generated stands in no file
        if self.case.about and self.case.about not in lines[0] and not misfit:
            return f"{self.case.about} is not named: {lines[0][:300]}"
        return ""


class Samples(NamedTuple):
    """Good inputs to damage."""

    topologies: list[Path]
    workloads: list[Path]
    plans: list[Path]
    csvs: list[Path]
    kept: Path
    """A schedules.json."""
    baseline: Path
    results: Path


def samples(directory: Path) -> Samples:
    """The shipped inputs, and files that the testbed writes of them."""
    topologies = sorted((ROOT / "topologies").glob("*.yaml"))
    # those that every topology has the nodes for
    workloads = [*sorted((ROOT / "workloads").glob("tiny-*.yaml")), ROOT / "workloads/paper-llama2-13b.yaml"]
    plans = []
    for number, topology in enumerate(("two-dc-longhaul", "two-dc-cards")):
        plans.append(directory / f"plan{number}.json")
        workload = str(ROOT / "workloads/tiny-gpt-pp4.yaml")
        _called("plan", str(ROOT / f"topologies/{topology}.yaml"), workload, "-o", str(plans[-1]), "--quiet")
    results = directory / "run"
    results.mkdir()
    write_run(results, *ASKED)
    kept = ROOT / "results/baselines/longhaul-pp4"
    return Samples(
        topologies, workloads, plans, [ROOT / "examples/my_schedule.csv"], kept / "schedules.json", kept, results
    )


def _called(*arguments: str) -> None:
    outcome = run_here(Case(0, "sample", arguments, ""))
    if outcome.code or outcome.fault():
        raise AssertionError(f"{arguments}: {outcome.said}")


# --- running -------------------------------------------------------------------------------------


_ELSEWHERE = Path(tempfile.gettempdir())
"""Where relative names lead to nothing that somebody needs."""

_command = lru_cache(maxsize=1)(typer.main.get_command)


class _TooLong(BaseException):
    """Raised inside a case that does not end."""


@contextmanager
def _deadline() -> Iterator[None]:
    def stop(_: int, __: FrameType | None) -> None:
        raise _TooLong

    limits = (
        (signal.ITIMER_REAL, signal.SIGALRM, MOST_WAIT_S),
        (signal.ITIMER_PROF, signal.SIGPROF, 2 * MOST_CPU_S),
    )
    before = [signal.signal(sent, stop) for _, sent, _ in limits]
    for timer, _, seconds in limits:
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for (timer, sent, _), handler in zip(limits, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(sent, handler)


def run_here(case: Case) -> Outcome:
    """Run a case through the command line's entry point, in this process."""
    out, errors = io.StringIO(), io.StringIO()
    began, most, code = time.process_time(), _peak_bytes(), 0
    built = patch("typer.main.get_command", _command)  # half of a case's time, the same every time
    with patch.object(sys, "argv", ["testbed", *case.arguments]), redirect_stdout(out), redirect_stderr(errors), built:
        try:
            with _deadline(), chdir(_ELSEWHERE):
                main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        except _TooLong:
            errors.write("Traceback: no end")
        except BaseException:  # noqa: BLE001 - whatever it is, it is what is looked for
            code = 1
            traceback.print_exc(file=errors)
    return Outcome(case, code, errors.getvalue(), time.process_time() - began, _peak_bytes() - most)


def run_apart(case: Case) -> Outcome:
    """Run a case as a user does, in a process of its own with no more memory and time than it may have."""

    def limits() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (2 * MOST_BYTES, 2 * MOST_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))

    command = [sys.executable, "-m", "testbed", *case.arguments]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, errors="backslashreplace", preexec_fn=limits,
    )  # fmt: skip
    try:
        _, said = process.communicate(timeout=MOST_WAIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        _, said = process.communicate()
        said += "Traceback: no end"
    return Outcome(case, process.returncode, said, 0.0, 0)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# --- damage --------------------------------------------------------------------------------------

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 64, 257, 5000, 10**6, 10**12, 2**63, -(2**63), 0.0, -0.0, 0.5, 1.5,
    -2.5, 1e-300,
    1e300, "", " ", "x", "none", "contiguous", "1f1b", "gpipe", "zb-v", "geopipe", "nope", "a.py:b", "a.csv",
    "../x.csv",
    "../../etc/passwd", "gpt", "1 ms", "1e300 s", "-1 ms", "0 s", "10", "1 GB", "1 Gbit/s", "1e-30 bit/s",
    "1 km", "5 µs",
    "1_000 ms", "1,5 ms", "NaN", "inf s", "wuqing", "paris", "paris/0", "warsaw/1", "\x00", "\u202e", "é" * 50,
    "a" * 5000,
    "9" * 500, [], {}, [[]], [1, 2], ["x"] * 4, {"x": 1}, {"": None}, [None], {"nodes": 1}, "[1:2/3]", "--help", "-1",
)  # fmt: skip
"""Put in place of something else."""

RAW: tuple[str, ...] = (
    "yes", "No", "on", "017", "0o17", "0x1f", "12:30:45", "2024-01-01", "1_000", "1e3", ".inf", "-.INF",
    ".nan", "~", "<<",
    "!!int x", "!!timestamp x", "!!binary x", "!!python/object:os.system x", "!foo bar", "*a", "&a 1",
    "&a [*a]", "|", ">",
    '"\\UFFFFFFFF"', '"\\uD800"', '"\\x00"', "'", '"', "[", "]", "{", "}", "? x", "- x", "a: b: c", "@", "`",
    "%", "#", "--- x",
    "9" * 5000, "[" * 2000, "{a: " * 500, "0." + "1" * 400, "1e99999", "\t", "\x07", "\ufeff", "\u2028",
)  # fmt: skip
"""YAML as it stands, not quoted."""

OPTION_VALUES = (
    "", "0", "-1", "1", "3", "nan", "inf", "1e400", "9" * 400, "9" * 5000, "x", "None", "1.5", "--json", "-", "/", ".",
    "/dev/zero", "/dev/null", "/proc/nowhere/x", "1f1b", "best.csv", "a.py:x", "virtual", "real", "auto", "é",
    "\u202e", "=", "a=",
)  # fmt: skip


def _nodes(tree: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of everything in a tree but its root."""
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, child in children:
        yield (*at, key)
        yield from _nodes(child, (*at, key))


def _get(tree: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        tree = tree[key]
    return tree


def damaged(tree: Any, rng: random.Random, raw: bool = False) -> Any:
    """A copy with one to three things changed."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(_nodes(tree))
        if not places:
            return rng.choice(VALUES)
        place = rng.choice(places)
        parent, key = _get(tree, place[:-1]), place[-1]
        rng.choice(_CHANGES)(parent, key, rng)
        if raw and rng.random() < 0.3 and _there(parent, key):
            parent[key] = f"@@{rng.randrange(len(RAW))}@@"
    return tree


def _there(parent: Any, key: Any) -> bool:
    return key in parent if isinstance(parent, dict) else key < len(parent)


def _replace(parent: Any, key: Any, rng: random.Random) -> None:
    parent[key] = copy.deepcopy(rng.choice(VALUES))


def _remove(parent: Any, key: Any, _: random.Random) -> None:
    del parent[key]


def _rename(parent: Any, key: Any, rng: random.Random) -> None:
    if isinstance(parent, dict):
        parent[rng.choice((f"{key}x", "", "name", str(key).upper(), " ", "0"))] = parent.pop(key)


def _double(parent: Any, key: Any, rng: random.Random) -> None:
    if isinstance(parent, list):
        parent.extend(copy.deepcopy(parent[key]) for _ in range(rng.choice((1, 2, 50))))
    else:
        parent[f"{key}2"] = copy.deepcopy(parent[key])


def _wrap(parent: Any, key: Any, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 2, 40))):
        parent[key] = [parent[key]] if rng.random() < 0.5 else {"x": parent[key]}


def _scale(parent: Any, key: Any, rng: random.Random) -> None:
    value = parent[key]
    if isinstance(value, bool) or value is None:
        parent[key] = not value
    elif isinstance(value, int):
        parent[key] = rng.choice((-value, value + 1, value - 1, value * 10, value * 10**6, float(value), str(value)))
    elif isinstance(value, float):
        parent[key] = rng.choice((-value, value * 1e30, value * 1e-30, int(value), str(value), True))
    elif isinstance(value, str) and value:
        at = rng.randrange(len(value))
        parent[key] = rng.choice(
            (value[:at], value[at:], value[:at] + chr(rng.randrange(1, 0x3000)) + value[at:], value * 2, value.upper())
        )


_CHANGES: tuple[Callable[[Any, Any, random.Random], None], ...] = (
    _replace,
    _replace,
    _remove,
    _rename,
    _double,
    _wrap,
    _scale,
)


_BYTES = (b"", b"\x00", b"\xff", b"\xc3\x28", b"\xef\xbb\xbf", b"\n", b"\t", b",", b"{", b'"', b": ")


def damaged_bytes(content: bytes, rng: random.Random) -> bytes:
    """A copy with some bytes changed, cut, doubled or put in."""
    content = content or b"x"
    for _ in range(rng.choice((1, 2, 8))):
        at, length = rng.randrange(len(content) + 1), rng.choice((1, 1, 4, 100))
        noise = bytes(rng.randrange(256) for _ in range(length))
        new = rng.choice((*_BYTES, noise, content[at : at + length] * 3))
        content = content[:at] + new + content[at + rng.choice((0, length)) :]
    return content


# --- cases ---------------------------------------------------------------------------------------


def make_case(seed: int, good: Samples, place: Path) -> Case:
    """The case of a seed; its files lie in `place`, which is emptied first. The same seed gives the same case."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    rng = random.Random(seed)
    (make,) = rng.choices(list(_MAKERS), list(_MAKERS.values()))
    arguments, about = make(rng, good, place)
    return Case(seed, make.__name__.strip("_"), tuple(arguments), about)


_Made = tuple[list[str], str]


@lru_cache(maxsize=64)
def _tree(path: Path) -> Any:
    """What a good file holds; not to be changed."""
    text = path.read_text(encoding="utf-8")
    return json.loads(text) if path.suffix == ".json" else yaml.load(text, Loader=_LOADER)


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def _pair(rng: random.Random, good: Samples) -> tuple[Path, Path]:
    return rng.choice(good.topologies), rng.choice(good.workloads)


def _reading(rng: random.Random, place: Path, topology: Path, workload: Path) -> list[str]:
    files = [str(topology), str(workload), "--quiet", *rng.choice(((), ("--schedule", "1f1b")))]
    return rng.choice(
        (
            ["predict", *files],
            ["predict", *files, "--json"],
            ["schedule", "show", *files, "--order"],
            ["plan", *files, "-o", str(place / "out.json")],
        )
    )


def _yaml_text(tree: Any) -> bytes:
    text = yaml.dump(tree, Dumper=_DUMPER, sort_keys=False, allow_unicode=True)
    text = re.sub(r"['\"]?@@(\d+)@@['\"]?", lambda match: RAW[int(match[1])], text)
    return text.encode("utf-8", "surrogatepass")


def _bad_yaml(rng: random.Random, good: Samples, place: Path) -> _Made:
    topology, workload = _pair(rng, good)
    which = rng.choice((topology, workload))
    bad = place / "bad.yaml"
    if rng.random() < 0.75:
        bad.write_bytes(_yaml_text(damaged(_tree(which), rng, raw=True)))
    else:
        bad.write_bytes(damaged_bytes(which.read_bytes(), rng))
    both = (bad, workload) if which is topology else (topology, bad)
    # what does not fit together is said of the workload, whichever was damaged
    return _reading(rng, place, *both), ".yaml" if which is topology else "bad.yaml"


def _bad_setting(rng: random.Random, good: Samples, place: Path) -> _Made:
    topology, workload = _pair(rng, good)
    tree = _tree(workload)
    keys = [".".join(map(str, found)) for found in _nodes(tree)] + [
        "topology.links.0.rate",
        "topology.name",
        "",
        ".",
        "a..b",
    ]
    key = rng.choice((rng.choice(keys), "schedules.9", "schedules.x.memory", "schedules.-1", "topology", "x" * 300))
    value = rng.choice((rng.choice(RAW), json.dumps(rng.choice(VALUES)), str(rng.choice(VALUES))))
    text = rng.choice((*[f"{key}={value}"] * 8, key, f"={value}")).replace("\x00", "")
    return [*_reading(rng, place, topology, workload), "--set", text], ""


def _bad_plan(rng: random.Random, good: Samples, place: Path) -> _Made:
    which, bad = rng.choice(good.plans), place / "bad.json"
    if rng.random() < 0.8:
        bad.write_text(json.dumps(damaged(_tree(which), rng)), encoding="utf-8", errors="surrogatepass")
    else:
        bad.write_bytes(damaged_bytes(which.read_bytes(), rng))
    return ["predict", str(bad), *rng.choice(([], ["--json"]))], "bad.json"


def _bad_csv(rng: random.Random, good: Samples, place: Path) -> _Made:
    topology, workload = good.topologies[0], good.workloads[0]
    cells = [line.split(",") for line in rng.choice(good.csvs).read_text().splitlines()]
    bad = place / "bad.csv"
    if rng.random() < 0.6:
        found = damaged(cells, rng)
        rows = found if isinstance(found, list) else [found]
        text = "\n".join(",".join(map(str, row)) if isinstance(row, list) else str(row) for row in rows)
        bad.write_text(text, encoding="utf-8", errors="surrogatepass")
    else:
        bad.write_bytes(damaged_bytes(bad_source(rng, good), rng))
    files = [str(topology), str(workload)]
    return rng.choice((["schedule", "validate", *files, str(bad)], ["predict", *files, "--schedule", str(bad)])), ""


def bad_source(rng: random.Random, good: Samples) -> bytes:
    """What a good CSV holds."""
    return rng.choice(good.csvs).read_bytes()


def _bad_kept(rng: random.Random, good: Samples, place: Path) -> _Made:
    topology, workload = ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml"
    bad = place / "bad.json"
    if rng.random() < 0.8:
        bad.write_text(json.dumps(damaged(_tree(good.kept), rng)))
    else:
        bad.write_bytes(damaged_bytes(good.kept.read_bytes(), rng))
    out = str(place / "out.json")
    return ["plan", str(topology), str(workload), "--schedules-from", str(bad), "-o", out, "--quiet"], ""


def _damage_one_of(directory: Path, names: list[str], rng: random.Random) -> None:
    path = directory / rng.choice(names)
    if path.suffix == ".json" and rng.random() < 0.8:
        path.write_text(json.dumps(damaged(json.loads(path.read_text()), rng)))
    elif path.suffix == ".yaml" and rng.random() < 0.8:
        path.write_bytes(_yaml_text(damaged(yaml.load(path.read_text(), Loader=_LOADER), rng, raw=True)))
    else:
        path.write_bytes(damaged_bytes(path.read_bytes(), rng))


def _bad_baseline(rng: random.Random, good: Samples, place: Path) -> _Made:
    bad = place / "bad"
    shutil.copytree(good.baseline, bad)
    _damage_one_of(bad, sorted(path.name for path in bad.iterdir()), rng)
    if rng.random() < 0.5:
        return ["baseline", "list", "--baselines", str(place)], ""
    return ["baseline", "check", str(bad), "--predict-only", "--quiet"], ""


def _bad_results(rng: random.Random, good: Samples, place: Path) -> _Made:
    bad = place / "bad"
    shutil.copytree(good.results, bad)
    (bad / "timeline.svg").write_text("")
    names = ["manifest.json", "comparison.json", "comparison.json"]
    if rng.random() < 0.1:  # a picture takes a second
        (bad / "timeline.svg").unlink()
        names += ["actions.parquet", "messages.parquet", "iterations.parquet"]
    _damage_one_of(bad, names, rng)
    return ["report", str(bad), *rng.choice(([], ["--json"]))], "bad"


_OPTIONS = {
    "predict": ("--schedule", "--set", "--json", "--nope"),
    "plan": ("--schedule", "--out", "--iterations", "--schedules-from", "--clock", "--seed", "--set"),
    "schedule show": ("--schedule", "--set", "--svg"),
    "schedule export": ("--schedule", "--out", "--set", "--comms"),
    "baseline check": ("--baselines", "--set", "--junit", "--out", "--wall-limit"),
    "baseline save": ("--run", "--clock", "--seed", "--iterations", "--wall-limit", "--shaper"),
    "calibrate": ("--size", "--seed", "--shaper", "--clock", "--host-priority"),
    "test-determinism": ("--boots", "--seeds", "--jobs", "--wall-limit"),
    "report": ("--svg",),
    "kernel build": ("--source", "--jobs"),
}


def _bad_option(rng: random.Random, good: Samples, place: Path) -> _Made:
    """An option with a value that it mostly cannot take; nothing that would build a lab or a kernel."""
    command = rng.choice(list(_OPTIONS))
    option, value = rng.choice(_OPTIONS[command]), rng.choice(OPTION_VALUES)
    files = [str(good.topologies[0]), str(good.workloads[0])]
    match command:
        case "predict" | "plan" | "schedule show" | "schedule export":
            arguments = [*command.split(), *files, *rng.choice(((), ("--schedule", "1f1b")))]
            if command == "plan":
                arguments += ["-o", str(place / "out.json")]
        case "report":
            arguments = ["report", str(good.results)]
        case "baseline check":
            arguments = ["baseline", "check", "--predict-only", "--quiet", str(good.baseline)]
        case _:  # nothing to work on: what is refused is the option or that
            arguments = [
                *command.split(),
                *["/proc/nowhere/a.yaml", "/proc/nowhere/b.yaml"][: 2 - (command == "calibrate")],
            ]
            if command == "kernel build":
                arguments += ["--jobs", "0"]
    if option in ("--out", "--svg", "--junit"):
        value = rng.choice(
            (
                "/proc/nowhere/x.svg",
                "/proc/x.svg",
                str(place),
                "/dev/full",
                str(place / "no" / "x.svg"),
                f"{place}/{'9' * 400}",
            )
        )
    return [*arguments, option, value], ""


def _odd_file(rng: random.Random, good: Samples, place: Path) -> _Made:
    """What is no file at all, or too much of one."""
    odd, deep = place / "odd", rng.randrange(3, 12)
    names = "abcdefghijkl"
    bomb = "x0: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
        f"x{n}: &{names[n + 1]} [{', '.join([f'*{names[n]}'] * 9)}]\n" for n in range(deep - 1)
    )
    kind = rng.choice(
        ("zero", "fifo", "directory", "nothing", "loop", "bomb", "large", "empty", "deep", "many", "long")
    )
    match kind:
        case "zero":
            odd.symlink_to("/dev/zero")
        case "fifo":
            os.mkfifo(odd)
        case "directory":
            odd.mkdir()
        case "loop":
            odd.symlink_to(odd)
        case "bomb":
            odd.write_text(bomb)
        case "large":
            with odd.open("wb") as file:
                file.truncate(2 * 10**9)
        case "empty":
            odd.touch()
        case "deep":
            odd.write_text(rng.choice("[{") * 100_000)
        case "many":
            odd.write_text("a: [" + "x," * 200_000 + "]")
        case "long":
            odd.write_text("name: " + "x" * 900_000)
    files = [str(good.topologies[0]), str(good.workloads[0])]
    arguments = rng.choice(
        (
            ["predict", str(odd), files[1]],
            ["predict", files[0], str(odd)],
            ["predict", str(odd)],
            ["predict", *files, "--schedule", str(place / "odd.csv")],
            ["schedule", "validate", *files, str(odd)],
            ["plan", *files, "--schedules-from", str(odd), "-o", str(place / "out.json")],
            ["report", str(odd)],
            ["baseline", "check", str(odd), "--predict-only"],
        )
    )
    if "odd.csv" in arguments[-1]:
        odd.rename(place / "odd.csv") if kind != "nothing" else None
    return arguments, "odd"


_MAKERS = {
    _bad_yaml: 40,
    _bad_setting: 15,
    _bad_plan: 12,
    _bad_csv: 6,
    _bad_kept: 5,
    _bad_baseline: 6,
    _bad_results: 6,
    _bad_option: 8,
    _odd_file: 2,
}
