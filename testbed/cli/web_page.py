"""`testbed report --html`: what the answers of runs are, and what tells the runs apart, for their page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from testbed.cli.answer import sentence, what_is_missing
from testbed.cli.goodput_tables import goodput_lines
from testbed.files import output
from testbed.page.report_page import write_page
from testbed.page.subject import Subject
from testbed.results.load import Run


def write_report(runs: Mapping[Path, Run], html: Path) -> int:
    """Write the page of these runs, by their directories; returns its bytes. Raises BadInput."""
    names = _names(list(runs))
    subjects = [
        Subject(directory, run, _answer(run), "" if run.complete else what_is_missing(run), name)
        for (directory, run), name in zip(runs.items(), names, strict=True)
    ]
    with output(html, "--html") as partial:
        write_page(subjects, partial)
    return html.stat().st_size


def _answer(run: Run) -> str:
    return "; ".join(filter(None, [*goodput_lines(run.comparison.get("goodput", ())), sentence(run)]))


def _names(directories: Sequence[Path]) -> list[str]:
    """The directories' own names, where they differ, else as they were given; of one none."""
    if len(directories) == 1:
        return [""]
    own = [directory.resolve().name for directory in directories]
    return own if len(set(own)) == len(own) else [str(directory) for directory in directories]
