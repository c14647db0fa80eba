"""Damaged inputs, each made from the shipped ones by its seed alone, and the commands that read them."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from damage import OPTION_VALUES, RAW, VALUES, damaged, damaged_bytes, nodes
from in_process import run_testbed
from test_results import ASKED, write_run

ROOT = Path(__file__).parents[2]


class Case(NamedTuple):
    """One damaged input and the command that reads it."""

    seed: int
    kind: str
    arguments: tuple[str, ...]
    about: str
    """What a refusal must name: the damaged file or option; "" where that is not one thing."""


class Samples(NamedTuple):
    """Good inputs to damage."""

    topologies: list[Path]
    workloads: list[Path]
    plans: list[Path]
    csvs: list[Path]
    kept: Path
    """A schedules.json."""
    baselines: list[Path]
    results: Path


_TWO_SITES = ("two-dc-cards", "two-dc-longhaul", "two-dc-metro")


def samples(directory: Path) -> Samples:
    """The shipped inputs, and files that the testbed writes of them."""
    # what is not damaged has to go with every other, so that all that is refused is the damage
    topologies = [ROOT / f"topologies/{name}.yaml" for name in ("four-dc", "three-region", *_TWO_SITES)]
    workloads = [*sorted((ROOT / "workloads").glob("tiny-*.yaml")), ROOT / "workloads/paper-llama2-13b.yaml"]
    plans = []
    for number, topology in enumerate(("two-dc-longhaul", "two-dc-cards")):
        plans.append(directory / f"plan{number}.json")
        workload = str(ROOT / "workloads/tiny-gpt-pp4.yaml")
        _called("plan", str(ROOT / f"topologies/{topology}.yaml"), workload, "-o", str(plans[-1]), "--quiet")
    results = directory / "run"
    results.mkdir()
    write_run(results, *ASKED)
    baselines = [ROOT / "results/baselines/longhaul-pp4", ROOT / "tests/recorded/format-1-baseline"]
    kept = baselines[1] / "schedules.json"
    return Samples(topologies, workloads, plans, [ROOT / "examples/my_schedule.csv"], kept, baselines, results)


def _called(*arguments: str) -> None:
    done = run_testbed(*arguments)
    assert done.returncode == 0, done.stderr


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
    keys = [".".join(map(str, found)) for found in nodes(tree)] + [
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
    shutil.copytree(rng.choice(good.baselines), bad)
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
    "baseline check": ("--baselines", "--set", "--junit", "--out", "--wall-limit", "--write"),
    "baseline history": ("--last", "--picture", "--write"),
    "baseline save": ("--run", "--clock", "--seed", "--iterations", "--wall-limit", "--shaper"),
    "calibrate": ("--size", "--seed", "--shaper", "--clock", "--host-priority"),
    "test-determinism": ("--boots", "--seeds", "--jobs", "--wall-limit"),
    "report": ("--svg", "--trace"),
    "kernel build": ("--source", "--jobs"),
    "guest start": ("--idle", "--guest-memory", "--seed"),
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
            arguments = ["baseline", "check", "--predict-only", "--quiet", str(good.baselines[0])]
        case _:  # nothing to work on: what is refused is the option or that
            arguments = [
                *command.split(),
                *["/proc/nowhere/a.yaml", "/proc/nowhere/b.yaml"][: 2 - (command == "calibrate")],
            ]
            if command in ("kernel build", "guest start"):
                arguments += ["--jobs", "0"]
    if option in ("--out", "--svg", "--trace", "--junit"):
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
