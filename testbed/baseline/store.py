"""Baselines on disk: a directory each, with plan.json, the figures (comparison.json) and baseline.json."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from testbed.baseline import tolerance
from testbed.baseline.earlier_baselines import plan_of_format_1
from testbed.baseline.environment import Environment
from testbed.baseline.regression import Figures
from testbed.baseline.tolerance import Mode, Tolerances
from testbed.errors import BadInput
from testbed.files import read_json
from testbed.plan.plan import Plan
from testbed.planning import file
from testbed.planning.resolve import with_costs_of_this_version
from testbed.spec.document import validate

FORMAT = 2
"""Of baseline.json. In format 1 there was no plan.json, and it had the `seed` of the plan's clock."""
BASELINE, COMPARISON = "baseline.json", "comparison.json"

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,59}")


@dataclass(frozen=True)
class SavedFrom:
    """What a baseline's plan was made of: names of presets, and of files as seen from the baseline's directory."""

    topology: str
    workloads: list[str]
    schedules: list[str] | None
    """As --schedule named them; None: all of the workload's."""
    settings: list[str]
    iterations: int | None


@dataclass(frozen=True)
class Baseline:
    """What baseline.json and comparison.json say; `plan_of` reads the plan."""

    name: str
    mode: Mode
    saved: str
    """Date and time, ISO 8601."""
    reason: str
    """Why it was saved, or saved anew."""
    quick: bool
    """Whether `check --quick` repeats the run too, not the prediction alone."""
    shaper: str
    tolerances: Tolerances
    environment: dict[str, Any]
    figures: tuple[Figures, ...]
    files: SavedFrom | None = None
    """None for one that was saved from a plan or a run, or by a version that did not keep them."""

    @property
    def controlled(self) -> bool:
        """Whether it was measured with a control."""
        return any(figures.control_s is not None for figures in self.figures)


@dataclass(frozen=True)
class _Document:
    """The fields of baseline.json beside `format`."""

    mode: Mode
    saved: str
    reason: str
    quick: bool
    shaper: str
    tolerances: dict[str, Any]
    environment: Environment
    files: SavedFrom | None = None


def checked_name(name: str) -> str:
    """A name that can be a directory's. Raises BadInput."""
    if not _NAME.fullmatch(name):
        raise BadInput.of("baseline", "name", name, "lower-case letters, digits, hyphens and dots (at most 60)")
    return name


def find(root: Path, asked: Sequence[str]) -> list[Path]:
    """The directories of baselines: by name in `root` or by path; all in `root` when none is asked for.

    Raises BadInput for one that is not there, or where there is none at all.
    """
    if not asked:
        found = sorted(path.parent for path in root.glob(f"*/{BASELINE}"))
        if not found:
            raise BadInput.of("baseline", "directory", str(root), "a directory with baselines (testbed baseline save)")
        return found
    directories: list[Path] = []
    for name in asked:
        directory = next((path for path in (root / name, Path(name)) if (path / BASELINE).is_file()), None)
        if directory is None:
            known = ", ".join(sorted(path.parent.name for path in root.glob(f"*/{BASELINE}"))) or "none"
            raise BadInput.of("baseline", "name", name, f"a directory with {BASELINE}, or one of {root} ({known})")
        if directory.resolve() not in [path.resolve() for path in directories]:
            directories.append(directory)
    if len({path.resolve().name for path in directories}) < len(directories):
        raise BadInput.of("baseline", "name", list(asked), "baselines that differ in name")
    return directories


def read(directory: Path) -> Baseline:
    """A baseline without its plan. Raises BadInput naming file and field."""
    document, comparison = _json(directory / BASELINE), _json(directory / COMPARISON)
    where = str(directory / BASELINE)
    if document.get("format") not in (1, FORMAT):
        raise BadInput.of(where, "format", document.get("format"), f"1 or {FORMAT} (save it anew)")
    fields = validate(_Document, document, where)
    rows = comparison.get("schedules")
    if not isinstance(rows, list) or not rows:
        raise BadInput.of(str(directory / COMPARISON), "schedules", rows, "a list of schedules")
    return Baseline(
        name=directory.resolve().name,
        mode=fields.mode,
        saved=fields.saved,
        reason=fields.reason,
        quick=fields.quick,
        shaper=fields.shaper,
        tolerances=tolerance.from_document(fields.tolerances, where),
        environment=document["environment"],
        figures=tuple(
            Figures.from_json(row, str(directory / COMPARISON), f"schedules.{index}") for index, row in enumerate(rows)
        ),
        files=fields.files,
    )


def plan_of(directory: Path) -> Plan:
    """The plan of a baseline, with what this version's engine costs: that is under test. Raises BadInput."""
    document = _json(directory / BASELINE)
    plan = plan_of_format_1(directory, document) if document.get("format") == 1 else file.read(directory / file.NAME)
    if not plan.cases:
        raise BadInput.of(str(directory / file.NAME), "cases", "none", "something to measure")
    return with_costs_of_this_version(plan)


def write(directory: Path, baseline: Baseline, plan: Plan) -> None:
    """Write plan.json, baseline.json and comparison.json."""
    file.write(plan, directory / file.NAME)
    document = {
        "format": FORMAT,
        "mode": baseline.mode,
        "saved": baseline.saved,
        "reason": baseline.reason,
        "quick": baseline.quick,
        "shaper": baseline.shaper,
        "tolerances": tolerance.as_document(baseline.tolerances),
        "environment": baseline.environment,
        **({} if baseline.files is None else {"files": asdict(baseline.files)}),
    }
    comparison = {"name": baseline.name, "schedules": [figures.as_json() for figures in baseline.figures]}
    for name, content in ((BASELINE, document), (COMPARISON, comparison)):
        text = json.dumps(content, indent=2, allow_nan=False) + "\n"
        (directory / name).write_text(text, encoding="utf-8")


def require_free(directory: Path, *, overwrite: bool) -> None:
    """Raises BadInput where a baseline may not be replaced, or where something else is in its place."""
    if not directory.exists():
        return
    if not (directory / BASELINE).is_file():
        raise BadInput.of("baseline", "name", str(directory), "a new directory, or one of a baseline")
    if not overwrite:
        raise BadInput.of("baseline", "name", directory.name, "a new name (or --overwrite)")


@contextmanager
def replacing(directory: Path) -> Iterator[Path]:
    """A new directory to fill; it takes the place of `directory` when the block ends well, else it goes."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".saving-", dir=directory.parent) as scratch:
        fresh = Path(scratch) / directory.name
        fresh.mkdir()
        yield fresh
        if directory.exists():
            directory.rename(Path(scratch) / "before")
        fresh.rename(directory)


def _json(path: Path) -> dict[str, Any]:
    return read_json(path, "what `testbed baseline save` writes")
