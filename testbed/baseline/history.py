"""How baselines went from check to check: a line of JSON per check, in a file that other programs can read as well."""

from __future__ import annotations

import fcntl
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from testbed import __version__, source
from testbed.baseline import environment
from testbed.baseline.check_report import Checked, CheckReport
from testbed.baseline.regression import CheckVerdict, Finding
from testbed.baseline.tolerance import Mode
from testbed.errors import BadInput
from testbed.files import json_object, read_text, replacing
from testbed.grouping import grouped
from testbed.spec.document import validate

FILE = "history.jsonl"
_LOCK = ".lock"
_MOST_BYTES = 256_000_000
_EXPECTED = "what `testbed baseline check --history` writes"


@dataclass(frozen=True)
class Machine:
    """On what a check was made; nothing in it names the machine."""

    architecture: str
    cpus: int
    kernel: str
    python: str


@dataclass(frozen=True)
class ScheduleRecord:
    """One schedule, of one job, of one baseline in a check. A time that is not known is None."""

    baseline: str
    mode: Mode
    """How it was checked: the model alone, or on which clock."""
    schedule: str
    """Label of the case."""
    job: str
    """"" where there is one job only."""
    measured_s: float | None
    """Median iteration time, seconds."""
    predicted_s: float | None
    """Predicted iteration time, seconds."""
    verdict: CheckVerdict
    kernel: str | None
    """On which it ran: a guest's, else the machine's; None of a prediction."""

    @property
    def name(self) -> str:
        """What it is called in a list of many."""
        return f"{self.baseline}: {self.schedule}" + (f" ({self.job})" if self.job else "")

    @property
    def time_s(self) -> float | None:
        """Seconds of an iteration: measured where it ran, else predicted."""
        return self.predicted_s if self.mode is Mode.predict else self.measured_s


@dataclass(frozen=True)
class CheckRecord:
    """One check: a line of the file."""

    format: Literal[1]
    time: str
    """When it ended, ISO 8601."""
    commit: str | None
    """Of the repository that the check was called in; None where that is none."""
    modified: bool | None
    """Whether files that git knows differed from that commit."""
    version: str
    """Of the testbed."""
    source: str
    """Hash of the testbed's files."""
    machine: Machine
    within_tolerance: bool
    schedules: tuple[ScheduleRecord, ...]

    @property
    def commit_name(self) -> str:
        """Its commit in short, with + where files differed from it."""
        return "-" if self.commit is None else f"{self.commit[:7]}{'+' if self.modified else ''}"

    def as_json(self) -> dict[str, Any]:
        """A line of the file."""
        return asdict(self)


class Point(NamedTuple):
    """A schedule in one of the checks."""

    check: CheckRecord
    record: ScheduleRecord


class Series(NamedTuple):
    """One schedule through all checks that it is in, the earliest first."""

    name: str
    mode: Mode
    points: Sequence[Point]

    @property
    def times_s(self) -> list[float | None]:
        """Seconds of an iteration, None where there is no time."""
        return [point.record.time_s for point in self.points]


def record_of(report: CheckReport) -> CheckRecord:
    """What a check that has just ended says."""
    git: Mapping[str, Any] = source.git_of(Path.cwd())
    return CheckRecord(
        format=1,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=git.get("commit"),
        modified=git.get("modified"),
        version=__version__,
        source=source.identity()["source"],
        machine=Machine(
            platform.machine(), len(os.sched_getaffinity(0)), platform.release(), platform.python_version()
        ),
        within_tolerance=not report.outside and not report.of_machine,
        schedules=tuple(record for check in report.checked for record in _records(check)),
    )


def _records(check: Checked) -> Iterator[ScheduleRecord]:
    now = {figures.name: figures for figures in check.outcome.figures}
    known = {figures.name: figures for figures in check.baseline.figures} | now
    ran_on = check.outcome.environment.get("kernel")
    for name, findings in grouped((finding.schedule, finding) for finding in check.findings).items():
        figures = now.get(name)
        yield ScheduleRecord(
            baseline=check.baseline.name,
            mode=check.mode,
            schedule=known[name].schedule,
            job=known[name].job,
            measured_s=None if figures is None else figures.measured_s,
            predicted_s=None if figures is None else figures.predicted_s,
            verdict=_verdict(findings),
            kernel=environment.kernel_name(ran_on) if ran_on else None,
        )


