"""Many plans in few boots of the virtual clock, or what was recorded of them before."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from harness import plans as files
from harness.options import ROOT, numbers
from harness.rows import Comparison, Row, predictions, rows_of
from testbed.errors import BadInput, ExitCode, RunFailed
from testbed.plan.plan import Clock, Plan
from testbed.planning import file
from testbed.progress import Lines
from testbed.vm import command

LIMIT_S = 5400.0
"""Of wall time for one boot."""
RUN_LIMIT_S = 900.0
"""Of wall time for one command on the real clock."""

Plans = Mapping[str, Callable[[Path], command.GuestTraining]]
"""By the name of its directory, what makes a plan below a directory: when its boot begins, as schedules take time."""


class Taken(NamedTuple):
    """What came of the plans that were asked for."""

    out: Path
    asked: int
    comparisons: dict[str, Comparison]
    """Of those that were measured."""
    rows: list[Row]
    """Of all of them, the worst first."""
    failed: list[str]
    """Those without a comparison."""
    refused: dict[str, str]
    """Those that are bad input, with what was said."""

    def workload(self, plan: str) -> dict[str, Any]:
        """What was written of a plan."""
        return files.workload_of(self.out, plan)

    @property
    def untrusted(self) -> list[Row]:
        """Rows whose own verdict is that."""
        return [row for row in self.rows if not row.trusted]

    @property
    def misranked(self) -> list[str]:
        """Plans whose schedules were measured in another order than predicted."""
        return [name for name, one in self.comparisons.items() if not one["ranking_as_predicted"]]


def take(arguments: Namespace, plans: Plans, *, real: Sequence[str] | None = None) -> Taken:
    """Measure plans, or with --recorded read what lies in --out; `real`: options of a run of each on the real clock."""
    if arguments.recorded:
        return recorded(arguments.out, plans)
    if real is not None:
        found = {}
        for name, made in plans.items():
            made(arguments.out)
            found[name] = run_of_files(arguments.out, name, real)
        return collected(arguments.out, found, {})
    return measured(arguments.out, plans, arguments.per_boot)


def of_numbers(arguments: Namespace, make: Callable[..., command.GuestTraining]) -> Plans:
    """The plans that were asked for, by `make` of a number, a directory, and by their names those of plan and seed."""
    names = {f"plan-{number:03d}": number for number in numbers(arguments)}
    return {name: partial(make, number, name=name, seed=arguments.seed) for name, number in names.items()}


def drawn(
    arguments: Namespace,
    documents: Callable[[int], tuple[files.Document, files.Document]],
    *,
    prefix: str = "plan",
    real: Sequence[str] | None = None,
) -> Taken:
    """The same of plans drawn by number: `documents` are topology and workload of one."""

    def made(number: int, out: Path) -> command.GuestTraining:
        return files.training(out, f"{prefix}-{number:03d}", *documents(number))

    return take(arguments, {f"{prefix}-{n:03d}": partial(made, n) for n in numbers(arguments)}, real=real)


def recorded(out: Path, plans: Plans) -> Taken:
    """What lies in a directory, held against today's model. Nothing is written there."""
    found: dict[str, Comparison | None] = {}
    refused: dict[str, str] = {}
    for name, made in plans.items():
        document = comparison_of(out / name)
        if document is None and any(out.glob(f"{name}.*")) and (said := _refusal(made)):
            refused[name] = said
            continue
        found[name] = document
    return collected(out, found, refused, today=True)


def comparison_of(directory: Path) -> Comparison | None:
    """What a run left; None where it did not finish."""
    path = directory / "comparison.json"
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return document if document.get("complete") else None


def _refusal(made: Callable[[Path], command.GuestTraining]) -> str | None:
    """What is said of a plan that is bad input; None for another, which may still be under way."""
    with TemporaryDirectory() as scratch:
        try:
            made(Path(scratch))
        except BadInput as error:
            return str(error)
    return None


