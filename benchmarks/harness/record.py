"""Figure records: what a benchmark claims, what was asked and what came out, kept as JSON in results/figures."""

from __future__ import annotations

import json
import math
import os
import platform
import shlex
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from harness.options import ROOT, WIDTH
from testbed import source

FIGURES = ROOT / "results/figures"
_NOT_REPEATED = ("--out", "--record", "--recorded", "--cache")
"""Options that say where results or packages lie, not what is measured."""


class Topic(StrEnum):
    """What a claim is about, in the order of the page."""

    TRUTH = "Truth of the emulation"
    SCHEDULES = "Schedules against the optimum"
    ROUTING = "Routing"
    SPEED = "Speed"
    STUDIES = "Studies and reports"
    ROBUSTNESS = "Robustness"
    FRONT_DOOR = "Front door"


@dataclass(frozen=True)
class Claim:
    """One figure beside its limit."""

    claim: str
    asked: str
    """The limit; "(report)" where there is none."""
    got: str
    passed: bool | None = None
    """Whether the limit is kept by what was taken; None where there is none."""
    value: float | None = None
    """The figure for machines, in `unit`."""
    unit: str = ""
    taken: int | None = None
    """Cases taken, of `of`; None where cases are not counted."""
    of: int | None = None

    @property
    def whole(self) -> bool:
        """Whether all cases that were asked for were taken."""
        return self.taken == self.of

    @property
    def state(self) -> str:
        """In a word, as pages and screens show it."""
        if self.passed is False:
            return "MISSED"
        if not self.whole:
            return "part"
        return "info" if self.passed is None else "yes"


def each(claim: str, wrong: int, of: int, asked: str = "each", *, unit: str = "cases", more: str = "") -> Claim:
    """That none of so many is wrong."""
    return Claim(claim, asked, f"{of - wrong:,} of {of:,}{more}", not wrong, float(wrong), unit, of, of)


class Origin(NamedTuple):
    """What a figure was taken with."""

    command: str
    commit: str
    date: str
    machine: Mapping[str, Any]
    """Cores, memory in GiB, kernel, clock (virtual or real)."""
    carried: bool = False
    """Whether it was copied by hand from an earlier page, not written by its benchmark."""


class Figure(NamedTuple):
    """A claim as a record has it."""

    topic: Topic
    claim: Claim
    origin: Origin


def machine(clock: str) -> dict[str, Any]:
    """This one."""
    memory = math.ceil(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    kernel = ".".join(platform.release().split(".")[:2])
    return {"cores": os.cpu_count(), "memory_gib": memory, "kernel": kernel, "clock": clock}


def command_line(arguments: Sequence[str]) -> str:
    """The command that repeats a measurement, as typed in the checkout."""
    words, rest = [], list(arguments)
    while rest:
        word = rest.pop(0)
        if word.partition("=")[0] not in _NOT_REPEATED:
            words.append(word)
        elif word in ("--out", "--record", "--cache") and rest and not rest[0].startswith("-"):
            rest.pop(0)
    return shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words])


def measured_with(directories: Sequence[Path]) -> tuple[str, str]:
    """Commit and date of runs, by their manifests; of this moment where none has any."""
    commits, times = set(), []
    for path in (directory / "manifest.json" for directory in directories):
        document = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        if document.get("git"):  # a guest that was ended knows neither
            commits.add(str(document["git"]["commit"])[:7] + ("+" if document["git"].get("modified") else ""))
            times.append(document["time"])
    if not times:
        git = source.identity()["git"]
        return str(git["commit"])[:7] + ("+" if git.get("modified") else ""), datetime.now(UTC).isoformat()[:10]
    return " ".join(sorted(commits)), max(times)[:10]


def finish(
    arguments: Namespace,
    topic: Topic,
    claims: Sequence[Claim],
    *,
    clock: str = "virtual",
    directories: Sequence[Path] = (),
    others_stay: bool = False,
) -> int:
    """Print claims and keep them where --record asks for it; 1 where one is missed or not whole, 0 otherwise.

    `others_stay`: the record keeps claims that were not taken now.
    """
    table = Table(title="figures", title_justify="left", width=WIDTH)
    for column in ("", "claim", "asked", "got"):
        table.add_column(column, overflow="fold")
    for claim in claims:
        cases = "" if claim.whole else f" ({claim.taken} of {claim.of} cases)"
        table.add_row(claim.state, claim.claim, claim.asked, claim.got + cases)
    Console(width=WIDTH).print(table)
    if arguments.record is not None:
        name = arguments.record or Path(sys.argv[0]).stem.replace("_", "-")
        commit, date = measured_with(directories)
        origin = Origin(command_line(sys.argv[1:]), commit, date, machine(clock))
        figures = [Figure(topic, claim, origin) for claim in claims]
        kept = read(path) if others_stay and (path := FIGURES / f"{name}.json").is_file() else []
        write(name, merged(kept, figures))
    return int(not claims or any(claim.passed is False or not claim.whole for claim in claims))


def merged(kept: Sequence[Figure], taken: Sequence[Figure]) -> list[Figure]:
    """Figures that are kept with those that were taken now in their place, new ones behind them."""
    now = {one.claim.claim: one for one in taken}
    return [now.pop(one.claim.claim, one) for one in kept] + list(now.values())


def write(name: str, figures: Sequence[Figure]) -> Path:
    """Keep a record; returns its file."""
    rows = [{"topic": one.topic, **asdict(one.claim), **one.origin._asdict()} for one in figures]
    FIGURES.mkdir(parents=True, exist_ok=True)
    path = FIGURES / f"{name}.json"
    path.write_text(json.dumps(rows, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    return path


def read(path: Path) -> list[Figure]:
    """What a record has."""
    found = []
    for row in json.loads(path.read_text(encoding="utf-8")):
        claim = Claim(**{key: row.pop(key) for key in Claim.__dataclass_fields__})
        found.append(Figure(Topic(row.pop("topic")), claim, Origin(**row)))
    return found
