"""Measures the cells of a study: on the virtual clock several guests side by side, on the real clock one by one.

A directory for every cell, with its plan.json and the files of its run. One that is complete is never measured again,
so that a study that was interrupted goes on where it was.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from testbed import source
from testbed.errors import MachineLacks
from testbed.planning import file
from testbed.results.contents import comparison_of
from testbed.results.destination import COMPARISON, is_complete
from testbed.vm.parallel_commands import ParallelCommand, run_parallel

MOST_IN_A_BOOT = 16
"""Cells: to boot, to build a lab and to train the reference costs as much as two or three of them, and a guest that
dies takes the others along."""

WORKER = "testbed.study.cell_worker"

CANNOT_HERE = "cannot here: "
"""What a failure begins with that is none of a run: the machine lacks what the cell asks for."""

_BOOT_LIMIT_S, _CELL_LIMIT_S = 300.0, 600.0
_MARGIN_S = 60.0
"""A boot ends itself at its limit; this much later it is killed."""


def in_a_boot(cells: int, at_once: int) -> int:
    """How many of these cells share a boot: as few boots as may be, as many on each of `at_once` processors."""
    rounds = math.ceil(cells / (at_once * MOST_IN_A_BOOT))
    return math.ceil(cells / (at_once * max(1, rounds))) if cells else 1


def is_measured(directory: Path) -> bool:
    """Whether a cell's run has finished there."""
    return (directory / file.NAME).is_file() and is_complete(directory)


def outcome(directory: Path) -> dict[str, Any] | None:
    """The comparison of a finished cell; None of another. Raises BadInput for a damaged file."""
    return comparison_of(directory / COMPARISON) if is_measured(directory) else None


class Batches:
    """Hands out cells that are to be measured together; those of a batch that failed once more, each alone."""

    def __init__(self, base: Path, batches: Iterator[Sequence[str]], heard: Callable[[str, str], None]) -> None:
        """`base` has a directory for every cell; `heard` gets a cell's name, and why it failed or ""."""
        self._base, self._batches, self._heard = base, batches, heard
        self._again: list[str] = []
        self._tried: set[str] = set()

    def following(self) -> Sequence[str] | None:
        """The next ones; None where there are none for now. Asked whenever there is room: plans are made meanwhile."""
        if self._again:
            name = self._again.pop()
            self._tried.add(name)
            return [name]
        return next(self._batches, None)

    def ended(self, names: Sequence[str], why: str, *, final: bool = False) -> None:
        """What measured these cells is over; `why` says how, for those that it did not finish: `final` where another
        try would end the same way.
        """
        for name in names:
            if is_measured(self._base / name):
                self._heard(name, "")
            elif final or name in self._tried:
                self._heard(name, why)
            else:
                self._again.append(name)


def measure(base: Path, batches: Batches, *, virtual: bool, shaper: str, at_once: int) -> None:
    """Measure batches of cells, `at_once` of them at a time, those of a batch in one boot.

    Cells that this machine cannot measure are heard of with CANNOT_HERE in front of what it lacks.
    """
    names_of: dict[ParallelCommand, Sequence[str]] = {}

    def following() -> ParallelCommand | None:
        names = batches.following()
        if names is None:
            return None
        command = _command(base, names, virtual=virtual, shaper=shaper)
        names_of[command] = names
        return command

    with (
        TemporaryDirectory(prefix="testbed-study-") as scratch,
        closing(run_parallel(following, at_once, source.freeze(Path(scratch)))) as commands,
    ):
        for ended in commands:
            names = names_of.pop(ended.command)
            batches.ended(names, why_ended(ended.code, ended.said()), final=ended.code == MachineLacks.exit_code)
            if all(is_measured(base / name) for name in names):
                ended.command.log.unlink()


def limit_s(cells: int) -> float:
    """Wall time for a boot with so many cells, on a machine that is busy otherwise."""
    return _BOOT_LIMIT_S + _CELL_LIMIT_S * cells


def _command(base: Path, names: Sequence[str], *, virtual: bool, shaper: str) -> ParallelCommand:
    for name in names:
        empty(base / name)
    boot_limit_s = limit_s(len(names))
    if virtual:
        words = [WORKER, str(base), shaper, str(boot_limit_s), *names]
    else:
        (name,) = names
        words = ["testbed", "run", str(base / name / file.NAME), "--shaper", shaper, "--out", str(base / name)]
        words += ["--overwrite", "--no-picture", "--quiet"]
    return ParallelCommand(
        names[0], tuple(words), base / f"{names[0]}.log", boot_limit_s + _MARGIN_S, on_one_cpu=virtual
    )


def empty(directory: Path) -> None:
    """Remove what an unfinished run left of a cell, but not its plan."""
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != file.NAME:
            entry.unlink()


def why_ended(code: int | None, said: str) -> str:
    """How the process ended that was to measure cells, for those that it did not: its exit code, None where it passed
    its limit, and what it said at last.
    """
    if code == MachineLacks.exit_code:
        return CANNOT_HERE + said.rpartition("error: ")[2]
    how = "it took longer than its limit" if code is None else f"it ended with exit code {code}"
    return "\n".join(filter(None, [how, said]))
