"""A run that a page shows, and which of its files are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from testbed.judge.comparison import ScheduleComparison, job_of, jobs_of, rows_of
from testbed.results.load import Run
from testbed.results.run_tables import has_table


@dataclass(frozen=True)
class Subject:
    """One run, from its directory."""

    directory: Path
    run: Run
    answer: str
    """In a sentence, what it says of what was asked; "" where no schedule is finished."""
    missing: str = ""
    """What an incomplete one has not."""
    name: str = ""
    """What tells it from the other runs on the page; "" where it is the only one."""

    @cached_property
    def rows(self) -> Sequence[ScheduleComparison]:
        """The entries of its comparison."""
        return rows_of(self.run.comparison)

    @property
    def jobs(self) -> list[str]:
        """Names of its jobs; [] of one."""
        return [job.name for job in jobs_of(self.run.comparison)]

    @property
    def title(self) -> str:
        """Workload and topology, for people."""
        return str(self.run.comparison.get("name") or self.run.manifest.get("name") or self.directory.name)

    def lacks(self, *names: str) -> str:
        """What to say in the place of a part that needs these files; "" where all are there."""
        missing = [name for name in names if not has_table(self.directory / name)]
        *others, last = missing or [""]
        listed = f"{', '.join(others)} and {last}" if others else last
        return f"Not shown: this run has no {listed}." if missing else ""

    def compared(self, label: str) -> list[Mapping[str, Any]]:
        """The entries of a case as comparison.json has them."""
        return [row for row in self.run.comparison["schedules"] if row["label"] == label]


def entries_head(rows: Sequence[ScheduleComparison]) -> str:
    """The head of a column with their names."""
    return "case: job" if any(map(job_of, rows)) else "schedule"


def row_name(row: ScheduleComparison) -> str:
    """What an entry is called among all of its run: its label, of several jobs with the job's name."""
    job = job_of(row)
    return f"{row.label}: {job}" if job else row.label