def measured(out: Path, plans: Plans, per_boot: int) -> Taken:
    """Train every plan, so many in a boot; stderr hears how far it is."""
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Comparison | None] = {}
    refused: dict[str, str] = {}
    began = time.monotonic()
    for batch in _batches(list(plans), per_boot):
        trainings = {}
        for name in batch:
            try:
                trainings[name] = plans[name](out)
            except BadInput as error:
                refused[name] = str(error)
        found |= dict.fromkeys(trainings) | dict(zip(trainings, in_a_boot(list(trainings.values())), strict=False))
        _say_left(len(found) + len(refused), len(plans), began)
    return collected(out, found, refused)


def _say_left(done: int, of: int, began: float) -> None:
    spent_s = time.monotonic() - began
    left_s = spent_s / done * (of - done)
    print(f"{done} of {of} plans in {spent_s:.0f} s, some {left_s:.0f} s left", file=sys.stderr, flush=True)


def in_a_boot(
    trainings: Sequence[command.GuestTraining], *, limit_s: float = LIMIT_S, quiet: bool = True
) -> list[dict[str, Any] | None]:
    """The comparison of each, None where it failed. Raises RunFailed when the guest does not finish."""
    if not trainings:
        return []
    machine = command.choose_machine(Clock("virtual"))
    return command.train(machine, trainings, limit_s=limit_s, reporter=Lines(quiet=quiet))[1]


def all_in_a_boot(plans: Mapping[str, Plan], out: Path, *, limit_s: float = LIMIT_S) -> dict[str, dict[str, Any]]:
    """The comparison of every plan, by the name of its directory below `out`. Raises RunFailed where one failed."""
    trainings = [command.GuestTraining(plan, out / name, quiet=True) for name, plan in plans.items()]
    found = dict(zip(plans, in_a_boot(trainings, limit_s=limit_s, quiet=False), strict=True))
    if missing := [name for name, document in found.items() if document is None]:
        raise RunFailed(f"no results of {', '.join(missing)}")
    return {name: document for name, document in found.items() if document is not None}


def run_of_files(out: Path, name: str, words: Sequence[str]) -> dict[str, Any] | None:
    """The comparison of a run of the plan's files on the real clock; None where it failed, which stderr says."""
    files = [str(out / f"{name}.{kind}.yaml") for kind in ("topology", "workload")]
    return run(name, *files, *words, "--out", str(out / name), "--overwrite")


def on_the_real_clock(out: Path, plans: Plans) -> Taken:
    """What comes of plans on this machine's clock, each in a lab of its own, whatever clock they are made for."""
    found: dict[str, Comparison | None] = {}
    for name, made in plans.items():
        path = out / f"{name}.plan.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.to_json(replace(made(out).plan, clock=Clock("real"))), encoding="utf-8")
        found[name] = run(name, str(path), "--no-picture", "--out", str(out / name), "--overwrite")
    return collected(out, found, {})


def run(name: str, *words: str) -> dict[str, Any] | None:
    """The comparison of `testbed run`, of what was finished where it failed, which stderr says; None of nothing."""
    code, document, said = run_testbed("run", *words)
    if document is None or code == ExitCode.RUN_FAILED:
        print(f"{name}: {said}", file=sys.stderr)
    return document


def run_testbed(*words: str, limit_s: float = RUN_LIMIT_S) -> tuple[int, dict[str, Any] | None, str]:
    """Exit code, document and what was said of a command with --json."""
    line = [sys.executable, "-m", "testbed", *words, "--json", "--quiet"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout.strip() else None, done.stderr.strip()


def collected(
    out: Path, found: Mapping[str, Comparison | None], refused: dict[str, str], *, today: bool = False
) -> Taken:
    """Comparisons by the name of their plan, None for failed ones, with the predictions of the run or of today."""
    known = {name: document for name, document in found.items() if document}
    rows, began = [], time.monotonic()
    for done, (name, one) in enumerate(known.items(), 1):
        rows += rows_of(name, one, predictions(out / name) if today else {})
        if today and done % 10 == 0:
            _say_left(done, len(known), began)
    rows.sort(key=lambda row: -row.missed)
    return Taken(out, len(found) + len(refused), known, rows, [name for name in found if name not in known], refused)


def _batches(names: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for begin in range(0, len(names), size):
        yield names[begin : begin + size]