def _verdict(findings: Sequence[Finding]) -> CheckVerdict:
    """The first that is not "same"."""
    differing = (finding.verdict for finding in findings if finding.verdict is not CheckVerdict.same)
    return next(differing, CheckVerdict.same)


def read(directory: Path) -> list[CheckRecord]:
    """The checks in a directory, the earliest first. Raises BadInput naming file and line of what is damaged."""
    path = directory / FILE
    text = read_text(path, _MOST_BYTES, _EXPECTED)
    records = []
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else [], start=1):
        where = f"{path}, line {number}"
        record = validate(CheckRecord, json_object(line, where, f"a check: {_EXPECTED}"), where)
        for index, row in enumerate(record.schedules):
            for name in ("measured_s", "predicted_s"):
                if (seconds := getattr(row, name)) is not None and seconds <= 0:
                    raise BadInput.of(where, f"schedules.{index}.{name}", seconds, "a time above 0, in seconds")
        try:
            datetime.fromisoformat(record.time)
        except ValueError as error:
            raise BadInput.of(where, "time", record.time, "a date and time, ISO 8601") from error
        records.append(record)
    return records


def require_writable(directory: Path) -> None:
    """Raises BadInput now where `append` would later: no place to write, or a file that is damaged."""
    with _locked(directory):
        if (directory / FILE).exists():
            read(directory)


def append(directory: Path, record: CheckRecord) -> None:
    """Add a check to those in a directory, which is made if need be; whoever reads meanwhile sees whole lines only.

    Raises BadInput where it cannot be written, or where the file is damaged.
    """
    path = directory / FILE
    with _locked(directory):
        before = ""
        if path.exists():
            read(directory)
            before = read_text(path, _MOST_BYTES, _EXPECTED)
        if before and not before.endswith("\n"):
            before += "\n"
        with replacing(path) as partial:
            partial.write_text(before + json.dumps(record.as_json(), allow_nan=False) + "\n", encoding="utf-8")


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """The directory, made if need be, to this process alone: checks may end at the same time."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
    except OSError as error:
        expected = f"a directory that can be written ({error.strerror or error})"
        raise BadInput.of("--history", "directory", str(directory), expected) from error


def series_of(records: Sequence[CheckRecord], names: Sequence[str] = ()) -> list[Series]:
    """Every schedule through the checks, by how it was checked; of the baselines with these `names`, or of all.

    Raises BadInput for a name that no check has.
    """
    every = [Point(record, row) for record in records for row in record.schedules]
    known = dict.fromkeys(point.record.baseline for point in every)
    for name in names:
        if name not in known:
            raise BadInput.of("baseline history", "name", name, f"one of {', '.join(known) or 'no baselines'}")
    wanted = [point for point in every if not names or point.record.baseline in names]
    by_key = grouped(((point.record.mode, point.record.name), point) for point in wanted)
    return [Series(name, mode, points) for (mode, name), points in by_key.items()]


_BARS = "▁▂▃▄▅▆▇█"
_NO_TIME = "x"
_LEAST_SHARE = 1e-3
"""Of the longest time, what the height of a sparkline stands for at least: less is a flat line, not a mountain."""


def sparkline(times_s: Sequence[float | None]) -> str:
    """A character per time, the higher the longer; x where there is none."""
    known = [seconds for seconds in times_s if seconds is not None]
    if not known:
        return _NO_TIME * len(times_s)
    least, height = min(known), max(max(known) - min(known), _LEAST_SHARE * max(known))
    return "".join(
        _NO_TIME if seconds is None else _BARS[min(len(_BARS) - 1, int((seconds - least) / height * len(_BARS)))]
        for seconds in times_s
    )
