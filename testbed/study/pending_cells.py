"""The cells of a study that are still to be done, handed out in batches, each locked until something came of it.

Commands that have a directory together share its cells: what another one is at work on comes last, and is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from testbed.errors import DoesNotFit
from testbed.grouping import grouped
from testbed.planning import file
from testbed.progress import ProgressStep, Reporter
from testbed.spec.study import StudySpec
from testbed.study import cell_runs, outcomes
from testbed.study.cell_locks import CellLocks
from testbed.study.cells import StudyCell, finished_plan

_POLL_S = 0.5


class PendingCells:
    """What is left to do. `failures` says why nothing came of some, `taken` how many this command did."""

    def __init__(
        self, study: StudySpec, cells: Sequence[StudyCell], base: Path, step: ProgressStep, reporter: Reporter
    ) -> None:
        """`base` has a directory for every cell. Grids may make one plan twice: it is done once."""
        self._study, self._base, self._step, self._reporter = study, base, step, reporter
        self._left = {cell.key: cell for cell in cells}
        self.failures: dict[str, str] = {}
        self.taken = 0

    @property
    def any_left(self) -> bool:
        """Whether there are cells of which nothing came yet."""
        return bool(self._left)

    def ended(self, key: str, failed: str) -> None:
        """A cell is done, or it failed for this reason."""
        words = self._left.pop(key).words()
        if failed:
            self.failures[key] = failed
            self._reporter.say(f"{words}: {failed}")
        self.taken += 1
        self._step.advance(words)

    def batches(self, locks: CellLocks, finished: Callable[[Path], bool], at_once: int) -> Iterator[list[str]]:
        """Keys of cells whose plans lie there, as many together as share a boot: made when they are asked for.

        Those that another command is at work on are left for another time.
        """
        size = cell_runs.in_a_boot(len(self._left), at_once) if self._study.clock == "virtual" else 1
        for together in grouped((cell.unfinished.clock.seed, cell) for cell in self._left.values()).values():
            batch: list[str] = []
            for cell in together:
                if not locks.take(cell.key):
                    continue
                if finished(self._base / cell.key):  # by another command meanwhile
                    self._passed(cell)
                elif self._has_plan(cell):
                    batch.append(cell.key)
                    if len(batch) == size:
                        yield batch
                        batch = []
                    continue
                locks.release(cell.key)
            if batch:
                yield batch

    def wait(self, locks: CellLocks) -> None:
        """Until another command has let go of one of those that are left."""
        self._step.detail(f"another command is at work on {len(self._left)}")
        while self._left:
            for key in self._left:
                if locks.take(key):
                    locks.release(key)
                    return
            time.sleep(_POLL_S)

    def _passed(self, cell: StudyCell) -> None:
        del self._left[cell.key]
        self._step.advance(cell.words())

    def _has_plan(self, cell: StudyCell) -> bool:
        """Write the plan of a cell where it does not lie there; whether there is one."""
        place = self._base / cell.key / file.NAME
        if place.is_file():
            return True
        try:
            plan = finished_plan(cell, self._study)
        except DoesNotFit as error:
            self.failures[cell.key] = f"{outcomes.DOES_NOT_FIT}{error}"
            self.taken += 1
            self._passed(cell)
            return False
        place.parent.mkdir(exist_ok=True)
        file.write(plan, place)
        return True
